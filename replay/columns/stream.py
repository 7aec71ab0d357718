"""One recorded run as columns, which rules read instead of events.

Takes a recorded stream; all arrays share its index, that of a replay (``LabelledOutcome.event_index``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ...rules.readings.reading import ALSO_CALLED, SeriesKey
from ...rules.readings.vectors import Floats, Ints, Truths
from ...store.events import is_loop_kind
from ...store.plan import Plan
from ..runs.event_stream import EventStream

_BEFORE: Final = np.array([-1])


@dataclass(frozen=True)
class Values:
    """The values of one series or metric.

    Attributes:
        at: Index of the event that brought each; shape (n,), ascending; -1 for a value declared before the stream.
        values: Shape (n,).
    """

    at: Ints
    values: Floats


class Stream:
    """The columns of one run.

    Args:
        recorded: The run's stream.
        plan: What the run declared.
        metrics: The metrics to include.

    Attributes:
        recorded, plan: As given.
        codes: Kind of each event, as an index into ``names``. Shape (n,).
        names: Kinds of events.
        steps, attempts, elapsed_ns: One per event.
        epochs: The ``epoch`` field of each event; NaN where it is null. Rules then read the metric ``epoch`` instead.
        has_epoch: Whether the ``epoch`` field of each event is set.
        metrics: Values of each of the metrics that was logged, from any kind of event.
    """

    def __init__(self, recorded: EventStream, plan: Plan, metrics: Collection[str]) -> None:
        self.recorded = recorded
        self.plan = plan
        self.codes, self.names = recorded.coded_kinds
        self.steps, self.elapsed_ns = recorded.steps, recorded.elapsed_ns
        self.attempts = recorded.attempts.astype(np.int64)
        epoch = recorded.facts.known("epoch")
        self.epochs, self.has_epoch = np.full(len(recorded), np.nan), np.zeros(len(recorded), np.bool_)
        self.epochs[epoch.rows], self.has_epoch[epoch.rows] = epoch.values, True
        logged = {name: recorded.numbers(name) for name in metrics}
        self.metrics = {name: Values(found.rows, found.values) for name, found in logged.items() if len(found.rows)}
        self._series: dict[SeriesKey, Values] = {}

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def is_loop(self) -> Truths:
        """Whether each event is the loop's own; shape (n,)."""
        return self.is_any(list(filter(is_loop_kind, self.names)))

    def is_any(self, kinds: Collection[str]) -> Truths:
        """Return whether each event is of one of those kinds; shape (n,)."""
        wanted = np.array([name in kinds for name in self.names], np.bool_)
        found: Truths = wanted[self.codes]
        return found

    def rows(self, kind: str) -> Ints:
        """Return the indices of a kind's events."""
        return np.flatnonzero(self.is_any((kind,)))

    def whole(self, metric: str) -> Floats:
        """Return the value of a metric at each event; NaN where it was not logged. Shape (n,)."""
        values = np.full(len(self), np.nan)
        if (found := self.metrics.get(metric)) is not None:
            values[found.at] = found.values
        return values

    def series(self, key: SeriesKey) -> Values:
        """Return the values of a rule's series: those of the first kind of event that carried it."""
        if key not in self._series:
            self._series[key] = self._found(key)
        return self._series[key]

    def _found(self, key: SeriesKey) -> Values:
        name, kind = key.name, key.kind
        if kind is None and name in self.plan.constants:
            return Values(_BEFORE, np.array([float(self.plan.constants[name])]))
        first: tuple[int, str] | None = None
        for candidate in (name, ALSO_CALLED.get(name)):
            found = self.metrics.get(candidate) if candidate is not None else None
            if found is None or candidate is None:
                continue
            carried = self.is_loop[found.at]
            if kind is not None:
                carried = carried & self.is_any((kind,))[found.at]
            position = int(found.at[np.argmax(carried)]) if carried.any() else None
            if position is not None and (first is None or position < first[0]):
                first = (position, candidate)
        if first is None:
            return Values(np.zeros(0, np.int64), np.zeros(0))
        metric = self.metrics[first[1]]
        own = self.codes[metric.at] == self.codes[first[0]]
        return metric if own.all() else Values(metric.at[own], metric.values[own])

    @cached_property
    def clock_ns(self) -> Ints:
        """Training time up to each event, over all attempts, as rules read it; shape (n,)."""
        loop = np.flatnonzero(self.is_loop)
        passed = np.zeros(len(self), np.int64)
        before = 0
        edges = np.flatnonzero(np.diff(self.attempts[loop], prepend=0)) if len(loop) else loop
        for part in np.split(loop, edges):
            if len(part):
                passed[part] = before + np.maximum.accumulate(np.maximum(self.elapsed_ns[part], 0))
                before = int(passed[part[-1]])
        return passed

    @cached_property
    def evaluation_counts(self) -> Ints:
        """Number of ``evaluate`` events up to each event; shape (n,)."""
        return np.cumsum(self.is_any(("evaluate",)))
