"""The bulk reader of journals equals a plain reader that follows FORMAT.md frame by frame and field by field."""

from __future__ import annotations

import json
import math
import struct
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import open_run
from steptape.store.columns import Columns
from steptape.store.errors import DamagedLog
from steptape.store.events import INTEGER_IDS, NO_IDS, TEXT_IDS, Event, SampleLosses
from steptape.store.journal.format import (
    EVENT,
    HAS_ATTRS,
    HAS_SAMPLES,
    HAS_VECTORS,
    MAGIC,
    PREAMBLE,
    TAG_EVENT,
    VERSION,
    framed,
    header_record,
    layout_record,
    samples_block,
)
from steptape.store.journal.segment import grouped
from steptape.store.journal.segment_reading import read_segment
from steptape.store.parquet.from_journal import events_table, samples_table, vectors_table

HEADER = header_record({"attempt": 0, "rank": 0, "run_id": "run-1", "first_seq": 0})
ENVELOPE_READ = ("kind", "seq", "step", "micro_step", "value_lag", "time_ns", "elapsed_ns", "epoch")

#: Few shapes and many repetitions, so that long runs of equal records alternate with single ones.
FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, 5e-324])
LOSSES = st.sampled_from([0.0, 1.5, math.nan])
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(["step_end", "log", "evaluate"]),
    attempt=st.just(0),
    rank=st.just(0),
    seq=st.just(0),
    elapsed_ns=st.integers(0, 2**62),
    step=st.integers(0, 3),
    micro_step=st.integers(0, 2),
    epoch=st.none() | st.just(0.5),
    value_lag=st.integers(0, 1),
    time_ns=st.integers(0, 2**62),
    metrics=st.dictionaries(st.sampled_from(["loss", "Loss", "lr", "epoch"]), FLOATS, max_size=3),
    attrs=st.sampled_from([{}, {}, {}, {"a": 1}, {"text": "ü"}]),
    vectors=st.sampled_from([{}, {}, {"ü": array("d", [1.5, math.nan]), "x": array("d")}, {"x": array("d", [2.0])}]),
)


@st.composite
def sample_losses(draw: st.DrawFn) -> SampleLosses | None:
    """Draw losses with ids of every kind, with and without the optional parts of a block, or None."""
    count = draw(st.sampled_from([None, None, 0, 2, 2, 3]))
    if count is None:
        return None
    losses = struct.pack(f"<{count}f", *draw(st.lists(LOSSES, min_size=count, max_size=count)))
    tokens = struct.pack(f"<{count}i", *range(count)) if draw(st.booleans()) else b""
    positions = struct.pack(f"<{count}i", *range(3, 3 + 2 * count, 2)) if draw(st.booleans()) else b""
    flagged = draw(st.permutations(range(count)))[: draw(st.integers(0, count))]
    lengths = draw(st.lists(st.integers(0, 3), min_size=len(flagged), max_size=len(flagged)))
    more = (
        tokens,
        positions,
        struct.pack(f"<{len(flagged)}I", *flagged),
        struct.pack(f"<{len(flagged)}I", *lengths),
        struct.pack(f"<{sum(lengths)}f", *(index / 2 for index in range(sum(lengths)))),
    )
    kind = draw(st.sampled_from(["none", "integer", "text"]))
    if kind == "integer":
        return SampleLosses(losses, struct.pack(f"<{count}q", *range(7, 7 + count)), INTEGER_IDS, *more)
    if kind == "text":
        return SampleLosses(losses, json.dumps([f"é{i}" for i in range(count)]).encode(), TEXT_IDS, *more)
    return SampleLosses(losses, b"", NO_IDS, *more)


STRETCHES = st.lists(st.tuples(EVENTS, sample_losses(), st.sampled_from([1, 1, 2, 20, 40])), max_size=8)


def plainly_read(data: bytes) -> list[tuple[Any, ...]]:
    """Read every event of a segment as FORMAT.md describes, one at a time, with its sample rows."""
    layouts: dict[int, tuple[str, list[str]]] = {}
    events, position = [], 8
    while position + 8 <= len(data):
        length, checksum = struct.unpack_from("<II", data, position)
        payload = data[position + 8 : position + 8 + length]
        if length == 0 or len(payload) < length or zlib.crc32(payload) != checksum:
            break
        position += 8 + length
        if payload[0] == 1:
            kind, *names = json.loads(payload[5:])
            layouts[struct.unpack_from("<I", payload, 1)[0]] = (kind, names)
        elif payload[0] == 2:
            events.append(plain_event(payload, layouts))
    return events


