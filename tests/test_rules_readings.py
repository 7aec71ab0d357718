"""Every kind of reading gives all its answers, and they agree: live, columns, bounds, and when it comes first."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator, Sequence

import pytest
from drawn_readings import EXPRESSION_FORMS, FACTS, FORMS, PLAN, readings_of, streams
from hypothesis import given, settings
from hypothesis import strategies as st

from steptape.replay.columns.column_replay import by_columns
from steptape.replay.columns.variants import StructureCompiler
from steptape.replay.runs.appearances import StreamAppearances
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.replaying import ByEngine, replay_events, replay_stream
from steptape.rules import readings
from steptape.rules.checks.dead_conditions import Dead, RuleVerdicts
from steptape.rules.checks.possible_firings import RuleSurroundings, RuleTruth
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.rules.readings.first_events import START
from steptape.rules.readings.reading import Reading, SeriesReading
from steptape.rules.readings.table import FUNCTIONS, OF_NAMES, OF_SERIES, RANK_FUNCTIONS
from steptape.store.events import Event

POLICY = """
params: {{limit: 1.5, is_on: true}}
{more}
controllers:
  - {{name: above, triggers: [on_step_end], rule: loss > 1, operations: []}}
  - {{name: asked, triggers: [on_step_end, on_evaluate], rule: '{rule}', operations: []{each}}}
"""


def kinds(base: type[Reading] = Reading) -> Iterator[type[Reading]]:
    """Yield every kind of reading that a rule can hold."""
    for found in pkgutil.iter_modules(readings.__path__):
        importlib.import_module(f"{readings.__name__}.{found.name}")
    for kind in base.__subclasses__():
        if kind is not SeriesReading and not any(kind.__name__ == other.__name__ for other in kinds(kind)):
            yield kind
        yield from kinds(kind)


KINDS = {kind.__name__: kind for kind in kinds()}
EXAMPLES = [(name, text) for name, kind in KINDS.items() for text in kind.examples]


def policy_of(text: str) -> Policy:
    """Return a policy whose last rule reads this, and is true where it has a value."""
    rule = f"not isfinite({text} * 1.0) or {text} * 1.0 > -1e308"
    more, each = "", ""
    if "newest" in text:
        more, rule = "controller_metrics: [{name: newest, class: EvalMetrics}]", f"{text}.eval_loss > -1"
    elif "mood" in text:
        more = "states: {mood: [{bad: loss > 1.5}, {good: 'True'}]}"
    elif text == "member":
        each = ", for_each: g/*"
    if text.startswith(("member", "mood", "previous", "argmax(series")):
        rule = f'{text} != "none"'
    return parse_policy(POLICY.format(rule=rule.replace("'", "''"), more=more, each=each))


def run(count: int = 12, *, has_epochs: bool = True) -> list[Event]:
    """Return the events of a short run: steps, evaluations, values of a family and of two ranks."""
    events: list[Event] = []
    for step in range(1, count + 1):
        loss = math.nan if step == 5 else [0.5, 2.0, 1.0, 3.0][step % 4]
        metrics = {"loss": loss, "g/0": float(step), "batch_size": 2.0, "num_tokens": 3.0}
        metrics |= {"g/1": 1.0} if step > 3 else {}
        place = (step, len(events))
        epoch = step / 8 if has_epochs else None
        attrs = {"applied": False} if step == 4 else {}
        events.append(Event("step_end", *place, epoch=epoch, elapsed_ns=step * 10**9, metrics=metrics, attrs=attrs))
        if step % 3 == 0:
            gathered = {"loss@0": loss, "loss@1": 2.0}
            events.append(Event("ranks", step, len(events), metrics=gathered, attrs={"world_size": 2}))
            events.append(
                Event("evaluate", step, len(events), elapsed_ns=step * 10**9, metrics={"eval_loss": 4 / step})
            )
    return events


RUNS = [run(), run(2), run(has_epochs=False), []]


def node_of(policy: Policy, text: str) -> ast.expr:
    """Return the part of the last rule that reads this."""
    rule = policy.controllers[-1].rule.bound
    nodes = (node for node in ast.walk(rule.expression.tree) if isinstance(node, ast.expr))
    return next(node for node in nodes if rule.expression.segment(node) == text)


def check_columns(policy: Policy, text: str, events: Sequence[Event]) -> bool:
    """Assert that columns give the engine's outcomes, if they can; return whether they can."""
    stream = event_stream(events)
    decider = by_columns(policy, stream, PLAN)
    if isinstance(decider, ByEngine):
        return False
    found = replay_stream(policy, stream, PLAN, lambda *_: decider)
    assert repr(found) == repr(replay_events(policy, events, PLAN)), text
    return True


