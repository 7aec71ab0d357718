"""A decision holds the readings of its rule, and survives recording without loss."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import (
    Decision,
    LogMessage,
    Outcome,
    RuleError,
    RuleWarning,
    canonical_line,
    decision_digest,
    outcome_from_event,
    outcome_payload,
)
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import TelemetryError
from steptape.store.events import Event


def decided(rule: str, *events: Event, head: str = "") -> dict[str, Any]:
    """Return the values of the last decision of a rule that is evaluated at every step."""
    controller = f"  - name: c\n    triggers: [on_step_end]\n    rule: |-\n      {rule}\n    operations: []\n"
    engine = Engine(parse_policy(f"{head}controllers:\n{controller}"))
    outcomes: Sequence[Outcome] = ()
    for event in events:
        outcomes = engine.observe(event)
    assert isinstance(outcomes[-1], Decision), outcomes
    return dict(outcomes[-1].values)


def step(**metrics: float) -> Event:
    """Return one ``step_end`` event."""
    return Event("step_end", metrics=metrics)


def test_a_decision_shows_past_decisions_as_its_rule_saw_them() -> None:
    """Those of its own event are not among them."""
    text = """
controllers:
  - {name: a, triggers: [on_step_end], rule: times_fired("a") == 0, operations: []}
  - {name: b, triggers: [on_step_end], rule: 'times_fired("a") < 1 and streak("b") == 0', operations: []}
  - {name: c, triggers: [on_step_end], rule: 'streak("c") < 1 and fired_now("a")', operations: []}
"""
    made = Engine(parse_policy(text)).observe(step(loss=1.0))

    assert [dict(outcome.values) for outcome in made if isinstance(outcome, Decision)] == [
        {'times_fired("a")': 0},
        {'times_fired("a")': 0, 'streak("b")': 0},
        {'streak("c")': 0, 'fired_now("a")': True},
    ]


HEAD = """\
params: {spike: 2.0, label: x}
controller_metrics:
  - {name: w, class: HistoryBasedMetric, arguments: {window_size: 3}}
