"""Decodes the events, sample losses and vectors of one journal segment in bulk, from the offsets that ``scan`` found.

Events are available one by one (``Segment.records``) or, in ``parquet.from_journal``, as columns.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import DamagedLog
from ..events import INTEGER_IDS, NO_VECTORS, TEXT_IDS, Event, JsonObject, SampleLosses, Vectors, unpack_vectors
from ..run_folder import Stream
from .format import (
    EVENT,
    EVENT_FIELDS,
    EVENT_HEAD,
    HAS_ATTRS,
    HAS_SAMPLES,
    HAS_VECTORS,
    HOLDS_POSITIONS,
    HOLDS_TOKEN_LOSSES,
    HOLDS_TOKENS,
    LENGTH,
    SAMPLES,
    SAMPLES_FIELDS,
    SAMPLES_HEAD,
)

Integers: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.int32]
Flags: TypeAlias = npt.NDArray[np.uint8]
Chosen: TypeAlias = slice | Integers


class Record(NamedTuple):
    """One event as the journal holds it, with its sample losses and vectors."""

    event: Event
    samples: SampleLosses | None
    vectors: Vectors

    @property
    def whole(self) -> Event:
        """The event with its sample losses and vectors."""
        return self.event._replace(samples=self.samples, vectors=self.vectors)


class EventLayout(NamedTuple):
    """The kind and the metric names that many events share."""

    kind: str
    names: tuple[str, ...]

    @property
    def head(self) -> np.dtype[np.void]:
        """The dtype of the fixed part of an event's payload: envelope and values."""
        return _head(len(self.names))


class SampleSpans(NamedTuple):
    """Byte offsets of the sample losses of events in the segment. All arrays have shape (events with samples,).

    Attributes:
        event: Index of the event in the segment; ascending.
        counts: Samples of the event.
        id_kind: Kind of the ids.
        losses, ids, tokens, positions: Offsets where they begin; ``tokens`` and ``positions`` are -1 when absent.
        ids_size: Bytes of the ids.
        flagged: Offset of the indexes of the samples with token losses; their token counts follow, then the losses.
        flagged_count: Number of such samples; 0 without any.
        token_count: Total number of their tokens.
    """

    event: Integers
    counts: Integers
    id_kind: Integers
    losses: Integers
    ids: Integers
    ids_size: Integers
    tokens: Integers
    positions: Integers
    flagged: Integers
    flagged_count: Integers
    token_count: Integers


class EventColumns(NamedTuple):
    """Events of one kind with the same metrics, by columns. They have no attributes, samples or vectors.

    Attributes:
        kind, names: Their layout.
        seq: Rising. Shape (events,), as the next ones.
        step, time_ns, elapsed_ns: As in ``Event``.
        values: Shape (events, metrics).
    """

    kind: str
    names: tuple[str, ...]
    seq: Integers
    step: Integers
    time_ns: Integers
    elapsed_ns: Integers
    values: npt.NDArray[np.float64]


#: The columns ``layout``, ``flags``, ``start`` and ``end`` of a segment without events.
NOTHING: Final[tuple[Codes, Flags, Integers, Integers]] = (
    np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
)  # fmt: skip


#: Layouts of the events that are sent together: decoding costs 25 microseconds for each.
MOST_LAYOUTS: Final = 4096


