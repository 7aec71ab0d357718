"""Writes sealed events as journal frames again, for the target of a push that was away when their segment was deleted.

The frames hold the values to the bit, so a sealer at the target takes the same log digest from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Columns, read_columns
from ..events import INTEGER_IDS, NO_IDS, TEXT_IDS, SampleLosses, Vectors, vector_of
from ..journal.format import EVENT, TAG_EVENT, event_tail, framed, layout_record
from ..journal.segment import MOST_LAYOUTS, Frames
from ..run_folder import Listing, SealedFile, Stream
from .tables import read_long_values, row_groups_of

#: Cells of events that are converted at a time.
_CELLS: Final = 200_000

_NUMBERS: Final = ("seq", "step", "micro_step", "value_lag", "time_ns", "elapsed_ns")


def sealed_frames(
    folder: Path, listing: Listing, stream: Stream, seq: int, stop: int, most_bytes: int
) -> Iterator[Frames]:
    """Yield the sealed events of a stream from ``seq`` up to ``stop``, in pieces of about ``most_bytes``.

    Raises:
        FileNotFoundError: A sealer has just replaced a file.
        DamagedLog: A file cannot be read.
    """
    files = {
        table: [
            file for file in listing.table(table) if file.stream == stream and file.last >= seq and file.first < stop
        ]
        for table in ("events", "samples", "vectors", "metrics")
    }
    encoder = _Encoder(
        read_columns(folder),
        _Rows(row_groups_of(file.path) for file in files["samples"]),
        _Rows(row_groups_of(file.path) for file in files["vectors"]),
        _long_values(files["metrics"]),
    )
    waiting: list[tuple[int, int, bytes]] = []
    used: set[int] = set()
    size = 0
    for file in files["events"]:
        for group in row_groups_of(file.path):
            seqs = group["seq"]
            group = group.filter(pc.and_(pc.greater_equal(seqs, seq), pc.less(seqs, stop)))
            rows = max(1, _CELLS // group.num_columns)
            for first in range(0, group.num_rows, rows):
                for event in encoder.events(group.slice(first, rows)):
                    # A hole in the log ends a piece: chunks are numbered one by one.
                    is_full = size >= most_bytes or (len(used) == MOST_LAYOUTS and event[1] not in used)
                    if waiting and (is_full or event[0] != waiting[-1][0] + 1):
                        yield encoder.piece(waiting)
                        waiting, used, size = [], set(), 0
                    waiting.append(event)
                    used.add(event[1])
                    size += len(event[2])
    if waiting:
        yield encoder.piece(waiting)


class _Rows:
    """The rows of one table in ``seq`` order, read row group by row group."""

    def __init__(self, files: Iterable[Iterator[pa.Table]]) -> None:
        self._groups = (group for file in files for group in file)
        self._rest: pa.Table | None = None

    def of(self, first: int, last: int) -> pa.Table | None:
        """Return the rows of the events ``first`` to ``last``, and drop all before them. None without rows."""
        parts: list[pa.Table] = []
        while True:
            group = self._rest if self._rest is not None else next(self._groups, None)
            self._rest = None
            if group is None:
                break
            seqs = group["seq"].to_numpy()
            begin, end = np.searchsorted(seqs, [first, last + 1]).tolist()
            if end > begin:
                parts.append(group.slice(begin, end - begin))
            if end < group.num_rows:
                self._rest = group.slice(end)
                break
        return pa.concat_tables(parts, promote_options="permissive") if parts else None


def _long_values(files: Iterable[SealedFile]) -> dict[int, dict[str, float]]:
    """Return the values of metrics that have no column, by the ``seq`` of their event."""
    found: dict[int, dict[str, float]] = {}
    for file in files:
        table = read_long_values(file.path)
        columns = (table[name].to_pylist() for name in ("seq", "metric", "value"))
        for seq, metric, value in zip(*columns, strict=True):
            found.setdefault(seq, {})[metric] = value
    return found


@dataclass(slots=True)
class _Encoder:
    """Encodes rows as event frames, with layouts that it numbers."""

    columns: Columns
    samples: _Rows
    vectors: _Rows
    long_values: dict[int, dict[str, float]]
    numbers: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    records: list[bytes] = field(default_factory=list)

    def piece(self, events: list[tuple[int, int, bytes]]) -> Frames:
        """Join events, each given as ``seq``, layout number and frame."""
        layouts = b"".join(self.records[number] for number in sorted({layout for _, layout, _ in events}))
        return Frames(events[0][0], events[-1][0] + 1, layouts, b"".join(frame for _, _, frame in events))

    def events(self, rows: pa.Table) -> Iterator[tuple[int, int, bytes]]:
        """Yield the events of these rows."""
        seqs = rows["seq"].to_pylist()
        if not seqs:
            return
        samples = _samples(self.samples.of(seqs[0], seqs[-1]))
        vectors = _vectors(self.vectors.of(seqs[0], seqs[-1]))
        metrics = [(m, c) for m, c in self.columns.by_metric.items() if c in rows.column_names]
        values, present = _matrix(rows, [column for _, column in metrics])
        names = np.array([metric for metric, _ in metrics], object)
        envelope = zip(*(rows[name].to_pylist() for name in _NUMBERS), strict=True)
        epochs = rows["epoch"].fill_null(float("nan")).to_pylist()
        texts = zip(rows["kind"].to_pylist(), epochs, rows["attrs"].to_pylist(), strict=True)
        for index, ((seq, *numbers), (kind, epoch, attrs)) in enumerate(zip(envelope, texts, strict=True)):
            has = present[index]
            own = self.long_values.get(seq, {})
            layout = self._layout(kind, (*names[has].tolist(), *own))
            packed_values = values[index][has].tobytes() + np.array([*own.values()], "<f8").tobytes()
            flags, tail = event_tail((attrs or "").encode(), samples.get(seq), vectors.get(seq, {}))
            head = EVENT.pack(TAG_EVENT, flags, layout, seq, *numbers, epoch)
            yield seq, layout, framed(head + packed_values + tail)

    def _layout(self, kind: str, names: tuple[str, ...]) -> int:
        number = self.numbers.get((kind, names))
        if number is None:
            number = self.numbers[kind, names] = len(self.records)
            self.records.append(layout_record(number, kind, names))
        return number


def _matrix(rows: pa.Table, columns: list[str]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the metrics of rows and which of them were logged. Shapes (rows, columns)."""
    values = np.zeros((rows.num_rows, len(columns)), "<f8")
    present = np.zeros((rows.num_rows, len(columns)), np.bool_)
    for place, column in enumerate(columns):
        values[:, place] = rows[column].fill_null(0.0).to_numpy()
        present[:, place] = rows[column].is_valid().to_numpy()
    return values, present


