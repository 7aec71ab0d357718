"""Finds the events at which the controllers of variants fire in one run: of one variant, or of all at once.

A watch is one controller at one trigger, with the values of its params; variants share watches, and watches share
questions. Patience costs only a division: with n true answers needed, a streak of m fires m // n times. Controllers
without a columnar form are decided by the event engine, once for all variants that do not differ in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from ...rules.checks.possible_firings import limiting_params
from ...rules.engine.decisions import Decision, Outcome
from ...rules.engine.engine import Engine
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import NotColumnar, Param
from ...rules.readings.vectors import Ints, Truths, Vector, both
from ...store.events import BEFORE_STREAM
from ...store.own_process import collection_paused
from ..runs.event_stream import EventStream
from ..runs.replaying import observed_in
from ..runs.run_result import effects_of
from .conditions import Conditions
from .metric_values import MetricValues
from .rule_firings import (
    OF_ANSWERS,
    AnsweredController,
    Answers,
    AskedPast,
    Orders,
    SharedRule,
    SharedRules,
    VariantController,
    Watcher,
    answers_needed,
    answers_of,
    firings_in_a_row,
    gated_firings,
    of_answers,
    of_firings,
    plain_firings,
    starts_anew,
)
from .stream import Stream
from .variants import Structure, Variant, metrics_read

#: Variants laid out together: their answers on one run are all in memory at once.
_AT_ONCE: Final = 4_096
#: Replaces a question's number where the firings of a watch are listed event by event.
LISTED: Final = -1
#: Longer than any run, and small enough for an array.
_MOST_NEEDED: Final = 2**31


@dataclass(frozen=True, slots=True)
class SweptController:
    """One controller at one trigger, and one stage of its decisions, shared by all variants that ask the same.

    Attributes:
        group: The controllers decided together: this one alone, or all that share its cooldown.
        place: Index of this controller in the group.
        stage: Index of the stage of the decisions.
    """

    group: tuple[VariantController, ...]
    place: int
    stage: int = 0

    @property
    def watcher(self) -> Watcher:
        """The controller."""
        return self.group[self.place].watcher

    @property
    def orders(self) -> Orders:
        """The orders of its decisions."""
        return self.watcher.orders[self.stage]


@dataclass(frozen=True, eq=False)
class Watches:
    """Watches as columns, each of shape (watches,) but for the orders.

    Attributes:
        source: Number of the answers that a watch reads.
        needed: Number of true answers in a row that make one decision.
        is_once: Whether it decides at most once.
        orders: Whether a decision does each of ``Orders``; shape (watches, orders).
    """

    source: Ints
    needed: Ints
    is_once: Truths
    orders: Truths


@dataclass(frozen=True, eq=False)
class VariantBatch:
    """The questions and watches of some variants as arrays; computed once and used for every run.

    Attributes:
        variants: The variants.
        questions: The distinct questions.
        watches: The distinct watches.
        columns: The watches as columns; the source is an index into ``questions``, or ``LISTED``.
        variant_of, watch_of: For each watch of each variant, the indices of the variant and of the watch. Ascending in
            ``variant_of``.
    """

    variants: tuple[Variant, ...]
    questions: tuple[SharedRule, ...]
    watches: tuple[SweptController, ...]
    columns: Watches
    variant_of: Ints
    watch_of: Ints

    @cached_property
    def structures(self) -> tuple[Structure, ...]:
        """The distinct structures of the variants."""
        return tuple({id(variant.structure): variant.structure for variant in self.variants}.values())

    @cached_property
    def metrics(self) -> frozenset[str]:
        """The metrics that the rules of the variants read."""
        return frozenset(metrics_read(self.structures))

    @cached_property
    def limits(self) -> LimitGroups:
        """The variants, grouped by what decides whether they could fire in a run."""
        return _limit_groups(self.variants)


@dataclass(frozen=True, eq=False)
class LimitGroups:
    """Variants grouped by what decides whether they could fire in a run: those that differ in thresholds alone do not.

    Attributes:
        firsts: One variant of each group.
        group_of: The group of each variant. Shape (variants,).
    """

    firsts: tuple[Variant, ...]
    group_of: Ints


def _limit_groups(variants: Sequence[Variant]) -> LimitGroups:
    limiting: dict[Structure, tuple[str, ...]] = {}
    groups: dict[tuple[Structure, tuple[Param, ...]], int] = {}
    firsts: list[Variant] = []
    group_of = np.zeros(len(variants), np.int64)
    for number, variant in enumerate(variants):
        structure = variant.structure
        if structure not in limiting:
            limiting[structure] = tuple(sorted(limiting_params(structure.policy)))
        key = structure, tuple(variant.params[name] for name in limiting[structure])
        if key not in groups:
            groups[key] = len(groups)
            firsts.append(variant)
        group_of[number] = groups[key]
    return LimitGroups(tuple(firsts), group_of)


def batches_of(variants: Sequence[Variant]) -> tuple[VariantBatch, ...]:
    """Return those variants in batches of some thousands."""
    return tuple(batch_of(variants[begin : begin + _AT_ONCE]) for begin in range(0, max(len(variants), 1), _AT_ONCE))


def batch_of(variants: Sequence[Variant]) -> VariantBatch:
    """Return those variants as one batch."""
    questions: dict[SharedRule, int] = {}
    watches: dict[tuple[object, ...], int] = {}
    listed: list[SweptController] = []
    variant_of: list[int] = []
    watch_of: list[int] = []
    for number, variant in enumerate(variants):
        for watch in _watches(variant):
            for question in (question for each in watch.group for question in each.questions):
                questions.setdefault(question, len(questions))
            asked = [(id(each.watcher), each.trigger, *map(id, each.questions)) for each in watch.group]
            key = (watch.place, watch.stage, *asked)
            if key not in watches:
                watches[key] = len(listed)
                listed.append(watch)
            variant_of.append(number)
            watch_of.append(watches[key])
    return VariantBatch(
        tuple(variants),
        tuple(questions),
        tuple(listed),
        _columns(listed, questions),
        np.array(variant_of, np.int64),
        np.array(watch_of, np.int64),
    )


def _watches(variant: Variant) -> Iterator[SweptController]:
    for group in variant.asked:
        if all(each.watcher.is_plain for each in group):
            yield from (SweptController((each,), 0) for each in group)
            continue
        for place, each in enumerate(group):
            yield from (SweptController(group, place, stage) for stage in range(len(each.watcher.orders)))


def _columns(watches: Sequence[SweptController], questions: dict[SharedRule, int]) -> Watches:
    source, needed = np.full(len(watches), LISTED), np.ones(len(watches), np.int64)
    is_once = np.zeros(len(watches), np.bool_)
    for number, watch in enumerate(watches):
        declaration = watch.watcher.declaration
        if watch.watcher.is_plain and len(watch.group) == 1 and starts_anew(declaration):
            source[number] = questions[watch.group[0].question]
            needed[number] = min(answers_needed(declaration), _MOST_NEEDED)
            is_once[number] = declaration.is_once
    return Watches(
        source,
        needed,
        is_once,
        np.array([watch.orders for watch in watches], np.bool_).reshape(-1, len(Orders._fields)),
    )


class FiringsOfVariants:
    """The firings of all variants on one run.

    Args:
        sources: The answers that watches read.
        watches: The watches.
        variant_of, watch_of: For each watch of each variant, the variant and the watch.
        variants: Number of variants.
        events: Number of events of the run.
    """

    def __init__(
        self,
        sources: Sequence[Answers],
        watches: Watches,
        variant_of: Ints,
        watch_of: Ints,
        variants: int,
        events: int,
    ) -> None:
        self._sources = sources
        self.watches = watches
        self.variant_of = variant_of
        self.watch_of = watch_of
        self._variants = variants
        self._never = events
        #: Stride per source, so that the keys of positions ascend over all sources, one after the other.
        self._stride = events + 2
        counts = np.array([len(source.starts) for source in sources], np.int64)
        self._ends = np.cumsum(counts)
        self._bases = np.repeat(np.arange(len(sources)) * self._stride, counts)
        self._starts = _joined([source.starts for source in sources])
        self._lengths = _joined([source.lengths for source in sources])
        distinct = {id(source.events): source.events for source in sources}
        numbers = {key: number for number, key in enumerate(distinct)}
        self._events = list(distinct.values())
        self._events_of = np.array([numbers[id(source.events)] for source in sources], np.int64)

    @cached_property
    def _first_runs(self) -> Ints:
        """For each watch the first streak that is long enough, as an index over all sources' streaks; -1 for none."""
        if not len(self._starts):
            return np.full(len(self.watches.source), -1)
        longest = np.maximum.accumulate(self._bases + self._lengths)
        needed = np.minimum(self.watches.needed, self._stride - 1)
        found = np.searchsorted(longest, self.watches.source * self._stride + needed)
        return np.where(found < self._ends[self.watches.source], found, -1)

    @cached_property
    def firsts(self) -> Ints:
        """The event at which each watch fires first; the number of events for never. Shape (watches,)."""
        found = np.flatnonzero(self._first_runs >= 0)
        answers = self._starts[self._first_runs[found]] + self.watches.needed[found] - 1
        firsts = np.full(len(self.watches.source), self._never)
        firsts[found] = self._by_events(self.watches.source[found], lambda events, at: events[answers[at]])
        return firsts

    @cached_property
    def stops(self) -> Ints:
        """The event at which each variant first asks to stop; the number of events for never. Shape (variants,)."""
        stops = np.full(self._variants, self._never)
        asking = self._orders("stops")[self.watch_of]
        np.minimum.at(stops, self.variant_of[asking], self.firsts[self.watch_of[asking]])
        return stops

    def decisions_until(self, endings: Ints) -> Ints:
        """Return how often each variant fires up to and including its event; shape (variants,)."""
        counts = np.bincount(self.variant_of, self._counts_until(endings[self.variant_of]), minlength=self._variants)
        return counts.astype(np.int64)

    def asking(self, order: str) -> Iterator[tuple[Ints, Ints]]:
        """Yield the events at which watches fire that order something, and the variants that have these.

        Args:
            order: What they order: a field of ``Orders``.
        """
        asking = np.flatnonzero(self._orders(order)[self.watch_of])
        watches: dict[int, list[int]] = {}
        for variant, watch in zip(self.variant_of[asking].tolist(), self.watch_of[asking].tolist(), strict=True):
            watches.setdefault(variant, []).append(watch)
        asked: dict[tuple[int, ...], list[int]] = {}
        for variant, own in watches.items():
            asked.setdefault(tuple(own), []).append(variant)
        for group, same in asked.items():
            parts = [self._listed(watch) for watch in group]
            events = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
            yield events, np.array(same, np.int64)

    def _orders(self, order: str) -> Truths:
        found: Truths = self.watches.orders[:, Orders._fields.index(order)]
        return found

    def _listed(self, watch: int) -> Ints:
        """Return the events at which a watch fires, ascending."""
        watches = self.watches
        source, needed = self._sources[watches.source[watch]], int(watches.needed[watch])
        return firings_in_a_row(source, needed, is_once=bool(watches.is_once[watch]))

    def _counts_until(self, endings: Ints) -> Ints:
        """Return how often each watch of each variant fires, up to an event of its own."""
        counts = np.zeros(len(endings), np.int64)
        own = np.flatnonzero((self.firsts < self._never)[self.watch_of])
        if not len(own):
            return counts
        watch = self.watch_of[own]
        source, needed, first = self.watches.source[watch], self.watches.needed[watch], self._first_runs[watch]
        answered = self._by_events(source, lambda events, at: events.searchsorted(endings[own[at]], side="right"))
        # The newest streak that has begun by then.
        newest = np.searchsorted(self._bases + self._starts, source * self._stride + answered) - 1
        found = np.minimum(self._lengths[newest], answered - self._starts[newest]) // needed
        found = np.where(newest >= first, found, 0) + self._between(first, newest, needed)
        counts[own] = np.where(self.watches.is_once[watch], np.minimum(found, 1), found)
        return counts

    def _between(self, first: Ints, newest: Ints, needed: Ints) -> Ints:
        """Return how often streaks fire, from the first that does to the one before the newest."""
        counts = np.zeros(len(first), np.int64)
        several = newest > first
        for count in np.unique(needed[several]).tolist():
            own = np.flatnonzero(several & (needed == count))
            until = np.cumsum(self._lengths // count)
            until -= self._lengths // count
            counts[own] = until[newest[own]] - until[first[own]]
        return counts

    def _by_events(self, source: Ints, found: Callable[[Ints, Ints], Ints]) -> Ints:
        """Call a function once per distinct array of answer events, with the indices of its sources."""
        if len(self._events) == 1:
            return found(self._events[0], np.arange(len(source)))
        results = np.zeros(len(source), np.int64)
        kinds = self._events_of[source]
        order = np.argsort(kinds, kind="stable")
        edges = np.searchsorted(kinds[order], np.arange(len(self._events) + 1))
        for number, events in enumerate(self._events):
            own = order[edges[number] : edges[number + 1]]
            if len(own):
                results[own] = found(events, own)
        return results


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


_NOTHING: Final[Ints] = np.zeros(0, np.int64)


class Firings(NamedTuple):
    """The firings of one controller at one trigger.

    Attributes:
        controller, trigger: The controller and its trigger.
        orders: What it orders.
        events: Indices of the events at which it fires, ascending.
    """

    controller: str
    trigger: str
    orders: Orders
    events: Ints


class RunFirings:
    """Evaluates variants over one run.

    Args:
        stream: The run's columns.
        events: Reads its events; called only if the event engine has to decide.

    Attributes:
        reasons: Why the event engine had to decide rules that have a columnar form on other runs.
    """

    def __init__(self, stream: Stream, events: Callable[[], EventStream]) -> None:
        self._stream = stream
        self._read = events
        self._events: EventStream | None = None
        metrics = MetricValues(stream, lambda: self.events.facts)
        self._conditions = Conditions(stream, metrics, self._past)
        self._asked_about = SharedRules()
        self._asked: dict[tuple[str, bytes], Ints] = {}
        self._answers: dict[tuple[object, ...], Answers] = {}
        self._gated: dict[tuple[tuple[object, ...], ...], list[list[Ints]]] = {}
        self._engine: dict[tuple[object, ...], list[Firings]] = {}
        self.reasons: set[str] = set()

    @property
    def events(self) -> EventStream:
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
            listed = [each for group in variant.asked for stages in self._group(group) for each in stages]
        except NotColumnar as error:
            self.reasons.add(str(error))
            return self._by_engine(variant, None)
        return listed + (self._by_engine(variant, structure.engine_names) if structure.engine_names else [])

    def firings_of_all(self, batch: VariantBatch) -> FiringsOfVariants:
        """Return the firings of all variants of a batch. The cached answers of earlier batches are dropped."""
        self._answers, self._gated = {}, {}
        sources = _Sources(batch)
        refused: set[SharedRule] = set()
        for question in batch.questions:
            try:
                answers = self._answered(question)
            except NotColumnar as error:
                self.reasons.add(str(error))
                refused.add(question)
                answers = answers_of(_NOTHING, np.zeros(0, np.bool_))
            sources.answers.append(answers)
        for number in np.flatnonzero(batch.columns.source == LISTED).tolist():
            watch = batch.watches[number]
            is_known = refused.isdisjoint(question for each in watch.group for question in each.questions)
            firings = self._group(watch.group)[watch.place][watch.stage].events if is_known else _NOTHING
            sources.list_watch(number, firings)
        needs_engine = bool(refused) or any(structure.engine_names for structure in batch.structures)
        for number, variant in enumerate(batch.variants if needs_engine else ()):
            is_refused = not refused.isdisjoint(own for g in variant.asked for each in g for own in each.questions)
            names = variant.structure.engine_names
            if is_refused or names:
                sources.add_engine(number, self._by_engine(variant, None if is_refused else names), is_refused)
        return sources.firings(len(self._stream))

    def _group(self, group: Sequence[VariantController]) -> list[list[Firings]]:
        """Return the firings of controllers that are decided together, by stage of their decisions."""
        if all(each.watcher.is_plain for each in group):
            listed = [[plain_firings(each.watcher.declaration, self._answered(each.question))] for each in group]
        else:
            key = tuple((id(each.watcher), *(question.key for question in each.questions)) for each in group)
            if key not in self._gated:
                self._gated[key] = gated_firings(self._stream, [self._answered_controller(each) for each in group])
            listed = self._gated[key]
        return [
            [
                Firings(each.watcher.declaration.name, each.trigger, orders, events)
                for orders, events in zip(each.watcher.orders, stages, strict=True)
            ]
            for each, stages in zip(group, listed, strict=True)
        ]

    def _answered_controller(self, each: VariantController) -> AnsweredController:
        clear = None if each.clear is None else self._answered(each.clear)
        return AnsweredController(each.watcher.declaration, each.trigger, self._answered(each.question), clear)

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
        parts += [] if asking.driver is None else [self._conditions.is_new(kind, asking.driver)]
        changing = asking.changing
        parts += [] if changing is None else [self._conditions.vector(changing, kind, question.params).values]
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
        events = [fired.events for each, stages in listed if each.watcher is asked.watcher for fired in stages]
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
            policy = variant.policy() if names is None else variant.engine_policy()
            found: dict[tuple[str, str, Orders], list[int]] = {}
            for index, outcome in self._outcomes(policy):
                if isinstance(outcome, Decision):
                    place = (outcome.controller, outcome.trigger, Orders.of(effects_of(policy, outcome)))
                    found.setdefault(place, []).append(index)
            self._engine[key] = [Firings(*place, np.array(events, np.int64)) for place, events in found.items()]
        return self._engine[key]

    def _outcomes(self, policy: Policy) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes of a policy by the event engine, each with the index of its event."""
        with collection_paused():
            engine = Engine(policy, self._stream.plan, self.events.plans)
            yield from ((BEFORE_STREAM, outcome) for outcome in engine.start())
            for index, _, outcomes in observed_in(engine, self.events):
                yield from ((index, outcome) for outcome in outcomes)


class _Sources:
    """The sources of firings: the watches of a batch, and the firings listed event by event in this run.

    Attributes:
        answers: The answers, by source number.
    """

    def __init__(self, batch: VariantBatch) -> None:
        self._batch = batch
        self._source = batch.columns.source.copy()
        self._engine: list[tuple[int, int, Firings]] = []
        self._is_left = np.ones(len(batch.variant_of), np.bool_)
        self.answers: list[Answers] = []

    def list_watch(self, number: int, events: Ints) -> None:
        """Let a watch of the batch fire at those events."""
        self._source[number] = self._add(events)

    def add_engine(self, variant: int, firings: Sequence[Firings], is_whole: bool) -> None:
        """Add the firings that the event engine decided for a variant, with its watches or instead of all of them."""
        if is_whole:
            begin, end = np.searchsorted(self._batch.variant_of, [variant, variant + 1])
            self._is_left[begin:end] = False
        self._engine += [(variant, self._add(each.events), each) for each in firings]

    def firings(self, events: int) -> FiringsOfVariants:
        """Return the firings of all sources."""
        batch, count = self._batch, len(self._batch.watches)
        columns, added = batch.columns, len(self._engine)
        left = self._is_left
        watches = Watches(
            np.append(self._source, [source for _, source, _ in self._engine]).astype(np.int64),
            np.append(columns.needed, np.ones(added, np.int64)),
            np.append(columns.is_once, np.zeros(added, np.bool_)),
            np.array([*columns.orders, *(each.orders for _, _, each in self._engine)], np.bool_).reshape(
                -1, len(Orders._fields)
            ),
        )
        return FiringsOfVariants(
            self.answers,
            watches,
            np.append(batch.variant_of[left], [variant for variant, _, _ in self._engine]).astype(np.int64),
            np.append(batch.watch_of[left], count + np.arange(added)),
            len(batch.variants),
            events,
        )

    def _add(self, events: Ints) -> int:
        self.answers.append(Answers(events, np.arange(len(events)), np.ones(len(events), np.int64)))
        return len(self.answers) - 1
