"""Events survive the round trip through journal, tail and Parquet without a changed bit."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import open_run
from steptape.store.errors import DamagedLog, QueryRefused
from steptape.store.events import ENVELOPE, INTEGER_IDS, KINDS, TEXT_IDS, Event, SampleLosses
from steptape.store.parquet.sealing import durable_file, seal
from steptape.store.parquet.tables import BYTES_PER_ROW_GROUP, read_long_values, read_metrics, write_tables

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        *ENVELOPE,
        "run_id",
        "attrs",
        "loss",
        "Loss",
        "LOSS",
        "train/loss",
        "train.loss",
        'a "quoted" name',
        "it's",
        "größe",
        "GRÖSSE",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=5,
)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(sorted(KINDS)),
    seq=st.just(0),
    attempt=st.just(0),
    rank=st.just(0),
    step=INT64,
    micro_step=INT32,
    epoch=st.none() | st.floats(allow_nan=False),
    time_ns=INT64,
    elapsed_ns=INT64,
    value_lag=INT32,
    metrics=st.dictionaries(NAMES, FLOATS, max_size=5),
    attrs=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), JSON, max_size=3),
)  # fmt: skip


@examples(30)
@given(events=st.lists(EVENTS, max_size=6), rotate=st.booleans())
def test_events_are_equal_through_journal_and_parquet(
    store_record: Callable[..., Path],
    store_facts: Callable[..., Any],
    tmp_path_factory: Any,
    events: list[Event],
    rotate: bool,
) -> None:
    """Every field is equal to the bit, read from the tail before sealing, from Parquet after it, and by SQL in both."""
    root = tmp_path_factory.mktemp("round-trip")
    folder = store_record(events, root=root, segment_bytes=200 if rotate else 1 << 26)
    run = open_run(folder)
    expected = store_facts(event._replace(seq=seq) for seq, event in enumerate(events))
    query = "SELECT seq, metric, value FROM metric_values ORDER BY seq, metric"
    from_tail, tail_rows = store_facts(run.events()), repr(run.rows(query))
    seal(folder)
    from_parquet, parquet_rows = store_facts(run.events()), repr(run.rows(query))

    assert from_tail == expected
    assert from_parquet == expected
    assert parquet_rows == tail_rows


@examples(30)
@given(
    blocks=st.lists(
        st.lists(
            st.tuples(st.floats(width=32), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1)), max_size=4
        ),
        max_size=4,
    ),
    ids=st.sampled_from(["none", "integer", "text"]),
    has_tokens=st.booleans(),
    has_positions=st.booleans(),
    flagged=st.integers(0, 2),
)
def test_samples_are_equal_through_journal_and_parquet(
    store_record: Callable[..., Path],
    tmp_path_factory: Any,
    blocks: list[Any],
    ids: str,
    has_tokens: bool,
    has_positions: bool,
    flagged: int,
) -> None:
    """Losses keep the bits of their float32; ids are text; positions are kept, token losses only of flagged samples."""
    folder = store_record(
        [Event("step_end", step=index) for index in range(len(blocks))],
        samples={
            index: dataclasses.replace(packed(block, ids, has_tokens), **kept(block, has_positions, flagged))
            for index, block in enumerate(blocks)
        },
        root=tmp_path_factory.mktemp("round-trip"),
    )
    expected = [
        (
            seq,
            2 * position + 5 if has_positions else position,
            None if ids == "none" else str(sample_id),
            loss.hex(),
            tokens if has_tokens else None,
            [loss.hex()] * position if position < flagged else None,
        )
        for seq, block in enumerate(blocks)
        for position, (loss, sample_id, tokens) in enumerate(block)
    ]
    from_tail = sample_rows(folder)
    seal(folder)

    assert (from_tail, sample_rows(folder)) == (expected, expected)


def packed(block: list[tuple[float, int, int]], ids: str, has_tokens: bool) -> SampleLosses:
    """Return sample losses as a journal holds them."""
    count = len(block)
    losses = struct.pack(f"<{count}f", *(loss for loss, _, _ in block))
    tokens = struct.pack(f"<{count}i", *(tokens for _, _, tokens in block)) if has_tokens else b""
    if ids == "text":
        texts = ",".join(f'"{sample_id}"' for _, sample_id, _ in block)
        return SampleLosses(losses, f"[{texts}]".encode(), TEXT_IDS, tokens)
    if ids == "integer":
        return SampleLosses(losses, struct.pack(f"<{count}q", *(i for _, i, _ in block)), INTEGER_IDS, tokens)
    return SampleLosses(losses, tokens=tokens)


def kept(block: list[tuple[float, int, int]], has_positions: bool, flagged: int) -> dict[str, Any]:
    """Return the samples' positions, and for each flagged sample as many token losses as samples precede it."""
    count, flagged = len(block), min(flagged, len(block))
    losses = [loss for index, (loss, _, _) in enumerate(block[:flagged]) for _ in range(index)]
    return {
        "positions": struct.pack(f"<{count}i", *range(5, 5 + 2 * count, 2)) if has_positions else b"",
        "flagged": struct.pack(f"<{flagged}I", *range(flagged)),
        "flagged_tokens": struct.pack(f"<{flagged}I", *range(flagged)),
        "token_losses": struct.pack(f"<{len(losses)}f", *losses),
    }


