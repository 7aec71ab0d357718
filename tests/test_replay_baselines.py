"""Each baseline's policy file decides on random streams as a plain reimplementation of its tool does."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import backtest, load_policy, open_run
from steptape.replay.backtests.baselines import BASELINES, baseline_policy
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.replaying import replay_events
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan

EVAL_LOSS = declared_objective("eval_loss", "min")
#: Few distinct values, so that ties and new bests are frequent.
VALUES = st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.04, 1.06, 2.0, 9.0]), min_size=1, max_size=40)


def stop_of(name: str, kind: str, metric: str, values: Sequence[float]) -> int | None:
    """Return the index of the value at which a baseline stops."""
    objective = EVAL_LOSS if kind == "evaluate" else None
    events = [Event(kind, step=i + 1, metrics={metric: value}) for i, value in enumerate(values)]
    stop = replay_events(baseline_policy(BASELINES[name], objective), events, Plan()).stop
    return None if stop is None else stop.event_index


def hugging_face(values: Sequence[float]) -> int | None:
    """Patience 1, threshold 0, with the callback's own bookkeeping."""
    best, bad = None, 0
    for index, value in enumerate(values):
        if best is None or (value < best and abs(value - best) > 0.0):
            bad = 0
        else:
            bad += 1
        if best is None or value < best:
            best = value
        if bad >= 1:
            return index
    return None


def lightning(values: Sequence[float]) -> int | None:
    """Patience 3, min_delta 0, finite check."""
    best, wait = math.inf, 0
    for index, value in enumerate(values):
        if not math.isfinite(value):
            return index
        if value < best:
            best, wait = value, 0
        else:
            wait += 1
            if wait >= 3:
                return index
    return None


def kill_loss_spike(values: Sequence[float]) -> int | None:
    """Window 100, multiplier 2, patience 4, cap 10."""
    window: deque[float] = deque(maxlen=100)
    outliers = 0
    for index, value in enumerate(values):
        if len(window) == 100:
            outliers = outliers + 1 if value >= 2 * sum(window) / 100 else 0
            is_high = index + 1 >= 200 and sum(loss > 10 for loss in window) >= 50
            if outliers > 4 or is_high:
                return index
        window.append(value)
    return None


def spike_detection(values: Sequence[float]) -> int | None:
    """Window 10, warm-up 1, relative tolerance 2."""
    window: deque[float] = deque(maxlen=10)
    last = 0.0
    for index, value in enumerate(values):
        if index >= 1:
            mean = sum(window) / len(window)
            if not math.isfinite(value) or (value - last > 0 and abs(value - mean) >= abs(2 * mean)):
                return index
        window.append(value)
        last = value
    return None


def z_score(values: Sequence[float]) -> int | None:
    """Window 30, threshold 3."""
    for index in range(30, len(values)):
        window = values[index - 30 : index]
        mean = sum(window) / 30
        if abs(values[index] - mean) > 3 * math.sqrt(sum((x - mean) ** 2 for x in window) / 30):
            return index
    return None


def generalization_loss(values: Sequence[float]) -> int | None:
    """Alpha 5."""
    for index, value in enumerate(values):
        if 100 * (value / min(values[: index + 1]) - 1) > 5:
            return index
    return None


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("hf_early_stopping", hugging_face),
        ("lightning_early_stopping", lightning),
        ("prechelt_gl", generalization_loss),
    ],
)
@given(values=VALUES)
@examples(60)
def test_a_baseline_on_evaluations_stops_where_the_tool_would(
    name: str, plain: Callable[[Sequence[float]], int | None], values: list[float]
) -> None:
    """Both use the tool's defaults."""
    assert stop_of(name, "evaluate", "eval_loss", values) == plain(values)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("kill_loss_spike", kill_loss_spike),
        ("lightning_spike_detection", spike_detection),
        ("wandb_zscore", z_score),
    ],
)
@given(
    level=st.sampled_from([1.0, 8.0, 12.0]), length=st.integers(1, 260), tail=VALUES, factor=st.sampled_from([1, 4, 16])
)
@examples(60)
def test_a_baseline_on_training_losses_stops_where_the_tool_would(
    name: str, plain: Callable[[Sequence[float]], int | None], level: float, length: int, tail: list[float], factor: int
) -> None:
    """A long quiet stretch has a rough end, in binary fractions, so every order of summation gives the same mean."""
    quiet = [level + (index % 4) / 8 for index in range(length)]
    values = [*quiet, *(factor * round(value * 8) / 8 for value in tail)]

    assert stop_of(name, "step_end", "loss", values) == plain(values)


def test_lightning_stops_at_a_loss_that_is_not_finite() -> None:
    """Its finite check is on by default; the divergence threshold is off and can be set."""
    policy = load_policy("lightning_early_stopping", params={"divergence_threshold": 3.0})
    events = [Event("evaluate", step=i, metrics={"eval_loss": v}) for i, v in enumerate([1.0, 4.0])]

    assert stop_of("lightning_early_stopping", "evaluate", "eval_loss", [1.0, math.nan]) == 1
    assert replay_events(policy, events, Plan()).stop is not None
    assert stop_of("lightning_early_stopping", "evaluate", "eval_loss", [1.0, 4.0]) is None


