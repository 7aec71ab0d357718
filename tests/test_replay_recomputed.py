"""Plain loops reproduce the report's numbers, on the demo's run and on third-party logs of real trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plain_report as plain
import pytest
from real_logs import FOLDER, Row, logs_with_evaluations

from steptape import backtest, load_policy, open_run, open_store
from steptape.replay.backtests.baselines import BASELINES, baseline_policy
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.objective import Saves, declared_objective
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import shipped_policies
from steptape.store.events import Event
from steptape.store.run import Run

LOGS = logs_with_evaluations()
NS = 1_000_000_000
#: The logs lack their authors' checkpoints; every third evaluation gets one.
SAVE_EVERY, SAVE_BYTES = 3, 1000
EVAL_LOSS = declared_objective("eval_loss", "min")
#: The numbers that stand for all runs.
MIDDLES = ("mean", "trimmed_mean", "median", "max")
STOPPERS: dict[str, plain.Stopper] = {
    "overfitting": plain.overfitting,
    "lightning_early_stopping": plain.lightning,
}

needs_logs = pytest.mark.skipif(not LOGS, reason=f"no real logs in {FOLDER}")


def saves_of(rows: Sequence[Row]) -> dict[int, int]:
    """Return the bytes of a log's synthetic checkpoints, by the preceding row."""
    evaluated = [index for index, row in enumerate(rows) if row.eval_loss is not None]
    return dict.fromkeys(evaluated[SAVE_EVERY - 1 :: SAVE_EVERY], SAVE_BYTES)


def events_of(rows: Sequence[Row]) -> list[Event]:
    """Return the rows as a run's recorded events."""
    events, saves = [], saves_of(rows)
    for index, row in enumerate(rows):
        at: dict[str, Any] = {"step": row.step, "elapsed_ns": int((row.seconds or 0) * NS)}
        if row.loss is not None:
            events.append(Event("step_end", metrics={"loss": row.loss}, **at))
        if row.eval_loss is not None:
            events.append(Event("evaluate", metrics={"eval_loss": row.eval_loss}, **at))
        if index in saves:
            events.append(Event("save", attrs={"size_bytes": saves[index]}, **at))
    return events


def rows_of(run: Run) -> tuple[list[Row], dict[int, int]]:
    """Return a run's rows and the bytes of its checkpoints by row."""
    rows: list[Row] = []
    saves: dict[int, int] = {}
    for event in run.events():
        if event.kind not in ("step_end", "evaluate", "save", "train_end"):
            continue
        loss = event.metrics["loss"] if event.kind == "step_end" else None
        eval_loss = event.metrics["eval_loss"] if event.kind == "evaluate" else None
        if event.kind == "save":
            saves[len(rows)] = event.attrs["size_bytes"]
        rows.append(Row(event.step, loss, eval_loss, event.elapsed_ns / NS))
    return rows, saves


def over(name: str, runs: Sequence[Run], handling: Saves = Saves.KEEP) -> Backtest:
    """Backtest a policy or baseline over runs, with all baselines."""
    shipped = shipped_policies()
    policy = load_policy(shipped[name]) if name in shipped else baseline_policy(BASELINES[name], EVAL_LOSS)
    settings: dict[str, Any] = {"cost_per_hour": 2.0, "saves": handling, "family": "run"}
    return backtest(policy, runs, objective=EVAL_LOSS, baselines=list(BASELINES.values()), **settings)


@pytest.fixture
def report(store_record: Callable[..., Path]) -> Callable[[str], Backtest]:
    """A function that backtests a policy by name over all logs, with all baselines."""

    def make(name: str) -> Backtest:
        runs = [open_run(store_record(events_of(rows), run_id=run_id, sealed=True)) for run_id, rows in LOGS.items()]
        return over(name, runs)

    return make


def plain_of(name: str, rows: Sequence[Row], saves: Mapping[int, int], handling: Saves = Saves.KEEP) -> plain.Plain:
    """Compute a run's numbers by plain loops; ``overfitting`` requests its own checkpoints."""
    stop = STOPPERS[name](rows)
    if name != "overfitting":
        return plain.report_of(rows, stop, saves)
    asked = plain.new_bests(rows, plain.last_row(rows, stop))
    return plain.report_of(rows, stop, saves, asked, drops_own=handling is Saves.REPLACE)


def check(result: RunResult, expected: plain.Plain) -> None:
    """Compare every number of a run's result."""
    predicted = result.predicted
    assert predicted is not None
    assert (result.recorded.steps, predicted.steps) == (expected.steps, expected.steps_left)
    assert (result.recorded.evaluations, predicted.evaluations) == (expected.evaluations, expected.evaluations_left)
    assert (result.recorded.checkpoints, predicted.checkpoints) == (expected.checkpoints, expected.checkpoints_left)
    assert result.recorded.checkpoints_wasted == expected.checkpoints
    assert result.bytes_saved == expected.bytes_saved
    assert result.regret == expected.regret
    assert result.relative_regret == pytest.approx(expected.relative_regret)
    assert result.deployable_regret == expected.deployable_regret
    assert result.relative_deployable_regret == pytest.approx(expected.relative_deployable_regret)
    if result.seconds_saved is not None:
        assert result.seconds_saved == pytest.approx(expected.seconds_saved, abs=1e-6)


