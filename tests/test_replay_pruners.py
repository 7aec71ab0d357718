"""Pruners stop runs where plain reimplementations of their tools do, and see only what was known at the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import backtest, open_run
from steptape.replay.backtests.baselines import BASELINES, asha, median_pruner, pruned_at
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.objective import Evaluation, declared_objective
from steptape.replay.runs.run_result import Outlay, RunResult
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

LOSS = declared_objective("eval_loss", "min")
ACCURACY = declared_objective("eval_acc", "max")
RUNS = st.lists(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, math.nan]), max_size=20), min_size=1, max_size=12)


def result_of(values: Sequence[float], began_ns: int, every_ns: int, status: str = "completed") -> RunResult:
    """Return a run with those evaluations, in sequence on the wall clock."""
    made = tuple(Evaluation(i, i + 1, value, began_ns + (i + 1) * every_ns) for i, value in enumerate(values))
    outlay = Outlay(len(values), None, 0, None, None, None, None)
    ended_ns = began_ns + (len(values) + 1) * every_ns
    return RunResult(
        run_id="run",
        name="run",
        status=status,
        recorded=outlay,
        predicted=outlay,
        stop=None,
        decisions=(),
        error_counts={},
        ranks=1,
        evaluations=made,
        began_ns=began_ns,
        ended_ns=ended_ns,
        objective=LOSS,
    )


def plain_median(runs: Sequence[Sequence[float]]) -> list[int | None]:
    """Apply the pruner's own bookkeeping, run by run: startup of 5, medians of completed runs only."""
    completed: list[Sequence[float]] = []
    stops: list[int | None] = []
    for values in runs:
        stop = None
        for index in range(len(values)):
            if len(completed) < 5:
                break
            own = values[: index + 1]
            if np.isnan(own).all():
                stop = index
                break
            others = [run[index] for run in completed if index < len(run)]
            if others and not np.isnan(others).all() and np.nanmin(own) > np.nanmedian(others):
                stop = index
                break
        stops.append(stop)
        if stop is None:
            completed.append(values)
    return stops


def plain_asha(runs: Sequence[Sequence[float]]) -> list[int | None]:
    """Apply the scheduler's own bookkeeping: larger is better, and a rung keeps values above the 75th percentile."""
    rungs: dict[int, list[float]] = {1: [], 4: [], 16: []}
    stops: list[int | None] = []
    for values in runs:
        stop = None
        for index, value in enumerate(values):
            recorded = rungs.get(index + 1)
            if recorded is None:
                continue
            known = [entry for entry in recorded if not math.isnan(entry)]
            is_worse = bool(known) and -value < np.percentile(known, 75)
            recorded.append(-value)
            if is_worse:
                stop = index
                break
        stops.append(stop)
    return stops


@given(runs=RUNS)
@examples(150)
def test_pruners_stop_where_the_tools_would(runs: list[list[float]]) -> None:
    """The runs do not overlap and are in the order of their beginning."""
    results = [result_of(values, began_ns=1000 * number, every_ns=1) for number, values in enumerate(runs, start=1)]

    for pruner, plain in ((median_pruner, plain_median), (asha, plain_asha)):
        found = [None if stop is None else stop.event_index for stop in pruned_at(pruner, results)]
        assert found == plain(runs)


def test_a_run_sees_no_run_that_began_later_and_of_earlier_ones_only_what_they_had_by_then() -> None:
    """Good runs that begin later, or have recorded nothing yet, prune no run, in any order of the results."""
    slow, late = result_of([0.1], began_ns=1, every_ns=1000), result_of([0.1], began_ns=500, every_ns=1)
    bad = result_of([9.0], began_ns=2, every_ns=1)
    after = result_of([9.0], began_ns=3000, every_ns=1)

    stops = pruned_at(asha, [after, late, bad, slow])

    assert [stop is not None for stop in stops] == [True, False, False, False]


@given(
    runs=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), max_size=6)), max_size=12
    ),
    seed=st.randoms(use_true_random=False),
)
@examples(150)
def test_the_order_in_which_runs_stand_ends_none(runs: list[tuple[int, list[float]]], seed: Random) -> None:
    """The order comes from folder names and says nothing about runs with the same start or an unknown one."""
    results = [result_of(values, began_ns=began, every_ns=int(began > 0)) for began, values in runs]
    order = seed.sample(range(len(results)), len(results))

    for pruner in (median_pruner, asha):
        shuffled = pruned_at(pruner, [results[index] for index in order])
        assert [pruned_at(pruner, results)[index] for index in order] == shuffled


