"""Decisions and what else rules give rise to: the types of outcomes, their encoding as events, and their digest.

Encodes outcomes as attributes of events of the kinds in ``OUTCOME_KINDS``, and as canonical lines under one digest.
Decodes recorded events to the same outcomes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from ...store.errors import TelemetryError, shortened
from ...store.event_json import NOT_FINITE
from ...store.events import Event, JsonObject
from ..policy_file.declarations import ACT, SEMANTICS_VERSION

Scalar = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The fields of every outcome: its controller, and the event at which it occurred.

    Attributes:
        controller: Its name; the metric's where a controller metric failed.
        trigger: ``on_<kind>`` of the event.
        attempt: The event's attempt.
        rank: The event's rank.
        seq: The event's seq, or that of the event which ended the wait for late values. -1 at ``init_end``, which
            precedes the stream.
        step: The event's step.
        epoch: The event's epoch.
        value_lag: Updates that the loop was ahead of the event when this was decided, because values came late.
        member: The member of a family whose controller it is; empty without one.
    """

    controller: str
    trigger: str
    attempt: int
    rank: int
    seq: int
    step: int
    epoch: float | None
    value_lag: int = field(default=0, kw_only=True)
    member: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A message that a controller asks to log.

    Attributes:
        operation: The operation that asks, as ``name.action``.
        level: Name of a logging level.
        text: The rendered message.
    """

    operation: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Decision(_Outcome):
    """A controller that fired.

    Attributes:
        operations: The operations to carry out, as ``name.action``, in order.
        values: The readings that explain it, by their text in the rule.
        messages: Log messages among the operations, rendered.
        mode: ``act``, or ``shadow`` for a decision that orders nothing.
        severity: As the controller declares; empty when undeclared.
        message: The controller's rendered message; empty when undeclared.
        stage: The stage of an escalation, from 1; 0 without one.
        not_ordered: The operations that it leaves out because an argument has no valid value, each with the reason.
    """

    operations: tuple[str, ...] = ()
    values: Mapping[str, Scalar] = field(default_factory=dict)
    messages: tuple[LogMessage, ...] = ()
    mode: str = ACT
    severity: str = ""
    message: str = ""
    stage: int = 0
    not_ordered: Mapping[str, str] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether its operations are carried out."""
        return self.mode == ACT


@dataclass(frozen=True, slots=True)
class Cleared(_Outcome):
    """A controller that was raised and whose ``clear`` was true.

    Attributes:
        values: The readings that explain it, by their text in ``clear``.
        raised_at: The step of the decision that raised it.
    """

    values: Mapping[str, Scalar] = field(default_factory=dict)
    raised_at: int = 0


@dataclass(frozen=True, slots=True)
class RuleError(_Outcome):
    """The first failure of a controller's rule, or of a controller metric.

    A rule that fails counts as undefined, and its controller stays armed. A metric that fails is unavailable until its
    next event.

    Attributes:
        error: One line that begins with the policy file; a rule's error continues with line and column.
    """

    error: str = ""


@dataclass(frozen=True, slots=True)
class RuleWarning(_Outcome):
    """A warning for the author of a rule, recorded once.

    Attributes:
        warning: One line.
    """

    warning: str = ""


Outcome = Decision | Cleared | RuleError | RuleWarning


class DerivedValues(NamedTuple):
    """The values that definitions and states had at one event, for the run to record. Rules never read them.

    A NamedTuple, because there may be one for each step.

    Attributes:
        seq: The event's seq, or that of the event which ended the wait for late values.
        step, epoch, time_ns, elapsed_ns: The event's.
        value_lag: As for outcomes.
        names: The metrics, each ``derived/NAME``.
        values: The value of each. A state's is the index of its class, in the order of the file.
        classes: The classes of the states that changed, by name.
    """

    seq: int
    step: int
    epoch: float | None
    time_ns: int
    elapsed_ns: int
    value_lag: int
    names: tuple[str, ...]
    values: tuple[float, ...]
    classes: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        """Return the line that ``steptape replay --record --json`` prints."""
        values = {name: _to_json(value) for name, value in zip(self.names, self.values, strict=True)}
        return {"step": self.step, "epoch": self.epoch, "values": values, "classes": dict(self.classes)}

    def by_name(self) -> dict[str, Scalar]:
        """Return the values and the classes by their names."""
        return {**dict(zip(self.names, self.values, strict=True)), **self.classes}


