"""Turns the answers of rules into outcomes: decisions with messages and readings, and errors with their place.

Takes an answer other than False, with the controller at its trigger and the event; returns an outcome or None. Writes
the texts of warnings about series, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Final

from ...store.errors import shortened
from ...store.events import Event, lag_of
from ..compiled.compilation import FIRED, ClearAnswer
from ..compiled.workspace import Workspace
from ..effects import InvalidCall
from ..errors import phrase, suggestion
from ..functions.plain_functions import formatted, rendered
from ..functions.undefined import UNAVAILABLE
from ..language.name_patterns import MAX_MEMBERS
from ..policy_file.declarations import (
    ACT,
    SHADOW,
    Controller,
    MessageField,
    MessageTemplate,
    OperationDeclaration,
    Rule,
)
from ..policy_file.operations import LogControl
from ..readings.reading import Param, SeriesKey
from .controller_states import CompiledPart, ControllerState, TriggeredController, readings_at
from .decisions import Cleared, Decision, LogMessage, Outcome, OutcomeFields, RuleError, failure_text, outcome_fields

#: Most characters of a rendered message.
MAX_MESSAGE_LENGTH: Final = 10_000
#: What separates the words of a metric's name.
_SEPARATOR: Final = re.compile(r"[/_. -]")
#: Evaluations of a controller after which a series that never appeared is worth a warning.
MISSING_SERIES_AFTER: Final = 100


def fields_of(watch: TriggeredController, event: Event) -> OutcomeFields:
    """Return the fields that the outcomes of a controller at an event share."""
    return outcome_fields(watch.state.declaration.name, watch.trigger, event)


class LogMessages:
    """Renders the log messages that decisions of one policy order.

    Args:
        operations: The policy's operations.
        params: Its params.
    """

    def __init__(self, operations: Iterable[OperationDeclaration], params: Mapping[str, Param]) -> None:
        self._params = params
        # Operations of other classes act on the loop. An engine does not, so it does not create them.
        self._controls = {
            entry.name: LogControl(entry.arguments) for entry in operations if entry.class_name == LogControl.__name__
        }

    @property
    def names(self) -> frozenset[str]:
        """The names that the messages show."""
        return frozenset[str]().union(*(control.names for control in self._controls.values()))

    def are_among(self, operations: Iterable[str]) -> bool:
        """Whether some of these operations are log messages."""
        return any(reference.partition(".")[0] in self._controls for reference in operations)

    def of(
        self, controller: str, trigger: str, event: Event, operations: Iterable[str], cells: Mapping[str, Any]
    ) -> tuple[LogMessage, ...]:
        """Return the messages among the operations of a decision.

        Args:
            controller, trigger: The controller and its trigger.
            event: The event.
            operations: What the decision orders.
            cells: The values of controller metrics and states, by name.
        """
        # The policy's own names win over those of the event.
        names = {
            **event.attrs,
            "logs": event.metrics,
            "metrics": event.metrics,
            "event_name": trigger,
            "control_name": controller,
            "step": event.step,
            "epoch": event.epoch,
            **self._params,
            **cells,
        }
        split = [(order, self._controls.get(order.partition(".")[0])) for order in operations]
        return tuple(LogMessage(order, control.level, control.text(names)) for order, control in split if control)


def render(template: MessageTemplate, readings: Sequence[Callable[[Event], Any]], event: Event) -> str:
    """Render a message.

    Args:
        template: The template to render.
        readings: A function for each of its fields, in order.
        event: The event of the decision.
    """
    values = iter(readings)
    parts = (part if isinstance(part, str) else _shown(part, next(values), event) for part in template.parts)
    return shortened("".join(parts), MAX_MESSAGE_LENGTH)


def _shown(part: MessageField, reading: Callable[[Event], Any], event: Event) -> str:
    try:
        value = reading(event)
        if value is UNAVAILABLE:
            return f"<missing {part.text}>"
        return formatted(value, part.specification) if part.specification else rendered(value)
    except LookupError:
        return f"<missing {part.text}>"
    except Exception as error:  # An expression may fail in any way, and a message must never end the training.
        return f"<{type(error).__name__} {part.text}>"


class OutcomeMaker:
    """Makes the outcomes of one engine.

    Args:
        source: The origin of the policy that decides, as messages name it.
        log_messages: The log messages that its decisions order.
        workspace: The values that its rules read.
    """

    def __init__(self, source: str, log_messages: LogMessages, workspace: Workspace) -> None:
        self._source = source
        self._log_messages = log_messages
        self._workspace = workspace

    def of(self, watch: TriggeredController, event: Event, answer: object) -> Outcome | None:
        """Return the outcome of an answer that is not False, or of an exception in its place."""
        if isinstance(answer, ClearAnswer):
            return self._of_clear(watch, event, answer.given)
        if answer is FIRED or (answer is True and watch.gate.on_true(event)):
            watch.state.restraint.note_past(event)
            watch.state.restraint.past.stage = watch.gate.stage + 1
            return self._decision(watch, event)
        rule = watch.state.declaration.rule
        return None if answer is True else self._failure(watch, event, answer, "rule", rule, watch.state.rule)

    def _of_clear(self, watch: TriggeredController, event: Event, answer: object) -> Outcome | None:
        state, clear = watch.state, watch.state.declaration.clear
        assert clear is not None
        assert state.clear is not None
        assert state.restraint.raised is not None
        if answer is not True:
            return self._failure(watch, event, answer, "clear", clear, state.clear)
        values, raised_at = watch.clear_explanation, state.restraint.raised.raised_at
        fields, lag = fields_of(watch, event), lag_of(event)
        return Cleared(*fields, value_lag=lag, member=state.member, values=values, raised_at=raised_at)

    def _decision(self, watch: TriggeredController, event: Event) -> Decision:
        state = watch.state
        declared, escalation = state.declaration, state.declaration.escalation
        operations = declared.operations if escalation is None else escalation.stages[watch.gate.stage].operations
        operations, not_ordered = _ordered(state, operations, event) if declared.computed else (operations, {})
        return Decision(
            *fields_of(watch, event),
            value_lag=lag_of(event),
            member=state.member,
            operations=operations,
            values=readings_at(state.readings, event) if watch.explanation is None else watch.explanation,
            messages=self._messages(watch, event, operations),
            mode=SHADOW if declared.is_shadow else ACT,
            severity=declared.severity,
            message="" if declared.message is None else render(declared.message, state.message, event),
            stage=0 if escalation is None else watch.gate.stage + 1,
            not_ordered=not_ordered,
        )

    def _messages(self, watch: TriggeredController, event: Event, operations: Iterable[str]) -> tuple[LogMessage, ...]:
        if not self._log_messages.are_among(operations):
            return ()
        cells = {name: cell.value for name, cell in self._workspace.cells.items()}
        return self._log_messages.of(watch.state.declaration.name, watch.trigger, event, operations, cells)

    def _failure(
        self, watch: TriggeredController, event: Event, answer: object, key: str, rule: Rule, function: CompiledPart
    ) -> RuleError | None:
        """Count a failure; return an error for the controller's first, with its place in the policy file.

        Args:
            answer: The exception, or what is neither True nor False.
            key: The key of the condition that gave it.
            rule: The condition.
            function: The condition as a function.
        """
        if answer is UNAVAILABLE:
            return None
        if isinstance(answer, Exception):
            what = failure_text(answer)
        else:
            what = f"a rule must give True or False, this gave a {type(answer).__name__}"
        state = watch.state
        state.whole.error_count += 1
        if state.whole.error_count > 1:
            return None
        place = rule.place_of_failure(_traceback(function, event))
        where = f"{self._source}:{place.line}:{place.column}: controller '{state.declaration.name}', {key}"
        error = phrase(what, where=where)
        return RuleError(*fields_of(watch, event), error=error, value_lag=lag_of(event))


def _ordered(
    state: ControllerState, operations: Iterable[str], event: Event
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return operations with the values of their arguments, and why others cannot have one."""
    ordered: list[str] = []
    not_ordered: dict[str, str] = {}
    for operation in operations:
        arguments = state.arguments.get(operation)
        if arguments is None:
            ordered.append(operation)
            continue
        template = state.declaration.computed[operation].template
        try:
            values = {
                name: _value(reading, str(template.call.arguments[name]), event) for name, reading in arguments.items()
            }
            ordered.append(str(template.with_values(values)))
        except InvalidCall as error:
            not_ordered[operation] = str(error)
    return tuple(ordered), not_ordered


