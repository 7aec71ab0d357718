"""A step is one trigger for each rule and one event for each metric, even if its values come late."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import (
    Cleared,
    Decision,
    Outcome,
    RuleError,
    RuleWarning,
    canonical_line,
    outcome_from_event,
    outcome_payload,
)
from steptape.rules.engine.engine import MAX_BACKLOG, Engine
from steptape.rules.engine.outcomes import MISSING_SERIES_AFTER
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import AWAITED, BY_CALL, LATE_FOR, PLAN, SAMPLES, Event, SampleLosses
from steptape.store.plan import Plan

METRICS = """
controller_metrics:
  - {name: batch, class: DataBatchInspector, arguments: {threshold: 3.0, sample_spike: 2.0}}
  - {name: history, class: HistoryBasedMetric, arguments: {window_size: 3}}
  - {name: state, class: TrainingState}
"""


def rule(name: str, text: str, trigger: str = "on_step_end", more: str = "") -> str:
    """Return one controller as a line."""
    orders = "" if ", escalate: " in more else ", operations: [hfcontrols.should_log]"
    return f"  - {{name: {name}, triggers: [{trigger}], rule: '{text}'{orders}{more}}}\n"


#: What a loop in one process declares at its start.
PLANNED: Final = Plan(30, total_epochs=4, world_size=1, constants={"k": 1.0, "total_samples": 60})


def engine(*controllers: str, head: str = "", plan: Plan = Plan()) -> Engine:  # noqa: B008 - a Plan is immutable
    """Return an engine over controllers."""
    return Engine(parse_policy(f"{head}controllers:\n{''.join(controllers)}", source="p.yaml"), plan)


def stream(
    steps: Sequence[Mapping[str, float]],
    *,
    late: frozenset[str] = frozenset(),
    lag: int = 2,
    evaluate_every: int = 5,
    log_every: int = 0,
    samples: Mapping[int, SampleLosses] | None = None,
    by_call: bool = False,
    declares: Mapping[int, Mapping[str, Any]] | None = None,
) -> list[Event]:
    """Return a loop's events as a recorder writes them if the metrics named in ``late`` come from a device.

    No value is left on the device before an evaluation, a declaration and at the end. With ``SAMPLES`` in ``late``,
    sample losses come late too. With ``by_call``, the loop brings the values instead, whatever comes between.
    """
    events: list[Event] = []
    waiting: list[tuple[Event, dict[str, float], SampleLosses | None]] = []
    mark = {BY_CALL: True} if by_call else {}

    def add(event: Event) -> Event:
        events.append(event._replace(seq=len(events)))
        return events[-1]

    def bring(reached: int, until: int) -> None:
        while waiting and waiting[0][0].step <= until:
            first, metrics, losses = waiting.pop(0)
            attrs = {**first.attrs, LATE_FOR: first.seq}
            lagging = first._replace(metrics=metrics, attrs=attrs, samples=losses, value_lag=reached - first.step)
            add(lagging)

    def emit(kind: str, step: int, metrics: Mapping[str, float], losses: SampleLosses | None = None) -> None:
        there = {name: value for name, value in metrics.items() if name not in late}
        missing = {name: value for name, value in metrics.items() if name in late}
        are_late = SAMPLES in late and losses is not None
        awaited = [*missing, *([SAMPLES] if are_late else [])]
        attrs: dict[str, Any] = {AWAITED: awaited, **mark} if awaited else {}
        event = add(
            Event(kind, step, elapsed_ns=step * 10**9, metrics=there, attrs=attrs, samples=None if are_late else losses)
        )
        if awaited:
            waiting.append((event, missing, losses if are_late else None))

    for step, metrics in enumerate(steps, 1):
        emit("step_end", step, metrics, (samples or {}).get(step))
        bring(step, step - lag)
        if log_every and step % log_every == 0:
            emit("log", step, metrics)
            bring(step, step - lag)
        if declares and step in declares:
            bring(step, step - by_call * lag)
            add(Event(PLAN, step, attrs=declares[step]))
        if step % evaluate_every == 0:
            bring(step, step - by_call * lag)
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


#: What it declares later, by step.
DECLARED: Final[Mapping[int, Mapping[str, Any]]] = {4: {"total_steps": 8}, 7: {"constants": {"k": 2}}}

LOSS_RULES = (
    rule("spike", "loss > 1.5 * mean(loss, 4)", more=", for: 2"),
    rule("high", "loss > 3", more=", cooldown: 2"),
    rule("held", "loss > lag(loss, 1)", more=", for: 2"),
    rule("steps", "loss > mean(loss, steps=3)"),
    rule("derived", "mean(loss * 2, 3) > 4"),
    rule("bad", "not isfinite(loss)", more=", once: true"),
    rule("after", 'times_fired("high") > 0 and steps_since("high") == 1 and loss > 0'),
    rule("logged", 'series("loss", kind="log") > 2', "on_log"),
    rule("worse", "eval_loss < mean(loss, 5)", "on_evaluate"),
    rule("ranks", "any_rank(not loss < 3) and max_rank(step_time_s) > 0"),
    rule("gathered", "spread(loss) == 0", "on_ranks"),
    rule("half", "loss > 0 and 2 * step > max_steps"),
    rule("constant", "loss > k and k > 1"),
)


@examples(60)
@given(
    losses=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0, 9.0, math.nan]), min_size=1, max_size=25),
    lag=st.integers(0, 4),
    evaluate_every=st.integers(1, 6),
    log_every=st.integers(0, 3),
    by_call=st.booleans(),
)
def test_rules_about_a_metric_fire_alike_whether_it_comes_at_once_or_late(
    losses: list[float], lag: int, evaluate_every: int, log_every: int, *, by_call: bool
) -> None:
    """Steps and values agree, with patience, holds, cooldowns, windows by steps, all ranks and what is declared."""
    steps = [{"loss": loss} for loss in losses]
    shape: dict[str, Any] = {"evaluate_every": evaluate_every, "log_every": log_every, "declares": DECLARED}
    behind = stream(steps, late=frozenset({"loss"}), lag=lag, by_call=by_call, **shape)
    at_once = observed(engine(*LOSS_RULES, plan=PLANNED), stream(steps, **shape))
    late = observed(engine(*LOSS_RULES, plan=PLANNED), behind)

    assert fired(late) == fired(at_once)


#: Rules over series that may come late, their pasts, facts and metrics. ``{c}`` is the name of a controller.
_RULES: Final = (
    "a > {x}",
    "b < {x}",
    "a > {x} and b < 4",
    "host > {x}",
    "a > host",
    "mean(a, 3) > {x}",
    "a > 1.2 * mean(a, 2, skip=1)",
    "mean(b, steps=4) > {x}",
    "mean(host, epochs=2) > {x}",
    "max(a + host, last=3) > {x}",
    "ema(a, 3) > {x}",
    "peak(b) - b > {x}",
    "delta(a) > 0",
    "len(a) % 2 == 0",
    "count(a if b > 1 else host, steps=5) > {x}",
    'series("a", kind="log") > {x}',
    'times_fired("{c}") > 0',
    'times_fired("{c}") % 2 == 1',
    'steps_since("{c}") > {x}',
    'streak("{c}") > 0 and step % 3 != 0',
    'streak("{c}") == 0 or a > {x}',
    "step % 3 == 1",
    "elapsed_s > 6 and samples_seen > 30",
    "epoch > 2 or b > {x}",
    "eval_loss > b",
    "history.training_loss.a[-1] > {x}",
    "state.global_step % 2 == 1 and state.epoch >= 0",
    "state.max_steps == 8 or b > {x}",
    "2 * step > max_steps",
    "k > {x}",
    "a > {x} and k > 1",
    "any_rank(a > {x})",
    "max_rank(host) > {x} and spread(b) == 0",
    "level > {x} or high",
    "mean(high, 3) > 0.4",
    "streak(high) >= {x}",
    "age(a) >= {x}",
    "absent(b, steps=2)",
    "lag(a, steps=2) > {x}",
    "delta(b, seconds=3) > 0",
    "rate(a) > 0 or slope(a, 3, per='step') > 1",
    "mean(host, samples=40) > {x}",
    "mean(finite(a), 3, min=1) > {x}",
    'streak("{c}") >= {x}',
    'streak("{above}") > 0 and a > 1',
    'fired_now("{above}")',
    'phase == "rough" and b > {x}',
    'age("phase") >= {x}',
    'age("phase") == 0',
    "milestone(every=0.2)",
    "milestone(at=[0.3, 0.7], of='samples') or a > {x}",
    "not milestone(every=0.25, of='epochs') and step > 5",
    "b > 1 and milestone(every=0.1)",
    "half",
    "b > mean(kept, 2)",
    "mean(own, 2) > {x}",
    "delta(kept) > 0 or age(own) > 1",
    "mean(delta(own), 2, min=1) > 0",
    'any(series("n/*") > mean(series("n/*"), 3))',
    'count(series("n/*") > {x}) > 0 and a > 0',
    "worst > lag(worst, steps=2)",
    'mean(max(series("n/*") + a), 2) > {x}',
    'argmin(series("n/*")) == "n/2" and any(mean(a * series("n/*"), 2) > {x})',
    'series("n/1") > {x}',
    'median(series("n/*")) > {x} and streak("{c}") > 0',
    "each > mean(each, 2) or b > {x}",
)
#: Names and states that rules read.
_HEAD: Final = """
define:
  level: mean(finite(b), 3)
  high: a > 2
  half: milestone(at=0.5)
  worst: max(series("n/*")) + 0
  each: series("n/*")
  kept: {value: b, admit: 'not fired_now("c0")'}
  own: {value: a + host, admit: 'len(own) < 2 or a < 1.5 * mean(own, 3)'}
