"""Runs that were recorded under live rules: what a backtest says of the stops that these rules made."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import Recorder, backtest, open_run, sweep
from steptape.replay.reports.diff import StopChange, diff_lines, diff_policies
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import TABLE_HEADINGS, table_rows
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.run import Run

STEPS, EVERY = 400, 10
POLICY = """
params: {patience: 3}
controllers:
  - name: plateau
    triggers: [on_evaluate]
    rule: len(eval_loss) > 5 and eval_loss > min(eval_loss, 100, skip=1)
    patience: {patience_threshold: patience}
    operations: [hfcontrols.should_save, hfcontrols.should_training_stop]
"""
ARMED = parse_policy(POLICY)
PATIENT = parse_policy(POLICY, params={"patience": 5})

Record = Callable[..., Run]


def eval_losses(seed: int) -> dict[int, float]:
    """Return the evaluations of a run, by step."""
    luck = random.Random(seed)
    return {step: 2 / step**0.5 + luck.random() * 0.25 for step in range(EVERY, STEPS + 1, EVERY)}


def plain_stop(seed: int, patience: int = 3) -> tuple[int, float]:
    """Compute by plain loops at which step the rule stops a whole run, and the relative regret of that."""
    losses, seen, worse = eval_losses(seed), list[float](), 0
    for step, loss in losses.items():
        worse = worse + 1 if len(seen) >= 5 and loss > min(seen) else 0
        seen.append(loss)
        if worse > patience:
            return step, min(seen) / min(losses.values()) - 1
    raise AssertionError("the rule stops every run here")


@pytest.fixture
def states() -> list[dict[str, Any]]:
    """What the runs would keep in their checkpoints, one for each stop that a loop obeyed."""
    return []


@pytest.fixture
def record(tmp_path: Path, states: list[dict[str, Any]]) -> Record:
    """A function that records a run: whole, ended by its rules, or on after their stop."""

    def make(seed: int, rules: Policy | None = None, *, obeys: bool = True, first: int = 1, **options: Any) -> Run:
        losses = eval_losses(seed)
        with Recorder(tmp_path / "runs", rules=rules, **{"total_steps": STEPS, **options}) as rec:
            for step in range(first, STEPS + 1):
                control = rec.step(loss=2 / step**0.5 + seed)
                if step in losses:
                    control = rec.evaluate(eval_loss=losses[step])
                if control.should_save:
                    rec.save(f"{step}.pt", size_bytes=10)
                if control.should_stop and obeys:
                    states.append(rec.state_dict())
                    break
        return open_run(rec.folder)

    return make


@pytest.fixture
def resumed(record: Record, states: list[dict[str, Any]]) -> Record:
    """A function that records a run that its rules stop, and resumes it from there under rules or none."""

    def make(seed: int, rules: Policy | None = None) -> Run:
        stopped = record(seed, ARMED)
        return record(seed, rules, first=(stopped.info.last.steps or 0) + 1, resume=states[-1])

    return make


def only(runs: list[Run], policy: Policy = ARMED) -> RunResult:
    """Return the result of the only run."""
    (result,) = backtest(policy, runs).results
    return result


@pytest.mark.parametrize("plan", [STEPS, None])
def test_a_run_that_its_own_rule_stopped_is_a_bound_under_that_rule(record: Record, plan: int | None) -> None:
    """Its record ends with the stop: nobody knows what training on would have given."""
    run = record(4, ARMED, total_steps=plan)
    report = backtest(ARMED, [run])
    (result,), total, (row,) = (
        report.results,
        report_json(summarize(report))["aggregate"],
        table_rows(summarize(report)),
    )

    assert (result.stop is not None, run.info.last.steps) == (True, plain_stop(4)[0])
    assert result.right_censored.startswith(f"stopped by its own rules at step {plain_stop(4)[0]}")
    assert result.predicted == result.recorded
    assert (total["relative_regret"]["runs"], total["relative_regret_of_stopped"]["runs"]) == (0, 0)
    assert [row[TABLE_HEADINGS.index(name)] for name in ("cut off", "regret")] == ["≥0%", "≥0.00%"]
    assert any("how it would have continued is unknown" in line for line in summary_lines(summarize(report)))


def test_a_run_that_ends_with_its_stop_is_a_bound_whatever_its_status(record: Record) -> None:
    """A run may count as completed because its program ended itself when a rule asked for the stop."""
    run = record(4, ARMED, total_steps=None)
    about = run.folder / "run.json"
    about.write_text(about.read_text().replace('"stopped"', '"completed"'))
    run = open_run(run.folder)

    assert run.status == "completed"
    assert only([run]).right_censored.startswith(f"stopped by its own rules at step {plain_stop(4)[0]}")


def test_a_stop_at_the_last_planned_step_ends_nothing_early(record: Record) -> None:
    """The run is as long as its plan."""
    run = record(4, ARMED, total_steps=plain_stop(4)[0])

    assert run.status == "stopped"
    assert only([run]).right_censored == ""


def test_regret_of_a_half_armed_store_is_that_of_its_whole_runs(record: Record) -> None:
    """Runs that the rule stopped live are no evidence that it costs nothing."""
    runs = [record(seed, ARMED if seed % 2 else None) for seed in range(10)]
    whole = [plain_stop(seed)[1] for seed in range(0, 10, 2)]
    total = report_json(summarize(report := backtest(ARMED, runs)))["aggregate"]
    swept = sweep(ARMED, {"patience": [3, 5]}, runs)

    assert total["relative_regret"]["runs"] == total["relative_regret_of_stopped"]["runs"] == 5
    assert total["relative_regret"]["mean"] == pytest.approx(sum(whole) / 5)
    assert any(" Over 5 runs: " in line for line in summary_lines(summarize(report)))
    assert total["right_censored"] == 5
    assert swept.totals["mean_regret"][0] == pytest.approx(sum(whole) / 5)


@pytest.mark.parametrize("plan", [STEPS, None])
def test_a_stop_that_the_loop_ignored_costs_what_the_record_shows(record: Record, plan: int | None) -> None:
    """The same numbers as in a run without rules, but the decision is observed."""
    step, regret = plain_stop(3)
    ignored = only([record(3, ARMED, obeys=False, total_steps=plan)])
    whole = only([record(3)])

    assert str(ignored.stop and ignored.stop.validity) == "observed"
    assert ignored.steps_saved == whole.steps_saved == STEPS - step
    assert ignored.relative_regret == pytest.approx(regret)
    assert ignored.recorded.steps == STEPS
    assert ignored.evaluations_saved == whole.evaluations_saved
    assert bool(ignored.right_censored) == (plan is None)


def test_a_run_that_was_resumed_after_its_stop_shows_what_the_stop_would_have_cost(resumed: Record) -> None:
    """Its person disagreed with the rule, and trained on without it."""
    step, regret = plain_stop(4)
    report = backtest(ARMED, [resumed(4)])
    (result,) = report.results

    assert (result.stop and result.stop.outcome.step, result.steps_saved) == (step, STEPS - step)
    assert result.right_censored == ""
    assert result.relative_regret == pytest.approx(regret)
    assert (result.recorded.checkpoints, result.predicted and result.predicted.checkpoints) == (1, 1)
    assert report_json(summarize(report))["aggregate"]["relative_regret_of_stopped"]["mean"] == pytest.approx(regret)


def test_a_run_that_its_rules_stopped_twice_is_a_bound_with_what_the_record_shows(resumed: Record) -> None:
    """The first stop saved at least what the resumed attempt spent."""
    run = resumed(4, ARMED)
    result, step = only([run]), plain_stop(4)[0]

    assert run.status == "stopped"
    assert step < result.recorded.steps < STEPS
    assert result.steps_saved == result.recorded.steps - step
    assert result.right_censored.startswith("stopped by its own rules")


def test_a_diff_has_no_mean_over_runs_that_their_rules_stopped(record: Record) -> None:
    """A more patient rule is compared where the record goes on; elsewhere its end is unknown."""
    runs = [record(seed, ARMED if seed % 2 else None) for seed in range(4)]
    found = diff_policies(ARMED, PATIENT, runs)
    ends = [(plain_stop(seed)[0], "".join(diff_lines(found))) for seed in (1, 3)]
    costs = [plain_stop(seed, 5)[1] - plain_stop(seed)[1] for seed in (0, 2)]

    assert [run.stop for run in found.runs if run.old.right_censored] == [StopChange.NOT_KNOWN] * 2
    assert found.mean(lambda run: run.relative_regret).mean == pytest.approx(sum(costs) / 2)
    assert [f"| {step} → ≥{step} |" in text for step, text in ends] == [True] * 2
    assert any("No regret is compared in 2 runs that are unfinished" in line for line in diff_lines(found))
