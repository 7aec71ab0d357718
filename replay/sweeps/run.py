"""Finds, for all variants on one run, the events at which each of their controllers fires.

Takes a stream and variants; returns the firings of one variant, or a tally of all. Controllers without a columnar form
are decided by the event engine, once for all variants that do not differ in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from ...rules.control.effects import Effect
from ...store.events import Event
from ..runs.event_stream import EventStream
from ..runs.replaying import effects_of, replay_events
from .conditions import Conditions
from .gates import Answers, answers_of, gated_firings, is_plain, plain_firings
from .schedule import LISTED, Schedule, Watches
from .stream import Ints, Stream, Truths
from .tally import Tally
from .terms import NotColumnar
from .variants import SharedRule, Variant, VariantController

_NOTHING: Final[Ints] = np.zeros(0, np.int64)


class Firings(NamedTuple):
    """The firings of one controller at one trigger.

    Attributes:
        controller, trigger: The controller and its trigger.
        stops, saves: Whether a firing ends the run, and whether it asks for a checkpoint.
        events: Indices of the events at which it fires, ascending.
    """

    controller: str
    trigger: str
    stops: bool
    saves: bool
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
        self._conditions = Conditions(stream)
        self._asked: dict[tuple[str, bytes], Ints] = {}
        self._answers: dict[SharedRule, Answers] = {}
        self._gated: dict[tuple[tuple[int, int], ...], list[Ints]] = {}
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
            key = tuple((id(watcher), id(question)) for watcher, _, question in group)
            if key not in self._gated:
                watches = [
                    (watcher.declaration, trigger, self._answered(question)) for watcher, trigger, question in group
                ]
                self._gated[key] = gated_firings(self._stream, watches)
            listed = self._gated[key]
        return [
            Firings(watcher.declaration.name, trigger, watcher.stops, watcher.saves, events)
            for (watcher, trigger, _), events in zip(group, listed, strict=True)
        ]

    def _answered(self, question: SharedRule) -> Answers:
        found = self._answers.get(question)
        if found is None:
            rows = self._conditions.rows(question.kind)
            truths, defined = self._conditions.vector(question.condition, question.kind, question.params)
            # A condition that reads only params has one answer for all rows.
            if np.ndim(truths) == 0:
                truths = np.broadcast_to(truths, len(rows))
            first, last = question.between.first, question.between.last
            if first is not None:
                defined = _both(defined, self._stream.steps[rows] >= first)
            if last is not None:
                defined = _both(defined, self._stream.steps[rows] <= last)
            if defined is not None:
                defined = np.broadcast_to(defined, len(rows))
                rows, truths = self._rows_where(question.kind, rows, defined), truths[defined]
            found = self._answers[question] = answers_of(rows, truths)
        return found

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
            found: dict[tuple[str, str, bool, bool], list[int]] = {}
            for judged in replayed.decisions:
                outcome = judged.outcome
                if names is None or outcome.controller in names:
                    effects = effects_of(policy, outcome)
                    place = (outcome.controller, outcome.trigger, Effect.STOP in effects, Effect.SAVE in effects)
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


def _both(defined: Truths | None, asked: Truths) -> Truths:
    return asked if defined is None else defined & asked
