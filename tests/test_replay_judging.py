"""A result states deployable regret, delayed stops, right censoring, and the facts that stay certain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import Policy, backtest, open_run, sweep
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.result import Fate
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import TABLE_HEADINGS, table_rows
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run

SECOND_NS = 1_000_000_000
EVALS = {2: 0.9, 4: 0.5, 6: 0.6, 8: 0.4, 10: 0.7}


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at the first loss above 2."""
    return parse_policy("""
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
""")


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Callable[..., Run]:
    """A function that makes runs of ten one-second steps, one with a loss of 3, evaluated at every second step."""

    def make(*, spike: int = 5, saves: tuple[int, ...] = (2, 6, 10), run_id: str = "run-1", **info: Any) -> Run:
        events = []
        for step in range(1, 11):
            at: dict[str, Any] = {"step": step, "elapsed_ns": step * SECOND_NS, "time_ns": step * SECOND_NS}
            events.append(Event("step_end", metrics={"loss": 3.0 if step == spike else 1.0}, **at))
            if step in EVALS:
                events.append(Event("evaluate", metrics={"eval_loss": EVALS[step]}, **at))
            if step in saves:
                events.append(Event("save", attrs={"size_bytes": 10}, **at))
        return open_run(store_record(events, run_id=run_id, sealed=True, **info))

    return make


def only(report: Backtest) -> RunResult:
    """Return the report's only result."""
    (result,) = report.results
    return result


def test_deployable_regret_counts_only_steps_with_a_checkpoint(policy: Policy, record: Callable[..., Run]) -> None:
    """The best at a checkpoint is 0.6 in the whole run and 0.9 up to the stop; better values elsewhere do not count."""
    report = backtest(policy, [record()])
    result = only(report)

    assert (result.recorded.deployable, result.recorded.deployable_step) == (0.6, 6)
    assert result.deployable_regret == pytest.approx(0.3)
    assert result.relative_deployable_regret == pytest.approx(0.5)
    assert result.regret == pytest.approx(0.1)


def test_deployable_regret_is_negative_where_rules_save_better_than_the_run(record: Callable[..., Run]) -> None:
    """A policy that keeps every new best loses nothing that the run had."""
    keeps = parse_policy("""
controllers:
  - {name: keep, triggers: [on_evaluate], rule: eval_loss == -peak(-eval_loss), operations: [hfcontrols.should_save]}
""")
    report = backtest(keeps, [record()])

    assert only(report).deployable_regret == pytest.approx(0.4 - 0.6)


def test_a_late_stop_saves_less(policy: Policy, record: Callable[..., Run]) -> None:
    """The stop comes three updates later: events due at the eighth step are still made, and the report says so."""
    report = backtest(policy, [record()], delay_steps=3)
    result = only(report)

    assert result.steps_saved == 2
    assert result.seconds_saved == 2.0
    assert result.predicted is not None
    assert (result.predicted.best, result.predicted.checkpoints) == (0.4, 2)
    assert "3 updates after" in report_json(summarize(report))["assumptions"][0]


def test_a_delay_beyond_the_end_saves_nothing(policy: Policy, record: Callable[..., Run]) -> None:
    """The run ends first."""
    assert only(backtest(policy, [record()], delay_steps=50)).steps_saved == 0


@pytest.mark.parametrize("trigger", ["init_end", "train_begin", "step_end"])
def test_a_stop_at_a_zero_clock_saves_all_the_time(store_record: Callable[..., Path], trigger: str) -> None:
    """The clock of a run is zero at its first event. Zero is no time there, not an unknown one."""
    stops = parse_policy(f"""
controllers:
  - {{name: stop, triggers: [on_{trigger}], rule: step < 2, operations: [hfcontrols.should_training_stop]}}
""")
    events = [Event("train_begin")]
    events += [Event("step_end", step=step, elapsed_ns=(step - 1) * SECOND_NS) for step in (1, 2, 3)]
    result = only(backtest(stops, [open_run(store_record(events))]))

    assert result.stop is not None
    assert result.stop.elapsed_ns == 0
    assert (result.steps_saved, result.seconds_saved) == (2, 2.0)


@pytest.mark.parametrize(("rule", "saved_s"), [("step >= 2", 3.0), ("step >= 5", 0.0), ("eval_loss > 0", 0.0)])
def test_the_time_after_the_last_step_is_not_saved(
    rule: str, saved_s: float, store_record: Callable[..., Path]
) -> None:
    """A final test and an upload of 60 s follow an early stop too: report, totals, ledger and sweep agree on that."""
    trigger = "on_evaluate" if "eval" in rule else "on_step_end"
    stops = parse_policy(f"""
controllers:
  - {{name: stop, triggers: [{trigger}], rule: {rule}, operations: [hfcontrols.should_training_stop]}}
""")
    events = [Event("step_end", step=step, elapsed_ns=step * SECOND_NS) for step in range(1, 6)]
    events.append(Event("evaluate", step=5, elapsed_ns=35 * SECOND_NS, metrics={"eval_loss": 1.0}))
    events.append(Event("train_end", step=5, elapsed_ns=65 * SECOND_NS))
    runs = [open_run(store_record(events, sealed=True))]
    report = backtest(stops, runs, cost_per_hour=3600.0)
    result, total, ledger = only(report), report_json(summarize(report))["aggregate"], summarize(report).ledger

    assert (result.recorded.elapsed_s, result.seconds_saved) == (65.0, saved_s)
    assert (total["elapsed_s"], total["seconds_saved"], total["cost_saved"]) == (65.0, saved_s, saved_s)
    assert sum(ledger.total(fate) for fate in (Fate.SAVED, Fate.UNKNOWN)) * 3600 == pytest.approx(saved_s)
    assert [row["seconds_saved"] for row in sweep(stops, {}, runs).frame().rows(named=True)] == [saved_s]


