"""Presents the rows of an events table as events, all at once or each on access.

Takes tables as Parquet files hold them. Also returns single columns as plain lists, for readers that check most events
by kind and step only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import RESERVED
from ..errors import DamagedLog
from ..event_json import decoded_attrs
from ..events import AWAITED, ENVELOPE, LATE_FOR, NO_VECTORS, Event
from ..own_process import collection_paused
from .lazy_metrics import LoggedMetrics, MetricColumns
from .long_values import LongRows, LongValues

#: Rows converted to events at a time.
_AT_ONCE: Final = 16_384

#: The empty attributes of most events. Events of tables share this one object, as events created without attributes
#: share their field's default.
_NO_ATTRS: Final[dict[str, Any]] = {}


class Numbers(NamedTuple):
    """The numbers of a column that are known.

    Attributes:
        rows: The rows that have one, ascending. Shape (n,).
        values: Shape (n,).
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[Any]


class EventRows(Sequence[Event]):
    """The events of a table, each built on access.

    Args:
        table: The rows.
        metric_of: The metric of each column whose name differs from its metric's.
        long: The values of metrics that are not columns.

    Raises:
        DamagedLog: A column is missing; on access, attributes cannot be parsed.
    """

    def __init__(self, table: pa.Table, metric_of: Mapping[str, str], long: LongRows | None = None) -> None:
        present = set(table.column_names)
        missing = [name for name in (*ENVELOPE, "attrs") if name not in present]
        if missing:
            raise DamagedLog("a table of events lacks a column", got=missing[0])
        self._table = table.combine_chunks()
        self._metric_of = metric_of
        self._rows_beside = long
        self._lists: dict[str, list[Any]] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        column_of = {metric_of.get(name, name): name for name in table.column_names if name not in RESERVED}
        self._long = None if long is None else LongValues(long, self._table["seq"].to_numpy())
        self._metrics = MetricColumns(self._table, column_of, self._long)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            return self._made(range(*index.indices(len(self))))
        row = range(len(self))[index]
        fields = [cell(row) for cell in self._cells]
        return Event._make((*fields, LoggedMetrics(self._metrics, row), self.attrs_at(row), None, NO_VECTORS))

    def __iter__(self) -> Iterator[Event]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self._made(range(start, min(start + _AT_ONCE, len(self))))

    def _made(self, rows: range) -> list[Event]:
        within = slice(rows.start, rows.stop if rows.stop >= 0 else None, rows.step)
        texts = self._texts[within]
        attrs = [self._decoded(text, row) if text else _NO_ATTRS for row, text in zip(rows, texts, strict=True)]
        envelope = [column[within] for column in self._envelope]
        with collection_paused():
            metrics = map(LoggedMetrics, repeat(self._metrics), rows)
            # As Event._make does, but that is a Python function and takes a fifth longer.
            fields = zip(*envelope, metrics, attrs, repeat(None), repeat(NO_VECTORS), strict=False)
            return list(map(partial(tuple.__new__, Event), fields))

    def column(self, name: str) -> list[Any]:
        """One envelope column, an entry for each event."""
        values = self._lists.get(name)
        if values is None:
            column = self._table[name]
            values = self._lists[name] = _texts_of(column) if name == "kind" else column.to_pylist()
        return values

    def attrs_at(self, row: int) -> Mapping[str, Any]:
        """The attributes of one event."""
        text = self._text_of.get(row)
        return self._decoded(text, row) if text else _NO_ATTRS

    def whole(self, name: str) -> npt.NDArray[Any]:
        """One envelope column of numbers that every event has; shape (events,)."""
        if name not in self._arrays:
            self._arrays[name] = _whole(self._table[name]).to_numpy(zero_copy_only=False)
        return self._arrays[name]

    def known(self, name: str) -> Numbers:
        """One envelope column of numbers, where it is not null."""
        return _known(self._table[name])

    def numbers(self, metric: str) -> Numbers:
        """The values of a metric, where it was logged."""
        column = self._metrics.column_of.get(metric)
        if column is not None:
            return _known(self._table[column])
        found = self._long.of(metric) if self._long is not None and metric in self._long else {}
        rows = sorted(found)
        return Numbers(np.array(rows, np.int64), np.array([found[row] for row in rows], np.float64))

    @cached_property
    def coded_kinds(self) -> tuple[npt.NDArray[np.integer], tuple[str, ...]]:
        """The kind of each event, as an index into the kinds that follow."""
        coded = _coded(self._table["kind"])
        return coded.indices.to_numpy(zero_copy_only=False), tuple(map(sys.intern, coded.dictionary.to_pylist()))

    @cached_property
    def mentions_late_values(self) -> bool:
        """Whether attributes mention late values; a text in the loop's own attributes may match, too."""
        return any(f'"{AWAITED}"' in text or f'"{LATE_FOR}"' in text for text in self._text_of.values())

    @property
    def metrics(self) -> list[str]:
        """The metrics that an event may hold, each once."""
        return list(dict.fromkeys(self._metrics.names))

    def values(self, metric: str) -> list[float | None]:
        """The value of a metric at each event; None where it was not logged."""
        return self._metrics.whole(metric)

    @property
    def rows_with_attrs(self) -> list[int]:
        """The indices of events with attributes."""
        return list(self._text_of)

    def of_kinds(self, kinds: Iterable[str], *, others: bool = False) -> EventRows:
        """The events of these kinds, or of all others, in order."""
        wanted = pc.is_in(self._table["kind"], pa.array(list(kinds), pa.string()))
        rows = self._table.filter(pc.invert(wanted) if others else wanted)
        return EventRows(rows, self._metric_of, self._rows_beside)

    def renamed(self, called: Mapping[str, str]) -> EventRows | None:
        """The same events with new names of metrics, by the old ones; None if a renamed metric is not a column."""
        if self._rows_beside is not None and not called.keys().isdisjoint(self._rows_beside.metrics):
            return None
        names = {name: self._metric_of.get(name, name) for name in self._table.column_names if name not in RESERVED}
        metric_of = {name: called.get(metric, metric) for name, metric in names.items()}
        return EventRows(self._table, metric_of, self._rows_beside)

    @cached_property
    def _envelope(self) -> list[list[Any]]:
        return [self.column(name) for name in ENVELOPE]

    @cached_property
    def _cells(self) -> list[Callable[[int], Any]]:
        """For each envelope column, a function that returns single entries without building a list of all."""
        return [self._cells_of(name) for name in ENVELOPE]

    def _cells_of(self, name: str) -> Callable[[int], Any]:
        if name == "kind":
            codes, kinds = self.coded_kinds
            return lambda row: kinds[codes[row]]
        column = self._table[name]
        if name in self._lists:
            return self._lists[name].__getitem__
        if column.null_count == len(column):
            return lambda _: None
        if column.null_count or not pa.types.is_integer(column.type):
            return self.column(name).__getitem__
        item: Callable[[int], Any] = self.whole(name).item
        return item

    @cached_property
    def _text_of(self) -> dict[int, str]:
        """The attribute text of each event that has any, by index, ascending."""
        column = _whole(self._table["attrs"])
        if column.null_count == len(column):
            return {}
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist()
        return {row: text for row, text in zip(rows, column.drop_null().to_pylist(), strict=True) if text}

    @cached_property
    def _texts(self) -> list[str | None]:
        texts: list[str | None] = self._table["attrs"].to_pylist()
        return texts

    def _decoded(self, text: str, row: int) -> Mapping[str, Any]:
        try:
            return decoded_attrs(text)
        except DamagedLog as error:
            kind, attempt, rank, seq = (self.column(name)[row] for name in ("kind", "attempt", "rank", "seq"))
            where = f"{kind} {attempt}/{rank}/{seq}"
            raise DamagedLog(error.what, where=where, got=error.got, fix=error.fix) from None


