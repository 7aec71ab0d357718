"""A backtest's claims about a policy that steers hold against both branches, trained for real."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from steptape import Policy, Recorder, backtest, open_run, verify
from steptape.recorder.operations.loop_operations import OperationRequest
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.run_result import RunResult, Validity
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

STEPS = 200
EVAL_EVERY = 10
SAVE_EVERY = 20

STOP = """
  - name: stop
    triggers: [on_evaluate]
    rule: eval_loss > min(eval_loss, 1000)
    between: [120, null]
    for: 4
    operations: [hfcontrols.should_training_stop]
"""

STEERING = {
    "lr.scale(0.1)": "triggers: [on_evaluate], rule: 'slope(eval_loss, 4) > -0.002', once: true",
    "batch.skip()": "triggers: [on_pre_optimizer_step], rule: 'norm > 2 * mean(norm, 20, skip=1) and step > 60'",
    "rollback.to(last, times=1)": "triggers: [on_evaluate], rule: 'eval_loss > 1.8 * min(eval_loss, 90) and step > 60'",
}


def policy(operation: str) -> Policy:
    """Return a policy that steers by one operation, and stops."""
    steer = f"  - {{name: steer, {STEERING[operation]}, operations: ['{operation}']}}"
    return parse_policy(f"controllers:\n{steer}{STOP}")


class Regression:
    """A deterministic regression whose noisy labels and high learning rate keep it from settling.

    Args:
        folder: For its checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.random = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(300, 8, generator=self.random)
        noise = 0.3 * torch.randn(300, 1, generator=self.random)
        self.targets = (self.inputs @ torch.randn(8, 1, generator=self.random)).tanh() + noise
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)

    def run(self, store: Path, rules: Policy | None = None) -> Run:
        """Train it, and return the run."""
        with Recorder(store, rules=rules, total_steps=STEPS) as rec:
            rec.learning_rate(self.optimizer)
            rec.handle("batch.skip")
            rec.handle("rollback.to", self.load)
            while rec.progress.updates < STEPS and not rec.control.should_stop:
                self.step(rec)
                if rec.progress.updates % SAVE_EVERY == 0:
                    self.save(rec)
                if rec.progress.updates % EVAL_EVERY == 0:
                    rec.evaluate(eval_loss=self.evaluated())
        return open_run(rec.folder)

    def step(self, rec: Recorder) -> None:
        """Make an update, unless rules skip it."""
        loss = self.loss(torch.randint(200, (8,), generator=self.random))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1e9)
        rec.event("pre_optimizer_step", norm=norm.item())
        is_applied = not rec.control.should_skip
        if is_applied:
            self.optimizer.step()
        rec.step(loss=loss.item(), applied=is_applied)

    @torch.no_grad()
    def evaluated(self) -> float:
        """Return the loss of the samples that are held out."""
        return self.loss(slice(200, 300)).item()

    def loss(self, samples: Any) -> torch.Tensor:
        """Return the mean loss of some samples."""
        difference: torch.Tensor = self.model(self.inputs[samples]) - self.targets[samples]
        return difference.square().mean()

    def save(self, rec: Recorder) -> None:
        """Save a checkpoint. The order of the batches is none of it, so a rollback goes on with others."""
        path = self.folder / f"{rec.progress.updates}.pt"
        torch.save({"model": self.model.state_dict(), "recorder": rec.state_dict()}, path)
        rec.save(path)

    def load(self, request: OperationRequest) -> Any:
        """Load the checkpoint that a rollback asks for."""
        assert request.save is not None
        kept = torch.load(request.save.path)
        self.model.load_state_dict(kept["model"])
        return kept["recorder"]


@dataclass(frozen=True)
class Branches:
    """A training without rules, the same one under rules that steer it, and the backtest of the first.

    Attributes:
        changed_at: The step of the first decision that steers.
    """

    free: Run
    steered: Run
    result: RunResult
    changed_at: int


def losses(run: Run) -> list[tuple[int, float]]:
    """Return step and loss of each evaluation as it was made, those that were rolled back too."""
    evaluations = (event for event in run.events(attempts="all") if event.kind == "evaluate")
    return [(event.step, event.metrics["eval_loss"]) for event in evaluations]


@pytest.fixture(scope="module", params=STEERING)
def branches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Branches:
    """Both branches, for each operation."""
    folder = tmp_path_factory.mktemp("censored")
    rules = policy(request.param)
    free = Regression(folder / "free").run(folder / "runs")
    steered = Regression(folder / "steered").run(folder / "runs", rules)
    (result,) = backtest(rules, [free], objective=declared_objective("eval_loss", "min")).results
    return Branches(free, steered, result, result.decisions[0].outcome.step)


def test_everything_from_the_first_operation_on_is_censored(branches: Branches) -> None:
    """The backtest gives no number for the continuation, neither steps nor regret."""
    result = branches.result

    assert result.decisions[0].outcome.controller == "steer"
    assert {judged.validity for judged in result.decisions} == {Validity.CENSORED}
    assert result.predicted is None
    assert (result.steps_saved, result.seconds_saved, result.regret) == (None, None, None)


def test_what_the_report_does_state_holds_in_the_run_that_was_steered(branches: Branches) -> None:
    """Up to the operation both branches are equal: the steps spent, and the best evaluation so far."""
    free, steered, result = losses(branches.free), losses(branches.steered), branches.result
    before = [(step, loss) for step, loss in free if step <= branches.changed_at]

    assert result.certain is not None
    assert result.certain.steps == branches.changed_at
    assert result.certain.best == min(loss for _, loss in before)
    assert steered[: len(before)] == before
    assert any(event.kind == "operation_applied" for event in branches.steered.events())
    assert (branches.steered.info.last.steps or 0) >= branches.changed_at
    assert min(loss for _, loss in steered) <= result.certain.best
    assert verify(branches.steered).identical


def test_a_naive_replay_s_claim_is_false(branches: Branches) -> None:
    """Replaying the recorded continuation as if unchanged predicts another end and other losses."""
    free, steered = dict(losses(branches.free)), dict(losses(branches.steered))
    decisions = branches.result.decisions
    stops = [judged.outcome.step for judged in decisions if judged.outcome.controller == "stop"]
    naive_stop = stops[0] if stops else STEPS
    naive_best = min(loss for step, loss in free.items() if step <= naive_stop)

    assert (branches.steered.info.last.steps, min(steered.values())) != (naive_stop, naive_best)
    later = [step for step in steered if step > branches.changed_at and step in free]
    assert later
    assert not any(math.isclose(steered[step], free[step], rel_tol=1e-6) for step in later)