def test_pq_weighs_the_generalization_loss_against_the_progress_of_training() -> None:
    """With the same evaluations, the run that still progresses continues."""
    policy = baseline_policy(BASELINES["prechelt_pq"], EVAL_LOSS)

    def stops(losses: list[float]) -> bool:
        events = [Event("step_end", step=i, metrics={"loss": loss}) for i, loss in enumerate(losses)]
        evals = [Event("evaluate", step=5, metrics={"eval_loss": value}) for value in (1.0, 1.1)]
        return replay_events(policy, [*events, *evals], Plan()).stop is not None

    assert stops([1.0, 1.0, 1.0, 1.0, 1.0])
    assert not stops([2.0, 1.8, 1.6, 1.4, 1.2])


def test_a_baseline_watches_whatever_the_metric_of_merit_is() -> None:
    """Its name need not be an identifier, and high may be better."""
    policy = baseline_policy(BASELINES["lightning_early_stopping"], declared_objective("eval/acc", "max"))
    values = [0.5, 0.6, 0.55, 0.6, 0.59]
    events = [Event("evaluate", step=i, metrics={"eval/acc": value}) for i, value in enumerate(values)]

    stop = replay_events(policy, events, Plan()).stop

    assert stop is not None
    assert stop.event_index == 4


@pytest.fixture
def report(store_record: Callable[..., Path]) -> Backtest:
    """Three runs of ten steps, evaluated at each; the policy stops two of them at step 5."""
    policy = parse_policy("""
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
""")
    runs = []
    for number, spike in enumerate((5, 5, 99)):
        events = []
        for step in range(1, 11):
            events.append(Event("step_end", step=step, metrics={"loss": 3.0 if step == spike else 1.0}))
            events.append(Event("evaluate", step=step, metrics={"eval_loss": 2.0 - step / 10 if step < 9 else 3.0}))
            events.append(Event("save", step=step, attrs={"size_bytes": 1}))
        runs.append(open_run(store_record(events, run_id=f"run-{number}", sealed=True)))
    return backtest(policy, runs, baselines=list(BASELINES.values()))


def row(report: Backtest, name: str) -> dict[str, Any]:
    """Return one row of the comparison."""
    return next(entry for entry in report_json(summarize(report))["comparison"] if entry["name"] == name)


def test_never_and_the_oracle_enclose_every_policy(report: Backtest) -> None:
    """Never saves nothing and regrets nothing; the oracle stops at the best, step 8 of 10, without regret."""
    never = row(report, "never")["share_saved"]
    assert (never["mean"], never["median"], never["low"], never["runs"]) == (0.0, 0.0, None, 3)
    assert row(report, "oracle")["share_saved"]["mean"] == pytest.approx(0.2)
    assert row(report, "oracle")["relative_regret"]["mean"] == 0
    assert row(report, "policy")["share_saved"]["mean"] == pytest.approx(1 / 3)


def test_random_stops_are_an_expectation_at_the_policy_s_own_rate(report: Backtest) -> None:
    """Two stops in twenty steps are a rate of 0.1 a step; the expectation equals the explicit sum over steps."""
    rate, best = 2 / 20, 1.2
    evaluations = [2.0 - step / 10 if step < 9 else 3.0 for step in range(1, 11)]
    chances = [rate * (1 - rate) ** (step - 1) for step in range(1, 11)]
    kept = 1 - sum(chances)
    saved = sum(chance * (10 - step) / 10 for step, chance in enumerate(chances, start=1))
    regrets = [(min(evaluations[:step]) - best) / best for step in range(1, 11)]
    regret = sum(chance * value for chance, value in zip(chances, regrets, strict=True)) + kept * regrets[-1]

    found = row(report, "random")

    assert found["share_saved"]["mean"] == pytest.approx(saved)
    assert found["relative_regret"]["mean"] == pytest.approx(regret)
    assert found["stopped"] == pytest.approx(3 * (1 - kept))


def test_a_comparison_pairs_runs(report: Backtest) -> None:
    """Differences are computed run by run."""
    less = row(report, "hf_early_stopping")["policy_less_this"]

    assert less["share_saved"]["mean"] == pytest.approx((0.5 - 0.1 + 0.5 - 0.1 + 0.0 - 0.1) / 3)
    assert report_json(summarize(report))["aggregate"]["median_steps_to_stop"] == 5


def test_a_baseline_that_has_nothing_to_watch_says_so(store_record: Callable[..., Path]) -> None:
    """The cases are no evaluations, and a metric that the baseline is not defined for."""
    run = open_run(store_record([Event("step_end", step=1, metrics={"loss": 1.0})]))
    scored = open_run(store_record([Event("evaluate", step=1, metrics={"eval_acc": 1.0})], run_id="scored"))
    policy = parse_policy("controllers: []")

    without = backtest(policy, [run], baselines=[BASELINES["hf_early_stopping"]])
    high = backtest(policy, [run, scored], baselines=[BASELINES["prechelt_gl"]])

    assert "there is none" in report_json(summarize(without))["comparison"][1]["reason"]
    assert "higher values of the objective are better" in report_json(summarize(high))["comparison"][1]["reason"]
