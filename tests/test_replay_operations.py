"""In a replay, the effect of a user-defined operation labels its decision and the later ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from steptape.replay.runs.replaying import replay
from steptape.rules.effects import Effect
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.classes import ArgumentValue
from steptape.rules.policy_file.operations import Operation, register_operation
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event


@register_operation
class Levers(Operation):
    """Three actions with three effects."""

    actions = {"should_tell": Effect.NOTIFY, "should_finish": Effect.STOP}  # noqa: RUF012 - as a user writes it

    def __init__(self, arguments: Mapping[str, ArgumentValue]) -> None:
        raise AssertionError(f"a replay makes no operation, this one with {arguments}")

    def should_tell(self, decision: Decision) -> None:
        """Notify."""

    def should_slow(self, decision: Decision) -> None:
        """Change the training."""


def policy(action: str) -> str:
    """Return a policy that pulls a lever at a loss above 2 and saves at a loss below 1."""
    return f"""
operations: [{{name: lever, class: Levers}}]
controllers:
  - {{name: pull, triggers: [on_step_end], rule: loss > 2, operations: [lever.{action}]}}
  - {{name: save, triggers: [on_step_end], rule: loss < 1, operations: [hfcontrols.should_save]}}
"""


def stream(*losses: float) -> list[Event]:
    """Return a stream of ``step_end`` events."""
    return [Event("step_end", step=i + 1, seq=i, metrics={"loss": loss}) for i, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("action", "labels", "censored_from"),
    [
        ("should_tell", ["exact", "exact"], None),
        ("should_finish", ["prefix-exact", "exact"], None),
        ("should_slow", ["censored", "censored"], 1),
    ],
)
def test_a_decision_is_labelled_by_what_its_operation_does(
    action: str, labels: list[str], censored_from: int | None
) -> None:
    """An operation that may change the training censors its decision and everything after it."""
    replayed = replay(parse_policy(policy(action)), stream(1.5, 3.0, 0.5))

    assert [str(judged.validity) for judged in replayed.decisions] == labels
    assert replayed.censored_from == censored_from


@pytest.mark.parametrize(
    ("recorded", "label"),
    [
        ("lever.should_slow", "censored"),
        ("lever.should_tell", "exact"),
        ("other.should_tell", "censored"),
        ("note.should_log", "exact"),
        ("hfcontrols.should_notify", "exact"),
    ],
)
def test_what_the_recorded_run_ordered_and_the_replayed_policy_does_not_may_have_diverted_it(
    recorded: str, label: str
) -> None:
    """An operation unknown to the replayed policy counts as diverting, unless it is one of steptape's own."""
    decision = Event("decision", step=1, seq=1, attrs={"event_seq": 0, "operations": [recorded]})
    events = [*stream(1.5)[:1], decision, Event("step_end", step=2, seq=2, metrics={"loss": 0.5})]

    replayed = replay(parse_policy(policy("should_tell")), events)

    assert [str(judged.validity) for judged in replayed.decisions] == [label]