class EventList(list[Event]):
    """Events in memory, with the same column access as ``EventRows``."""

    def column(self, name: str) -> list[Any]:
        """One envelope column, an entry for each event."""
        return list(map(attrgetter(name), self))

    def attrs_at(self, row: int) -> Mapping[str, Any]:
        """The attributes of one event."""
        return self[row].attrs

    @property
    def metrics(self) -> list[str]:
        """The metrics that an event may hold, each once."""
        return list(dict.fromkeys(name for event in self for name in event.metrics))

    def values(self, metric: str) -> list[float | None]:
        """The value of a metric at each event; None where it was not logged."""
        return [event.metrics.get(metric) for event in self]

    def whole(self, name: str) -> npt.NDArray[Any]:
        """One envelope column of numbers that every event has; shape (events,)."""
        return np.array(self.column(name), np.int64)

    def known(self, name: str) -> Numbers:
        """One envelope column of numbers, where it is not null."""
        return _known_of(self.column(name))

    def numbers(self, metric: str) -> Numbers:
        """The values of a metric, where it was logged."""
        return _known_of(self.values(metric))

    @property
    def coded_kinds(self) -> tuple[npt.NDArray[np.integer], tuple[str, ...]]:
        """The kind of each event, as an index into the kinds that follow."""
        kinds = self.column("kind")
        codes = {kind: code for code, kind in enumerate(dict.fromkeys(kinds))}
        return np.array(list(map(codes.__getitem__, kinds)), np.int64), tuple(codes)

    @property
    def mentions_late_values(self) -> bool:
        """Whether attributes mention late values."""
        return any(AWAITED in event.attrs or LATE_FOR in event.attrs for event in self)

    @property
    def rows_with_attrs(self) -> list[int]:
        """The indices of events with attributes."""
        return [index for index, event in enumerate(self) if event.attrs]

    def of_kinds(self, kinds: Iterable[str], *, others: bool = False) -> EventList:
        """The events of these kinds, or of all others, in order."""
        wanted = frozenset(kinds)
        return EventList(event for event in self if (event.kind in wanted) != others)