states: {phase: [{rough: 'high and host > 1'}, {calm: level < 3}]}
"""
_TIMING: Final = (
    "",
    "for: 2",
    "patience: {patience_threshold: 2, mode: no_reset_on_failure}",
    "for: 2",
    "for: {seconds: 1.5}",
    "cooldown: 3",
    "cooldown: {seconds: 2.5}",
    "cooldown: pause",
    "once: true",
    "between: [3, 15]",
    "message: '{a:.2f} {host} {step}'",
    "every: value",
    "requires: [b]",
    "requires: [n/*]",
    "for_each: n/*",
    "clear: b < 3",
    "escalate: {stages: [{operations: [], times: 2}, {operations: []}], cycle: true, forget_after: {evaluations: 1}}",
    "escalate: {stages: [{operations: []}, {operations: [], times: 2}], cap: 3, forget_after: 4}",
    "clear: 'host > 2 and streak(\"{c}\") != 2'",
)
_NUMBERS: Final = st.sampled_from([0.5, 1.0, 2.0, 4.0, 9.0, math.nan])


def _timing_kind(more: str) -> str:
    """The key of a timing line; patience counts results in a row as ``for`` does, so that a controller has one."""
    key = more.partition(":")[0]
    return "for" if key == "patience" else key


@st.composite
def controllers(draw: st.DrawFn) -> str:
    """Draw the text of a policy whose controllers read each other."""
    lines = list[str]()
    for number in range(draw(st.integers(1, 5))):
        text = draw(st.sampled_from([each for each in _RULES if number or "{above}" not in each]))
        above = f"c{draw(st.integers(0, max(number - 1, 0)))}"
        other = f"c{draw(st.integers(0, number))}"
        text = text.format(x=draw(st.integers(0, 4)), c=other, above=above)
        known = ["on_step_end", "on_log", "on_step_end, on_log", "on_evaluate"]
        # Changes of a state have no milestones.
        known += [] if "milestone" in text or "half" in text else ["on_state:phase"]
        triggers = draw(st.sampled_from(known))
        timing = draw(st.lists(st.sampled_from(_TIMING), max_size=2, unique_by=_timing_kind))
        names = re.search(r"\b(a|b|n|host|level|high|worst|each)\b", text)
        reads_series = names and "_rank" not in text and "history" not in text
        timing = [key.replace("{c}", other) for key in timing if key and (reads_series or not key.startswith("every"))]
        if text.startswith("each") and "for_each: n/*" not in timing:
            timing.append("for_each: n/*")
        more = "".join(f", {key}" for key in timing)
        lines.append(rule(f"c{number}", text.replace("'", '"'), triggers, more))
    return f"{METRICS}{_HEAD}cooldowns: {{pause: {{steps: 3}}}}\ncontrollers:\n{''.join(lines)}"


@st.composite
def reported(draw: st.DrawFn) -> list[dict[str, float]]:
    """Draw the metrics of a run whose series are each reported at some of the steps."""
    names = ("a", "b", "n/1", "n/2", "host", "batch_size", "epoch")
    steps = draw(st.integers(1, 20))
    return [{name: draw(_NUMBERS) for name in names if draw(st.booleans())} for _ in range(steps)]


@examples(250)
@given(
    text=controllers(),
    steps=reported(),
    late=st.sets(st.sampled_from(["a", "b", "n/1", "n/2", "batch_size", "epoch"]), min_size=1),
    lag=st.integers(1, 4),
    evaluate_every=st.integers(3, 30),
    log_every=st.integers(0, 3),
    by_call=st.booleans(),
)
def test_any_policy_decides_alike_whether_values_come_at_once_or_late(
    text: str,
    steps: list[dict[str, float]],
    late: set[str],
    lag: int,
    evaluate_every: int,
    log_every: int,
    by_call: bool,
) -> None:
    """Series are reported at some steps only, and controllers read each other, facts, metrics and all ranks."""
    policy = parse_policy(text)
    shape: dict[str, Any] = {"evaluate_every": evaluate_every, "log_every": log_every, "declares": DECLARED}
    events = stream(steps, late=frozenset(late), lag=lag, by_call=by_call, **shape)
    at_once = observed(Engine(policy, PLANNED), stream(steps, **shape))
    behind = observed(Engine(policy, PLANNED), events)

    assert said(behind) == said(at_once)


def said(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[object, ...]]]:
    """Return what each controller decided, and when it was cleared, in order, without what says when it was made."""
    made: dict[str, list[tuple[object, ...]]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Decision | Cleared):
            values = {name: repr(value) for name, value in outcome.values.items()}
            more: tuple[object, ...] = (
                (f"raised at {outcome.raised_at}",)
                if isinstance(outcome, Cleared)
                else (outcome.message, outcome.stage)
            )
            what = (outcome.trigger, outcome.step, outcome.epoch, values, outcome.member, *more)
            made.setdefault(outcome.controller, []).append(what)
    return made


def test_a_decision_has_the_step_of_its_value_and_says_how_far_the_loop_had_come() -> None:
    """The record and the digest hold the lag; without a lag they omit it."""
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
    decided = observed(engine(rule("lr", "lr > 0.1"), rule("steps", "step > 0"), rule("loss", "loss > 3")), events)

    assert [(outcome.controller, outcome.seq) for outcome in decided] == [("lr", 0), ("steps", 0), ("loss", 1)]


@pytest.mark.parametrize(
    "other",
    [
        rule("c", "loss * lr > 1"),
        rule("c", 'loss > 3 and times_fired("lr") > 0'),
        rule("c", "loss > 3", more=", cooldown: pause"),
        rule("lr", "loss > 3"),
    ],
    ids=["a series", "past decisions", "a cooldown", "a name"],
)
def test_controllers_that_share_something_with_one_that_waits_wait_with_it(other: str) -> None:
    """Both see what they share as of the same step."""
    events = stream([{"loss": 9.0, "lr": 0.5}], late=frozenset({"loss"}))
    head = "cooldowns: {pause: 1}\n"
    decided = observed(engine(rule("lr", "lr > 0.1", more=", cooldown: pause"), other, head=head), events)

    assert {outcome.seq for outcome in decided} == {1}


#: The losses of a run that reports one at steps 1, 2, 5 and 8.
RARE: list[dict[str, float]] = [{"loss": 1.0}, {"loss": 5.0}, {}, {}, {"loss": 1.0}, {}, {}, {"loss": 1.0}]


def test_a_step_without_a_late_value_waits_for_those_of_earlier_steps() -> None:
    """The loss is high from step 2 to step 4, whenever it arrives."""
    events = stream(RARE, late=frozenset({"loss"}), evaluate_every=100)
    at_once = observed(engine(rule("high", "loss > 2")), stream(RARE, evaluate_every=100))
    late = observed(engine(rule("high", "loss > 2")), events)

    assert [outcome.step for outcome in at_once] == [2, 3, 4]
    assert [(outcome.step, outcome.value_lag) for outcome in late] == [(2, 2), (3, 1), (4, 0)]
    assert {(events[outcome.seq].step, events[outcome.seq].value_lag) for outcome in late} == {(2, 2)}


def test_a_value_of_the_host_is_judged_beside_the_late_value_of_its_own_step() -> None:
    """Not the newest one by the time at which the late value arrives."""
    steps = [{"loss": 5.0, "lr": 0.01}, {"loss": 5.0, "lr": 0.5}, {"loss": 1.0, "lr": 0.5}, {"loss": 1.0, "lr": 0.5}]
    low = rule("low", "loss > 2 and lr < 0.1")

    at_once, late = (observed(engine(low), stream(steps, late=frozenset(names))) for names in ((), ("loss",)))

    assert fired(late) == fired(at_once) == [("low", "on_step_end", 1, {"loss": "5.0", "lr": "0.01"})]


def test_what_no_rule_reads_is_computed_at_its_own_event_all_the_same() -> None:
    """A state, and a definition that admits values: their failures have the step of an unsplit run."""
    head = "states: {phase: [{a: loss >= 1}, {b: 1 / 0 > 1}]}\n"
    head += "define: {kept: {value: loss, admit: 1 / loss > 0}}\n"
    steps = [{"loss": 3.0}, {"loss": 3.0, "lr": 1.0}, {"loss": 0.0}, {"loss": 0.0}, {"loss": 0.0}]
    policy = engine(rule("high", "lr > 2"), head=head), engine(rule("high", "lr > 2"), head=head)

    at_once, late = (
        observed(run, stream(steps, late=frozenset(names))) for run, names in zip(policy, ((), ("lr",)), strict=True)
    )

    failed = [
        sorted((each.controller, each.step) for each in made if isinstance(each, RuleError)) for made in (at_once, late)
    ]
    assert failed == [[("kept", 3), ("phase", 3)]] * 2


def test_a_controller_that_reads_only_another_one_waits_with_it() -> None:
    """It counts the decisions up to its own step."""
    rules = (rule("high", "loss > 2"), rule("twice", 'times_fired("high") == 2', more=", once: true"))
    at_once = observed(engine(*rules), stream(RARE))
    late = observed(engine(*rules), stream(RARE, late=frozenset({"loss"})))

    assert fired(late) == fired(at_once)
    assert [outcome.step for outcome in late if outcome.controller == "twice"] == [4]


def test_an_event_at_which_values_can_no_longer_arrive_ends_the_wait() -> None:
    """The copy of step 2 failed; the recorder brings all others before an evaluation."""
    events = stream([{"loss": 9.0}, {"loss": 9.0}, {}, {}], late=frozenset({"loss"}), evaluate_every=4)
    arrived = [event for event in events if not (event.is_late and event.step == 2)]
    outcomes = observed(engine(rule("c", "loss > 3")), arrived)

    assert [(outcome.step, outcome.value_lag) for outcome in outcomes] == [(1, 2), (3, 1), (4, 0)]
    assert [events[outcome.seq].kind for outcome in outcomes] == ["step_end", "evaluate", "evaluate"]


@pytest.mark.parametrize("by_call", [True, False])
def test_a_value_that_comes_after_a_later_one_is_lost(*, by_call: bool) -> None:
    """The newest value of a series stays the newest."""
    steps: list[dict[str, float]] = [{"loss": 9.0}, {"loss": 1.0}, {}, {}]
    *others, first, second = stream(steps, late=frozenset({"loss"}), lag=4, by_call=by_call)
    policy = (rule("high", "loss > 3"), rule("two", "len(loss) == 2"))
    after = Event("step_end", step=5, seq=9, metrics={"lr": 1.0})

    assert [o.step for o in observed(engine(*policy), [*others, second, first, after])] == []
    assert [o.step for o in observed(engine(*policy), [*others, first, second, after])] == [1, 2, 3, 4, 5]


def test_what_a_loop_brings_is_lost_at_the_end_of_the_attempt_only() -> None:
    """Values that are copied from a device are there before any other event, and are lost where they are not."""
    copied, brought = Event("log", 1, 1, attrs={AWAITED: ["lr"]}), {AWAITED: ["loss"], BY_CALL: True}
    events = [
        Event("step_end", 1, 0, attrs=brought),
        copied,
        Event("evaluate", 1, 2, metrics={"eval_loss": 1.0}),
        Event("step_end", 2, 3, attrs=brought),
        Event("step_end", 1, 4, value_lag=1, metrics={"loss": 5.0}, attrs={**brought, LATE_FOR: 0}),
        Event("train_end", 2, 5),
    ]
    policy = (
        rule("loss", "loss > 3"),
        rule("rate", "lr > 0 or loss > 0", "on_log"),
        rule("any", "loss > 3 or step > 0", "on_step_end, on_evaluate, on_train_end"),
    )
    made = [
        (outcome.controller, outcome.trigger, outcome.step, outcome.seq)
        for outcome in observed(engine(*policy), events)
    ]

    assert made == [
        ("loss", "on_step_end", 1, 4),
        ("any", "on_step_end", 1, 4),
        ("any", "on_evaluate", 1, 4),
        ("any", "on_train_end", 2, 5),
    ]


def test_a_value_that_does_not_arrive_holds_a_bounded_number_of_events_back() -> None:
    """Rules that wait for it judge the following steps then."""
    first = Event("step_end", step=1, metrics={"lr": 1.0}, attrs={AWAITED: ["loss"]})
    following = [Event("step_end", step=step, seq=step, metrics={"lr": 1.0}) for step in range(2, MAX_BACKLOG + 3)]
    run = engine(rule("c", "lr > 0 or loss > 0"))
    decided = [len(run.observe(event)) for event in (first, *following)]

    assert [count for count in decided if count] == [MAX_BACKLOG, 1]


def test_series_that_came_late_come_at_once_again() -> None:
    """A loop may move a metric to the host in the middle of a run."""
    events = stream([{"loss": 9.0}, {"loss": 9.0}], late=frozenset({"loss"}), evaluate_every=2)
    more = stream([{"loss": 9.0}, {"loss": 1.0}, {"loss": 9.0}], evaluate_every=2)
    shifted = [event._replace(step=event.step + 2, seq=event.seq + len(events)) for event in more]
    outcomes = observed(engine(rule("c", "loss > 3")), [*events, *shifted])

    assert [(outcome.step, outcome.value_lag) for outcome in outcomes] == [(1, 1), (2, 0), (3, 0), (5, 0)]


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
