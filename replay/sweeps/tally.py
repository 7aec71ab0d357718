"""Counts the firings of all variants on one run at once: the first, and how many up to an event.

Takes streaks of true answers and the watches of each variant; returns numbers for each variant. Patience costs only a
division: with n true answers needed, a streak of m fires m // n times. The first streak that is long enough is found in
the running maximum of lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from ..columns.gates import Answers, firings_in_a_row
from ..columns.stream import Ints, Truths
from .schedule import Watches


class Tally:
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
        asking = self.watches.stops[self.watch_of]
        np.minimum.at(stops, self.variant_of[asking], self.firsts[self.watch_of[asking]])
        return stops

    def decisions_until(self, endings: Ints) -> Ints:
        """Return how often each variant fires up to and including its event; shape (variants,)."""
        counts = np.bincount(self.variant_of, self._counts_until(endings[self.variant_of]), minlength=self._variants)
        return counts.astype(np.int64)

    def asking(self, asks: Truths) -> Iterator[tuple[Ints, Ints]]:
        """Yield the events at which some watches fire, ascending and distinct, and the variants that have these.

        Args:
            asks: Whether each watch is one of them, such as ``watches.saves``.
        """
        asking = np.flatnonzero(asks[self.watch_of])
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