def sample_rows(folder: Path) -> list[tuple[Any, ...]]:
    """Return the samples of a run by SQL, which reads tail and Parquet."""
    rows = open_run(folder).rows("SELECT * FROM samples ORDER BY seq, position")
    return [
        (
            *(row[name] for name in ("seq", "position", "sample_id")),
            row["loss"].hex(),
            row["tokens"],
            None if row["token_losses"] is None else [loss.hex() for loss in row["token_losses"]],
        )
        for row in rows
    ]


def test_absent_is_null_and_nan_is_nan(store_record: Callable[..., Path]) -> None:
    """Arrow keeps the two apart."""
    table = open_run(store_record([Event("log"), Event("log", metrics={"loss": math.nan})])).table()

    assert (table["loss"].null_count, str(table["loss"].to_pylist())) == (1, "[None, nan]")


def test_parquet_has_the_columns_and_encodings_that_the_format_promises(store_record: Callable[..., Path]) -> None:
    """They are zstd except clocks, byte-stream-split floats, delta integers that change, and the column mapping."""
    folder = store_record([Event("log", metrics={"loss": 1.0, "epoch": 2.0}, attrs={"a": 1})] * 3, sealed=True)
    (path,) = folder.glob("events-*")
    metadata = pq.read_metadata(path)
    columns = [metadata.row_group(0).column(index) for index in range(metadata.num_columns)]
    encodings = {column.path_in_schema: set(column.encodings) - {"RLE", "PLAIN"} for column in columns}
    schema = pq.read_schema(path)

    plain = {column.path_in_schema for column in columns if column.compression == "UNCOMPRESSED"}
    assert plain == {"time_ns", "elapsed_ns"}
    assert {column.compression for column in columns} == {"ZSTD", "UNCOMPRESSED"}
    assert [(field.name, str(field.type)) for field in schema] == [
        ("run_id", "string"), ("attempt", "int32"), ("rank", "int32"), ("seq", "int64"), ("kind", "string"),
        ("step", "int64"), ("micro_step", "int32"), ("epoch", "double"), ("time_ns", "int64"), ("elapsed_ns", "int64"),
        ("value_lag", "int32"), ("loss", "double"), ("epoch~b2fdf2af", "double"), ("attrs", "string"),
    ]  # fmt: skip
    assert encodings["loss"] == {"BYTE_STREAM_SPLIT"}
    assert encodings["step"] == {"DELTA_BINARY_PACKED"}
    assert encodings["rank"] == set()
    assert schema.metadata[b"steptape.columns"] == b'{"loss": "loss", "epoch": "epoch~b2fdf2af"}'


@pytest.mark.parametrize(("lacking", "with_nulls"), [(0, {"epoch", "attrs"}), (40, {"epoch", "attrs", "a"})])
def test_a_metric_that_every_event_has_is_a_required_column(
    store_record: Callable[..., Path], lacking: int, with_nulls: set[str]
) -> None:
    """Segment files declare it non-null, and so do files merged from them, unless one of them has nulls."""
    always, sometimes = Event("log", metrics={"a": 1.0, "b": 2.0}), Event("log", metrics={"b": 3.0})
    folder = store_record([always] * 40 + [sometimes] * lacking, segment_bytes=2_000, sealed=True)
    run = open_run(folder)
    (path,) = folder.glob("events-*")

    assert {field.name for field in pq.read_schema(path) if field.nullable} == with_nulls
    assert (run.series("a").num_rows, run.series("b").num_rows) == (40, 40 + lacking)


