"""All ranks of a job return to the same restore point at the same step, each with the shards that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import undo_ranks
from torchrun import run_job

from steptape import open_run, verify


def receipts(store: Path, run: str, rank: int, kind: str = "operation_applied") -> list[tuple[int, Any]]:
    """Return step and point of each receipt of a rank."""
    events = open_run(store / run).events(rank)
    return [(event.step, event.attrs.get("point_step")) for event in events if event.kind == kind]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """Trainings of two ranks by name, all in one job. Each ends with the step at which rank 0 sees a high loss."""
    folder = tmp_path_factory.mktemp("two")
    plain = {"store": str(folder), "until": 11, "high": [11]}
    given: dict[str, dict[str, Any]] = {
        "ddp": {**plain, "how": "ddp"},
        "fsdp": {**plain, "how": "fsdp"},
        "seldom": {**plain, "how": "ddp", "until": 12, "agree_every": 3},
        "no room": {**plain, "how": "ddp", "without": [8]},
    }
    job = run_job(Path(undo_ranks.__file__), folder, 2, list(given.values()))
    return folder, dict(zip(given, job, strict=True))


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_all_ranks_hold_the_values_of_the_same_point_to_the_bit(
    two: tuple[Path, dict[str, list[dict[str, Any]]]], how: str
) -> None:
    """The point of step 8; under FSDP2 each rank holds a shard of it."""
    assert [rank["equal"] for rank in two[1][how]] == [[8], [8]]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_each_rank_has_the_receipt(two: tuple[Path, dict[str, list[dict[str, Any]]]], how: str) -> None:
    """At the same step, with the same point."""
    folder, done = two

    assert [receipts(folder, done[how][0]["run"], rank) for rank in (0, 1)] == [[(11, 8)], [(11, 8)]]


def test_ranks_that_agree_seldom_take_points_and_go_back_when_they_agree(
    two: tuple[Path, dict[str, list[dict[str, Any]]]],
) -> None:
    """A point that is due at step 4 is of step 6; the order of step 11 is carried out at step 12."""
    folder, done = two

    assert [receipts(folder, done["seldom"][0]["run"], rank) for rank in (0, 1)] == [[(12, 6)], [(12, 6)]]
    assert [rank["equal"] for rank in done["seldom"]] == [[6], [6]]


def test_a_rank_without_room_makes_all_return_to_a_point_that_each_has(
    two: tuple[Path, dict[str, list[dict[str, Any]]]],
) -> None:
    """Rank 1 lacks the point of step 8."""
    folder, done = two

    assert [receipts(folder, done["no room"][0]["run"], rank) for rank in (0, 1)] == [[(11, 4)], [(11, 4)]]
    assert [rank["equal"] for rank in done["no room"]] == [[4], [4]]


def test_a_job_with_an_undo_is_identical_to_its_replay(two: tuple[Path, dict[str, list[dict[str, Any]]]]) -> None:
    """The receipts of rank 0 are in its log."""
    folder, done = two

    assert all(verify(open_run(folder / ranks[0]["run"])).identical for ranks in done.values())


def test_four_ranks_of_a_mesh_of_replicas_and_shards_go_back(tmp_path: Path) -> None:
    """Each rank keeps its own shard."""
    training = {"store": str(tmp_path), "until": 11, "high": [11], "how": "hybrid"}
    (ranks,) = run_job(Path(undo_ranks.__file__), tmp_path, 4, [training])

    assert [rank["equal"] for rank in ranks] == [[8]] * 4