"""
LOGS = [
    Event("log", seq=0, metrics={"loss": 3.0}, epoch=0.1),
    Event("log", seq=1, step=1, metrics={"loss": 2.0}, epoch=0.2),
    Event("evaluate", seq=2, metrics={"eval_loss": 5.0}),
]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("x > 0", {"x": 1.0}),
        ("x <= spike * mean(x,   2)", {"x": 1.0, "spike": 2.0, "mean(x, 2)": 1.0}),
        ("lag(x, 5) > 1 if x > 3 else True", {"x": 1.0}),
        (
            'w["training_loss"]["loss"][-1] == 2.0 and w.training_loss.steps[-1] == 1',
            {'w["training_loss"]["loss"][-1]': 2.0, "w.training_loss.steps[-1]": 1},
        ),
        ('len(w["training_loss"]["loss"]) == 2', {'len(w["training_loss"]["loss"])': 2}),
        (
            'abs(w["metrics"]["eval_loss"][-1] - x) == 4',
            {'abs(w["metrics"]["eval_loss"][-1] - x)': 4.0, 'w["metrics"]["eval_loss"][-1]': 5.0, "x": 1.0},
        ),
        ('list(w["training_loss"]["loss"])[-2] == 3.0', {'list(w["training_loss"]["loss"])[-2]': 3.0}),
        ("sum([y for y in w.training_loss.loss]) > 1", {"sum([y for y in w.training_loss.loss])": 5.0}),
        ('w.get("window_size") == 3', {'w.get("window_size")': 3}),
        ('series("loss", kind="log") == 2.0', {'series("loss", kind="log")': 2.0}),
        ('label == "x" and f"{x}" == "1.0"', {"label": "x"}),
        ("True", {}),
        ("isfinite(x) == True", {"isfinite(x)": True, "x": 1.0}),
        ('w["metrics"].get("none") == None', {'w["metrics"].get("none")': None}),
        ("True or never > 1", {}),
        ("True or 1 / (x - 1) > 0", {"x": 1.0}),
        ("len(x) == 1 and min([x, 7.0]) == 1.0", {"len(x)": 1, "x": 1.0, "min([x, 7.0])": 1.0}),
    ],
)
def test_a_decision_carries_the_readings_of_its_rule(rule: str, expected: dict[str, Any]) -> None:
    """Series, params, calls and whole chains are keyed by their text; only defined scalars are kept."""
    assert decided(rule, *LOGS, step(x=1.0), head=HEAD) == expected


def test_long_texts_and_many_readings_are_left_out() -> None:
    """The limits are 64 readings, and texts of 200 characters."""
    rule = " and ".join(f"abs(loss + {number}) > 0" for number in range(100))
    text_rule = 'str("a" * 201) != "" and str("a" * 200) != "" and str(float("nan")) == "nan"'

    assert len(decided(rule, step(loss=1.0))) == 64
    assert sorted(decided(text_rule, step())) == ['float("nan")', 'str("a" * 200)', 'str(float("nan"))']


def test_texts_that_stand_for_numbers_in_json_are_left_out() -> None:
    """They would be decoded as floats."""
    assert decided('str("NaN") == "NaN" and str("Infinity") != "x"', step()) == {}


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20).filter(lambda text: text not in ("NaN", "Infinity", "-Infinity")),
)
texts = st.text(max_size=20)
places = {
    "controller": texts,
    "trigger": texts,
    "attempt": st.integers(0, 9),
    "rank": st.integers(0, 9),
    "seq": st.integers(-1, 2**60),
    "step": st.integers(0, 2**60),
    "epoch": st.one_of(st.none(), st.floats()),
}
outcomes = st.one_of(
    st.builds(
        Decision,
        **places,
        operations=st.lists(texts, max_size=3).map(tuple),
        values=st.dictionaries(texts, scalars, max_size=5),
        messages=st.lists(st.builds(LogMessage, texts, texts, texts), max_size=2).map(tuple),
    ),
    st.builds(RuleError, **places, error=texts),
    st.builds(RuleWarning, **places, warning=texts),
)


@given(outcomes)
def test_an_outcome_survives_being_recorded_as_an_event(outcome: Outcome) -> None:
    """It passes through strict JSON and returns with the same canonical line, NaN and infinities included."""
    kind, attrs = outcome_payload(outcome)
    recorded = json.loads(json.dumps({**attrs, "added_later": 1}, allow_nan=False))

    back = outcome_from_event(Event(kind, attrs=recorded))

    assert type(back) is type(outcome)
    assert canonical_line(back) == canonical_line(outcome)
    assert repr(back) == repr(outcome)


def test_a_recorded_outcome_that_says_little_takes_the_rest_from_its_envelope() -> None:
    """The defaults are attempt, rank, step and epoch of the recording event."""
    attrs = {"controller": "c", "trigger": "on_log", "event_seq": 3, "operations": [], "values": {}}

    outcome = outcome_from_event(Event("decision", attempt=1, rank=2, step=5, epoch=0.5, attrs=attrs))

    assert outcome == Decision("c", "on_log", 1, 2, 3, 5, 0.5)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            Event("decision", seq=7, attrs={"controller": "c"}),
            "event 0/0/7: a recorded outcome lacks a key; got 'trigger'",
        ),
        (Event("step_end"), "not the outcome of a rule"),
        (
            Event("decision", attrs={"controller": 1, "trigger": "t", "event_seq": 0, "operations": [], "values": {}}),
            "a recorded outcome is malformed; got 'not text: 1'",
        ),
        (
            Event("decision", attrs={"controller": "c", "trigger": "t", "event_seq": 0, "operations": [], "values": 3}),
            "a recorded outcome is malformed",
        ),
        (
            Event("rule_error", attrs={"controller": "c", "trigger": "t", "event_seq": "x", "error": "e"}),
            "a recorded outcome is malformed",
        ),
    ],
)
def test_an_event_that_records_no_outcome_is_refused(event: Event, message: str) -> None:
    """The error is one of our own and names the fault."""
    if event.kind == "step_end":
        event = event._replace(attrs={"controller": "c", "trigger": "t", "event_seq": 0})

    with pytest.raises(TelemetryError) as caught:
        outcome_from_event(event)

    assert message in str(caught.value)


def test_canonical_lines_are_exact_and_do_not_depend_on_wording() -> None:
    """Floats are exact to the last bit; errors and warnings appear by kind, as Python's messages change by version."""
    decision = Decision(
        "c", "on_log", 0, 1, 2, 3, None, ("a.b",), {"x": 0.1, "y": math.nan, "n": 3, "t": "ü", "b": True}
    )

    assert canonical_line(decision) == (
        '[0,1,2,"c",["a.b"],{"x":"0x1.999999999999ap-4","y":"nan","n":3,"t":"\\u00fc","b":true}]'
    )
    assert canonical_line(RuleError("c", "on_log", 0, 1, 2, 3, None, "one")) == '[0,1,2,"c","rule_error",{}]'
    assert canonical_line(RuleWarning("c", "on_log", 0, 1, 2, 3, None, "two")) == '[0,1,2,"c","rule_warning",{}]'


def test_the_digest_tells_order_and_the_last_bit() -> None:
    """Equal outcomes have equal digests."""
    one = Decision("c", "on_log", 0, 0, 1, 0, None, (), {"x": 0.3})
    other = Decision("c", "on_log", 0, 0, 1, 0, None, (), {"x": 0.1 + 0.2})

    digests = [decision_digest(given) for given in ([one, other], [other, one], [one, one], [], [one, other])]

    assert len(set(digests)) == 4
    assert digests[0] == digests[4]