def plain_event(payload: bytes, layouts: dict[int, tuple[str, list[str]]]) -> tuple[Any, ...]:
    """Decode one event record."""
    _, flags, layout_id, *envelope, epoch = struct.unpack_from("<BBIqqiiqqd", payload)
    kind, names = layouts[layout_id]
    values = struct.unpack_from(f"<{len(names)}d", payload, 54)
    rest = payload[54 + 8 * len(names) :]
    attrs = {}
    if flags & 1:
        size = struct.unpack_from("<I", rest)[0]
        attrs, rest = json.loads(rest[4 : 4 + size]), rest[4 + size :]
    vectors = []
    if flags & 4:
        size = struct.unpack_from("<I", rest)[0]
        vectors, rest = plain_vectors(rest[4 : 4 + size]), rest[4 + size :]
    metrics = sorted((name, value.hex()) for name, value in zip(names, values, strict=True))
    known = None if math.isnan(epoch) else epoch
    return (kind, *envelope, known, metrics, attrs, vectors, plain_samples(rest, flags))


def plain_vectors(block: bytes) -> list[tuple[str, list[str]]]:
    """Decode a block of vectors."""
    vectors = []
    while block:
        size = struct.unpack_from("<I", block)[0]
        name, block = block[4 : 4 + size].decode(), block[4 + size :]
        count = struct.unpack_from("<I", block)[0]
        values, block = struct.unpack_from(f"<{count}d", block, 4), block[4 + 8 * count :]
        vectors.append((name, [value.hex() for value in values]))
    return vectors


def plain_samples(block: bytes, flags: int) -> list[tuple[int, str | None, str, int | None, list[str] | None]]:
    """Decode the rows of a block of samples."""
    if not flags & 2:
        return []
    count, id_kind, holds = struct.unpack_from("<IBB", block)
    losses, rest = struct.unpack_from(f"<{count}f", block, 6), block[6 + 4 * count :]
    ids: list[Any] = [None] * count
    if id_kind == 1:
        ids, rest = [str(i) for i in struct.unpack_from(f"<{count}q", rest)], rest[8 * count :]
    elif id_kind == 2:
        size = struct.unpack_from("<I", rest)[0]
        ids, rest = json.loads(rest[4 : 4 + size]), rest[4 + size :]
    tokens: Any = [None] * count
    positions: Any = range(count)
    token_losses: list[list[str] | None] = [None] * count
    if holds & 1:
        tokens, rest = struct.unpack_from(f"<{count}i", rest), rest[4 * count :]
    if holds & 2:
        positions, rest = struct.unpack_from(f"<{count}i", rest), rest[4 * count :]
    if holds & 4:
        flagged_count = struct.unpack_from("<I", rest)[0]
        numbers, rest = struct.unpack_from(f"<{2 * flagged_count}I", rest, 4), rest[4 + 8 * flagged_count :]
        for flagged, length in zip(numbers[:flagged_count], numbers[flagged_count:], strict=True):
            token_losses[flagged] = [loss.hex() for loss in struct.unpack_from(f"<{length}f", rest)]
            rest = rest[4 * length :]
    assert not rest
    return [(positions[i], ids[i], losses[i].hex(), tokens[i], token_losses[i]) for i in range(count)]


