"""Computes SHA-256 digests of a table's columns, from Arrow tables added piece by piece.

Pieces may have any size. A digest covers each value's bits and its row. Pieces read back from Parquet have the digests
of the pieces written; ``Alongside`` computes digests during the writing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DamagedLog

#: Columns of each table that hardly change from row to row: only changed values and their positions are digested.
CHANGING_SELDOM: Final = {
    "events": frozenset(("run_id", "attempt", "rank", "kind", "micro_step", "value_lag")),
    "samples": frozenset(("run_id", "attempt", "rank", "seq", "step", "micro_step")),
    "vectors": frozenset(("run_id", "attempt", "rank", "seq", "step", "micro_step")),
}

#: Columns of the ``metrics`` table that identify the stream, and are the same in every row.
_OWNER: Final = ("run_id", "attempt", "rank")


class ColumnDigest(NamedTuple):
    """The digest of one column.

    Attributes:
        number: Number of values.
        places: Digest of the rows that have a value.
        lengths: Digest of the values' lengths, for lists and texts (in bytes).
        values: Digest of the values' bits.
    """

    number: int
    places: str
    lengths: str
    values: str


class TableDigests(Protocol):
    """The digests of the columns of a table."""

    def add(self, table: pa.Table) -> bool:
        """Add rows; return whether they are in order. If not, the digests are invalid."""

    def finish(self) -> dict[str, ColumnDigest]:
        """Return the digests so far of the columns with any value."""


def table_digests(table: str) -> TableDigests:
    """Return empty digests for a table of this name."""
    if table == "metrics":
        return LongDigests()
    seldom = CHANGING_SELDOM[table]
    return ColumnDigests(lambda name: (_Changes if name in seldom else EachValue)(PresenceDigest()))


class Alongside:
    """The digests of a table, computed in one thread while another writes the table: SHA-256 releases the GIL.

    Args:
        table: Its name.
        thread: The executor that computes them.
    """

    def __init__(self, table: str, thread: Executor) -> None:
        self._digests = table_digests(table)
        self._thread = thread
        self._adding: list[Future[bool]] = []

    def watch(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the pieces unchanged. Few are held: each is yielded once the previous one is digested."""
        for piece in pieces:
            if self._adding:
                self._adding[-1].result()
            self._adding.append(self._thread.submit(self._digests.add, piece))
            yield piece

    def finish(self) -> dict[str, ColumnDigest] | None:
        """Return the digests of the pieces; None when the rows were out of order."""
        return self._digests.finish() if all(adding.result() for adding in self._adding) else None


class ColumnDigests:
    """The column digests of a table with one row per event, sample or vector.

    Args:
        column: Creates the digest of a column of this name.
    """

    def __init__(self, column: Callable[[str], EachValue]) -> None:
        self._column = column
        self._rows = 0
        self._last = -1
        self._columns: dict[str, EachValue] = {}

    def add(self, table: pa.Table) -> bool:
        """Add rows; return whether they are in order. Columns that they lack count as null."""
        for name in table.column_names:
            if name not in self._columns:
                self._columns[name] = self._column(name)
                self._columns[name].add(_nothing(self._rows))
        for name, column in self._columns.items():
            column.add(table[name] if name in table.column_names else _nothing(table.num_rows))
        self._rows += table.num_rows
        seqs = np.concatenate([[self._last], table["seq"].to_numpy()])
        self._last = seqs[-1]
        return bool((seqs[1:] >= seqs[:-1]).all())

    def finish(self) -> dict[str, ColumnDigest]:
        """Return the digest of each column with any value."""
        digests = {name: column.finish() for name, column in self._columns.items()}
        return {name: digest for name, digest in digests.items() if digest.number}


def _nothing(rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(rows)])