class Frames(NamedTuple):
    """Consecutive events of one segment.

    Attributes:
        first_seq: ``seq`` of the first.
        next_seq: The ``seq`` after the last.
        layouts: The records of the layouts that they use.
        events: Their frames.
    """

    first_seq: int
    next_seq: int
    layouts: bytes
    events: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The readable part of one journal segment.

    Attributes:
        header: The stream and the writer of its events; empty when not even the header was readable.
        torn_bytes: Bytes after the last whole record. A killed writer leaves at most one unfinished record.
        where: The file, for messages.
        data: Its bytes.
        layouts: Its layouts, in order of appearance.
        layout: Index of each event's layout. Shape (events,).
        flags: Flags of each event: the optional parts it has. Shape (events,).
        start, end: Payload offsets of each event, in ``seq`` order. Shape (events,).
    """

    header: JsonObject = field(default_factory=dict)
    torn_bytes: int = 0
    where: str = ""
    data: bytes = b""
    layouts: tuple[EventLayout, ...] = ()
    layout: Codes = field(default_factory=lambda: NOTHING[0])
    flags: Flags = field(default_factory=lambda: NOTHING[1])
    start: Integers = field(default_factory=lambda: NOTHING[2])
    end: Integers = field(default_factory=lambda: NOTHING[3])

    def __len__(self) -> int:
        return len(self.start)

    @property
    def stream(self) -> Stream:
        """The attempt and the rank that wrote it."""
        return int(self.header["attempt"]), int(self.header["rank"])

    @property
    def seq(self) -> Integers:
        """The ``seq`` of each event."""
        return self._numbers("<i8", self.start + field_offset("seq"))

    @property
    def time_ns(self) -> Integers:
        """The wall clock of each event."""
        return self._numbers("<i8", self.start + field_offset("time_ns"))

    @property
    def records(self) -> list[Record]:
        """The events one by one.

        Raises:
            DamagedLog: A record cannot be parsed although its checksum is right.
        """
        with readable(self.where):
            return self._records()

    def only(self, chosen: Chosen) -> Segment:
        """Return the segment restricted to these events."""
        columns = {name: getattr(self, name)[chosen] for name in ("layout", "flags", "start", "end")}
        return dataclasses.replace(self, **columns)

    def from_seq(self, seq: int) -> Segment:
        """Return the segment without the events below this ``seq``."""
        if not len(self) or self.only(slice(1)).seq[0] >= seq:
            return self
        return self.only(np.flatnonzero(self.seq >= seq))

    def pieces(self, numbers: int) -> Iterator[Segment]:
        """Split the segment into pieces of at most about ``numbers`` numbers.

        Every event counts as the widest layout, or as the average record if that is larger.
        """
        widest = len(EVENT_FIELDS) + max((len(layout.names) for layout in self.layouts), default=0)
        carried = max(widest, len(self.data) // (LENGTH.size * max(1, len(self))))
        events = max(1, numbers // carried)
        for first in range(0, len(self), events):
            yield self.only(slice(first, first + events))

    def has_samples(self) -> bool:
        """Whether any event has sample losses.

        Raises:
            DamagedLog: A record cannot be parsed although its checksum is right.
        """
        with readable(self.where):
            return bool(self.sample_spans().counts.any())

    def by_layout(self) -> Iterator[tuple[EventLayout, Chosen]]:
        """Iterate over the layouts in use, each with its events."""
        for index, chosen in grouped(self.layout):
            yield self.layouts[index], chosen

    def heads(self, layout: EventLayout, chosen: Chosen) -> npt.NDArray[np.void]:
        """Return the envelopes and values of events of one layout as a structured array."""
        return _gathered(self.data, layout.head, self.start[chosen])

    def envelopes(self) -> npt.NDArray[np.void]:
        """Return the envelopes of all events, without their values."""
        return _gathered(self.data, _head(0), self.start)

    def metric_names(self) -> list[str]:
        """The metrics of its events, in order of first appearance."""
        return list(dict.fromkeys(name for index in _in_use(self.layout) for name in self.layouts[index].names))

    def common_metrics(self) -> frozenset[str]:
        """The metrics that every one of its events has."""
        names = [frozenset(self.layouts[index].names) for index in _in_use(self.layout)]
        return frozenset.intersection(*names) if names else frozenset()

    def attrs_spans(self) -> tuple[Integers, Integers, Integers]:
        """Return the indices of events with attrs, and the begin and end offsets of each JSON text."""
        events = np.flatnonzero(self.flags & HAS_ATTRS)
        if not len(events):
            return events, events, events
        length_at = self._behind_values()[events]
        require(length_at + LENGTH.size <= self.end[events], "its attrs are cut short")
        begin = length_at + LENGTH.size
        end = begin + self._numbers("<u4", length_at)
        require(end <= self.end[events], "its attrs are cut short")
        return events, begin, end

    def has_vectors(self) -> bool:
        """Whether any event has vectors."""
        return bool((self.flags & HAS_VECTORS).any())

    def vectors(self) -> dict[int, Vectors]:
        """Return the vectors of each event that has some, by the event's index in the segment.

        Raises:
            DamagedLog: A record cannot be parsed although its checksum is right.
        """
        with readable(self.where):
            spans = zip(*(span.tolist() for span in self._vector_spans()), strict=True)
            return {event: unpack_vectors(self.data[begin:end]) for event, begin, end in spans}

    def sample_spans(self) -> SampleSpans:
        """Return the offsets of the sample losses."""
        events = np.flatnonzero(self.flags & HAS_SAMPLES)
        if not len(events):
            return SampleSpans(*[events] * len(SampleSpans._fields))
        head_at = self._behind_attrs()
        with_vectors, _, vectors_end = self._vector_spans()
        head_at[with_vectors] = vectors_end
        head_at, end = head_at[events], self.end[events]
        require(head_at + SAMPLES.size <= end, "its samples are cut short")
        head = _gathered(self.data, np.dtype(_fields(SAMPLES_FIELDS, SAMPLES_HEAD)), head_at)
        count, id_kind = head["count"].astype(np.int64), head["id_kind"].astype(np.int64)
        losses = head_at + SAMPLES.size
        ids = losses + 4 * count
        require(ids <= end, "its samples are cut short")
        ids_size = np.where(id_kind == INTEGER_IDS, 8 * count, 0)
        texts = np.flatnonzero(id_kind == TEXT_IDS)
        require(ids[texts] + LENGTH.size <= end[texts], "its sample ids are cut short")
        ids_size[texts] = self._numbers("<u4", ids[texts])
        ids[texts] += LENGTH.size
        holds, tokens = head["holds"], ids + ids_size
        require(holds < 2 * HOLDS_TOKEN_LOSSES, "its samples hold fields that this version does not know")
        positions = tokens + np.where(holds & HOLDS_TOKENS, 4 * count, 0)
        behind = positions + np.where(holds & HOLDS_POSITIONS, 4 * count, 0)
        require(behind <= end, "its samples are cut short")
        return SampleSpans(
            events, count, id_kind, losses, ids, ids_size,
            np.where(holds & HOLDS_TOKENS, tokens, -1), np.where(holds & HOLDS_POSITIONS, positions, -1),
            *self._flagged_spans(np.flatnonzero(holds & HOLDS_TOKEN_LOSSES), behind, end),
        )  # fmt: skip

    def _vector_spans(self) -> tuple[Integers, Integers, Integers]:
        """Return the indices of events with vectors, and the begin and end offsets of each block."""
        events = np.flatnonzero(self.flags & HAS_VECTORS)
        if not len(events):
            return events, events, events
        length_at = self._behind_attrs()[events]
        require(length_at + LENGTH.size <= self.end[events], "its vectors are cut short")
        begin = length_at + LENGTH.size
        end = begin + self._numbers("<u4", length_at)
        require(end <= self.end[events], "its vectors are cut short")
        return events, begin, end

    def _behind_values(self) -> Integers:
        """Return the offset behind the metrics of each event."""
        behind: Integers = self.start + EVENT.size
        for index, chosen in grouped(self.layout):
            behind[chosen] += 8 * len(self.layouts[index].names)
        return behind

    def _behind_attrs(self) -> Integers:
        """Return the offset behind the metrics and attrs of each event."""
        behind = self._behind_values()
        with_attrs, _, attrs_end = self.attrs_spans()
        behind[with_attrs] = attrs_end
        return behind

    def _flagged_spans(self, having: Integers, begin: Integers, end: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the last three fields of ``SampleSpans``.

        Args:
            having: Rows that have token losses.
            begin, end: Offsets between which the token losses of each row lie.
        """
        flagged = begin + LENGTH.size
        counts, tokens = np.zeros_like(begin), np.zeros_like(begin)
        require(flagged[having] <= end[having], "its token losses are cut short")
        counts[having] = self._numbers("<u4", begin[having])
        require(flagged[having] + 8 * counts[having] <= end[having], "its token losses are cut short")
        for index in having.tolist():
            lengths = np.frombuffer(self.data, "<u4", counts[index], flagged[index] + 4 * counts[index])
            tokens[index] = lengths.sum(dtype=np.int64)
        require((flagged + 8 * counts + 4 * tokens)[having] <= end[having], "its token losses are cut short")
        return flagged, counts, tokens

    def blocks(self, code: str, count: int, position: Integers) -> npt.NDArray[Any]:
        """Return ``count`` numbers from each of these offsets, in one flat array."""
        return _gathered(self.data, np.dtype([("numbers", code, (count,))]), position)["numbers"].ravel()

    def _numbers(self, item: str, position: Integers) -> Integers:
        return _gathered(self.data, np.dtype(item), position).astype(np.int64)

    def _records(self) -> list[Record]:
        attrs: dict[int, JsonObject] = {}
        for event, begin, end in zip(*(span.tolist() for span in self.attrs_spans()), strict=True):
            attrs[event] = json.loads(self.data[begin:end])
        spans = zip(*(column.tolist() for column in self.sample_spans()), strict=True)
        samples = {span[0]: _losses_at(self.data, span) for span in spans}
        vectors = self.vectors()
        records: list[Record | None] = [None] * len(self)
        for layout, chosen in self.by_layout():
            heads = self.heads(layout, chosen)
            indices = range(len(self)) if isinstance(chosen, slice) else chosen.tolist()
            for index, (_, _, _, seq, step, micro_step, value_lag, time_ns, elapsed_ns, epoch), values in zip(
                indices, heads[list(EVENT_FIELDS)].tolist(), heads["values"].tolist(), strict=True
            ):
                event = Event(
                    layout.kind,
                    step,
                    seq,
                    self.header["attempt"],
                    self.header["rank"],
                    micro_step,
                    None if math.isnan(epoch) else epoch,
                    time_ns,
                    elapsed_ns,
                    value_lag,
                    dict(zip(layout.names, values, strict=True)),
                    attrs.get(index, {}),
                )
                records[index] = Record(event, samples.get(index), vectors.get(index, NO_VECTORS))
        return [record for record in records if record is not None]