@examples(60)
@given(stretches=STRETCHES, cut=st.integers(0, 60) | st.integers(0, 8_000))
def test_reading_in_bulk_yields_what_reading_event_by_event_yields(
    store_record: Callable[..., Path], tmp_path_factory: Any, stretches: list[Any], cut: int
) -> None:
    """Events and columns agree; a segment cut anywhere gives a prefix of what was written."""
    events = [(event, losses) for event, losses, times in stretches for _ in range(times)]
    folder = store_record(
        [event for event, _ in events],
        samples={index: losses for index, (_, losses) in enumerate(events) if losses is not None},
        root=tmp_path_factory.mktemp("bulk"),
    )
    for journal in folder.glob("journal-*"):
        whole = journal.read_bytes()
        journal.write_bytes(whole[: max(0, len(whole) - cut)])
        segment = read_segment(journal)
        expected = plainly_read(journal.read_bytes())
        written = plainly_read(whole)

        assert len(written) == len(events)
        assert written[: len(expected)] == expected

        assert [facts_of(record) for record in segment.records] == expected
        if expected:
            columns = Columns()
            columns.extend(segment.metric_names())
            assert rows_of(events_table("run-1", segment, columns).to_pylist(), columns) == [
                row[:-2] for row in expected
            ]
            assert [
                (row["seq"], row["step"], *sample_of(row)) for row in samples_table("run-1", segment).to_pylist()
            ] == [(seq, step, *sample) for _, seq, step, *_, samples in expected for sample in samples]
            assert [
                (row["seq"], row["step"], row["name"], [value.hex() for value in row["values"]])
                for row in vectors_table("run-1", segment).to_pylist()
            ] == [(seq, step, *vector) for _, seq, step, *_, vectors, _ in expected for vector in vectors]


def sample_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Convert a row of the samples table to the plain reader's form."""
    losses = row["token_losses"]
    hexes = None if losses is None else [loss.hex() for loss in losses]
    return (row["position"], row["sample_id"], row["loss"].hex(), row["tokens"], hexes)


def facts_of(record: Any) -> tuple[Any, ...]:
    """Convert a record to the plain reader's form."""
    event, samples, vectors = record
    hexes = [(name, [value.hex() for value in values]) for name, values in vectors.items()]
    metrics = sorted((name, value.hex()) for name, value in event.metrics.items())
    envelope = (event.seq, event.step, event.micro_step, event.value_lag, event.time_ns, event.elapsed_ns)
    flags = 0 if samples is None else 2
    block = b"" if samples is None else samples_block(samples)
    return (event.kind, *envelope, event.epoch, metrics, event.attrs, hexes, plain_samples(block, flags))


def rows_of(rows: list[dict[str, Any]], columns: Columns) -> list[tuple[Any, ...]]:
    """Convert rows of the events table to the plain reader's form, without vectors and samples."""
    return [
        (
            *(
                row[name]
                for name in ("kind", "seq", "step", "micro_step", "value_lag", "time_ns", "elapsed_ns", "epoch")
            ),
            sorted((m, row[c].hex()) for m, c in columns.by_metric.items() if row[c] is not None),
            json.loads(row["attrs"] or "{}"),
        )
        for row in rows
    ]


def payload_of(flags: int, rest: bytes) -> bytes:
    """Return an event of a layout with one metric, with ``rest`` after its value."""
    return EVENT.pack(TAG_EVENT, flags, 0, 0, 0, 0, 0, 0, 0, 0.0) + struct.pack("<d", 1.0) + rest


