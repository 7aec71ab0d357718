"""A step is one trigger for each rule and one event for each metric, even if its values come late."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import (
    Decision,
    Outcome,
    RuleError,
    RuleWarning,
    canonical_line,
    outcome_from_event,
    outcome_payload,
)
from steptape.rules.engine.engine import Engine
from steptape.rules.engine.missing_series import MISSING_SERIES_AFTER
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import AWAITED, LATE_FOR, SAMPLES, Event
from steptape.store.sample_losses import SampleLosses

METRICS = """
controller_metrics:
  - {name: batch, class: DataBatchInspector, arguments: {threshold: 3.0, sample_spike: 2.0}}
  - {name: history, class: HistoryBasedMetric, arguments: {window_size: 3}}
  - {name: state, class: TrainingState}
"""


def rule(name: str, text: str, trigger: str = "on_step_end", more: str = "") -> str:
    """Return one controller as a line."""
    return f"  - {{name: {name}, triggers: [{trigger}], rule: '{text}', operations: [hfcontrols.should_log]{more}}}\n"


def engine(*controllers: str, head: str = "") -> Engine:
    """Return an engine over controllers."""
    return Engine(parse_policy(f"{head}controllers:\n{''.join(controllers)}", source="p.yaml"))


def stream(
    steps: Sequence[Mapping[str, float]],
    *,
    late: frozenset[str] = frozenset(),
    lag: int = 2,
    evaluate_every: int = 5,
    log_every: int = 0,
    samples: Mapping[int, SampleLosses] | None = None,
) -> list[Event]:
    """Return a loop's events as a recorder writes them if the metrics named in ``late`` come from a device.

    No value is left on the device before an evaluation and at the end. With ``SAMPLES`` in ``late``, sample losses come
    late too.
    """
    events: list[Event] = []
    waiting: list[tuple[Event, dict[str, float], SampleLosses | None]] = []

    def add(event: Event) -> Event:
        events.append(event._replace(seq=len(events), elapsed_ns=len(events)))
        return events[-1]

    def bring(reached: int, until: int) -> None:
        while waiting and waiting[0][0].step <= until:
            first, metrics, losses = waiting.pop(0)
            attrs = {AWAITED: first.attrs[AWAITED], LATE_FOR: first.seq}
            lagging = first._replace(metrics=metrics, attrs=attrs, samples=losses, value_lag=reached - first.step)
            add(lagging)

    def emit(kind: str, step: int, metrics: Mapping[str, float], losses: SampleLosses | None = None) -> None:
        there = {name: value for name, value in metrics.items() if name not in late}
        missing = {name: value for name, value in metrics.items() if name in late}
        are_late = SAMPLES in late and losses is not None
        awaited = [*missing, *([SAMPLES] if are_late else [])]
        attrs: dict[str, Any] = {AWAITED: awaited} if awaited else {}
        event = add(Event(kind, step=step, metrics=there, attrs=attrs, samples=None if are_late else losses))
        if awaited:
            waiting.append((event, missing, losses if are_late else None))

    for step, metrics in enumerate(steps, 1):
        emit("step_end", step, metrics, (samples or {}).get(step))
        bring(step, step - lag)
        if log_every and step % log_every == 0:
            emit("log", step, metrics)
            bring(step, step - lag)
        if step % evaluate_every == 0:
            bring(step, step)
            emit("evaluate", step, {"eval_loss": 1.0})
    bring(len(steps), len(steps))
    return events


def observed(run: Engine, events: Sequence[Event]) -> list[Outcome]:
    """Return all outcomes of the policy."""
    return [*run.start(), *(outcome for event in events for outcome in run.observe(event))]


def fired(outcomes: Sequence[Outcome]) -> list[tuple[str, str, int, dict[str, str]]]:
    """Return controller, trigger, step and values of each decision, sorted by controller and step."""
    decisions = [outcome for outcome in outcomes if isinstance(outcome, Decision)]
    shown = [(d.controller, d.trigger, d.step, {n: repr(v) for n, v in d.values.items()}) for d in decisions]
    return sorted(shown, key=lambda place: place[:3])


LOSS_RULES = (
    rule("spike", "loss > 1.5 * mean(loss, 4)", more=", patience: {patience_threshold: 1}"),
    rule("high", "loss > 3", more=", cooldown: 2"),
    rule("held", "loss > lag(loss, 1)", more=", for: 1"),
    rule("steps", "loss > mean(loss, steps=3)"),
    rule("derived", "mean(loss * 2, 3) > 4"),
    rule("bad", "not isfinite(loss)", more=", once: true"),
    rule("after", 'fired("high") and steps_since("high") == 1 and loss > 0'),
    rule("logged", 'series("loss", kind="log") > 2', "on_log"),
    rule("worse", "eval_loss < mean(loss, 5)", "on_evaluate"),
)


@examples(60)
@given(
    losses=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0, 9.0, math.nan]), min_size=1, max_size=25),
    lag=st.integers(0, 4),
    evaluate_every=st.integers(1, 6),
    log_every=st.integers(0, 3),
)
def test_rules_about_a_metric_fire_alike_whether_it_comes_at_once_or_late(
    losses: list[float], lag: int, evaluate_every: int, log_every: int
) -> None:
    """Steps and values agree, with patience, holds, cooldowns and windows by steps."""
    steps = [{"loss": loss} for loss in losses]
    shape: dict[str, Any] = {"evaluate_every": evaluate_every, "log_every": log_every}
    at_once = observed(engine(*LOSS_RULES), stream(steps, **shape))
    late = observed(engine(*LOSS_RULES), stream(steps, late=frozenset({"loss"}), lag=lag, **shape))

    assert fired(late) == fired(at_once)


def test_a_decision_has_the_step_of_its_value_and_says_how_far_the_loop_had_come() -> None:
    """The record and the digest hold the lag; without a lag they omit it, so old digests remain valid."""
    events = stream([{"loss": 1.0}, {"loss": 9.0}, {"loss": 1.0}, {"loss": 1.0}], late=frozenset({"loss"}))
    (decision,) = observed(engine(rule("high", "loss > 3")), events)
    (at_once,) = observed(engine(rule("high", "loss > 3")), stream([{"loss": 1.0}, {"loss": 9.0}]))
    kind, attrs = outcome_payload(decision)

    assert (decision.step, decision.value_lag, events[decision.seq].attrs[LATE_FOR]) == (2, 2, 1)
    assert attrs["value_lag"] == 2
    assert outcome_from_event(Event(kind, attrs=attrs)) == decision
    assert canonical_line(decision).endswith(",2]")
    assert "value_lag" not in outcome_payload(at_once)[1]
    assert canonical_line(at_once) == '[0,0,1,"high",["hfcontrols.should_log"],{"loss":"0x1.2000000000000p+3"}]'


def test_what_looks_at_values_of_the_host_alone_does_not_wait() -> None:
    """Its decision is at the first event."""
    events = stream([{"loss": 9.0, "lr": 0.5}], late=frozenset({"loss"}))
    decided = observed(engine(rule("lr", "lr > 0.1"), rule("loss", "loss > 3"), rule("both", "loss * lr > 1")), events)

    assert [(outcome.controller, outcome.seq) for outcome in decided] == [("lr", 0), ("loss", 1), ("both", 1)]


@examples(60)
@given(
    late=st.lists(st.sets(st.sampled_from(["a", "b", "c"])), min_size=1, max_size=12),
    rules=st.lists(st.sampled_from(["a > 0", "b > 0", "a + c > 0", "step > 0", "state.global_step > 0"]), min_size=1),
    lag=st.integers(0, 3),
)
def test_each_rule_is_judged_once_a_step(late: list[set[str]], rules: list[str], lag: int) -> None:
    """A rule is judged neither twice nor not at all, whichever metrics come late at which step."""
    events: list[Event] = []
    for step, names in enumerate(late, 1):
        (first, *rest) = stream([dict.fromkeys("abc", 1.0)], late=frozenset(names))
        events += [event._replace(step=step, seq=event.seq + 2 * step) for event in (first, *rest)]
        if rest:
            events[-1] = events[-1]._replace(attrs={**rest[0].attrs, LATE_FOR: 2 * step})
    # A recorder brings the rest of a step some steps later.
    order = sorted(events, key=lambda event: (event.step + (lag if event.is_late else 0), event.is_late))
    policy = [rule(f"c{number}", text) for number, text in enumerate(rules)]

    outcomes = observed(engine(*policy, head=METRICS), order)

    judged = sorted((outcome.step, outcome.controller) for outcome in outcomes)
    assert judged == sorted((step, f"c{number}") for step in range(1, len(late) + 1) for number in range(len(rules)))


def test_a_metric_takes_a_step_once_and_whole() -> None:
    """It gets host values, late values and sample losses as if they had come together."""
    losses = {step: SampleLosses(array("f", [1.0, 1.0, 4.0 * step]).tobytes()) for step in range(1, 8)}
    steps = [{"loss": float(step), "lr": 0.5} for step in range(1, 8)]
    rules = (
        rule("batch", "batch.is_bad and batch.spiking == 1 and batch.loss > 3"),
        rule("history", "len(history.training_loss.loss) == 3 and history.training_loss.loss[-1] > 4", "on_log"),
        rule("logs", "len(state.log_history) == 2 and state.log_history[-1].lr > 0.1", "on_log"),
    )
    shape: dict[str, Any] = {"log_every": 2, "samples": losses}
    at_once = observed(engine(*rules, head=METRICS), stream(steps, **shape))

    for late in ({"loss"}, {SAMPLES}, {"loss", SAMPLES}):
        outcomes = observed(engine(*rules, head=METRICS), stream(steps, late=frozenset(late), **shape))
        assert fired(outcomes) == fired(at_once)
    assert {name for name, *_ in fired(at_once)} == {"batch", "history", "logs"}


def test_a_series_begins_with_the_event_that_awaits_it() -> None:
    """The bare name does not mean an earlier event of another kind that carries the metric."""
    first = Event("step_end", step=1, seq=0, attrs={AWAITED: ["loss"]})
    log = Event("log", step=1, seq=1, metrics={"loss": 100.0})
    late = Event("step_end", step=1, seq=2, value_lag=2, metrics={"loss": 1.0}, attrs={AWAITED: ["loss"], LATE_FOR: 0})
    outcomes = observed(engine(rule("low", "loss < 2"), rule("high", "loss > 2", "on_log")), [first, log, late])

    assert [outcome.controller for outcome in outcomes] == ["low"]


def test_another_name_of_the_learning_rate_is_awaited_like_its_own() -> None:
    """Hugging Face logs the full name."""
    events = stream([{"learning_rate": 0.5}], late=frozenset({"learning_rate"}))
    (decision,) = observed(engine(rule("c", "lr > 0.1")), events)

    assert (decision.seq, decision.step) == (1, 1)


def test_what_a_message_shows_is_waited_for() -> None:
    """The rule reads host values, and its message shows a late one."""
    policy = rule("c", "lr > 0", more=', message: "loss {loss:.1f}"')
    (decision,) = observed(engine(policy), stream([{"loss": 2.0, "lr": 1.0}], late=frozenset({"loss"})))

    assert isinstance(decision, Decision)
    assert decision.message == "loss 2.0"


def test_failures_and_warnings_come_once_and_say_the_lag() -> None:
    """A warning counts each step once."""
    steps = [{"loss": 1.0}] * (MISSING_SERIES_AFTER - 1)
    policy = (rule("broken", "1 / (loss - 1) > 0"), rule("missing", "loss > 3 and los > 1"))
    before = observed(engine(*policy), stream(steps, late=frozenset({"loss"})))
    after = observed(engine(*policy), stream([*steps, {"loss": 1.0}], late=frozenset({"loss"})))

    assert [(type(outcome), outcome.step, outcome.value_lag) for outcome in before] == [(RuleError, 1, 2)]
    assert [(type(outcome), outcome.step) for outcome in after] == [
        (RuleError, 1),
        (RuleWarning, MISSING_SERIES_AFTER),
    ]


def test_values_that_never_come_leave_their_step_unjudged_and_others_as_they_are() -> None:
    """A copy may fail, or a process may die before its completion."""
    events = [
        event
        for event in stream([{"loss": 9.0}] * 4, late=frozenset({"loss"}))
        if not (event.is_late and event.step == 2)
    ]

    assert [outcome.step for outcome in observed(engine(rule("c", "loss > 3")), events)] == [1, 3, 4]


def test_late_values_of_an_event_that_nobody_has_seen_are_values_all_the_same() -> None:
    """Their step was not seen, so no rule is judged at it; windows hold them."""
    late = Event("step_end", step=1, seq=5, metrics={"loss": 9.0}, attrs={AWAITED: ["loss"], LATE_FOR: 0})
    following = Event("step_end", step=2, seq=6, metrics={"loss": 9.0})
    outcomes = observed(engine(rule("c", "loss > 3"), rule("two", "len(loss) == 2")), [late, following])

    assert [(outcome.controller, outcome.step) for outcome in outcomes] == [("c", 2), ("two", 2)]


def test_an_attempt_does_not_wait_for_what_the_one_before_has_lost() -> None:
    """Event numbers restart with an attempt."""
    (first, late) = stream([{"loss": 9.0}], late=frozenset({"loss"}))
    run = engine(rule("c", "loss > 3"))
    run.resume([first], keeps_controllers=True)

    assert not run.observe(late._replace(attempt=1))
    assert [o.step for o in observed(run, [event._replace(attempt=1, step=2) for event in (first, late)])] == [2]


def test_a_resume_folds_late_values_without_asking_anybody() -> None:
    """The policy is another one: series are kept, and decisions are made anew."""
    run = engine(rule("c", "len(loss) == 3"))
    run.resume(stream([{"loss": 9.0}] * 2, late=frozenset({"loss"})), keeps_controllers=False)
    (first, late) = stream([{"loss": 9.0}], late=frozenset({"loss"}))

    assert [outcome.step for outcome in observed(run, [first._replace(attempt=1), late._replace(attempt=1)])] == [1]


@pytest.mark.parametrize(
    "attrs",
    [
        {AWAITED: "a text of the loop's own"},
        {AWAITED: []},
        {AWAITED: [1, None]},
        {LATE_FOR: 3},
        {AWAITED: ["loss"], LATE_FOR: [1]},
    ],
)
def test_attributes_of_these_names_that_no_recorder_wrote_break_nothing(attrs: dict[str, Any]) -> None:
    """A loop may log a text under any name, and a stream may come from anywhere."""
    events = [Event("step_end", step=at, seq=at, metrics={"loss": 9.0}, attrs=attrs) for at in range(3)]

    assert len(observed(engine(rule("c", "loss > 3")), events)) == (0 if len(attrs) == 2 else 3)
