"""Finds, for all variants on one run, the events at which each of their controllers fires.

Takes a stream and variants; returns the firings of one variant, or a tally of all. Controllers without a columnar form
are decided by the event engine, once for all variants that do not differ in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from ...rules.control import Effect
from ...rules.readings.reading import Param
from ...store.events import Event
from ..columns.conditions import Conditions
from ..columns.gates import Answers, answers_of, gated_firings, is_plain, plain_firings
from ..columns.metric_values import MetricValues
from ..columns.past import OF_ANSWERS, AskedPast, of_answers, of_firings
from ..columns.stream import Ints, Stream, Truths
from ..columns.terms import NotColumnar
from ..columns.vectors import Vector, both
from ..columns.watchers import SharedRule, SharedRules, VariantController
from ..runs.event_stream import EventStream, event_stream
from ..runs.replaying import effects_of, replay_events
from .schedule import LISTED, Schedule, Watches
from .tally import Tally
from .variants import Variant

_NOTHING: Final[Ints] = np.zeros(0, np.int64)


class Firings(NamedTuple):
    """The firings of one controller at one trigger.

    Attributes:
        controller, trigger: The controller and its trigger.
        stops, saves, evaluates: Whether a firing ends the run, asks for a checkpoint, and asks for an evaluation.
        events: Indices of the events at which it fires, ascending.
    """

    controller: str
    trigger: str
    stops: bool
    saves: bool
    evaluates: bool
    events: Ints


class RunSweep:
    """Evaluates variants over one run.

    Args:
        stream: The run's columns.
        events: Reads its events; called only if the event engine has to decide.

    Attributes:
        reasons: Why the event engine had to decide rules that have a columnar form on other runs.
    """

    def __init__(self, stream: Stream, events: Callable[[], Sequence[Event] | EventStream]) -> None:
        self._stream = stream
        self._read = events
        self._events: Sequence[Event] | EventStream | None = None
        metrics = MetricValues(stream, lambda: event_stream(self.events).facts)
        self._conditions = Conditions(stream, metrics, self._past)
        self._asked_about = SharedRules()
        self._asked: dict[tuple[str, bytes], Ints] = {}
        self._answers: dict[tuple[object, ...], Answers] = {}
        self._gated: dict[tuple[tuple[object, ...], ...], list[Ints]] = {}
        self._engine: dict[tuple[object, ...], list[Firings]] = {}
        self.reasons: set[str] = set()

    @property
    def events(self) -> Sequence[Event] | EventStream:
        """The run's events, read once."""
        if self._events is None:
            self._events = self._read()
        return self._events

    @property
    def conditions(self) -> Conditions:
        """The rules' values in this run."""
        return self._conditions

    def firings(self, variant: Variant) -> list[Firings]:
        """Return the firings of each controller of a variant at each of its triggers."""
        structure = variant.structure
        try:
            listed = [each for group in variant.asked for each in self._group(group)]
        except NotColumnar as error:
            self.reasons.add(str(error))
            return self._by_engine(variant, None)
        return listed + (self._by_engine(variant, structure.engine_names) if structure.engine_names else [])

    def tally(self, schedule: Schedule) -> Tally:
        """Return the firings of all variants of a schedule. The cached answers of earlier schedules are dropped."""
        self._answers, self._gated = {}, {}
        sources = _Sources(schedule)
        refused: set[SharedRule] = set()
        for question in schedule.questions:
            try:
                answers = self._answered(question)
            except NotColumnar as error:
                self.reasons.add(str(error))
                refused.add(question)
                answers = answers_of(_NOTHING, np.zeros(0, np.bool_))
            sources.answers.append(answers)
        for number in np.flatnonzero(schedule.columns.source == LISTED).tolist():
            group, place = schedule.watches[number].group, schedule.watches[number].place
            is_known = refused.isdisjoint(question for _, _, question in group)
            sources.list_watch(number, self._group(group)[place].events if is_known else _NOTHING)
        for number, variant in enumerate(schedule.variants):
            is_refused = bool(refused) and not refused.isdisjoint(each.question for g in variant.asked for each in g)
            names = variant.structure.engine_names
            if is_refused or names:
                sources.add_engine(number, self._by_engine(variant, None if is_refused else names), is_refused)
        return sources.tally(len(self._stream))

    def _group(self, group: Sequence[VariantController]) -> list[Firings]:
        if all(is_plain(watcher.declaration) for watcher, _, _ in group):
            listed = [plain_firings(watcher.declaration, self._answered(question)) for watcher, _, question in group]
        else:
            key = tuple((id(watcher), *question.key) for watcher, _, question in group)
            if key not in self._gated:
                watches = [
                    (watcher.declaration, trigger, self._answered(question)) for watcher, trigger, question in group
                ]
                self._gated[key] = gated_firings(self._stream, watches)
            listed = self._gated[key]
        return [
            Firings(watcher.declaration.name, trigger, watcher.stops, watcher.saves, watcher.evaluates, events)
            for (watcher, trigger, _), events in zip(group, listed, strict=True)
        ]

    def _answered(self, question: SharedRule) -> Answers:
        found = self._answers.get(question.key)
        if found is None:
            rows = self._conditions.rows(question.kind)
            truths, defined = self._conditions.vector(question.condition, question.kind, question.params)
            # A condition that reads only params has one answer for all rows.
            if np.ndim(truths) == 0:
                truths = np.broadcast_to(truths, len(rows))
            defined = both([defined, self.is_asked(question)])
            if defined is not None:
                defined = np.broadcast_to(defined, len(rows))
                rows, truths = self._rows_where(question.kind, rows, defined), truths[defined]
            found = self._answers[question.key] = answers_of(rows, truths)
        return found

    def is_asked(self, question: SharedRule) -> Truths | None:
        """Return whether a rule is asked at each event of its kind; None if it is at all of them."""
        kind, asking = question.kind, question.asking
        first, last = asking.between.first, asking.between.last
        steps = self._stream.steps[self._conditions.rows(kind)]
        series = self._conditions.series
        parts = [series.has_value(kind, key) for key in asking.requires]
        parts += [] if asking.driver is None else [series.is_new(kind, asking.driver)]
        parts += [] if first is None else [steps >= first]
        parts += [] if last is None else [steps <= last]
        return both(parts)

    def _past(self, asked: AskedPast, kind: str, params: Mapping[str, Param]) -> Vector:
        """Return what a rule at events of a kind learns of past decisions."""
        rows = self._conditions.rows(kind)
        if asked.question in OF_ANSWERS:
            questions = self._asked_about.asked([asked.watcher], params)
            return of_answers(asked, [self._answered(each.question) for each in questions], rows)
        group = list(self._asked_about.asked(asked.group, params))
        listed = zip(group, self._group(group), strict=True)
        events = [fired.events for each, fired in listed if each.watcher is asked.watcher]
        return of_firings(asked, events, rows, self._stream.steps)

    def _rows_where(self, kind: str, rows: Ints, defined: Truths) -> Ints:
        """Return the rows that have an answer; questions with equal rows share one array."""
        key = (kind, np.packbits(defined).tobytes())
        if key not in self._asked:
            self._asked[key] = rows[defined]
        return self._asked[key]

    def _by_engine(self, variant: Variant, names: frozenset[str] | None) -> list[Firings]:
        """Return the firings that the event engine decides, of the named controllers, or of all if None."""
        structure = variant.structure
        told = sorted(variant.params) if names is None else structure.engine_params
        key = (id(structure), names, *[(name, variant.params[name]) for name in told])
        if key not in self._engine:
            policy = variant.policy()
            replayed = replay_events(policy, self.events, self._stream.plan)
            found: dict[tuple[str, str, bool, bool, bool], list[int]] = {}
            for judged in replayed.decisions:
                outcome = judged.outcome
                if names is None or outcome.controller in names:
                    effects = effects_of(policy, outcome)
                    orders = Effect.STOP in effects, Effect.SAVE in effects, Effect.EVALUATE in effects
                    place = (outcome.controller, outcome.trigger, *orders)
                    found.setdefault(place, []).append(judged.event_index)
            self._engine[key] = [Firings(*place, np.array(events, np.int64)) for place, events in found.items()]
        return self._engine[key]