def _gathered(data: bytes, item: np.dtype[Any], position: Integers) -> npt.NDArray[Any]:
    """Return the items of one type at these offsets."""
    step = int(position[1] - position[0]) if len(position) > 1 else 0
    if step >= item.itemsize and (np.diff(position) == step).all():
        return np.ndarray((len(position),), item, data, int(position[0]), (step,))
    # Overlapping windows, one per byte; numpy copies only those at the offsets.
    windows = max(0, len(data) - item.itemsize + 1)
    return np.ndarray((windows,), item, data, 0, (1,))[position]


def _in_use(layout: npt.NDArray[np.integer[Any]]) -> list[int]:
    """Return the indices of the layouts that events use, in order of first appearance."""
    if len(layout) and (layout == layout[0]).all():
        return [int(layout[0])]
    _, first = np.unique(layout, return_index=True)
    used: list[int] = layout[np.sort(first)].tolist()
    return used


def _losses_at(data: bytes, spans: tuple[int, ...]) -> SampleLosses:
    _, count, id_kind, losses, ids, ids_size, tokens, positions, flagged, flagged_count, token_count = spans
    lengths = flagged + 4 * flagged_count
    token_losses = lengths + 4 * flagged_count
    return SampleLosses(
        data[losses : losses + 4 * count],
        data[ids : ids + ids_size],
        id_kind,
        b"" if tokens < 0 else data[tokens : tokens + 4 * count],
        b"" if positions < 0 else data[positions : positions + 4 * count],
        data[flagged:lengths],
        data[lengths:token_losses],
        data[token_losses : token_losses + 4 * token_count],
    )


