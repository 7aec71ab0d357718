"""Turns the answers of rules into outcomes: decisions with messages and readings, and errors with their place.

Takes an answer other than False, with the controller at its trigger and the event; returns an outcome or None.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from ...store.errors import shortened
from ...store.events import Event
from ..compiled.compilation import FIRED
from ..compiled.workspace import Workspace
from ..errors import phrase
from ..functions.undefined import UNAVAILABLE
from ..late_events import lag_of
from ..policy_file.declarations import ACT, SHADOW
from ..policy_file.message import render
from ..policy_file.operations import LogControl, LogMessage
from ..policy_file.policy import Policy
from .decisions import Decision, Outcome, RuleError, Scalar, is_storable
from .triggered_controllers import TriggeredController


class OutcomeFields(NamedTuple):
    """The fields that all outcomes share, in their order."""

    controller: str
    trigger: str
    attempt: int
    rank: int
    seq: int
    step: int
    epoch: float | None


def place_of(watch: TriggeredController, event: Event) -> OutcomeFields:
    """Return the outcome fields of a controller at an event."""
    name = watch.state.declaration.name
    return OutcomeFields(name, watch.trigger, event.attempt, event.rank, event.seq, event.step, event.epoch)


class OutcomeMaker:
    """Makes the outcomes of one engine.

    Args:
        policy: The policy that decides.
        workspace: The values that its rules read.
    """

    def __init__(self, policy: Policy, workspace: Workspace) -> None:
        self._policy = policy
        self._workspace = workspace
        # Operations of other classes act on the loop. An engine does not, so it does not create them.
        self._log_controls = {
            entry.name: LogControl(entry.arguments)
            for entry in policy.operations
            if entry.class_name == LogControl.__name__
        }

    def of(self, watch: TriggeredController, event: Event, answer: object) -> Outcome | None:
        """Return the outcome of an answer that is not False, or of an exception in its place."""
        if answer is FIRED or (answer is True and watch.gate.on_true(event)):
            watch.state.restraint.past.note(event.step)
            return self._decision(watch, event)
        if answer is True:
            return None
        if answer is UNAVAILABLE:
            return None
        if isinstance(answer, Exception):
            return self._failure(watch, event, f"{type(answer).__name__}: {answer}")
        return self._failure(watch, event, f"a rule must give True or False, this gave a {type(answer).__name__}")

    def _decision(self, watch: TriggeredController, event: Event) -> Decision:
        state = watch.state
        declared = state.declaration
        values: dict[str, Scalar] = {}
        for text, reading in state.readings.items():
            try:
                value = reading(event)
            except Exception:
                continue  # The rule short-circuited before this reading: it explains nothing.
            if is_storable(value):
                values[text] = value
        return Decision(
            *place_of(watch, event),
            value_lag=lag_of(event),
            operations=declared.operations,
            values=values,
            messages=self._messages(watch, event),
            mode=SHADOW if declared.is_shadow else ACT,
            severity=declared.severity,
            message="" if declared.message is None else render(declared.message, state.message, event),
        )

    def _messages(self, watch: TriggeredController, event: Event) -> tuple[LogMessage, ...]:
        names: dict[str, Any] = {}
        messages = []
        for reference in watch.state.declaration.operations:
            control = self._log_controls.get(reference.partition(".")[0])
            if control is not None:
                names = names or self._message_names(watch, event)
                messages.append(control.message(reference, names))
        return tuple(messages)

    def _message_names(self, watch: TriggeredController, event: Event) -> dict[str, Any]:
        """Return the names that a log message can show; the policy's own names win over those of the event."""
        return {
            **event.attrs,
            "logs": event.metrics,
            "metrics": event.metrics,
            "event_name": watch.trigger,
            "control_name": watch.state.declaration.name,
            "step": event.step,
            "epoch": event.epoch,
            **self._policy.params,
            **{name: cell.value for name, cell in self._workspace.cells.items()},
        }

    def _failure(self, watch: TriggeredController, event: Event, what: str) -> RuleError | None:
        """Count a failure; return an error for the controller's first, with its place in the policy file."""
        state = watch.state
        state.error_count += 1
        if state.error_count > 1:
            return None
        rule = state.declaration.rule
        offset = rule.compiled.failing_offset(_traceback(state.rule, event), rule.bound.expression)
        place = rule.place_at(0 if offset is None else offset)
        where = f"{self._policy.source}:{place.line}:{place.column}: controller '{state.declaration.name}', rule"
        error = phrase(shortened(" ".join(what.split()), 300), where=where)
        return RuleError(*place_of(watch, event), error=error, value_lag=lag_of(event))


def _traceback(rule: Callable[[Event], Any], event: Event) -> TracebackType | None:
    """Return the traceback of a rule that has failed: evaluated again on its own, it fails at the same place."""
    try:
        rule(event)
    except Exception as error:  # A rule may fail in any way.
        return error.__traceback__
    return None
