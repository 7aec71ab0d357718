"""A backtest's claims about a policy that changes the learning rate hold against both branches, trained for real."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from steptape import Policy, Recorder, backtest, open_run, verify
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.results import RunResult
from steptape.replay.runs.validity import Validity
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.arguments import ArgumentValue
from steptape.rules.policy_file.operations import Operation
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.policy_file.registration import register_operation
from steptape.store.run import Run

STEPS = 200
EVAL_EVERY = 10

#: The optimizers of the trainings; the operation of this test changes the newest.
OPTIMIZERS: list[torch.optim.Optimizer] = []


@register_operation
class LearningRate(Operation):
    """An operation that divides the learning rate by ten."""

    def __init__(self, arguments: Mapping[str, ArgumentValue]) -> None:
        super().__init__(arguments)
        self.optimizer = OPTIMIZERS[-1]

    def should_lower(self, decision: Decision) -> None:
        """Lower it from the next update on."""
        assert decision.acts
        for group in self.optimizer.param_groups:
            group["lr"] /= 10


POLICY = """
operations: [{name: rate, class: LearningRate}]
controllers:
  - name: lower
    triggers: [on_evaluate]
    rule: slope(eval_loss, 4) > -0.002
    once: true
    operations: [rate.should_lower]
  - name: stop
    triggers: [on_evaluate]
    rule: eval_loss > min(eval_loss, 1000)
    patience: {patience_threshold: 3}
    operations: [hfcontrols.should_training_stop]
"""


def train(store: Path, rules: Policy | None = None) -> Run:
    """Train a deterministic regression whose noisy labels and high learning rate keep it from settling."""
    torch.manual_seed(3)
    inputs = torch.randn(300, 8)
    targets = (inputs @ torch.randn(8, 1)).tanh() + 0.3 * torch.randn(300, 1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    OPTIMIZERS.append(optimizer)
    with Recorder(store, rules=rules, total_steps=STEPS) as rec:
        for step in range(1, STEPS + 1):
            batch = torch.randint(200, (8,))
            loss = (model(inputs[batch]) - targets[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            control = rec.step(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
            if step % EVAL_EVERY == 0:
                with torch.no_grad():
                    rec.evaluate(eval_loss=(model(inputs[200:]) - targets[200:]).square().mean().item())
            if control.should_stop:
                break
    return open_run(rec.folder)


def losses(run: Run) -> dict[int, float]:
    """Return evaluation loss by step."""
    return {event.step: event.metrics["eval_loss"] for event in run.events() if event.kind == "evaluate"}


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run, RunResult]:
    """The training without rules, the one under rules, and the backtest of the first."""
    store = tmp_path_factory.mktemp("censored") / "runs"
    policy = parse_policy(POLICY)
    free, steered = train(store), train(store, policy)
    (result,) = backtest(policy, [free], objective=declared_objective("eval_loss", "min")).results
    return free, steered, result


def test_everything_from_the_first_change_of_the_learning_rate_on_is_censored(
    branches: tuple[Run, Run, RunResult],
) -> None:
    """The backtest gives no number for the continuation, neither steps nor regret."""
    _, _, result = branches

    assert {judged.validity for judged in result.decisions} == {Validity.CENSORED}
    assert result.predicted is None
    assert (result.steps_saved, result.seconds_saved, result.regret) == (
        None,
        None,
        None,
    )


def test_what_the_report_does_state_holds_in_the_run_that_was_steered(branches: tuple[Run, Run, RunResult]) -> None:
    """Up to the change both branches are equal: the steps spent, and a best metric that can only improve."""
    free, steered, result = branches
    changed_at = result.decisions[0].outcome.step

    assert result.certain is not None
    assert result.certain.steps == changed_at
    assert result.certain.best == min(value for step, value in losses(free).items() if step <= changed_at)
    assert {s: v for s, v in losses(steered).items() if s <= changed_at} == {
        s: v for s, v in losses(free).items() if s <= changed_at
    }
    assert (steered.info.last.steps or 0) >= result.certain.steps
    assert min(losses(steered).values()) <= result.certain.best
    assert verify(steered).identical


def test_a_naive_replay_s_claim_is_false(branches: tuple[Run, Run, RunResult]) -> None:
    """Replaying the recorded continuation as if unchanged predicts another end and other losses."""
    free, steered, result = branches
    changed_at = result.decisions[0].outcome.step
    naive_stop = next(
        (judged.outcome.step for judged in result.decisions if judged.outcome.controller == "stop"), STEPS
    )
    naive_best = min(value for step, value in losses(free).items() if step <= naive_stop)

    assert (steered.info.last.steps, min(losses(steered).values())) != (naive_stop, naive_best)
    later = [step for step in losses(steered) if step > changed_at and step in losses(free)]
    assert later
    assert not any(math.isclose(losses(steered)[step], losses(free)[step], rel_tol=1e-6) for step in later)