def test_floats_have_no_statistics_that_would_hide_nan_rows(store_record: Callable[..., Path]) -> None:
    """Parquet's statistics skip NaN; with them ``loss > 5`` finds the NaN row in a tail and not in Parquet."""
    folder = store_record([Event("step_end", metrics={"loss": value}) for value in (1.0, math.nan)])
    run = open_run(folder)
    query = "SELECT count(*) AS n FROM steps WHERE loss > 5"
    in_tail = run.rows(query)
    seal(folder)

    assert (in_tail, run.rows(query)) == ([{"n": 1}], [{"n": 1}])


@pytest.mark.parametrize("read", [read_long_values, lambda path: read_metrics(path, {"a"})])
def test_a_file_of_metrics_without_one_of_its_columns_is_damage(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    """The message names a column that is missing."""
    path = tmp_path / "metrics-0-0-0.parquet"
    pq.write_table(pa.table({"seq": [1], "metric": ["a"]}), path)

    with pytest.raises(DamagedLog, match="lacks a column of its table; got 'attempt'"):
        read(path)


@pytest.mark.parametrize("read", ["events", "table", "sql", "samples"])
def test_a_damaged_parquet_file_is_an_error_of_ours(store_record: Callable[..., Path], read: str) -> None:
    """The file is truncated, and the message names it."""
    samples = {0: SampleLosses(struct.pack("<f", 1))}
    folder = store_record([Event("step_end", metrics={"loss": 1.0})], samples=samples, sealed=True)
    for path in folder.glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-20])
    run = open_run(folder)
    reads: dict[str, Callable[[], Any]] = {
        "events": run.events,
        "table": run.table,
        "sql": lambda: run.sql("FROM events"),
        "samples": run.samples,
    }

    # A statement is refused; the summary answers for the run's row, so no other reader comes first.
    with pytest.raises(QueryRefused if read == "sql" else DamagedLog, match=r"\.parquet"):
        reads[read]()


def test_a_flipped_bit_in_a_parquet_page_is_noticed(store_record: Callable[..., Path]) -> None:
    """Pages carry checksums, which reading verifies."""
    folder = store_record([Event("step_end", metrics={"loss": float(i)}) for i in range(1000)], sealed=True)
    (path,) = folder.glob("events-*")
    row_group = pq.read_metadata(path).row_group(0)
    column = row_group.column(row_group.num_columns - 2)
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    path.write_bytes(damaged)

    with pytest.raises(DamagedLog, match="events-0-0"):
        open_run(folder).table()


def test_a_wide_table_has_row_groups_of_about_four_million_cells(store_record: Callable[..., Path]) -> None:
    """A reader of one metric can then skip most of the file."""
    names = [f"m{index}" for index in range(500)]
    folder = store_record([Event("log", metrics=dict.fromkeys(names, 1.0))] * 10_000, sealed=True)
    (path,) = folder.glob("events-*")

    assert [pq.read_metadata(path).row_group(i).num_rows for i in range(2)] == [7812, 2188]


@pytest.mark.parametrize("pieces", [1, 50])
def test_a_row_group_of_large_texts_ends_before_it_fills_the_memory(tmp_path: Path, pieces: int) -> None:
    """With texts of a megabyte, in one table or many, only few rows are buffered, and later read, at a time."""
    path, texts = tmp_path / "file.parquet", [str(row % 10) * 1_000_000 for row in range(200)]
    table = pa.table({"row": range(len(texts)), "attrs": texts})
    rows = len(texts) // pieces
    with durable_file(path) as file:
        write_tables([table.slice(start, rows) for start in range(0, len(texts), rows)], table.schema, file)

    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    sizes = [group.column(1).total_uncompressed_size for group in groups]
    largest = BYTES_PER_ROW_GROUP + rows * 1_000_000 if pieces > 1 else BYTES_PER_ROW_GROUP
    assert max(sizes) <= largest + 10_000
    assert len(groups) <= 2 + sum(sizes) // BYTES_PER_ROW_GROUP
    assert pq.read_table(path).equals(table)


def test_a_row_larger_than_a_row_group_may_be_is_one(tmp_path: Path) -> None:
    """It cannot be split, and its small neighbours are not lost."""
    path, large = tmp_path / "file.parquet", "x" * (BYTES_PER_ROW_GROUP + 1)
    table = pa.table({"attrs": ["a", large, large, "b", None]})
    with durable_file(path) as file:
        write_tables([table.slice(0, 0), table], table.schema, file)

    assert pq.read_table(path).equals(table)


def test_the_schema_of_no_event_is_the_envelope(store_record: Callable[..., Path]) -> None:
    """A run without metrics is a table without metric columns."""
    table = open_run(store_record([])).table()

    assert (table.num_rows, set(table.schema.names)) == (0, {"run_id", *ENVELOPE, "attrs"})