def derived_from_event(event: Event) -> DerivedValues:
    """Decode the derived values that an event records."""
    names, values = tuple(event.metrics), tuple(event.metrics.values())
    place = (event.seq, event.step, event.epoch, event.time_ns, event.elapsed_ns, event.value_lag)
    return DerivedValues(*place, names, values, event.attrs)


_KINDS: Final[dict[type[Outcome], str]] = {
    Decision: "decision",
    Cleared: "cleared",
    RuleError: "rule_error",
    RuleWarning: "rule_warning",
}


#: The first fields of all outcomes, in their order.
OutcomeFields: TypeAlias = tuple[str, str, int, int, int, int, float | None]


def outcome_fields(name: str, trigger: str, event: Event) -> OutcomeFields:
    """Return the fields of an outcome at an event."""
    return name, trigger, event.attempt, event.rank, event.seq, event.step, event.epoch


def failure_text(error: Exception) -> str:
    """Return a failure of a rule or metric in one line."""
    return shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)


def is_storable(value: object) -> bool:
    """Whether a decision can record a value: a scalar that survives a round trip through JSON."""
    if isinstance(value, str):
        return len(value) <= 200 and value not in NOT_FINITE and _is_unicode(value)
    if isinstance(value, int):
        return value.bit_length() <= 1_000
    return value is None or isinstance(value, float)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def outcome_payload(outcome: Outcome) -> tuple[str, JsonObject]:
    """Return the kind of event that records an outcome, and its attributes as strict JSON.

    Numbers that are not finite become the texts "NaN", "Infinity" and "-Infinity".
    """
    attrs: JsonObject = {
        "controller": outcome.controller,
        "trigger": outcome.trigger,
        "event_attempt": outcome.attempt,
        "event_rank": outcome.rank,
        "event_seq": outcome.seq,
        "event_step": outcome.step,
        "event_epoch": _to_json(outcome.epoch),
    }
    if outcome.value_lag:
        attrs["value_lag"] = outcome.value_lag
    if outcome.member:
        attrs["member"] = outcome.member
    if isinstance(outcome, Decision):
        attrs["operations"] = list(outcome.operations)
        attrs["values"] = _values_to_json(outcome.values)
        attrs["messages"] = [
            {"operation": message.operation, "level": message.level, "text": message.text}
            for message in outcome.messages
        ]
        attrs["mode"] = outcome.mode
        if outcome.severity:
            attrs["severity"] = outcome.severity
        if outcome.message:
            attrs["message"] = outcome.message
        if outcome.stage:
            attrs["stage"] = outcome.stage
        if outcome.not_ordered:
            attrs["not_ordered"] = dict(outcome.not_ordered)
    elif isinstance(outcome, Cleared):
        attrs["values"] = _values_to_json(outcome.values)
        attrs["raised_at"] = outcome.raised_at
    elif isinstance(outcome, RuleError):
        attrs["error"] = outcome.error
    else:
        attrs["warning"] = outcome.warning
    return _KINDS[type(outcome)], attrs