def test_a_log_without_updates_ends_where_its_step_last_rises(store_record: Callable[..., Path]) -> None:
    """Logs and evaluations carry the step; a second log of it belongs to what comes after."""
    stops = parse_policy("""
controllers:
  - {name: stop, triggers: [on_log], rule: step >= 10, operations: [hfcontrols.should_training_stop]}
""")
    clock = [(10, 1), (20, 4), (30, 9), (30, 30)]
    events = [Event("log", step, elapsed_ns=seconds * SECOND_NS, metrics={"loss": 1.0}) for step, seconds in clock]

    assert only(backtest(stops, [open_run(store_record(events))])).seconds_saved == 8.0


def test_a_run_without_a_clock_saves_an_unknown_time(policy: Policy, store_record: Callable[..., Path]) -> None:
    """All of its times are zero."""
    events = [Event("step_end", step=step, metrics={"loss": 3.0}) for step in (1, 2)]
    result = only(backtest(policy, [open_run(store_record(events))]))

    assert result.stop is not None
    assert result.stop.elapsed_ns is None
    assert (result.steps_saved, result.seconds_saved) == (1, None)


def test_cost_counts_the_hours_of_all_ranks(policy: Policy, record: Callable[..., Run]) -> None:
    """Five seconds of eight ranks at 36 an hour cost 0.4."""
    report = backtest(policy, [record(plan=Plan(world_size=8))], cost_per_hour=36)

    assert report_json(summarize(report))["aggregate"]["cost_saved"] == pytest.approx(0.4)
    assert any(
        "What is cut off cost 0.40: 0.0111 rank-hours at 36 each" in line for line in summary_lines(summarize(report))
    )


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"status": "failed", "plan": Plan(total_steps=20)}, "failed at step 10 of 20"),
        ({"status": "crashed"}, "crashed at step 10"),
        ({"status": "stopped"}, "stopped at step 10"),
        ({"status": "stopped", "reason": "EarlyStopping"}, "stopped (EarlyStopping) at step 10"),
        ({"status": "completed", "plan": Plan(total_steps=10)}, ""),
        ({"status": "completed"}, ""),
    ],
)
def test_a_run_that_might_have_gone_on_is_left_out_of_the_regret_with_its_reason(
    policy: Policy, record: Callable[..., Run], info: dict[str, Any], reason: str
) -> None:
    """Its own regret is shown as a bound."""
    report = backtest(policy, [record(**info)])
    document = report_json(summarize(report))

    assert only(report).right_censored.startswith(reason)
    assert bool(only(report).right_censored) == bool(reason)
    assert document["aggregate"]["relative_regret"]["runs"] == (0 if reason else 1)
    assert [run["reason"].startswith(reason) for run in document["excluded_from_regret"]] == ([True] if reason else [])
    assert table_rows(summarize(report))[0][TABLE_HEADINGS.index("regret")].startswith("≥") == bool(reason)


def test_after_a_diverting_decision_only_what_holds_whatever_follows_is_stated(record: Callable[..., Run]) -> None:
    """These are the steps and seconds spent, and the best value so far."""
    skips = parse_policy("""
controllers:
  - {name: skip, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_epoch_stop]}
""")
    result = only(backtest(skips, [record()]))

    assert result.predicted is None
    assert result.certain is not None
    assert (result.certain.steps, result.certain.elapsed_s, result.certain.best) == (5, 5.0, 0.5)


def test_median_steps_to_a_stop_allow_for_runs_that_ended_before(policy: Policy, record: Callable[..., Run]) -> None:
    """Two of four are stopped; half are by step 7, and runs never stopped count only as censored."""
    runs = [record(spike=spike, run_id=f"run-{spike}") for spike in (3, 7, 98, 99)]

    assert report_json(summarize(backtest(policy, runs)))["aggregate"]["median_steps_to_stop"] == 7


def test_several_processes_find_what_one_finds(policy: Policy, record: Callable[..., Run]) -> None:
    """Results keep the order of the runs, and unreadable runs are listed as excluded."""
    runs = [record(spike=spike, run_id=f"run-{spike}") for spike in (3, 5, 7)]
    (runs[1].folder / "run.json").write_text("{")

    alone = backtest(policy, runs, with_coverage=True)
    together = backtest(policy, runs, with_coverage=True, processes=2)

    assert report_json(summarize(together)) == report_json(summarize(alone))
    assert [run.run_id for run in together.excluded] == ["run-5"]


def test_frames_have_a_row_a_run_and_a_row_a_decision(policy: Policy, record: Callable[..., Run]) -> None:
    """They are meant for notebooks."""
    report = backtest(policy, [record()], cost_per_hour=36)

    assert report.runs_frame().select("run_id", "steps_predicted", "cost_saved").rows() == [("run-1", 5, 0.05)]
    assert report.decisions_frame().select("run_id", "step", "controller", "validity").rows() == [
        ("run-1", 5, "stop", "prefix-exact")
    ]