def with_columns(events: Sequence[Event]) -> EventRows | EventList:
    """Return the events with column access: table rows unchanged, any others as an ``EventList``."""
    return events if isinstance(events, EventRows | EventList) else EventList(events)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. ``combine_chunks`` calls a function even for a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _known(column: pa.ChunkedArray) -> Numbers:
    """Return the numbers of a column that are not null."""
    chunk = _whole(column)
    numbers = chunk.to_numpy(zero_copy_only=False)
    if not chunk.null_count:
        return Numbers(np.arange(len(numbers)), numbers)
    # Nulls are NaN now. Only where a value is NaN, too, the column itself has to tell them apart.
    rows = np.flatnonzero(~np.isnan(numbers))
    if len(rows) < len(chunk) - chunk.null_count:
        rows = np.flatnonzero(chunk.is_valid().to_numpy(zero_copy_only=False))
    return Numbers(rows, numbers[rows])


def _known_of(values: Sequence[float | None]) -> Numbers:
    """Return those of some values that are not None."""
    rows = [row for row, value in enumerate(values) if value is not None]
    return Numbers(np.array(rows, np.int64), np.array([values[row] for row in rows], np.float64))


def _coded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    if column.null_count:
        raise DamagedLog("an event without a kind")
    return _whole(column).dictionary_encode()


def _texts_of(column: pa.ChunkedArray) -> list[str]:
    """Return a column of few distinct texts as interned strings: lookups with literals match by identity."""
    coded = _coded(column)
    texts = [sys.intern(text) for text in coded.dictionary.to_pylist()]
    return list(map(texts.__getitem__, coded.indices.to_pylist()))
