"""Spans and samples of the machine change no decision of a policy that does not read them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from drawing import scaled, seed
from reference_drawing import drawn_policy, drawn_run
from reference_driving import late

from steptape.replay.runs.replaying import replay
from steptape.replay.runs.run_result import Replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import LATE_FOR, SPAN, SYSTEM, Event

STOPS = """
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 3, operations: [hfcontrols.should_training_stop]}
"""
STOPS_ON_SAMPLE = STOPS.replace("on_step_end", "on_system").replace("loss > 3", 'series("System/rss_mb") > 3')


def with_machine(events: Sequence[Event], draw: random.Random) -> list[Event]:
    """Return the events with spans and samples between them, numbered anew."""
    found: list[Event] = []
    numbers: dict[int, int] = {}
    for event in events:
        numbers[event.seq] = len(found)
        attrs = event.attrs
        if LATE_FOR in attrs:
            attrs = {**attrs, LATE_FOR: numbers[attrs[LATE_FOR]]}
        found.append(event._replace(seq=len(found), attrs=attrs))
        while draw.random() < 0.4:
            kind, name = draw.choice([(SPAN, "Time/eval_seconds"), (SYSTEM, "System/rss_mb")])
            at: dict[str, Any] = {
                "step": event.step + event.value_lag,
                "epoch": event.epoch,
                "elapsed_ns": event.elapsed_ns,
            }
            given: dict[str, Any] = {"metrics": {name: draw.random()}, "attrs": {"name": "eval"}}
            found.append(Event(kind, seq=len(found), **at, **given))
    return found


def decided(made: Replay) -> list[Any]:
    """Return all that a replay decided, without places among the events."""
    outcomes = [{**judged.to_json(), "event_index": 0, "elapsed_ns": judged.elapsed_ns} for judged in made.outcomes]
    return [outcomes, made.error_counts, made.ending and (made.ending.step, made.ending.elapsed_ns)]


@pytest.mark.parametrize("part", range(4))
def test_events_of_the_machine_change_no_decision_of_other_rules(part: int) -> None:
    """Neither with values at once nor with late ones."""
    first, count = seed() + part * 10_000, 0
    for case in range(first, first + scaled(30)):
        policy, (plan, events) = parse_policy(drawn_policy(case)), drawn_run(case)
        for given in (events, late(events, random.Random(case))):
            plain = replay(policy, given, plan=plan)
            count += bool(plain.decisions)
            machine = with_machine(given, random.Random(case))

            assert str(decided(replay(policy, machine, plan=plan))) == str(decided(plain)), f"seed {case}"
    assert count > 0


def test_an_evaluation_after_a_sample_still_belongs_to_the_step_that_stops() -> None:
    """After a stop at a step, the evaluation that is due there is made all the same."""
    kinds = [("step_end", 1, 1.0), ("step_end", 2, 4.0), (SYSTEM, 2, 5.0), ("evaluate", 2, 1.0), (SPAN, 2, 1.0)]
    names = {SYSTEM: "System/rss_mb", SPAN: "Time/eval_seconds", "evaluate": "eval_loss", "step_end": "loss"}
    events = [
        Event(kind, step, seq, metrics={names[kind]: value})
        for seq, (kind, step, value) in enumerate([*kinds, ("step_end", 3, 1.0)])
    ]
    at_step, at_sample = (replay(parse_policy(text), events) for text in (STOPS, STOPS_ON_SAMPLE))

    assert [each.ending and each.ending.event_index for each in (at_step, at_sample)] == [4, 4]