@needs_logs
@pytest.mark.parametrize("name", STOPPERS)
def test_every_number_of_the_report_is_found_again(name: str, report: Callable[[str], Backtest]) -> None:
    """They agree run by run and in sum."""
    found = report(name)
    expected = {run_id: plain_of(name, rows, saves_of(rows)) for run_id, rows in LOGS.items()}

    for result in found.results:
        assert (result.stop is not None) == (STOPPERS[name](LOGS[result.run_id]) is not None)
        check(result, expected[result.run_id])
    total = report_json(summarize(found))["aggregate"]
    shares = [1 - one.steps_left / one.steps for one in expected.values()]
    assert total["runs"] == len(LOGS)
    assert total["stopped"] == sum(STOPPERS[name](rows) is not None for rows in LOGS.values()) > 3
    assert total["steps_saved"] == sum(one.steps - one.steps_left for one in expected.values())
    assert total["evaluations_saved"] == sum(one.evaluations - one.evaluations_left for one in expected.values())
    assert total["checkpoints_saved"] == sum(one.checkpoints - one.checkpoints_left for one in expected.values())
    assert total["checkpoints_never_restored"] == sum(one.checkpoints for one in expected.values())
    assert total["bytes_saved"] == sum(one.bytes_saved for one in expected.values())
    assert total["share_saved"]["mean"] == pytest.approx(sum(shares) / len(shares))
    assert total["share_saved"]["low"] < total["share_saved"]["mean"] < total["share_saved"]["high"]
    assert total["cost_saved"] == pytest.approx((total["seconds_saved"] or 0) / 3600 * 2)
    for key in ("relative_regret", "relative_deployable_regret"):
        runs, above, middles = plain.spread([getattr(one, key) for one in expected.values()])
        assert [total[key][name] for name in ("runs", "above")] == [runs, above]
        assert [total[key][name] for name in MIDDLES] == pytest.approx(middles)
        absolute = plain.spread([getattr(one, key.removeprefix("relative_")) for one in expected.values()])
        found_absolute = total[key.replace("relative", "absolute")]["eval_loss"]
        assert [found_absolute[name] for name in MIDDLES] == pytest.approx(absolute[2])


@needs_logs
def test_a_baseline_in_a_comparison_is_that_policy_backtested(report: Callable[[str], Backtest]) -> None:
    """Lightning's row next to another policy equals the plain loops."""
    row = next(
        row
        for row in report_json(summarize(report("overfitting")))["comparison"]
        if row["name"] == "lightning_early_stopping"
    )
    expected = [plain_of("lightning_early_stopping", rows, saves_of(rows)) for rows in LOGS.values()]
    regrets = [one.relative_regret for one in expected if one.relative_regret is not None]

    assert row["stopped"] == sum(plain.lightning(rows) is not None for rows in LOGS.values())
    assert row["share_saved"]["mean"] == pytest.approx(sum(1 - o.steps_left / o.steps for o in expected) / len(LOGS))
    assert row["relative_regret"]["mean"] == pytest.approx(sum(regrets) / len(regrets))


@pytest.mark.parametrize("handling", Saves)
def test_the_demo_s_uncontrolled_run_under_overfitting_is_found_again(handling: Saves, demo_store: Path) -> None:
    """It has its own checkpoints and times, and the expectation of random stops."""
    run = open_store(demo_store).run("clusters uncontrolled")
    rows, saves = rows_of(run)
    expected = plain_of("overfitting", rows, saves, handling)
    found = over("overfitting", [run], handling)

    check(found.results[0], expected)
    random = next(row for row in report_json(summarize(found))["comparison"] if row["name"] == "random")
    rate = 1 / expected.steps_left
    saved, regret = plain.at_random(rows, rate)
    _, deployable_regret = plain.at_random(rows, rate, {rows[index].step for index in saves})
    assert random["share_saved"]["mean"] == pytest.approx(saved)
    assert random["relative_regret"]["mean"] == pytest.approx(regret)
    assert random["relative_deployable_regret"]["mean"] == pytest.approx(deployable_regret)


@pytest.mark.parametrize("name", ["clusters under trac_fig4", "clusters under overfitting"])
def test_the_demo_s_runs_under_rules_are_bounds(name: str, demo_store: Path) -> None:
    """Under Lightning's rule as under their own, which leave them unchanged."""
    run = open_store(demo_store).run(name)
    rows, saves = rows_of(run)

    result = over("lightning_early_stopping", [run]).results[0]
    own = over(name.removeprefix("clusters under "), [run]).results[0]

    check(result, plain_of("lightning_early_stopping", rows, saves))
    assert run.status == "stopped"
    assert result.right_censored == own.right_censored == next(iter(own.notes))
    assert own.right_censored.startswith(f"stopped by its own rules at step {run.info.last.steps} of")
    assert (own.predicted, own.steps_saved) == (own.recorded, 0)
