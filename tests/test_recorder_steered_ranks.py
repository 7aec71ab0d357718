"""Two ranks change their learning rate, skip batches and roll back at the same step, or neither does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import steered_ranks
import torch
from steered_loops import GUARD, SKIP, rollback
from torchrun import run_job, run_ranks

from steptape import open_run, verify
from steptape.replay.policies.run_accounts import learning_rates
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run

LOSSES = {"5": 4.0, "12": 5.0, "20": 4.0, "30": 4.0}
RANKS = (0, 1)


@dataclass(frozen=True)
class Done:
    """A training that is over.

    Attributes:
        ranks: What ``steered_ranks.train`` returned on each.
        run: Its run.
    """

    ranks: list[dict[str, Any]]
    run: Run

    def receipts(self, rank: int) -> list[tuple[int, str, str]]:
        """Return step, operation and reason of each receipt of a rank."""
        kinds = ("operation_applied", "operation_refused")
        found = [event for event in self.events(rank) if event.kind in kinds]
        return [(event.step, event.attrs["operation"], event.attrs.get("reason", "")) for event in found]

    def events(self, rank: int) -> list[Event]:
        """Return the events of a rank."""
        return list(self.run.events(rank))

    def track(self, rank: int) -> list[tuple[int, float, float, float]]:
        """Return step, base, scheduled and used learning rate of each update of a rank."""
        return [
            (event.step, event.metrics["lr.base"], event.metrics["lr.scheduled"], event.metrics["lr.used"])
            for event in self.events(rank)
            if event.kind == "step_end" and "lr.used" in event.metrics
        ]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """Trainings by name, all in one job."""
    folder = tmp_path_factory.mktemp("ranks")
    rules = folder / "policy.yaml"
    rules.write_text(GUARD + SKIP + rollback())
    computed = folder / "computed.yaml"
    computed.write_text(rules.read_text().replace("lr.scale(0.5,", "lr.scale(lr.scheduled / (lr.scheduled + lr.base),"))
    plain: dict[str, Any] = {"rules": str(rules), "until": 36, "losses": LOSSES, "gradients": {"9": 50.0}}
    back = {**plain, "losses": {**LOSSES, "26": 200.0}, "saves": [14, 24]}
    given: dict[str, dict[str, Any]] = {
        "whole": plain,
        "computed": {**plain, "rules": str(computed)},
        "split": {**plain, "until": 14, "saves": [14]},
        "resumed": {**plain, "store": str(folder / "split"), "resume": str(folder / "split" / "14.pt")},
        "back": back,
        "no checkpoint": {**back, "saves": []},
        "no rank loads": {**back, "fails": [0, 1]},
        "one rank loads": {**back, "fails": [1]},
        "one rank can": {**back, "lacks": [1]},
        "late": {**plain, "agrees_before": False},
    }
    for name in given:
        (folder / name).mkdir()
    trainings = [{"store": str(folder / name), **arguments} for name, arguments in given.items()]
    program = Path(steered_ranks.__file__)
    results = run_job(program, folder, 2, trainings)
    return {
        name: Done(ranks, open_run(Path(training["store"]) / ranks[0]["run"]))
        for name, training, ranks in zip(given, trainings, results, strict=True)
    }


@pytest.mark.parametrize("name", ["whole", "resumed", "back", "no checkpoint", "no rank loads", "late"])
def test_ranks_train_with_the_same_rates_on_the_same_steps(done: dict[str, Done], name: str) -> None:
    """To the bit, with equal weights at the end; a replay decides the same and computes the same rates."""
    first, second = done[name].ranks

    assert first == second
    assert done[name].track(0) == done[name].track(1)
    assert verify(done[name].run).identical
    policy = done[name].run.info.last.policy
    assert policy is not None
    points = learning_rates(replay(parse_policy(policy.text), done[name].run), done[name].run)
    assert [(point.step, point.base, point.scheduled, point.used) for point in points] == done[name].track(0)
    assert {str(point.validity) for point in points} == {"exact"}


def test_every_rank_writes_a_receipt_at_the_same_step(done: dict[str, Done]) -> None:
    """That of a skipped batch holds the samples of the rank."""
    expected = [
        (5, "lr.scale(0.5, over=6)", ""),
        (9, "batch.skip()", ""),
        (12, "lr.scale(0.5, over=6)", ""),
        (20, "lr.reduce(0.5)", ""),
        (30, "lr.scale(0.5, over=6)", ""),
    ]

    assert [done["whole"].receipts(rank) for rank in RANKS] == [expected] * 2
    assert [
        [event.attrs["sample_ids"] for event in done["whole"].events(rank) if "sample_ids" in event.attrs]
        for rank in RANKS
    ] == [[[900]], [[901]]]
    assert done["whole"].ranks[0]["updated"] == [step for step in range(1, 37) if step != 9]


def test_every_rank_is_asked_with_the_value_that_rank_0_has_computed(done: dict[str, Done]) -> None:
    """Rank 0 alone evaluates rules."""
    before, after = "lr.scale(0.5, over=6)", f"lr.scale({1 / 3}, over=6)"
    expected = [(5, before, ""), (9, "batch.skip()", ""), (12, before, ""), (20, "lr.reduce(0.5)", ""), (30, after, "")]

    assert [done["computed"].receipts(rank) for rank in RANKS] == [expected] * 2
    assert done["computed"].ranks[0] == done["computed"].ranks[1]
    assert verify(done["computed"].run).identical


def test_ranks_that_resume_in_the_middle_of_an_override_continue_it(done: dict[str, Done]) -> None:
    """The split run has the same rates, weights and receipts as the whole one."""
    split, resumed, whole = done["split"], done["resumed"], done["whole"]

    assert resumed.track(0) == whole.track(0)
    assert resumed.receipts(0) == whole.receipts(0)
    for rank in RANKS:
        assert split.ranks[rank]["rates"] + resumed.ranks[rank]["rates"] == whole.ranks[rank]["rates"]
        assert resumed.ranks[rank]["weights"] == whole.ranks[rank]["weights"]


def test_ranks_roll_back_to_the_checkpoint_that_rank_0_recorded(done: dict[str, Done]) -> None:
    """They train on as if they had never gone further."""
    back = done["back"]

    assert [(one.attempt, one.parent, one.from_step) for one in back.run.info.attempts] == [(0, None, None), (1, 0, 24)]
    for rank in RANKS:
        (receipt,) = [event for event in back.events(rank) if "save_step" in event.attrs]
        details = {name: receipt.attrs[name] for name in ("save_step", "from_attempt", "from_step")}
        assert details == {"save_step": 24, "from_attempt": 0, "from_step": 26}
    assert back.ranks[0]["weights"] == done["whole"].ranks[0]["weights"]
    assert back.track(0) == done["whole"].track(0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no checkpoint", "there is no checkpoint up to step 26"),
        ("no rank loads", "OSError: no such file"),
    ],
)
def test_ranks_that_cannot_roll_back_all_train_on(done: dict[str, Done], name: str, reason: str) -> None:
    """Each says why."""
    for rank in RANKS:
        refused = [receipt for receipt in done[name].receipts(rank) if receipt[2]]
        assert refused == [(26, "rollback.to(last)", reason)]
    assert len(done[name].track(0)) == 35


def test_ranks_of_which_some_only_have_loaded_a_checkpoint_end(done: dict[str, Done]) -> None:
    """Their weights differ, so that nothing true could follow."""
    errors = [rank["error"] for rank in done["one rank loads"].ranks]

    assert errors[0] == errors[1]
    assert "rank 1 could not load the checkpoint of step 24" in errors[0]
    for rank in RANKS:
        ((at, operation, why),) = [receipt for receipt in done["one rank loads"].receipts(rank) if receipt[2]]
        assert (at, operation) == (26, "rollback.to(last)")
        assert "OSError: no such file" in why


def test_a_batch_whose_update_is_over_when_ranks_agree_is_not_skipped(done: dict[str, Done]) -> None:
    """The next batch is not left out in its place."""
    late = done["late"]

    assert late.ranks[0]["updated"] == [*range(1, 37)]
    assert [receipt for receipt in late.receipts(0) if receipt[2]] == [
        (9, "batch.skip()", "the update that it was for is over")
    ]
    assert [receipt for receipt in late.receipts(1) if receipt[2]] == []


def test_no_rank_obeys_what_one_of_them_cannot(done: dict[str, Done]) -> None:
    """The receipts name it."""
    training = done["one rank can"]

    assert training.ranks[0] == training.ranks[1]
    assert training.ranks[0]["updated"] == [*range(1, 37)]
    expected = {(5, "lr.scale"), (8, "batch.skip"), (12, "lr.scale"), (20, "lr.reduce"), (26, "rollback.to")}
    for rank in RANKS:
        receipts = training.receipts(rank)
        assert expected <= {(step, operation.partition("(")[0]) for step, operation, _ in receipts}
        assert {reason for _, _, reason in receipts} == {"the loop of rank 1 has no handler for it"}
    assert verify(training.run).identical


def test_a_requeued_job_continues_its_run_and_trains_the_weights_of_an_unbroken_one(tmp_path: Path) -> None:
    """It is killed before its first snapshot, and again after it. Each restart has the same command line."""
    program = str(Path(__file__).with_name("requeued_ranks.py"))
    recorded, plain = tmp_path / "recorded", tmp_path / "plain"
    recorded.mkdir()
    plain.mkdir()
    for killed_at in (5, 13, 0):
        output, status = run_ranks(2, [program, str(recorded), "recorded", str(killed_at)])
        assert (status == 0) == (killed_at == 0), output
    run_ranks(2, [program, str(plain), "plain", "0"])

    run = open_run(recorded / "runs" / "job")
    weights, unbroken = (torch.load(folder / "weights.pt") for folder in (recorded, plain))
    decided = [event.step for event in run.events() if event.kind == "decision"]
    assert all(torch.equal(weights[name], unbroken[name]) for name in unbroken)
    assert sorted(run.series("loss")["step"].to_pylist()) == sorted([*range(1, 21)] * 2)
    assert [attempt.from_step for attempt in run.info.attempts] == [None, 0, 8]
    assert len(set(decided)) > 2
    assert verify(run).identical