def outcome_from_event(event: Event) -> Outcome:
    """Decode the outcome that an event records. Unknown attributes are ignored.

    Where the attributes lack attempt, rank, step or epoch of the event that fired, the envelope's values apply.

    Raises:
        TelemetryError: The event records no outcome, or an incomplete or malformed one.
    """
    where = f"event {event.attempt}/{event.rank}/{event.seq}"
    attrs = event.attrs
    try:
        common = (
            _text(attrs["controller"]),
            _text(attrs["trigger"]),
            int(attrs.get("event_attempt", event.attempt)),
            int(attrs.get("event_rank", event.rank)),
            int(attrs["event_seq"]),
            int(attrs.get("event_step", event.step)),
            _epoch(attrs.get("event_epoch", event.epoch)),
        )
        lag, member = int(attrs.get("value_lag", 0)), _text(attrs.get("member", ""))
        if event.kind == "rule_error":
            return RuleError(*common, error=_text(attrs["error"]), value_lag=lag)
        if event.kind == "rule_warning":
            return RuleWarning(*common, warning=_text(attrs["warning"]), value_lag=lag)
        if event.kind == "cleared":
            values, raised_at = _values_in(attrs), int(attrs["raised_at"])
            return Cleared(*common, value_lag=lag, member=member, values=values, raised_at=raised_at)
        if event.kind == "decision":
            return Decision(
                *common,
                value_lag=lag,
                member=member,
                operations=tuple(_text(operation) for operation in attrs["operations"]),
                values=_values_in(attrs),
                messages=tuple(_message(message) for message in attrs.get("messages", ())),
                mode=_text(attrs.get("mode", ACT)),
                severity=_text(attrs.get("severity", "")),
                message=_text(attrs.get("message", "")),
                stage=int(attrs.get("stage", 0)),
                not_ordered={_text(name): _text(why) for name, why in attrs.get("not_ordered", {}).items()},
            )
    except KeyError as error:
        raise TelemetryError("a recorded outcome lacks a key", where=where, got=error.args[0]) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise TelemetryError("a recorded outcome is malformed", where=where, got=str(error)) from error
    raise TelemetryError("not the outcome of a rule", where=where, got=event.kind)


def canonical_line(outcome: Outcome) -> str:
    """Return the outcome as one canonical line of JSON, the input of the decision digest.

    The line is ``[attempt, rank, seq, controller, operations, values]``, with floats as ``float.hex()``. A shadow
    decision appends ``"shadow"``, one of a stage ``{"stage": number}``, one that leaves out operations
    ``{"not_ordered": [operation, ...]}``, an outcome of a member of a family ``{"member": name}``, and one on late
    values their lag. Errors and warnings have their kind in place of the
    operations: their wording may differ between versions of Python and paths of files. So has a cleared controller,
    whose values and step of the decision that raised it follow.
    """
    line: list[Any] = [outcome.attempt, outcome.rank, outcome.seq, outcome.controller]
    if isinstance(outcome, Decision):
        line += [list(outcome.operations), {name: _exact(value) for name, value in outcome.values.items()}]
        if not outcome.acts:
            line.append(outcome.mode)
        if outcome.stage:
            line.append({"stage": outcome.stage})
        if outcome.not_ordered:
            line.append({"not_ordered": list(outcome.not_ordered)})
    elif isinstance(outcome, Cleared):
        values = {name: _exact(value) for name, value in outcome.values.items()}
        line += [_KINDS[Cleared], values, outcome.raised_at]
    else:
        line += [_KINDS[type(outcome)], {}]
    if outcome.member:
        line.append({"member": outcome.member})
    if outcome.value_lag:
        line.append(outcome.value_lag)
    return json.dumps(line, separators=(",", ":"))


def decision_digest(outcomes: Iterable[Outcome]) -> str:
    """Return the SHA-256 over the version of the semantics and the canonical lines of outcomes, in order."""
    digest = DecisionDigest()
    for outcome in outcomes:
        digest.add(outcome)
    return digest.hexdigest()


class DecisionDigest:
    """The decision digest, computed outcome by outcome."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(f"steptape decisions {SEMANTICS_VERSION}\n".encode())

    def add(self, outcome: Outcome) -> None:
        """Add one outcome."""
        self._digest.update(f"{canonical_line(outcome)}\n".encode())

    def hexdigest(self) -> str:
        """Return the digest of the outcomes so far, in hexadecimal."""
        return self._digest.hexdigest()


def _exact(value: Scalar) -> Scalar:
    return value.hex() if isinstance(value, float) else value


def _values_to_json(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: _to_json(value) for name, value in values.items()}


def _to_json(value: Scalar) -> Scalar:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _values_in(attrs: Mapping[str, Any]) -> dict[str, Scalar]:
    return {_text(name): _scalar(value) for name, value in attrs["values"].items()}


def _scalar(value: object) -> Scalar:
    if isinstance(value, str):
        return NOT_FINITE.get(value, value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"not a scalar: {value!r}")


def _epoch(value: object) -> float | None:
    epoch = _scalar(value)
    if isinstance(epoch, str):
        raise TypeError(f"not a number: {value!r}")
    return None if epoch is None else float(epoch)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value


def _message(value: Mapping[str, object]) -> LogMessage:
    return LogMessage(_text(value["operation"]), _text(value["level"]), _text(value["text"]))
