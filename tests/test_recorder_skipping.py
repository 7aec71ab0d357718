"""A skipped batch is left out whole: with mixed precision, with accumulated gradients, on all ranks or on none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import skipping_loop
from torchrun import run_job

from steptape import open_run, verify
from steptape.replay.policies.run_accounts import learning_rates
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy of the loop."""
    path = tmp_path_factory.mktemp("rules") / "policy.yaml"
    path.write_text(skipping_loop.RULES)
    return path


def left_out(run: Run, rank: int = 0) -> dict[int, list[int]]:
    """Return the samples of the batches that a rank has left out, by step."""
    events = list(run.events(rank))
    unapplied = {event.step for event in events if event.kind == "step_end" and not event.attrs.get("applied", True)}
    found = {event.step: event.attrs["sample_ids"] for event in events if "sample_ids" in event.attrs}
    assert set(found) <= unapplied
    return found


def used_rates(run: Run) -> dict[int, float]:
    """Return the rate of each update that trained. A replay must compute the same, and decide the same."""
    assert verify(run).identical
    points = learning_rates(replay(parse_policy(skipping_loop.RULES), run), run)
    steps = [event for event in run.events() if event.kind == "step_end" and "lr.used" in event.metrics]
    recorded = {event.step: event.metrics["lr.used"] for event in steps}
    assert {point.step: point.used for point in points} == recorded
    return recorded


@pytest.mark.parametrize("loop", [{}, {"unscales": False}, {"has_scaler": False, "unscales": False}])
@pytest.mark.parametrize("order", [{"bad": (5, 2)}, {"exploding": 5}], ids=["micro-batch", "gradients"])
def test_a_skip_leaves_out_the_whole_update(
    loop: dict[str, Any], order: dict[str, Any], rules: Path, tmp_path: Path
) -> None:
    """Its accumulated gradients reach no later update, and the scaler works on."""
    done = skipping_loop.train(str(tmp_path), str(rules), **loop, **order)
    run = open_run(tmp_path / done["run"])

    assert left_out(run) == {5: [500, 501, 502]}
    assert [step for step in range(2, 11) if done["weights"][step - 1] == done["weights"][step - 2]] == [5]
    assert len(set(done["scales"])) == 1
    assert sorted(used_rates(run)) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_next_to_a_skip_is_no_skip(*, fused: bool, rules: Path, tmp_path: Path) -> None:
    """It has no receipt and no rate, and the blend of an override counts it."""
    done = skipping_loop.train(str(tmp_path), str(rules), exploding=5, overflow=6, fused=fused)
    run = open_run(tmp_path / done["run"])

    assert left_out(run) == {5: [500, 501, 502]}
    assert done["scales"][4:7] == [16.0, 8.0, 8.0]
    assert run.progress().skipped == 2
    assert used_rates(run) == pytest.approx(
        {1: 0.1, 2: 0.1, 3: 0.05625, 4: 0.0625, 7: 0.08125, 8: 0.0875, 9: 0.09375, 10: 0.1}
    )


def test_ranks_leave_out_the_same_updates(rules: Path, tmp_path: Path) -> None:
    """Rank 0 orders it after a micro-batch or before the update; each rank writes down its own samples."""
    given: list[dict[str, Any]] = [
        {"bad": (5, 2)},
        {"exploding": 5, "overflow": 7},
        {"bad": (4, 3), "has_scaler": False, "unscales": False},
    ]
    trainings = [{"store": str(tmp_path / "runs"), "rules": str(rules), **arguments} for arguments in given]
    done = run_job(Path(skipping_loop.__file__), tmp_path, 2, trainings)

    for ranks, step in zip(done, (5, 5, 4), strict=True):
        run = open_run(tmp_path / "runs" / ranks[0]["run"])
        ids = [100 * step + i for i in range(3)]
        assert ranks[0] == ranks[1]
        assert [left_out(run, rank) for rank in (0, 1)] == [{step: ids}, {step: [each + 10 for each in ids]}]
        assert step not in used_rates(run)