class PresenceDigest:
    """Digests which rows of a column have a value: only the rows where that changes, starting from "present"."""

    def __init__(self) -> None:
        self._rows = 0
        self._last = True
        self._digest = hashlib.sha256()

    def present(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Add more rows, and return their non-null values."""
        if 0 < values.null_count < len(values):
            has = values.is_valid().to_numpy()
        else:  # All rows are alike, so one suffices.
            has = np.full(min(1, len(values)), not values.null_count)
        if len(has):
            changes = self._rows + np.flatnonzero(np.diff(has, prepend=self._last))
            self._digest.update(changes.astype(np.int64).data)
            self._last = bool(has[-1])
        self._rows += len(values)
        return values.drop_null() if values.null_count else values

    def finish(self) -> str:
        """Return the digest so far."""
        return self._digest.hexdigest()


class EachValue:
    """Digests every value of a column.

    Args:
        places: Digests which rows have a value.
    """

    def __init__(self, places: PresenceDigest) -> None:
        self._count = 0
        self._places = places
        self._lengths = hashlib.sha256()
        self._values = hashlib.sha256()

    def add(self, values: pa.ChunkedArray) -> None:
        """Add rows."""
        for present in self._places.present(values).chunks:
            if len(present):
                self._digest(present)
                self._count += len(present)

    def finish(self) -> ColumnDigest:
        """Return the digest so far."""
        return ColumnDigest(self._count, self._places.finish(), self._lengths.hexdigest(), self._values.hexdigest())

    def _digest(self, present: pa.Array) -> None:
        if pa.types.is_list(present.type):
            self._lengths.update(bits(pc.list_value_length(present).cast(pa.int64())))
            self._values.update(bits(present.flatten()))
        elif pa.types.is_string(present.type) or pa.types.is_large_string(present.type):
            texts = present.cast(pa.large_binary())
            self._lengths.update(bits(pc.binary_length(texts)))
            self._values.update(characters(texts))
        else:
            self._values.update(bits(present))


class _Changes(EachValue):
    """Digests only the values that differ from the one before, each with its position among all values."""

    def __init__(self, places: PresenceDigest) -> None:
        super().__init__(places)
        self._last: int | str | None = None

    def _digest(self, present: pa.Array) -> None:
        is_text = not pa.types.is_integer(present.type)
        if is_text and not pa.types.is_dictionary(present.type):
            present = present.dictionary_encode()
        codes = (present.indices if is_text else present).to_numpy()
        begins = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        run = present.take(pa.array(begins))
        run = run.dictionary_decode().cast(pa.large_string()) if is_text else run.cast(pa.int64())
        # Two codes may mean the same text.
        differs = np.concatenate([[run[0].as_py() != self._last], pc.not_equal(run[1:], run[:-1])])
        self._last = run[-1].as_py()
        changed, places = run.filter(pa.array(differs)), self._count + begins[differs]
        if is_text:
            self._lengths.update(_pairs(places, pc.binary_length(changed).to_numpy()))
            self._values.update(characters(changed))
        else:
            self._values.update(_pairs(places, changed.to_numpy()))


class LongDigests:
    """The digests of a table with one row per metric value. Rows of one metric are in order; metrics in any order."""

    def __init__(self) -> None:
        self._owners: set[tuple[object, ...]] = set()
        self._metrics: dict[str, _LongMetric] = {}

    def add(self, table: pa.Table) -> bool:
        """Add rows; return whether they are in order. If not, the digests are invalid."""
        self._owners.update(tuple(row.values()) for row in table.group_by(_OWNER).aggregate([]).to_pylist())
        metric = table["metric"].combine_chunks().cast(pa.string()).dictionary_encode()
        codes = metric.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        seqs, values = table["seq"].to_numpy()[order], table["value"].to_numpy()[order]
        ends = np.cumsum(np.bincount(codes, minlength=len(metric.dictionary)))
        start, is_in_order = 0, True
        for name, end in zip(metric.dictionary.to_pylist(), ends.tolist(), strict=True):
            own = self._metrics.setdefault(name, _LongMetric())
            is_in_order &= own.add(seqs[start:end], values[start:end])
            start = end
        return is_in_order

    def finish(self) -> dict[str, ColumnDigest]:
        """Return the digest of each metric and, under the empty name, one of the streams that the rows belong to."""
        owners = hashlib.sha256(json.dumps(sorted(self._owners, key=repr)).encode()).hexdigest()
        metrics = {name: metric.finish() for name, metric in self._metrics.items()}
        return metrics | ({"": ColumnDigest(len(self._owners), "", "", owners)} if metrics else {})


class _LongMetric:
    """The digest of one metric of such a table."""

    def __init__(self) -> None:
        self._count = 0
        self._last = -1
        self._seqs = hashlib.sha256()
        self._values = hashlib.sha256()

    def add(self, seqs: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> bool:
        """Add values; return whether they follow those before."""
        is_after = bool(seqs[0] > self._last and (seqs[1:] > seqs[:-1]).all())
        self._last = int(seqs[-1])
        self._count += len(seqs)
        self._seqs.update(seqs.tobytes())
        self._values.update(values.tobytes())
        return is_after

    def finish(self) -> ColumnDigest:
        """Return the digest so far."""
        return ColumnDigest(self._count, self._seqs.hexdigest(), "", self._values.hexdigest())


def characters(texts: pa.Array) -> memoryview:
    """The concatenated bytes of texts."""
    if not len(texts):
        return memoryview(b"")
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]].data


def _pairs(places: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> memoryview:
    """Interleave positions and the values there."""
    return np.stack([places, numbers], axis=1).data


def bits(array: pa.Array) -> memoryview:
    """The bits of numbers without nulls.

    Raises:
        DamagedLog: The array is something else, which no recorder writes.
    """
    are_numbers = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if array.null_count or (len(array) and not are_numbers):
        raise DamagedLog("a column has nulls or a type that no recorder writes", got=array.type)
    numbers: npt.NDArray[np.generic] = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers).data
