"""Loads one recorded run as columns, which a sweep reads instead of events.

Only the deciding rank's events are loaded, without the outcomes of rules. All arrays share one index, that of a replay
(``LabelledOutcome.event_index``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...rules.readings.reading import ALSO_CALLED, SeriesKey
from ...store.event_json import decoded_attrs
from ...store.events import PLAN, RULE_KINDS, is_loop_kind
from ...store.lineage import DECIDING_RANK
from ...store.reading.snapshot import Snapshot, events_table_along, rows_with_late_values
from ...store.run_info import Plan
from ..runs.history import size_of
from ..runs.renaming import Renames, renamed_columns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

_ENVELOPE: Final = ("attempt", "rank", "seq", "kind", "step", "epoch", "time_ns", "elapsed_ns", "attrs")
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


@dataclass(frozen=True)
class Stream:
    """The deciding rank's events of one run.

    Attributes:
        codes: Kind of each event, as an index into ``names``. Shape (n,).
        names: Kinds of events.
        steps, attempts, elapsed_ns: One per event.
        epochs: The ``epoch`` field of each event; NaN where it is null. Rules then read the metric ``epoch`` instead.
        has_epoch: Whether the ``epoch`` field of each event is set.
        metrics: Values of each requested metric, from any kind of event.
        checkpoint_bytes: Size of each checkpoint; None where the run did not record it.
        plan: What the run declared.
        has_decisions: Whether rules were live and decided something.
        has_late_values: Whether there are late values, which columns cannot distinguish from an event's own.
        has_late_plan: Whether the loop declared some of its plan late.
        began_ns: Wall clock at the first event; 0 when the log has none.
    """

    codes: npt.NDArray[np.integer]
    names: tuple[str, ...]
    steps: Ints
    attempts: Ints
    elapsed_ns: Ints
    epochs: Floats
    has_epoch: Truths
    metrics: Mapping[str, Values]
    checkpoint_bytes: tuple[int | None, ...]
    plan: Plan
    has_decisions: bool
    has_late_values: bool = False
    has_late_plan: bool = False
    began_ns: int = 0
    _series: dict[SeriesKey, Values] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.codes)

    def has_evaluated(self, metric: str) -> bool:
        """Whether an ``evaluate`` event carried a metric, among those that were read."""
        found = self.metrics.get(metric)
        return found is not None and bool(self.is_any(("evaluate",))[found.at].any())

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


def read_stream(snapshot: Snapshot, metrics: Collection[str], renames: Renames = ()) -> Stream:
    """Return the columns of a run along the lineage of its newest attempt.

    Args:
        snapshot: The run.
        metrics: The metrics to read, by their new names; those that it lacks are left out.
        renames: The metrics to rename.

    Raises:
        TelemetryError: The run cannot be read.
    """
    known = renamed_columns(snapshot, renames)
    column_of = {name: known[name] for name in metrics if name in known}
    table = events_table_along(snapshot, (*_ENVELOPE, *column_of.values()))
    kinds = table["kind"].combine_chunks().dictionary_encode()
    names = tuple(kinds.dictionary.to_pylist())
    codes = kinds.indices.to_numpy(zero_copy_only=False)
    is_fact = np.array([name not in RULE_KINDS for name in names], np.bool_)
    decided = np.array([name == "decision" for name in names], np.bool_)
    own = _numbers(table, "rank") == DECIDING_RANK
    kept = own & is_fact[codes]
    late = rows_with_late_values(table).to_numpy()
    rows = _KeptRows(table, None if kept.all() else kept)
    values = {name: rows.values(column) for name, column in column_of.items()}
    return Stream(
        codes=codes[kept],
        names=names,
        steps=rows.numbers("step"),
        attempts=rows.numbers("attempt").astype(np.int64),
        elapsed_ns=rows.numbers("elapsed_ns"),
        epochs=rows.numbers("epoch"),
        has_epoch=rows.is_known("epoch"),
        metrics={name: found for name, found in values.items() if len(found.at)},
        checkpoint_bytes=_checkpoint_bytes(table, kept & np.array([name == "save" for name in names], np.bool_)[codes]),
        plan=snapshot.info.last.plan,
        has_decisions=bool((own & decided[codes]).any()),
        has_late_values=bool((late & kept).any()),
        has_late_plan=bool((own & np.array([name == PLAN for name in names], np.bool_)[codes]).any()),
        began_ns=int(rows.numbers("time_ns")[0]) if kept.any() else 0,
    )


@dataclass(frozen=True, slots=True)
class _KeptRows:
    """The kept rows of a table; if ``kept`` is None, all of them without a copy."""

    table: Any
    kept: Truths | None

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return a column, nulls as NaN; shape (kept rows,)."""
        numbers = _numbers(self.table, name)
        return numbers if self.kept is None else numbers[self.kept]

    def is_known(self, name: str) -> Truths:
        """Return where a column is not null; shape (kept rows,)."""
        mask: Truths = self.table[name].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
        return mask if self.kept is None else mask[self.kept]

    def values(self, name: str) -> Values:
        """Return the values of a column that are not null, with their rows."""
        at, numbers = np.flatnonzero(self.is_known(name)), self.numbers(name)
        return Values(at, numbers if len(at) == len(numbers) else numbers[at])


def _checkpoint_bytes(table: Any, rows: Truths) -> tuple[int | None, ...]:
    texts = table["attrs"].take(np.flatnonzero(rows)).to_pylist()
    return tuple(size_of(decoded_attrs(text)) if text else None for text in texts)


def _numbers(table: Any, name: str) -> npt.NDArray[Any]:
    """Return a column as an array; nulls as NaN."""
    numbers: npt.NDArray[Any] = table[name].combine_chunks().to_numpy(zero_copy_only=False)
    return numbers
