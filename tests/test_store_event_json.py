"""Events survive a round trip through JSON lines, and a wrong line is reported by number."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.store.errors import InvalidEvent
from steptape.store.event_json import encoded_attrs, event_to_line, events_from_lines
from steptape.store.events import INIT_END, KINDS, LOOP_KINDS, Event

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(sorted(KINDS)),
    step=st.integers(-(2**63), 2**63 - 1),
    seq=st.integers(0, 2**63 - 1),
    attempt=st.integers(0, 2**31 - 1),
    rank=st.integers(0, 2**31 - 1),
    micro_step=st.integers(-(2**31), 2**31 - 1),
    epoch=st.none() | st.floats(),
    time_ns=st.integers(-(2**63), 2**63 - 1),
    elapsed_ns=st.integers(-(2**63), 2**63 - 1),
    value_lag=st.integers(-(2**31), 2**31 - 1),
    metrics=st.dictionaries(TEXT, st.floats(), max_size=4),
    attrs=st.dictionaries(TEXT, st.integers(-(2**80), 2**80) | TEXT | st.none() | st.lists(st.booleans()), max_size=3),
)


LANGUAGE = Path(__file__).parent.parent / "docs" / "reference" / "LANGUAGE-REFERENCE.md"
#: Every trigger that the page lists.
TRIGGERS = re.findall(
    r"^ *(on_\w+)", LANGUAGE.read_text().partition("## Triggers")[2].partition("\n## ")[0], re.MULTILINE
)


def read(*lines: str) -> list[Event]:
    """Parse the events of these lines."""
    return list(events_from_lines(lines, source="events.jsonl"))


@given(st.lists(EVENTS, max_size=4))
def test_events_come_back_from_lines_as_they_left(store_facts: Callable[..., Any], events: list[Event]) -> None:
    """Every field is equal to the bit, as strict JSON, one line each."""
    lines = [event_to_line(event) for event in events]
    for line in lines:
        json.loads(line, parse_constant=lambda token: pytest.fail(f"{token} is no strict JSON"))

    assert not any("\n" in line for line in lines)
    assert store_facts(read(*lines)) == store_facts(events)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_the_kind_of_every_documented_trigger_is_a_kind_of_json_lines(trigger: str) -> None:
    """The one that precedes every stream adds no event."""
    kind = trigger.removeprefix("on_")
    events = read(json.dumps({"event": kind}), '{"event": "step_end"}')

    assert [event.kind for event in events] == [*([] if kind == INIT_END else [kind]), "step_end"]
    assert [event.seq for event in events] == [*range(len(events))]


def test_the_page_lists_every_kind_of_a_loop_as_a_trigger() -> None:
    """None is left out above."""
    assert sorted(TRIGGERS) == sorted(f"on_{kind}" for kind in (INIT_END, *LOOP_KINDS))


def test_a_line_has_every_key_in_a_fixed_order() -> None:
    """The order is the documented one."""
    line = event_to_line(
        Event("step_end", 12, 57, epoch=0.5, time_ns=1, elapsed_ns=2, metrics={"loss": math.nan, "x": math.inf})
    )

    assert line == (
        '{"event": "step_end", "step": 12, "epoch": 0.5, "attempt": 0, "rank": 0, "seq": 57, "micro_step": 0, '
        '"time_ns": 1, "elapsed_ns": 2, "value_lag": 0, "metrics": {"loss": "NaN", "x": "Infinity"}, "attrs": {}}'
    )


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", '"NaN"', '"Infinity"', '"-Infinity"'])
def test_non_finite_numbers_are_read_as_names_and_as_bare_tokens(token: str) -> None:
    """We write the names; Python's json writes the tokens."""
    (event,) = read(f'{{"event": "log", "epoch": {token}, "metrics": {{"loss": {token}}}}}')

    assert str(event.metrics["loss"]) == str(event.epoch) == str(float(token.strip('"')))


