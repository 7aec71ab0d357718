"""Converts journal segments to Arrow tables: numpy turns fixed-size records into columns, without per-event objects."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..columns import Columns
from ..event_json import restated_attrs
from ..events import INTEGER_IDS, NO_IDS, TEXT_IDS
from ..journal.segment import Chosen, Integers, Record, SampleSpans, Segment, grouped, readable
from ..run_folder import Stream
from .tables import (
    ATTRS_FIELD,
    EVENT_FIELDS,
    METRICS_SCHEMA,
    SAMPLES_SCHEMA,
    VECTORS_SCHEMA,
    coded,
    events_schema,
    samples_schema,
)

#: Envelope fields that records and table columns share unchanged.
_CARRIED: Final = ("seq", "step", "micro_step", "time_ns", "elapsed_ns", "value_lag")


@dataclass(frozen=True, slots=True)
class Tail:
    """The unsealed events of some segments, in (attempt, rank, seq) order."""

    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    def __iter__(self) -> Iterator[Record]:
        for segment in self.segments:
            yield from segment.records

    def by_stream(self) -> dict[Stream, Tail]:
        """The tail of each (attempt, rank)."""
        groups = itertools.groupby(self.segments, key=lambda segment: segment.stream)
        return {stream: Tail(tuple(group)) for stream, group in groups}

    def only(self, keeps: Callable[[int, int, int], bool]) -> Tail:
        """Return the events for which ``keeps(attempt, rank, seq)`` is true."""
        kept = []
        for segment in self.segments:
            attempt, rank = segment.stream
            rows = [row for row, seq in enumerate(segment.seq.tolist()) if keeps(attempt, rank, seq)]
            kept.append(segment if len(rows) == len(segment) else segment.only(np.array(rows, np.int64)))
        return Tail(tuple(segment for segment in kept if len(segment)))

    def events_table(self, run_id: str, columns: Columns) -> pa.Table:
        """The events as rows; metrics missing from ``columns`` are left out."""
        schema = events_schema(columns)
        tables = [events_table(run_id, segment, columns).cast(schema) for segment in self.segments]
        return pa.concat_tables([schema.empty_table(), *tables])

    def samples_table(self, run_id: str) -> pa.Table:
        """Their sample losses."""
        tables = [samples_table(run_id, segment).cast(SAMPLES_SCHEMA) for segment in self.segments]
        return pa.concat_tables([SAMPLES_SCHEMA.empty_table(), *tables])

    def vectors_table(self, run_id: str) -> pa.Table:
        """Their vectors."""
        tables = [vectors_table(run_id, segment).cast(VECTORS_SCHEMA) for segment in self.segments]
        return pa.concat_tables([VECTORS_SCHEMA.empty_table(), *tables])

    def metrics_table(self, run_id: str, metrics: Collection[str]) -> pa.Table:
        """Their values of these metrics, one row each."""
        tables = [metrics_table(run_id, s, metrics).cast(METRICS_SCHEMA) for s in self.segments] if metrics else []
        return pa.concat_tables([METRICS_SCHEMA.empty_table(), *tables])


def events_table(run_id: str, segment: Segment, columns: Columns) -> pa.Table:
    """Return the events as rows, with dictionary-encoded text. A metric that an event lacks is null, NaN is NaN.

    Args:
        columns: The metrics that become columns.

    Raises:
        DamagedLog: A record cannot be parsed although its checksum is right.
    """
    schema, count = coded(events_schema(columns)), len(segment)
    if not count:
        return schema.empty_table()
    envelope = _envelope(segment, columns)
    kinds = pa.array([layout.kind for layout in segment.layouts], pa.string())
    arrays = _identity(run_id, segment, count)
    for field in list(EVENT_FIELDS)[len(arrays) :]:
        if field.name == "kind":
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(segment.layout), kinds))
        elif field.name == "epoch":
            epoch = envelope["epoch"].values
            arrays.append(pa.array(epoch, field.type, mask=np.isnan(epoch)))
        else:
            arrays.append(pa.array(envelope[field.name].values, field.type))
    arrays += [envelope[column].to_arrow() for column in columns.by_metric.values()]
    arrays.append(_attrs(segment))
    return pa.Table.from_arrays(arrays, schema=schema)


def metrics_table(run_id: str, segment: Segment, metrics: Collection[str]) -> pa.Table:
    """Return the values of some metrics as rows, in (metric, seq) order, so that each metric is contiguous."""
    names = sorted(metrics)
    code_of = {name: code for code, name in enumerate(names)}
    codes, seqs, values = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for layout, chosen in segment.by_layout():
        places = {name: place for place, name in enumerate(layout.names) if name in code_of}
        if not places:
            continue
        heads = segment.heads(layout, chosen)
        logged = np.array([code_of[name] for name in places], np.int32)
        codes.append(np.repeat(logged, len(heads)))
        seqs.append(np.tile(heads["seq"], len(places)))
        values.append(heads["values"][:, list(places.values())].T.ravel())
    code, seq, value = np.concatenate(codes), np.concatenate(seqs), np.concatenate(values)
    order = np.lexsort((seq, code))
    metric = pa.DictionaryArray.from_arrays(pa.array(code[order], pa.int32()), pa.array(names, pa.string()))
    arrays = [*_identity(run_id, segment, len(code)), pa.array(seq[order]), metric, pa.array(value[order])]
    return pa.Table.from_arrays(arrays, schema=coded(METRICS_SCHEMA))


def samples_schema_of(segment: Segment) -> pa.Schema:
    """Return the schema of a file of these events' sample losses.

    Raises:
        DamagedLog: A record cannot be parsed although its checksum is right.
    """
    with readable(segment.where):
        spans = segment.sample_spans()
    return samples_schema(
        has_integer_ids=not (spans.id_kind == TEXT_IDS).any(),
        has_token_losses=bool(spans.flagged_count.any()),
    )


def samples_table(run_id: str, segment: Segment, schema: pa.Schema = SAMPLES_SCHEMA) -> pa.Table:
    """Return the sample losses of the events, one row per sample, in batch order.

    Args:
        run_id: The run.
        segment: The events.
        schema: The columns: ids as integers or text, with or without token losses.

    Raises:
        DamagedLog: A record cannot be parsed although its checksum is right.
    """
    with readable(segment.where):
        spans = segment.sample_spans()
        total = int(spans.counts.sum())
        if not total:
            return coded(schema).empty_table()
        losses, positions = np.empty(total, np.float32), np.empty(total, np.int32)
        tokens, has_tokens = np.zeros(total, np.int32), np.zeros(total, np.bool_)
        for chosen, rows, count in _same_count(spans.counts):
            positions[rows] = np.tile(np.arange(count, dtype=np.int32), len(spans.counts[chosen]))
            losses[rows] = segment.blocks("<f4", count, spans.losses[chosen])
        for places, numbers in _where_given(segment, spans.counts, spans.positions):
            positions[places] = numbers
        for places, numbers in _where_given(segment, spans.counts, spans.tokens):
            tokens[places] = numbers
            has_tokens[places] = True
        of_event = _positions(segment.only(spans.event))
        ids = _sample_ids(segment, spans, schema.field("sample_id").type)
        token_losses = [_token_losses(segment, spans)] if "token_losses" in schema.names else []
    arrays = [
        *_identity(run_id, segment, total),
        *(pa.array(np.repeat(column, spans.counts)) for column in of_event),
        pa.array(positions),
        ids,
        pa.array(losses),
        pa.array(tokens, mask=~has_tokens) if has_tokens.any() else pa.nulls(total, pa.int32()),
        *token_losses,
    ]
    return pa.Table.from_arrays(arrays, schema=coded(schema))


def vectors_table(run_id: str, segment: Segment) -> pa.Table:
    """Return the vectors of the events, one row per vector.

    Raises:
        DamagedLog: A record cannot be parsed although its checksum is right.
    """
    by_event = segment.vectors()
    held = [(name, values) for vectors in by_event.values() for name, values in vectors.items()]
    counts = np.fromiter(map(len, by_event.values()), np.int64, len(by_event))
    of_event = _positions(segment.only(np.fromiter(by_event, np.int64, len(by_event))))
    ends = np.cumsum([0, *(len(values) for _, values in held)])
    every = pa.array(np.frombuffer(b"".join(np.asarray(values, np.float64).tobytes() for _, values in held)))
    kind = VECTORS_SCHEMA.field("values").type
    arrays = [
        *_identity(run_id, segment, len(held)),
        *(pa.array(np.repeat(column, counts)) for column in of_event),
        pa.array([name for name, _ in held], pa.string()),
        pa.ListArray.from_arrays(pa.array(ends, pa.int32()), every, type=kind),
    ]
    return pa.Table.from_arrays(arrays, schema=coded(VECTORS_SCHEMA))


def _positions(segment: Segment) -> list[npt.NDArray[Any]]:
    """The columns seq, step and micro_step of events."""
    heads = segment.envelopes()
    kinds = {"seq": np.int64, "step": np.int64, "micro_step": np.int32}
    return [heads[name].astype(kind) for name, kind in kinds.items()]


@dataclass(slots=True)
class _Column:
    """One number per event, and a mask of the events that have one; a mask of None means all."""

    values: npt.NDArray[Any]
    has: npt.NDArray[np.bool_] | None = None

    def to_arrow(self) -> pa.Array:
        return pa.array(self.values, mask=None if self.has is None else ~self.has)


def _identity(run_id: str, segment: Segment, rows: int) -> list[pa.Array]:
    """The columns run_id, attempt and rank, constant over all rows."""
    if not rows:
        return [pa.nulls(0, field.type) for field in list(coded(METRICS_SCHEMA))[:3]]
    run_ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([run_id]))
    return [run_ids, *(pa.array(np.full(rows, number, np.int32)) for number in segment.stream)]


def _envelope(segment: Segment, columns: Columns) -> dict[str, _Column]:
    """The numbers of the events by column: envelope and metrics."""
    count, groups = len(segment), [*segment.by_layout()]
    is_single = len(groups) == 1
    heads = segment.heads(*groups[0]) if is_single else segment.envelopes()
    found = {name: _Column(np.ascontiguousarray(heads[name])) for name in (*_CARRIED, "epoch")}
    for layout, chosen in groups:
        places = {columns.by_metric[m]: place for place, m in enumerate(layout.names) if m in columns.by_metric}
        if not places:
            continue
        # All metrics at once, because copying one at a time would walk through the whole journal for each.
        values = np.ascontiguousarray((heads if is_single else segment.heads(layout, chosen))["values"].T)
        for name, place in places.items():
            if is_single:
                found[name] = _Column(values[place])
                continue
            column = found.get(name)
            if column is None:
                column = found[name] = _Column(np.zeros(count), np.zeros(count, np.bool_))
            column.values[chosen] = values[place]
            if column.has is not None:
                column.has[chosen] = True
    return found | {
        column: _Column(np.zeros(count), np.zeros(count, np.bool_))
        for column in columns.by_metric.values()
        if column not in found
    }


def _attrs(segment: Segment) -> pa.Array:
    with readable(segment.where):
        events, *spans = segment.attrs_spans()
        if not len(events):
            return pa.nulls(len(segment), ATTRS_FIELD.type)
        texts: list[str | None] = [None] * len(segment)
        for event, begin, end in zip(events.tolist(), *(span.tolist() for span in spans), strict=True):
            texts[event] = restated_attrs(segment.data[begin:end])
    return pa.array(texts, ATTRS_FIELD.type)


def _same_count(counts: Integers) -> Iterator[tuple[Chosen, Chosen, int]]:
    """Group events by sample count: yields the events, the rows of their samples, and the count."""
    offsets = np.cumsum(counts) - counts
    for count, chosen in grouped(counts):
        is_all = isinstance(chosen, slice)
        yield chosen, slice(None) if is_all else (offsets[chosen][:, None] + np.arange(count)).ravel(), count


def _where_given(
    segment: Segment, counts: Integers, begin: Integers
) -> Iterator[tuple[Integers, npt.NDArray[np.int32]]]:
    """Yield the rows of samples with an optional number, and these numbers; ``begin`` is -1 for events without them."""
    given = np.flatnonzero(begin >= 0)
    if len(given):
        offsets = np.cumsum(counts) - counts
        for chosen, _, count in _same_count(counts[given]):
            having = given[chosen]
            places = (offsets[having][:, None] + np.arange(count)).ravel()
            yield places, segment.blocks("<i4", count, begin[having])


def _token_losses(segment: Segment, spans: SampleSpans) -> pa.Array:
    """The token losses of each flagged sample; null for every other sample."""
    kind, total = SAMPLES_SCHEMA.field("token_losses").type, int(spans.counts.sum())
    having = np.flatnonzero(spans.flagged_count)
    if not len(having):
        return pa.nulls(total, kind)
    offsets = np.cumsum(spans.counts) - spans.counts
    begins, lengths = np.full(total, -1, np.int64), np.zeros(total, np.int64)
    for index in having.tolist():
        begin, count = int(spans.flagged[index]), int(spans.flagged_count[index])
        flagged, tokens = np.frombuffer(segment.data, "<u4", 2 * count, begin).astype(np.int64).reshape(2, count)
        if flagged.max() >= spans.counts[index] or len(np.unique(flagged)) < count:
            raise ValueError("it has token losses of a missing sample, or two entries for one sample")
        rows = offsets[index] + flagged
        begins[rows] = begin + 8 * count + 4 * (np.cumsum(tokens) - tokens)
        lengths[rows] = tokens
    held = np.flatnonzero(begins >= 0)
    ends = begins + 4 * lengths
    packed = b"".join(segment.data[begins[row] : ends[row]] for row in held.tolist())
    offsets_of_rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    values = pa.array(np.frombuffer(packed, "<f4"))
    return pa.ListArray.from_arrays(pa.array(offsets_of_rows), values, type=kind, mask=pa.array(begins < 0))


def _sample_ids(segment: Segment, spans: SampleSpans, type_: pa.DataType) -> pa.ChunkedArray:
    """Sample ids as integers or text; consecutive events with the same kind of ids are converted in one go."""
    chunks = []
    changes = np.flatnonzero(np.diff(spans.id_kind)) + 1
    for first, last in itertools.pairwise([0, *changes.tolist(), len(spans.id_kind)]):
        kind, counts = int(spans.id_kind[first]), spans.counts[first:last]
        if kind == NO_IDS:
            chunks.append(pa.nulls(int(counts.sum()), type_))
        elif kind == INTEGER_IDS:
            integers = np.empty(int(counts.sum()), np.int64)
            for chosen, rows, count in _same_count(counts):
                integers[rows] = segment.blocks("<i8", count, spans.ids[first:last][chosen])
            chunks.append(pa.array(integers).cast(type_))
        else:
            places = zip(spans.ids[first:last].tolist(), spans.ids_size[first:last].tolist(), strict=True)
            texts = [text for begin, size in places for text in json.loads(segment.data[begin : begin + size])]
            if len(texts) != counts.sum():
                raise ValueError("its numbers of sample ids and samples differ")
            chunks.append(pa.array(texts, pa.string()))
    return pa.chunked_array(chunks, type_)