@pytest.mark.parametrize(
    "payload",
    [
        payload_of(HAS_ATTRS, b"\x05\x00\x00\x00{}"),
        payload_of(HAS_ATTRS, b"\x02\x00\x00\x00{]"),
        payload_of(HAS_ATTRS, b""),
        payload_of(HAS_SAMPLES, b"\x01\x00\x00\x00\x00\x00\x00\x00"),
        payload_of(HAS_SAMPLES, b"\x01\x00"),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfI", 1, TEXT_IDS, 0, 1.0, 99)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfI", 1, TEXT_IDS, 0, 1.0, 2) + b"[]"),
        payload_of(HAS_SAMPLES, struct.pack("<IBBf", 1, 0, 1, 1.0)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBf", 1, 0, 2, 1.0)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfI", 1, 0, 3, 1.0, 4)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBf", 1, 0, 4, 1.0)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfII", 1, 0, 4, 1.0, 1, 0)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfIII", 1, 0, 4, 1.0, 1, 0, 1)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfI", 1, 0, 4, 1.0, 2**32 - 1)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfIIIf", 1, 0, 4, 1.0, 1, 1, 1, 2.0)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBfI4I2f", 1, 0, 4, 1.0, 2, 0, 0, 1, 1, 2.0, 2.0)),
        payload_of(HAS_SAMPLES, struct.pack("<IBBf", 1, 0, 8, 1.0)),
        payload_of(HAS_VECTORS, b"\x01\x00"),
        payload_of(HAS_VECTORS, struct.pack("<I", 9)),
        payload_of(HAS_VECTORS, struct.pack("<III", 8, 9, 0)),
        payload_of(HAS_VECTORS, struct.pack("<IIII", 8, 0, 1, 0)),
        payload_of(HAS_VECTORS, struct.pack("<IIB", 5, 1, 255)),
        payload_of(HAS_VECTORS, struct.pack("<II1sI", 9, 1, b"\xff", 0)),
        payload_of(HAS_VECTORS, struct.pack("<IIIII", 16, 0, 0, 0, 0)),
    ],
)
def test_what_does_not_fit_into_its_record_is_an_error_of_ours(
    store_folder: Callable[..., Path], payload: bytes
) -> None:
    """Lengths that exceed the record, and invalid JSON, never read bytes of the next record."""
    path = store_folder() / "journal-0-0-000000000000"
    records = HEADER + layout_record(0, "step_end", ["loss"]) + framed(payload) + framed(b"\x63" + bytes(200))
    path.write_bytes(PREAMBLE.pack(MAGIC, VERSION) + records)

    with pytest.raises(DamagedLog, match="checksum is correct"):
        (list(open_run(path.parent).events()), open_run(path.parent).samples(), open_run(path.parent).vectors())


@pytest.mark.parametrize("rest", [struct.pack("<IBBf", 3, 0, 0, 1.0), struct.pack("<IBBf", 3, TEXT_IDS, 0, 1.0)])
def test_samples_without_their_losses_are_called_that(store_folder: Callable[..., Path], rest: bytes) -> None:
    """The message says what is cut short, and not what comes after it."""
    path = store_folder() / "journal-0-0-000000000000"
    records = HEADER + layout_record(0, "step_end", ["loss"]) + framed(payload_of(HAS_SAMPLES, rest))
    path.write_bytes(PREAMBLE.pack(MAGIC, VERSION) + records)

    with pytest.raises(DamagedLog, match="its samples are cut short"):
        open_run(path.parent).samples()


def test_a_segment_is_split_by_its_numbers(store_record: Callable[..., Path]) -> None:
    """Every event counts as the widest layout, or as the average record where samples make that larger."""
    events = [Event("step_end", step=step, metrics={"loss": 1.0}) for step in range(100)]
    losses = SampleLosses(struct.pack("<1000f", *range(1000)))
    more = {"heavy": dict.fromkeys(range(100), losses)}
    folders = (store_record(events, run_id=run_id, samples=more.get(run_id)) for run_id in ("narrow", "heavy"))
    narrow, heavy = (read_segment(folder / "journal-0-0-000000000000") for folder in folders)

    assert [len(piece) for piece in narrow.pieces(10**6)] == [100]
    assert [len(piece) for piece in heavy.pieces(10**4)] == [9] * 11 + [1]
    assert [seq for piece in heavy.pieces(10**4) for seq in piece.seq.tolist()] == list(range(100))


def test_a_segment_without_events_has_columns_without_rows(store_folder: Callable[..., Path]) -> None:
    """Also one whose header is torn."""
    path = store_folder() / "journal-0-0-000000000000"
    for content in (b"", PREAMBLE.pack(MAGIC, VERSION) + HEADER):
        path.write_bytes(content)
        segment = read_segment(path)

        assert [len(column) for column in (segment.layout, segment.flags, segment.start, segment.end)] == [0] * 4
        assert (segment.records, [*segment.pieces(1)]) == ([], [])


class Counted(np.ndarray[Any, Any]):
    """An array that counts the numbers that it compares."""

    compared = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        Counted.compared += max(np.size(each) for each in inputs)
        plain = [each.view(np.ndarray) if isinstance(each, Counted) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)


def test_as_many_layouts_as_events_are_grouped_without_a_pass_for_each() -> None:
    """Four thousand passes over four thousand codes would compare sixteen million."""
    codes = np.arange(4000, dtype=np.int32)[::-1]

    groups = [code for code, _ in grouped(codes.view(Counted))]

    assert groups == list(range(4000))
    assert 0 < Counted.compared < 10 * len(codes)
