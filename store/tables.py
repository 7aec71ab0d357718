"""Journal records as Arrow tables, and Arrow tables as events again: the columns that Parquet files hold."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .columns import RESERVED, Columns
from .errors import DamagedLog
from .event_json import decoded_attrs, encoded_attrs
from .events import Event
from .journal_format import INTEGER_IDS, NO_IDS, SampleLosses
from .journal_reading import Record

EVENT_FIELDS: Final = (
    pa.field("run_id", pa.string()),
    pa.field("attempt", pa.int32()),
    pa.field("rank", pa.int32()),
    pa.field("seq", pa.int64()),
    pa.field("kind", pa.string()),
    pa.field("step", pa.int64()),
    pa.field("micro_step", pa.int32()),
    pa.field("epoch", pa.float64()),
    pa.field("time_ns", pa.int64()),
    pa.field("elapsed_ns", pa.int64()),
    pa.field("value_lag", pa.int32()),
)
ATTRS_FIELD: Final = pa.field("attrs", pa.string())

SAMPLE_FIELDS: Final = (
    pa.field("run_id", pa.string()),
    pa.field("attempt", pa.int32()),
    pa.field("rank", pa.int32()),
    pa.field("seq", pa.int64()),
    pa.field("step", pa.int64()),
    pa.field("micro_step", pa.int32()),
    pa.field("position", pa.int32()),
    pa.field("sample_id", pa.string()),
    pa.field("loss", pa.float32()),
    pa.field("tokens", pa.int32()),
)
SAMPLES_SCHEMA: Final = pa.schema(SAMPLE_FIELDS)

#: A row group holds about this many cells: readers of one metric then skip most of a file, and footers stay small.
CELLS_PER_ROW_GROUP: Final = 1_000_000

#: Key of the metric-to-column mapping in a Parquet file's metadata.
COLUMNS_KEY: Final = b"steptape.columns"


def events_schema(columns: Columns) -> pa.Schema:
    """Envelope, one float64 column a metric, attrs."""
    metrics = [pa.field(column, pa.float64()) for column in columns.by_metric.values()]
    mapping = json.dumps(columns.by_metric, ensure_ascii=False).encode()
    return pa.schema([*EVENT_FIELDS, *metrics, ATTRS_FIELD], metadata={COLUMNS_KEY: mapping})


def events_table(run_id: str, events: Sequence[Event], columns: Columns) -> pa.Table:
    """Events as rows; ``columns`` must know all of their metrics. A metric that an event lacks is null, NaN is NaN."""
    schema = events_schema(columns)
    envelope = [pa.repeat(pa.scalar(run_id, pa.string()), len(events))] + [
        pa.array([getattr(event, field.name) for event in events], field.type) for field in EVENT_FIELDS[1:]
    ]
    metrics = [pa.array([event.metrics.get(metric) for event in events], pa.float64()) for metric in columns.by_metric]
    attrs = pa.array([encoded_attrs(event.attrs) if event.attrs else None for event in events], pa.string())
    return pa.Table.from_arrays([*envelope, *metrics, attrs], schema=schema)


def samples_table(run_id: str, records: Iterable[Record]) -> pa.Table:
    """The sample losses of the records, one row a sample, in the order of the batch."""
    sampled = [(record.event, record.samples) for record in records if record.samples]
    if not sampled:
        return SAMPLES_SCHEMA.empty_table()
    counts = [len(samples) for _, samples in sampled]
    ends = pa.array(itertools.accumulate(counts), pa.int64())
    total = ends[-1].as_py()
    ranges = {count: array("i", range(count)).tobytes() for count in set(counts)}

    def repeated(field: pa.Field) -> pa.Array:
        of_event = pa.array([getattr(event, field.name) for event, _ in sampled], field.type)
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, of_event))

    def packed(type_: pa.DataType, chunks: Iterable[bytes]) -> pa.Array:
        return pa.Array.from_buffers(type_, total, [None, pa.py_buffer(b"".join(chunks))])

    columns = [
        pa.repeat(pa.scalar(run_id, pa.string()), total),
        *(repeated(field) for field in SAMPLE_FIELDS[1:6]),
        packed(pa.int32(), (ranges[count] for count in counts)),
        _sample_ids([samples for _, samples in sampled]),
        packed(pa.float32(), (samples.losses for _, samples in sampled)),
        pa.chunked_array([_tokens(samples) for _, samples in sampled], pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=SAMPLES_SCHEMA).combine_chunks()


def events_of(table: pa.Table, metric_of: dict[str, str]) -> Iterator[Event]:
    """The rows of an events table as events.

    Args:
        metric_of: Metric of each column, where it is not the column's own name.
    """
    names = [name for name in table.column_names if name not in RESERVED]
    metrics = [metric_of.get(name, name) for name in names]
    for batch in table.to_batches(max_chunksize=16_384):
        envelope = [batch.column(name).to_pylist() for name in Event._fields[:10]]
        values = zip(*(batch.column(name).to_pylist() for name in names), strict=True) if names else None
        attrs = batch.column("attrs").to_pylist()
        for row, text in zip(zip(*envelope, strict=True), attrs, strict=True):
            logged = next(values) if values is not None else ()
            carried = {metric: value for metric, value in zip(metrics, logged, strict=True) if value is not None}
            yield Event._make((*row, carried, decoded_attrs(text) if text else {}))


def read_parquet(path: Path, wanted: Iterable[str] | None = None) -> pa.Table:
    """A sealed file, or those of its columns that are wanted. The path itself says nothing of its content.

    Raises:
        FileNotFoundError: It was merged into another one meanwhile.
        DamagedLog: It is not whole.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            present = set(file.schema_arrow.names)
            return file.read(columns=None if wanted is None else [name for name in wanted if name in present])
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamagedLog(f"this is no whole Parquet file ({error})", where=str(path)) from None