def check_limits(policy: Policy, text: str, events: Sequence[Event]) -> None:
    """Assert that each value is within the reading's bounds, and none comes before it can be there."""
    rule, node = policy.controllers[-1].rule.bound, node_of(policy, text)
    bounds = RuleVerdicts(rule, Dead()).ranges.of(node)
    metrics = {declaration.name: declaration for declaration in policy.metrics}
    places = StreamAppearances(event_stream(events), PLAN)
    classified = {state.name: START for state in policy.states}
    around = RuleSurroundings(places, metrics, {}, lambda *_: START, classified.get)
    first = RuleTruth(around, rule).first(node, None)
    for judged in replay_events(policy, events, PLAN).decisions:
        made = judged.outcome
        if not isinstance(made, Decision) or made.controller != "asked":
            continue
        assert isinstance(first, int), (text, first)
        assert judged.event_index >= first, text
        value = made.values.get(text)
        if bounds is not None and isinstance(value, (int, float)):
            is_within = bounds.may_be_nan if math.isnan(value) else bounds.sure_low <= value <= bounds.sure_high
            assert is_within, (text, value, bounds)


@pytest.mark.parametrize("name", KINDS)
def test_no_kind_lacks_an_answer_or_an_example(name: str) -> None:
    """A class without one of the answers is abstract. Each example holds a reading of its kind."""
    kind = KINDS[name]

    assert not inspect.isabstract(kind)
    assert kind.examples
    for text in kind.examples:
        read = {type(reading) for reading in policy_of(text).controllers[-1].rule.bound.references.values()}
        assert kind in read, text


def test_every_function_of_readings_is_in_an_example_or_a_form() -> None:
    """So each row of the table is run live and by columns."""
    called = {name for _, text in EXAMPLES for name in FUNCTIONS if f"{name}(" in text}
    called |= {name for form in FORMS for text in readings_of(form) for name in FUNCTIONS if f"{name}(" in text}

    assert called >= {*OF_SERIES, *OF_NAMES, *RANK_FUNCTIONS} - {"argmin"}


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_the_answers_of_a_reading_agree(name: str, text: str) -> None:
    """Columns decide like the engine or say why they do not; values are within bounds, and not before the first."""
    policy = policy_of(text)

    for events in RUNS:
        is_columnar = check_columns(policy, text, events)
        check_limits(policy, text, events)
    watchers = StructureCompiler().structure(policy).watchers
    (reason,) = (watcher.reason for watcher in watchers if watcher.declaration.name == "asked")
    # A replay records the classes of states: only a sweep computes these by columns.
    assert is_columnar is not bool(reason or policy.states), (name, reason)


@pytest.mark.parametrize("form", dict.fromkeys([*FORMS, *EXPRESSION_FORMS, *FACTS]))
@given(st.lists(streams(), min_size=3, max_size=3))
@settings(max_examples=1)
def test_each_reading_alone_is_that_of_the_event_engine(form: str, runs: list[list[Event]]) -> None:
    """Where it has a value, and which: decisions record it. Columns decide at least one of the runs themselves."""
    decided = 0
    for text in readings_of(form):
        policy = parse_policy(f"""
params: {{threshold: 1.5, factor: 2, window: 3}}
controllers:
  - name: asked
    triggers: [on_step_end, on_evaluate]
    rule: 'not isfinite({text} * 1.0) or {text} * 1.0 > -1e308'
    operations: []
""")
        decided += sum([check_columns(policy, text, events) for events in runs])
        if not text.replace(".", "").isdigit():
            check_limits(policy, text, runs[0])

    assert decided or form == "updates_skipped"