def test_missing_keys_have_defaults_and_blank_lines_do_not_count() -> None:
    """A missing step follows from the events, a missing seq is the event's index."""
    events = read(
        '{"event": "train_begin"}',
        "",
        '{"event": "step_end", "metrics": {"loss": 1}}',
        "  \n",
        '{"event": "step_end"}',
        '{"event": "evaluate", "metrics": {"a": null}}',
        '{"event": "step_end", "step": 10}',
        '{"event": "step_end", "attrs": null, "run_id": "other"}',
    )

    assert [(event.step, event.seq) for event in events] == [(0, 0), (1, 1), (2, 2), (2, 3), (10, 4), (11, 5)]
    assert events[1] == Event("step_end", step=1, seq=1, metrics={"loss": 1.0})
    assert events[3].metrics == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "events.jsonl:2: not JSON"),
        ("[" * 100_000, "events.jsonl:2: not JSON"),
        ("3", 'a line must be an object with the key "event"'),
        ("{}", 'a line must be an object with the key "event"'),
        ('{"event": 3}', 'a line must be an object with the key "event"'),
        ('{"event": "step_ended"}', "unknown kind of event; got 'step_ended'. Did you mean 'step_end'?"),
        ('{"event": "on_step_end"}', "Did you mean 'step_end'?"),
        ('{"event": "zzz"}', "Known kinds: agreement, annotation, cleared, decision,"),
        ('{"event": "log", "loss": 1}', "unknown key; got 'loss'. Metrics belong under \"metrics\""),
        ('{"event": "log", "step": "1"}', "'step' must be a whole number; got '1'"),
        ('{"event": "log", "step": 1.5}', "'step' must be a whole number; got 1.5"),
        ('{"event": "log", "step": true}', "'step' must be a whole number; got True"),
        ('{"event": "log", "step": NaN}', "'step' must be a whole number; got nan"),
        ('{"event": "log", "step": 9223372036854775808}', "'step' is out of range; got 9223372036854775808"),
        ('{"event": "log", "rank": 2147483648}', "'rank' is out of range"),
        ('{"event": "log", "epoch": "one"}', "'epoch' must be a number; got 'one'"),
        ('{"event": "log", "metrics": [1]}', "'metrics' must be an object; got [1]"),
        ('{"event": "log", "metrics": {"loss": "high"}}', "metric 'loss' must be a number; got 'high'"),
        ('{"event": "log", "metrics": {"loss": [1]}}', "metric 'loss' must be a number; got [1]"),
        ('{"event": "log", "metrics": {"loss": 1' + "0" * 400 + "}}", "metric 'loss' must be a number"),
        ('{"event": "log", "attrs": "text"}', "'attrs' must be an object; got 'text'"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(line: str, message: str) -> None:
    """The error quotes the value; earlier events have been yielded."""
    lines = events_from_lines(['{"event": "train_begin"}', line], source="events.jsonl")

    assert next(lines).kind == "train_begin"
    with pytest.raises(InvalidEvent) as caught:
        next(lines)
    assert str(caught.value).startswith("events.jsonl:2: ")
    assert message in str(caught.value)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    """JavaScript and some exporters do so."""
    assert read('{"event": "log", "step": 3.0}')[0].step == 3


def test_attributes_of_any_depth_are_strict_json() -> None:
    """Non-finite numbers become their names, tuples lists, keys text."""
    assert encoded_attrs({"a": [math.nan, {"b": -math.inf}], "n": 2**70, "t": (1, 2), "ü": None}) == (
        f'{{"a":["NaN",{{"b":"-Infinity"}}],"n":{2**70},"t":[1,2],"ü":null}}'
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", "\ud800", 1j])
def test_attributes_that_json_cannot_hold_are_refused(value: object) -> None:
    """The error comes before they reach a journal."""
    with pytest.raises(InvalidEvent, match="attributes must be JSON values"):
        encoded_attrs({"a": value})