def write_table(table: pa.Table, path: Path) -> None:
    """Write Parquet as the store keeps it: zstd, byte-stream-split floats, delta integers, page checksums.

    Floats carry no statistics: those of Parquet pass over NaN, and a reader that trusts them skips the NaN rows of
    ``loss > 5``, which are true in SQL.
    """
    encodings: dict[str, str] = {}
    for field in table.schema:
        if pa.types.is_floating(field.type):
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_integer(field.type):
            encodings[field.name] = "DELTA_BINARY_PACKED"
    pq.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=[name for name in ("run_id", "kind") if name in table.column_names],
        column_encoding=encodings,
        write_page_checksum=True,
        write_statistics=[field.name for field in table.schema if not pa.types.is_floating(field.type)],
        row_group_size=max(1, CELLS_PER_ROW_GROUP // len(table.column_names)),
    )


def _sample_ids(blocks: Sequence[SampleLosses]) -> pa.ChunkedArray:
    """Sample ids as text; neighbouring blocks with integer ids are converted in one go."""
    chunks = []
    for kind, group in itertools.groupby(blocks, key=lambda block: block.id_kind):
        same = list(group)
        count = sum(len(block) for block in same)
        if kind == NO_IDS:
            chunks.append(pa.nulls(count, pa.string()))
        elif kind == INTEGER_IDS:
            integers = pa.py_buffer(b"".join(block.ids for block in same))
            chunks.append(pc.cast(pa.Array.from_buffers(pa.int64(), count, [None, integers]), pa.string()))
        else:
            chunks.append(pa.array([text for block in same for text in json.loads(block.ids)], pa.string()))
    return pa.chunked_array(chunks, pa.string())


def _tokens(block: SampleLosses) -> pa.Array:
    if not block.tokens:
        return pa.nulls(len(block), pa.int32())
    return pa.Array.from_buffers(pa.int32(), len(block), [None, pa.py_buffer(block.tokens)])