class _Sources:
    """The input of a tally: the watches of a schedule, and the firings listed event by event in this run.

    Attributes:
        answers: The answers, by source number.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._source = schedule.columns.source.copy()
        self._engine: list[tuple[int, int, Firings]] = []
        self._is_left = np.ones(len(schedule.variant_of), np.bool_)
        self.answers: list[Answers] = []

    def list_watch(self, number: int, events: Ints) -> None:
        """Let a watch of the schedule fire at those events."""
        self._source[number] = self._add(events)

    def add_engine(self, variant: int, firings: Sequence[Firings], is_whole: bool) -> None:
        """Add the firings that the event engine decided for a variant, with its watches or instead of all of them."""
        if is_whole:
            begin, end = np.searchsorted(self._schedule.variant_of, [variant, variant + 1])
            self._is_left[begin:end] = False
        self._engine += [(variant, self._add(each.events), each) for each in firings]

    def tally(self, events: int) -> Tally:
        """Return the tally of all sources."""
        schedule, count = self._schedule, len(self._schedule.watches)
        columns, added = schedule.columns, len(self._engine)
        left = self._is_left
        watches = Watches(
            np.append(self._source, [source for _, source, _ in self._engine]).astype(np.int64),
            np.append(columns.needed, np.ones(added, np.int64)),
            np.append(columns.is_once, np.zeros(added, np.bool_)),
            np.append(columns.stops, [each.stops for _, _, each in self._engine]).astype(np.bool_),
            np.append(columns.saves, [each.saves for _, _, each in self._engine]).astype(np.bool_),
            np.append(columns.evaluates, [each.evaluates for _, _, each in self._engine]).astype(np.bool_),
        )
        return Tally(
            self.answers,
            watches,
            np.append(schedule.variant_of[left], [variant for variant, _, _ in self._engine]).astype(np.int64),
            np.append(schedule.watch_of[left], count + np.arange(added)),
            len(schedule.variants),
            events,
        )

    def _add(self, events: Ints) -> int:
        self.answers.append(Answers(events, np.arange(len(events)), np.ones(len(events), np.int64)))
        return len(self.answers) - 1