def _value(argument: CompiledPart, text: str, event: Event) -> object:
    """Return the value of an argument.

    Raises:
        InvalidCall: It is undefined, or fails.
    """
    try:
        value = argument(event)
    except LookupError:
        value = UNAVAILABLE
    except Exception as error:  # An expression may fail in any way, and a decision must never end the training.
        raise InvalidCall(f"{text} fails: {failure_text(error)}") from error
    if value is UNAVAILABLE:
        raise InvalidCall(f"{text} is undefined")
    return value


def _traceback(rule: Callable[[Event], Any], event: Event) -> TracebackType | None:
    """Return the traceback of a rule that has failed: evaluated again on its own, it fails at the same place."""
    try:
        rule(event)
    except Exception as error:  # A rule may fail in any way.
        return error.__traceback__
    return None


# --- series that never appear -----------------------------------------------------------------------------------------


def missing_series(reader: Controller, key: SeriesKey, seen: Mapping[str, str]) -> str:
    """Return the text of the warning.

    Args:
        reader: A controller that reads the series.
        key: The series.
        seen: The metrics that did appear, each with the kind of event that carried it.
    """
    return _missing([reader], key, f"after {MISSING_SERIES_AFTER} evaluations", seen)


def never_recorded(readers: Sequence[Controller], key: SeriesKey, seen: Mapping[str, str]) -> str:
    """Return a line about a series that no event of a run has carried, and the controllers that read it."""
    names = ", ".join(repr(reader.name) for reader in readers)
    return f"controller{'s' * (len(readers) > 1)} {names}: {_missing(readers, key, 'in this run', seen)}"


