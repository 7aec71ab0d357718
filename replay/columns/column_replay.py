"""Replays one policy over one run by columns: finds where its controllers fire, and builds decisions only there.

Takes a policy and a stream; returns the replay that the event engine would return. The engine decides what has no exact
columnar form: whole policies, or single runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, repeat
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from ...rules.engine.decisions import Decision, LogMessage, Outcome
from ...rules.engine.engine import Engine
from ...rules.engine.outcomes import MISSING_SERIES_AFTER, LogMessages, render
from ...rules.language.rule_parts import leaves
from ...rules.policy_file.declarations import ACT, SHADOW, Controller
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import NotColumnar, SeriesKey, ValueType
from ...rules.readings.vectors import Ints
from ...store.events import BEFORE_STREAM, PLAN, Event
from ...store.plan import Plan
from ..runs.event_stream import EventStream
from ..runs.replaying import ByEngine, Decider, observed_in
from .metric_readings import ListReading, ValueReading
from .rule_firings import SharedRule, kinds_fed
from .stream import Stream
from .terms import ComputedReading, Term
from .variant_firings import RunFirings
from .variants import Reader, StructureCompiler, Variant, metrics_of, metrics_read, sole_variant

_NO_ERRORS: Final[Mapping[str, int]] = MappingProxyType({})


def by_columns(policy: Policy, stream: EventStream, plan: Plan) -> Decider:
    """Return what decides a policy on a stream: columns, or the event engine where columns do not suffice."""
    form = _form_of(policy)
    if form is not None and _suits(stream, plan):
        with suppress(NotColumnar):
            return _ByColumns(form, policy, stream, plan)
    return ByEngine(policy, stream, plan)


def is_columnar(policy: Policy) -> bool:
    """Whether columns can decide a whole policy; a run may still need the event engine."""
    return _form_of(policy) is not None


def _suits(stream: EventStream, plan: Plan) -> bool:
    """Whether columns hold everything that rules may read of a stream, as far as its events show."""
    declares = PLAN in stream.coded_kinds[1] or any(each != plan for each in stream.plans.values())
    return not (declares or stream.recorded or stream.gathered or stream.facts.mentions_late_values)


class _ShownTerm(NamedTuple):
    """A part of a rule, or of a message, whose value is recorded.

    Attributes:
        term: Its columnar form.
        convert: Turns its values, which are floats or truth values, into those that the engine reads; None where a
            param or a controller metric has these.
    """

    term: Term
    convert: Callable[[Any], Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """The columnar form of one policy.

    Attributes:
        variant: The policy as the single variant of a sweep.
        readings: For each controller its readings, by text, and those of its message's fields.
        metrics: The metrics that its rules and messages read.
        log_messages: Renders its log messages.
    """

    variant: Variant
    readings: tuple[tuple[Mapping[str, _ShownTerm], tuple[_ShownTerm, ...]], ...]
    metrics: frozenset[str]
    log_messages: LogMessages


@functools.lru_cache(maxsize=16)
def _form_of(policy: Policy) -> _Form | None:
    """Return the columnar form of a policy; None if it has none."""
    if policy.states or policy.admitted or policy.reads_ranks or not policy.is_self_contained:
        return None
    if any(each.clear is not None or each.escalation is not None for each in policy.controllers):
        return None
    log_messages = LogMessages(policy.operations, policy.params)
    if not log_messages.names.isdisjoint(metric.name for metric in policy.metrics):
        return None
    compiler = StructureCompiler()
    variant = sole_variant(policy, compiler)
    if variant.structure.engine_names:
        return None
    read = compiler.reader(policy)
    try:
        readings = tuple(_readings_of(number, controller, read) for number, controller in enumerate(policy.controllers))
    except NotColumnar:
        return None
    terms = [reading.term for own, shown in readings for reading in (*own.values(), *shown)]
    metrics = metrics_read([variant.structure]).union(*map(metrics_of, terms))
    return _Form(variant, readings, frozenset(metrics), log_messages)


def _readings_of(
    number: int, controller: Controller, read: Reader
) -> tuple[Mapping[str, _ShownTerm], tuple[_ShownTerm, ...]]:
    """Return what a decision of a controller records, by text, and what its message shows.

    Raises:
        NotColumnar: Some of it has no exact columnar form.
    """
    rule = controller.rule.bound
    terms = {text: read(number, node, rule) for text, node in leaves(rule).items()}
    own = {text: _shown_term(term) for text, term in terms.items() if term is not None}
    fields = () if controller.message is None else controller.message.fields
    shown = [read(number, field.bound.expression.tree, field.bound) for field in fields]
    if None in shown:
        raise NotColumnar("a message that shows a list")
    return own, tuple(_shown_term(term) for term in shown if term is not None)


def _shown_term(term: Term) -> _ShownTerm:
    if term.operation == "param" or _is_told(term):
        return _ShownTerm(term, None)
    if term.is_truth:
        return _ShownTerm(term, bool)
    if term.is_float:
        return _ShownTerm(term, float)
    if _is_whole(term):
        return _ShownTerm(term, _whole)
    raise NotColumnar("a float or a whole number")


def _whole(value: float) -> int | float:
    """Return a whole number. Positions in a window that holds NaN are NaN."""
    return value if math.isnan(value) else int(value)


def _is_whole(term: Term) -> bool:
    """Whether a term that is no float is always a whole number, or NaN."""
    match term.operation, term.payload:
        case "past", _:
            return True
        case "reference", payload:
            return payload.value_type is ValueType.WHOLE
        case "series", ComputedReading(reference):
            return reference.value_type is ValueType.WHOLE
        case "metric", ListReading(operation="len" | "window_size" | "count"):
            return True
    return False


def _is_told(term: Term) -> bool:
    """Whether a term is read of a controller metric that tells the type of its values."""
    if term.operation != "metric":
        return False
    return isinstance(term.payload, ValueReading) or (
        term.payload.operation == "sum" and term.payload.key not in ("steps", "epoch")
    )


class _ByColumns:
    """Columns as what decides a policy on one stream; see ``replaying.Decider``.

    Args:
        form: The policy's form.
        policy: The policy.
        stream: The stream.
        plan: What the loop declared.

    Raises:
        NotColumnar: The event engine has to decide.
    """

    error_counts = _NO_ERRORS

    def __init__(self, form: _Form, policy: Policy, stream: EventStream, plan: Plan) -> None:
        self._form = form
        self._policy = policy
        self._stream = stream
        self._plan = plan
        self._columns = Stream(stream, plan, form.metrics)
        self._swept = swept = RunFirings(self._columns, lambda: stream)
        self._firings = swept.firings(form.variant)
        if swept.reasons or swept.conditions.may_fail:
            raise NotColumnar("a rule that may fail, or that has no columnar form in this run")
        self._conditions = swept.conditions
        self._decided = sorted(self._decisions(), key=lambda each: each[:3])
        self._warned_until = self._last_warning()
        self._at = BEFORE_STREAM
        self._fed: dict[str, list[tuple[int, str]]] = {}

    def kinds_read(self, controller: str) -> frozenset[str]:
        """Return the kinds of events whose numbers a controller's rule reads, as of the newest outcome or the end."""
        if controller not in self._fed:
            named = (each for each in self._policy.controllers if each.name == controller)
            self._fed[controller] = [fed for each in named for fed in kinds_fed(each, self._policy, self._columns)]
        return frozenset(kind for first, kind in self._fed[controller] if first <= self._at)

    def outcomes(self, *, everything: bool) -> Iterator[tuple[int, Event | None, Sequence[Outcome]]]:
        """Yield outcomes with the index of their event. It holds all that columns can decide."""
        if self._warned_until is not None:
            engine = Engine(self._policy, self._plan, self._stream.plans)
            yield BEFORE_STREAM, None, engine.start()
            for index, event, observed in observed_in(engine, self._stream, everything=everything):
                if index > self._warned_until:
                    break
                self._at = index
                yield index, event, observed
        reached = BEFORE_STREAM if self._warned_until is None else self._warned_until
        following = (each for each in self._decided if each[0] > reached)
        for index, decided in groupby(following, key=lambda each: each[0]):
            self._at = index
            yield index, None, [decision for *_, decision in decided]
        self._at = len(self._stream)

    def _first(self, key: SeriesKey) -> int | None:
        """Return the event that brought the first value of a series; ``BEFORE_STREAM`` for a declared constant."""
        at = self._columns.series(key).at
        return int(at[0]) if len(at) else None

    def _last_warning(self) -> int | None:
        """Return the last event at which a controller warns of a series that has not appeared; None without any."""
        questions: dict[int, tuple[Controller, list[SharedRule]]] = {}
        for each in (each for group in self._form.variant.asked for each in group):
            questions.setdefault(id(each.watcher), (each.watcher.declaration, []))[1].append(each.question)
        found = [self._warning(*asked) for asked in questions.values()]
        return max((index for index in found if index is not None), default=None)

    def _warning(self, controller: Controller, questions: Sequence[SharedRule]) -> int | None:
        firsts = [self._first(key) for key in controller.series_awaited]
        # It is asked at most once at each event.
        if all(first is not None and first < MISSING_SERIES_AFTER for first in firsts):
            return None
        asked = np.sort(np.concatenate([self._asked(question) for question in questions]))
        if len(asked) < MISSING_SERIES_AFTER:
            return None
        last = int(asked[MISSING_SERIES_AFTER - 1])
        return last if any(first is None or first > last for first in firsts) else None

    def _asked(self, question: SharedRule) -> Ints:
        """Return the events at which a rule is asked."""
        rows, is_asked = self._conditions.rows(question.kind), self._swept.is_asked(question)
        return rows if is_asked is None else rows[is_asked]

    # --- decisions ----------------------------------------------------------------------------------------------

    def _decisions(self) -> Iterator[tuple[int, int, int, Decision]]:
        """Yield each decision with the index of its event, its controller's and its trigger's number."""
        numbers = {id(controller): number for number, controller in enumerate(self._policy_controllers)}
        for firing, controller, trigger in self._fired():
            number = numbers[id(controller)]
            made = self._made(controller, number, firing, trigger)
            yield from zip(firing.tolist(), repeat(number), repeat(controller.triggers.index(trigger)), made)

    @property
    def _policy_controllers(self) -> Sequence[Controller]:
        return self._form.variant.structure.policy.controllers

    def _fired(self) -> Iterator[tuple[Ints, Controller, str]]:
        """Yield the events at which each controller fires at each of its triggers, where it does."""
        asked = (each for group in self._form.variant.asked for each in group)
        for each, firing in zip(asked, self._firings, strict=True):
            if len(firing.events):
                yield firing.events, each.watcher.declaration, each.trigger

    def _made(self, controller: Controller, number: int, at: Ints, trigger: str) -> Iterator[Decision]:
        """Yield the decisions of a controller at one trigger."""
        readings, shown = self._form.readings[number]
        kind = trigger.removeprefix("on_")
        columns = {text: self._read(reading, kind, at) for text, reading in readings.items()}
        facts, own = self._stream.facts, self._columns
        epochs = zip(own.epochs[at].tolist(), own.has_epoch[at].tolist(), strict=True)
        places = zip(
            own.attempts[at].tolist(),
            facts.whole("rank")[at].tolist(),
            facts.whole("seq")[at].tolist(),
            own.steps[at].tolist(),
            [epoch if is_known else None for epoch, is_known in epochs],
            strict=True,
        )
        texts = self._texts(controller, trigger, at, [self._read(reading, kind, at) for reading in shown])
        mode = SHADOW if controller.is_shadow else ACT
        for number_of_firing, (place, (messages, message)) in enumerate(zip(places, texts, strict=True)):
            readings_here = ((text, column[number_of_firing]) for text, column in columns.items())
            yield Decision(
                controller.name,
                trigger,
                *place,
                operations=controller.operations,
                values={text: value for text, value in readings_here if value is not None},
                messages=messages,
                mode=mode,
                severity=controller.severity,
                message=message,
            )

    def _texts(
        self, controller: Controller, trigger: str, at: Ints, shown: Sequence[list[Any]]
    ) -> Iterable[tuple[tuple[LogMessage, ...], str]]:
        """Return the log messages and the message of each decision."""
        log_messages, template = self._form.log_messages, controller.message
        if template is None and not log_messages.are_among(controller.operations):
            return repeat(((), ""), len(at))
        made = []
        for place, index in enumerate(at.tolist()):
            event = self._stream.facts[index]
            logged = log_messages.of(controller.name, trigger, event, controller.operations, {})
            fields = [_shown(values[place]) for values in shown]
            made.append((logged, "" if template is None else render(template, fields, event)))
        return made

    def _read(self, reading: _ShownTerm, kind: str, at: Ints) -> list[Any]:
        """Return the values of a reading at those events of a kind; None where it is undefined."""
        payload = reading.term.payload
        if reading.term.operation == "param":
            return [self._policy.params[payload]] * len(at)
        if reading.convert is None:
            return self._conditions.metrics.recorded(payload, at)
        every = self._conditions.rows(kind)
        found, rows = self._conditions.vector(reading.term, kind, self._form.variant.params), np.searchsorted(every, at)
        values = np.broadcast_to(found.values, every.shape)[rows].tolist()
        if found.defined is None:
            return list(map(reading.convert, values))
        defined = np.broadcast_to(found.defined, every.shape)[rows].tolist()
        return [reading.convert(value) if known else None for value, known in zip(values, defined, strict=True)]


def _shown(value: Any) -> Callable[[Event], Any]:
    """Return what a message reads for a value: the value, or that it is undefined."""

    def read(_: Event) -> Any:
        if value is None:
            raise LookupError
        return value

    return read