def _spans(table: pa.Table) -> Iterator[tuple[int, int, int]]:
    """Yield the ``seq`` of each event with rows in the table, and the first row and the end of these rows."""
    seqs, firsts = np.unique(table["seq"].to_numpy(), return_index=True)
    yield from zip(seqs.tolist(), firsts.tolist(), [*firsts[1:].tolist(), table.num_rows], strict=True)


def _vectors(table: pa.Table | None) -> dict[int, Vectors]:
    if table is None:
        return {}
    names, values = table["name"].to_pylist(), table["values"].combine_chunks()
    return {
        seq: {names[row]: vector_of(_list(values, row, "<f8")) for row in range(first, end)}
        for seq, first, end in _spans(table)
    }


def _list(column: Any, row: int, code: str) -> bytes:
    """Return one list of a column as packed numbers."""
    content: bytes = column[row].values.to_numpy(zero_copy_only=False).astype(code, copy=False).tobytes()
    return content


def _samples(table: pa.Table | None) -> dict[int, SampleLosses]:
    if table is None:
        return {}
    losses = table["loss"].to_numpy().astype("<f4", copy=False)
    positions = table["position"].to_numpy().astype("<i4", copy=False)
    tokens = table["tokens"].fill_null(0).to_numpy().astype("<i4", copy=False)
    has_tokens, has_ids = (table[name].is_valid().to_numpy() for name in ("tokens", "sample_id"))
    is_text = pa.types.is_string(table.schema.field("sample_id").type)
    texts = table["sample_id"].to_pylist() if is_text else []
    integers = np.zeros(0, "<i8") if is_text else table["sample_id"].fill_null(0).to_numpy().astype("<i8", copy=False)
    token_losses = table["token_losses"].combine_chunks() if "token_losses" in table.column_names else None
    flagged = np.zeros(len(losses), np.bool_) if token_losses is None else table["token_losses"].is_valid().to_numpy()
    found = {}
    for seq, first, end in _spans(table):
        rows = slice(first, end)
        ids, kind = b"", NO_IDS
        if has_ids[first]:
            kind = TEXT_IDS if is_text else INTEGER_IDS
            ids = json.dumps(texts[rows]).encode() if is_text else integers[rows].tobytes()
        is_whole = (positions[rows] == np.arange(end - first)).all()
        marked = np.flatnonzero(flagged[rows])
        lists = [_list(token_losses, first + row, "<f4") for row in marked.tolist()]
        found[seq] = SampleLosses(
            losses[rows].tobytes(),
            ids,
            kind,
            tokens[rows].tobytes() if has_tokens[first] else b"",
            b"" if is_whole else positions[rows].tobytes(),
            marked.astype("<u4").tobytes(),
            np.array([len(packed) // 4 for packed in lists], "<u4").tobytes(),
            b"".join(lists),
        )
    return found