def segment_of_columns(columns: Sequence[EventColumns], *, attempt: int = 0, rank: int = 0) -> Segment:
    """Return a segment that no journal holds, of events that are numbered from 0."""
    ordered = sorted(columns, key=lambda events: int(events.seq[0]))
    layout, start, end = (np.empty(sum(len(events.seq) for events in ordered), np.int64) for _ in range(3))
    layouts, parts, size = [], [], 0
    for number, events in enumerate(ordered):
        layouts.append(EventLayout(events.kind, events.names))
        payloads = np.zeros(len(events.seq), layouts[-1].head)
        payloads["epoch"] = np.nan
        for field_name in ("seq", "step", "time_ns", "elapsed_ns", "values"):
            payloads[field_name] = getattr(events, field_name)
        layout[events.seq] = number
        start[events.seq] = size + payloads.itemsize * np.arange(len(payloads))
        end[events.seq] = start[events.seq] + payloads.itemsize
        parts.append(payloads.tobytes())
        size += payloads.nbytes
    flags, header = np.zeros(len(layout), np.uint8), {"attempt": attempt, "rank": rank}
    data = b"".join(parts)
    return Segment(header, 0, "", data, tuple(layouts), layout.astype(np.int32), flags, start, end)


def grouped(codes: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[int, Chosen]]:
    """Yield each distinct code, ascending, and where it occurs, in one sort: a log may have a code for each event."""
    if not len(codes):
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), slice(None)
        return
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    bounds = [0, *edges.tolist(), len(codes)]
    for code, first, last in zip(codes[order[bounds[:-1]]].tolist(), bounds, bounds[1:], strict=False):
        yield code, order[first:last]


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Raise DamagedLog for errors in parsing content: a right checksum does not guarantee that the content is valid."""
    try:
        yield
    except (KeyError, TypeError, ValueError, struct.error) as error:
        what = f"a record cannot be read although its checksum is correct ({type(error).__name__}: {error})"
        raise DamagedLog(what, where=where, fix="Check the program that wrote it") from None


@functools.lru_cache(maxsize=1024)
def _head(metrics: int) -> np.dtype[np.void]:
    return np.dtype([*_fields(EVENT_FIELDS, EVENT_HEAD), ("values", "<f8", (metrics,))])


def _fields(names: tuple[str, ...], packing: str) -> list[tuple[str, str]]:
    """Return the fields of a ``struct`` format as numpy dtype fields."""
    return [(name, f"<{code}") for name, code in zip(names, packing[1:], strict=True)]


_OFFSETS: Final = {name: field[1] for name, field in (np.dtype(_fields(EVENT_FIELDS, EVENT_HEAD)).fields or {}).items()}


def field_offset(name: str) -> int:
    """Return the offset of an envelope field in an event's payload."""
    return _OFFSETS[name]


def require(holds: npt.NDArray[np.bool_] | np.bool_, what: str) -> None:
    """Raise ValueError, which ``readable`` translates, unless the condition holds everywhere."""
    if not np.all(holds):
        raise ValueError(what)
