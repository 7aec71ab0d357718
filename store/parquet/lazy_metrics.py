"""Reads the metrics of events lazily from table columns: takes columns, presents each row as a mapping.

A dictionary of ten numbers takes five times as long to build as such a row, and rules read one or two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from ..events import MetricsOfTable
from .long_values import LongValues, SparseColumn


class _Scattered:
    """A column for access to single values; after many accesses, a list replaces it.

    Args:
        columns: The mapping that holds it.
        metric: Its key there.
        values: The column.
    """

    __slots__ = ("_columns", "_left", "_metric", "_numbers", "_present")

    def __init__(self, columns: MetricColumns, metric: str, values: pa.ChunkedArray) -> None:
        self._columns = columns
        self._metric = metric
        column = values.combine_chunks()
        self._numbers = column.to_numpy(zero_copy_only=False)
        self._present = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        # Building a list takes as long as reading a fourth of its values one by one.
        self._left = len(column) // 4

    def __getitem__(self, row: int) -> float | None:
        self._left -= 1
        if self._left < 0:
            return self._columns.whole(self._metric)[row]
        if self._present is not None and not self._present[row]:
            return None
        value: float = self._numbers.item(row)
        return value


class MetricColumns(dict[str, list[float | None] | _Scattered | SparseColumn]):
    """The values of each metric, one per row of the table; a list once the metric is read often.

    Args:
        rows: The table, in one chunk.
        column_of: The column of each metric, in the order that rows list their metrics.
        long: The values of further metrics, which are not columns.

    Raises:
        KeyError: On access, when there is no such metric.
    """

    def __init__(self, rows: pa.Table, column_of: Mapping[str, str], long: LongValues | None = None) -> None:
        super().__init__()
        self.column_of = column_of
        self._rows = rows
        self._long = long

    def __missing__(self, metric: str) -> _Scattered | SparseColumn:
        if self._long is not None and metric in self._long:
            sparse = self[metric] = self._long.of(metric)
            return sparse
        scattered = self[metric] = _Scattered(self, metric, self._rows[self.column_of[metric]])
        return scattered

    def has(self, metric: object) -> bool:
        """Whether any row may hold this metric."""
        return metric in self.column_of or (self._long is not None and metric in self._long)

    def at(self, row: int) -> Iterator[str]:
        """Yield the metrics that a row holds."""
        for metric in self.column_of:
            if self[metric][row] is not None:
                yield metric
        if self._long is not None:
            yield from self._long.at(row)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The metrics that any row may hold."""
        return (*self.column_of, *(() if self._long is None else self._long.rows.metrics))

    def whole(self, metric: str) -> list[float | None]:
        """All values of a metric; all None when there is no such metric."""
        if not self.has(metric):
            return [None] * self._rows.num_rows
        values = self.get(metric)
        if metric not in self.column_of:
            column = self[metric]
            return [column[row] for row in range(self._rows.num_rows)]
        if not isinstance(values, list):
            values = self[metric] = self._rows[self.column_of[metric]].to_pylist()
        return values


class LoggedMetrics(MetricsOfTable):
    """The numbers of one event by metric; equal to a dictionary of them. Nulls count as not logged.

    It keeps the columns of the whole table alive. Code that keeps a few events for long should copy their numbers.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: MetricColumns, row: int) -> None:
        self._columns = columns
        self._row = row

    def get(self, metric: str, default: Any = None) -> Any:
        """The number of a metric; the default where the event lacks it."""
        try:
            value = self._columns[metric][self._row]
        except KeyError:
            return default
        return default if value is None else value

    @property
    def possible(self) -> tuple[str, ...]:
        """The metrics that any event of the table may hold."""
        return self._columns.names

    def __getitem__(self, metric: str) -> float:
        value = self._columns[metric][self._row]
        if value is None:
            raise KeyError(metric)
        return value

    def __contains__(self, metric: object) -> bool:
        return self._columns.has(metric) and self._columns[str(metric)][self._row] is not None

    def __iter__(self) -> Iterator[str]:
        return self._columns.at(self._row)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[str, float]], tuple[dict[str, float]]]:
        return dict, (dict(self),)
