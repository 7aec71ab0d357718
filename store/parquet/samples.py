"""Attaches sample losses and vectors from their tables to the events that they were recorded with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..events import INTEGER_IDS, NO_IDS, NO_VECTORS, TEXT_IDS, Event, SampleLosses, Vectors, vector_of
from ..journal.format import compact_json

#: The columns of the samples table, and of the vectors table, that this needs.
SAMPLE_COLUMNS: Final = ("seq", "position", "sample_id", "loss", "tokens")
VECTOR_COLUMNS: Final = ("seq", "name", "values")


def with_samples(events: Iterable[Event], rows: pa.Table) -> Iterator[Event]:
    """Yield the events, each with its own sample losses.

    Args:
        events: The events of one (attempt, rank).
        rows: Sample rows of the same, with the columns of ``SAMPLE_COLUMNS``, in (seq, position) order.
    """
    found = dict(_by_seq(rows.combine_chunks()))
    for event in events:
        samples = found.get(event.seq)
        yield event if samples is None else event._replace(samples=samples)


def with_vectors(events: Iterable[Event], rows: pa.Table) -> Iterator[Event]:
    """Yield the events, each with its own vectors.

    Args:
        events: The events of one (attempt, rank).
        rows: Vectors of the same, with the columns of ``VECTOR_COLUMNS``, in ``seq`` order.
    """
    found: dict[int, dict[str, Sequence[float]]] = {}
    for seq, name, values in zip(rows["seq"].to_pylist(), rows["name"].to_pylist(), rows["values"], strict=True):
        vector = vector_of(values.values.to_numpy(zero_copy_only=False).astype("<f8").tobytes())
        found.setdefault(seq, {})[name] = vector
    for event in events:
        vectors: Vectors = found.get(event.seq, NO_VECTORS)
        yield event._replace(vectors=vectors) if vectors else event


def _by_seq(rows: pa.Table) -> Iterator[tuple[int, SampleLosses]]:
    """Yield the ``seq`` and the sample losses of each event."""
    losses = rows["loss"].to_numpy().astype("<f4").tobytes()
    tokens = pc.fill_null(rows["tokens"], 0).to_numpy().astype("<i4").tobytes()
    is_counted = pc.is_valid(rows["tokens"]).to_numpy().tobytes()
    integers = _as_integers(rows["sample_id"])
    texts = rows["sample_id"].cast(pa.string()).to_pylist() if integers is None else []
    seqs, first, count = np.unique(rows["seq"].to_numpy(), return_index=True, return_counts=True)
    for seq, begin, end in zip(seqs.tolist(), first.tolist(), (first + count).tolist(), strict=True):
        if integers is not None:
            ids, id_kind = integers[8 * begin : 8 * end], INTEGER_IDS
        elif None not in texts[begin:end]:
            ids, id_kind = compact_json(texts[begin:end]), TEXT_IDS
        else:
            ids, id_kind = b"", NO_IDS
        counted = b"" if 0 in is_counted[begin:end] else tokens[4 * begin : 4 * end]
        yield seq, SampleLosses(losses[4 * begin : 4 * end], ids, id_kind, counted)


def _as_integers(ids: pa.ChunkedArray) -> bytes | None:
    """Return the ids as int64 when all are integers, or their canonical decimal text; else None.

    It avoids an object per sample: 6 to 15 us for an event with 64 samples, against 55 us as text.
    """
    try:
        integers = pc.cast(ids, pa.int64())
    except pa.ArrowInvalid:
        return None
    if ids.null_count or not pc.all(pc.equal(pc.cast(integers, ids.type), ids)).as_py():
        return None  # An id is missing, or is not the canonical text of an integer: "007", "+1".
    return bytes(integers.to_numpy().astype("<i8").tobytes())