def crowded_family(key: SeriesKey) -> str:
    """Return the text of the warning about a family with too many members."""
    of = f" of {key.kind} events" if key.kind else ""
    fix = "Those that appeared first are read. Write a pattern that matches fewer."
    return phrase(f"more than {MAX_MEMBERS:,} series{of} match this pattern", repr(key.name), fix)


def meant_series(readers: Sequence[Controller], key: SeriesKey, recorded: Mapping[str, str]) -> str:
    """Return a sentence that names the metric which controllers may mean, or else lists the metrics.

    A metric with the same last word, such as ``train/loss`` for ``loss``, is nearer than one with similar letters.
    Among several, one of an evaluation is meant where the controllers are triggered by evaluations alone.

    Args:
        readers: The controllers that read the series.
        key: The series, which was not recorded.
        recorded: The recorded metrics, each with the kind of event that carried it.
    """
    triggers = {key.kind} if key.kind else {trigger for reader in readers for trigger in reader.triggers}
    of_evaluation = triggers <= {"evaluate", "on_evaluate"}
    alike = [name for name in recorded if name != key.name and _last_word(name) == _last_word(key.name)]
    likely = [name for name in alike if (recorded[name] == "evaluate") == of_evaluation] or alike
    if likely:
        (nearest,) = get_close_matches(key.name, likely, n=1, cutoff=0.0)
        return f"Did you mean '{nearest}'?"
    return suggestion(key.name, recorded.keys() - {key.name})


def _last_word(name: str) -> str:
    return _SEPARATOR.split(name.casefold())[-1]


def _missing(readers: Sequence[Controller], key: SeriesKey, when: str, seen: Mapping[str, str]) -> str:
    carrier = f"no {key.kind} event" if key.kind else "no event"
    fix = meant_series(readers, key, seen) if seen else "No event has carried any metric."
    what = f"{carrier} has carried this series {when}"
    return phrase(what, repr(key.name), fix.replace("Known here:", "Seen so far:"))
