"""Reads the values of single metrics from the rows of ``metrics`` files, when something asks for them.

A policy reads few metrics. One dictionary per event took 550 MiB for 1,000 steps with 2,000 metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class LongRows:
    """The values of some metrics at the events of one (attempt, rank).

    Args:
        rows: Columns ``seq``, ``metric`` (dictionary-encoded) and ``value``, in any order.
    """

    def __init__(self, rows: pa.Table) -> None:
        metric = rows["metric"].unify_dictionaries().combine_chunks()
        codes = metric.indices.to_numpy()
        # Files are sorted by metric. A copy of a million values would take 20 MB.
        is_sorted = bool((codes[:-1] <= codes[1:]).all())
        order = slice(None) if is_sorted else np.argsort(codes, kind="stable")
        self.metrics: list[str] = metric.dictionary.to_pylist()
        self.codes: npt.NDArray[np.int32] = codes[order]
        self.seqs: npt.NDArray[np.int64] = rows["seq"].to_numpy()[order]
        self.values: npt.NDArray[np.float64] = rows["value"].to_numpy()[order]
        self.starts: list[int] = np.searchsorted(self.codes, np.arange(len(self.metrics) + 1)).tolist()


class LongValues:
    """These values by row of a table of events.

    Args:
        rows: The values.
        seqs: ``seq`` of the table's events, ascending.
    """

    def __init__(self, rows: LongRows, seqs: npt.NDArray[np.int64]) -> None:
        self.rows = rows
        self._seqs = seqs
        self._code_of = {metric: code for code, metric in enumerate(rows.metrics)}

    def __contains__(self, metric: object) -> bool:
        return metric in self._code_of

    def of(self, metric: str) -> SparseColumn:
        """Return the values of a metric by row."""
        code = self._code_of[metric]
        within = slice(*self.rows.starts[code : code + 2])
        place, is_here = self._places(self.rows.seqs[within])
        return SparseColumn(zip(place[is_here].tolist(), self.rows.values[within][is_here].tolist(), strict=True))

    def at(self, row: int) -> list[str]:
        """Return the metrics that the event in a row logged."""
        codes, starts = self._by_row
        return [self.rows.metrics[code] for code in codes[starts[row] : starts[row + 1]]]

    @cached_property
    def _by_row(self) -> tuple[npt.NDArray[np.int32], Sequence[int]]:
        """The metrics' codes in order of rows, and where each row's begin."""
        place, is_here = self._places(self.rows.seqs)
        place = place[is_here]
        order = np.argsort(place, kind="stable")
        return self.rows.codes[is_here][order], np.searchsorted(place[order], np.arange(len(self._seqs) + 1)).tolist()

    def _places(self, seqs: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the row of each ``seq``, and whether the table has it."""
        if not len(self._seqs):
            return np.zeros(len(seqs), np.int64), np.zeros(len(seqs), np.bool_)
        place = np.searchsorted(self._seqs, seqs).clip(max=len(self._seqs) - 1)
        return place, self._seqs[place] == seqs


class SparseColumn(dict[int, float]):
    """The values of a metric by row; None for a row without one."""

    def __missing__(self, row: int) -> None:
        return None