@pytest.mark.parametrize("status", ["failed", "crashed", "running", "interrupted"])
def test_a_run_that_did_not_end_well_is_no_measure_for_the_median(status: str) -> None:
    """Pruning needs five completed runs."""
    states = ["completed"] * 4 + [status]
    before = [result_of([0.1], began_ns=10 + n, every_ns=1, status=state) for n, state in enumerate(states)]

    assert pruned_at(median_pruner, [*before, result_of([9.0], began_ns=100, every_ns=1)])[-1] is None


def test_where_high_is_better_the_low_run_is_pruned() -> None:
    """The sixth run at 0.2 is pruned after five at 0.9."""
    before = [result_of([0.9], began_ns=10 + number, every_ns=1) for number in range(5)]
    runs = [*before, result_of([0.2], began_ns=100, every_ns=1), result_of([0.95], began_ns=200, every_ns=1)]

    for pruner in (median_pruner, asha):
        assert [stop is not None for stop in pruned_at(pruner, [replace(run, objective=ACCURACY) for run in runs])] == [
            False
        ] * 5 + [True, False]


@pytest.fixture
def report(store_record: Callable[..., Path]) -> Backtest:
    """Six good runs of ten steps and, last, one with ten times their loss."""
    runs = []
    for number in range(7):
        events = []
        for step in range(1, 11):
            at: dict[str, Any] = {"step": step, "time_ns": 1000 * number + step + 1}
            level = 10.0 if number == 6 else 1.0 - number / 1e3  # No two are one training.
            events.append(Event("step_end", metrics={"loss": level}, **at))
            events.append(Event("evaluate", metrics={"eval_loss": level / step}, **at))
            if step % 2:
                events.append(Event("save", attrs={"size_bytes": 1}, **at))
        runs.append(open_run(store_record(events, run_id=f"run-{number}", sealed=True)))
    return backtest(parse_policy("controllers: []"), runs, baselines=[BASELINES["median_pruner"], BASELINES["asha"]])


def test_a_pruner_stands_in_the_comparison_with_its_savings_and_regrets(report: Backtest) -> None:
    """The last run ends at its first evaluation, which a checkpoint follows; it saves nine tenths, with a regret."""
    _, median, rungs = report_json(summarize(report))["comparison"]

    assert median["stopped"] == rungs["stopped"] == 1
    assert median["share_saved"]["mean"] == pytest.approx(0.9 / 7)
    assert median["relative_regret"]["mean"] == pytest.approx((10.0 - 1.0) / 1.0 / 7)
    assert median["relative_deployable_regret"]["mean"] == pytest.approx((10.0 - 10 / 9) / (10 / 9) / 7)


def test_pruners_need_a_metric_of_merit(store_record: Callable[..., Path]) -> None:
    """The comparison says so."""
    run = open_run(store_record([Event("step_end", step=1, metrics={"loss": 1.0})]))

    row = report_json(summarize(backtest(parse_policy("controllers: []"), [run], baselines=[BASELINES["asha"]])))[
        "comparison"
    ][1]

    assert row["reason"] == "it watches the objective, and there is none"


def test_a_run_that_does_not_say_when_it_was_is_compared_with_none(store_record: Callable[..., Path]) -> None:
    """Its predecessors are unknown; the report counts the runs left out, and gives the reason if all are."""
    at: dict[str, Any] = {"step": 1, "metrics": {"eval_loss": 1.0}}
    clocked = open_run(store_record([Event("evaluate", time_ns=1_000, **at)], run_id="clocked"))
    timeless = open_run(store_record([Event("evaluate", **at)], run_id="timeless"))
    policy, baselines = parse_policy("controllers: []"), [BASELINES["asha"]]

    mixed = backtest(policy, [clocked, timeless], baselines=baselines)
    free = backtest(policy, [timeless], baselines=baselines)

    assert report_json(summarize(mixed))["comparison"][1]["runs"] == 1
    why = "the others have no clock times, or no metric judges them"
    assert f"ASHA (Ray Tune): scored on 1 of 2 runs; {why}." in summary_lines(summarize(mixed))
    assert report_json(summarize(free))["comparison"][1]["reason"] == "no run has clock times"
