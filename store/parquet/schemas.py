"""Defines the schemas of the Parquet tables, and writes tables with the store's encodings and row groups."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..columns import Columns

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
    pa.field("token_losses", pa.list_(pa.field("element", pa.float32()))),
)
#: The schema of sample losses as readers see them.
SAMPLES_SCHEMA: Final = pa.schema(SAMPLE_FIELDS)

#: Type of sample ids in a file where none is text: writing takes a third of the time that text takes.
IDS_AS_INTEGERS: Final = pa.int64()

#: The schema of vectors.
VECTORS_SCHEMA: Final = pa.schema(
    [
        *SAMPLE_FIELDS[:6],
        pa.field("name", pa.string()),
        pa.field("values", pa.list_(pa.field("element", pa.float64()))),
    ]
)

METRICS_SCHEMA: Final = pa.schema(
    [
        *SAMPLE_FIELDS[:4],
        pa.field("metric", pa.string()),
        pa.field("value", pa.float64()),
    ]
)

#: Text columns with few distinct values. They are written from dictionaries, which avoids hashing each row.
CODED: Final = frozenset(("run_id", "kind", "metric"))

#: The type of such a column in memory.
CODE: Final = pa.dictionary(pa.int32(), pa.string())

#: Integers that hardly change from row to row. Encoded PLAIN, because zstd compresses them as well as delta encoding
#: does, in half the time.
REPEATING: Final = frozenset(("attempt", "rank", "micro_step", "value_lag", "position"))

#: Integers that zstd cannot shrink after delta encoding; skipping zstd halves their time.
DENSE: Final = frozenset(("time_ns", "elapsed_ns", "sample_id"))

#: Columns whose statistics let readers skip row groups. Statistics for columns that are constant in a file, or rarely
#: filtered by, would add a twentieth to all writing.
WITH_STATISTICS: Final = ("seq", "step", "time_ns", "metric")

#: Columns without nulls.
EVENT_ALWAYS: Final = frozenset(field.name for field in EVENT_FIELDS) - {"epoch"}
SAMPLES_ALWAYS: Final = frozenset(SAMPLES_SCHEMA.names) - {"sample_id", "tokens", "token_losses"}
METRICS_ALWAYS: Final = frozenset(METRICS_SCHEMA.names)
VECTORS_ALWAYS: Final = frozenset(VECTORS_SCHEMA.names)

#: Approximate cells per row group: 30 MB in memory, a whole segment of a dozen metrics. Starting a row group takes 0.1
#: ms per column (a compressor of its own); with a million cells each, that is a tenth of all sealing.
CELLS_PER_ROW_GROUP: Final = 4_000_000

#: Limit on a row group's bytes, for text, token losses and vectors, which are larger than numbers. A row group is held
#: in memory while it is collected and while it is read. Each of its pages, which may hold 1,024 rows of any size, must
#: stay below 2 GiB.
BYTES_PER_ROW_GROUP: Final = 64 * 1024 * 1024

#: Raised so that a page holds a megabyte: 131,072 floats. pyarrow's default of 20,000 rows adds a fifth to all writing
#: and a tenth to the space.
ROWS_PER_PAGE: Final = CELLS_PER_ROW_GROUP

#: Key of the metric-to-column mapping in a Parquet file's metadata.
COLUMNS_KEY: Final = b"steptape.columns"


def events_schema(columns: Columns) -> pa.Schema:
    """Return the schema of events: envelope, one float64 column per metric, attrs."""
    metrics = [pa.field(column, pa.float64()) for column in columns.by_metric.values()]
    mapping = json.dumps(columns.by_metric, ensure_ascii=False).encode()
    return pa.schema([*EVENT_FIELDS, *metrics, ATTRS_FIELD], metadata={COLUMNS_KEY: mapping})


def samples_schema(*, has_integer_ids: bool, has_token_losses: bool) -> pa.Schema:
    """Return the schema of sample losses in a file."""
    place = SAMPLES_SCHEMA.get_field_index("sample_id")
    schema = SAMPLES_SCHEMA.set(place, pa.field("sample_id", IDS_AS_INTEGERS)) if has_integer_ids else SAMPLES_SCHEMA
    return schema if has_token_losses else schema.remove(schema.get_field_index("token_losses"))


def joint_samples_schema(schemas: Collection[pa.Schema]) -> pa.Schema:
    """Return the schema of a file merged from files with these schemas."""
    return samples_schema(
        has_integer_ids=all(schema.field("sample_id").type == IDS_AS_INTEGERS for schema in schemas),
        has_token_losses=any("token_losses" in schema.names for schema in schemas),
    )


def with_ids_of(samples: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the sample losses with ids in this schema's type: integers or text."""
    place = samples.schema.get_field_index("sample_id")
    return samples.set_column(place, "sample_id", samples["sample_id"].cast(schema.field("sample_id").type))


def coded(schema: pa.Schema) -> pa.Schema:
    """Return the schema with dictionary types for the columns that are written from dictionaries."""
    fields = [field.with_type(CODE) if is_coded(field) else field for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def is_coded(field: pa.Field) -> bool:
    """Whether the column is one of ``CODED``, and not a metric of that name."""
    return field.name in CODED and not pa.types.is_floating(field.type)


def write_tables(
    tables: Iterable[pa.Table], schema: pa.Schema, file: BinaryIO, *, always: Collection[str] = frozenset()
) -> None:
    """Write Parquet with the store's encodings: zstd for most columns, byte-stream-split floats, delta integers.

    Pages carry checksums. Floats carry no statistics: Parquet's minimum and maximum ignore NaN, so a reader that trusts
    them would skip the NaN rows of ``loss > 5``, which are true in SQL.

    Args:
        tables: The rows, part by part. Columns that a part lacks are null.
        schema: The columns.
        file: The output; a whole Parquet file afterwards, even without rows.
        always: Columns of the schema without nulls. They are marked as such in the file, which saves a quarter of the
            time that their values take: no null bookkeeping.
    """
    floats = {field.name for field in schema if pa.types.is_floating(field.type)}
    encodings = dict.fromkeys(floats, "BYTE_STREAM_SPLIT")
    integers = {field.name for field in schema if pa.types.is_integer(field.type)}
    encodings |= {name: "PLAIN" if name in REPEATING else "DELTA_BINARY_PACKED" for name in integers}
    if "sample_id" in schema.names and pa.types.is_string(schema.field("sample_id").type):
        encodings["sample_id"] = "DELTA_LENGTH_BYTE_ARRAY"
    lists = [field.name for field in schema if pa.types.is_list(field.type)]
    encodings |= {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in lists}
    coded_schema = coded(schema)
    schema = pa.schema([f.with_nullable(f.name not in always) for f in coded_schema], coded_schema.metadata)
    columns = {*schema.names, *encodings}  # For lists, the elements have the encoding.
    with pq.ParquetWriter(
        file,
        schema,
        compression={name: "none" if name in integers & DENSE else "zstd" for name in columns},
        use_dictionary=[field.name for field in schema if is_coded(field)],
        column_encoding=encodings,
        store_schema=False,  # It would declare text as a dictionary; the columns alone suffice.
        write_page_checksum=True,
        max_rows_per_page=ROWS_PER_PAGE,
        write_statistics=[name for name in WITH_STATISTICS if name in schema.names],
    ) as writer:
        for group in _row_groups(tables, schema, max(1, CELLS_PER_ROW_GROUP // len(schema))):
            writer.write_table(group, row_group_size=max(1, group.num_rows))
        writer.add_key_value_metadata(schema.metadata or {})


def _row_groups(tables: Iterable[pa.Table], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Cut and join the tables to ``rows`` rows each, or fewer where they exceed the byte limit."""
    waiting: list[pa.Table] = []
    count = size = 0
    for table in tables:
        waiting.append(_conformed(table, schema))
        count += table.num_rows
        size += table.nbytes
        if count and (count >= rows or size >= BYTES_PER_ROW_GROUP):
            joined = pa.concat_tables(waiting)
            # Below the byte limit, the second term exceeds the row count; above it, it is at least one and at most all
            # rows.
            some = min(rows, max(1, count * BYTES_PER_ROW_GROUP // size))
            whole = count - count % some
            for start in range(0, whole, some):
                yield joined.slice(start, some)
            rest = joined.slice(whole)
            waiting, count, size = [rest], rest.num_rows, rest.nbytes
    if count:
        yield pa.concat_tables(waiting)


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns of the schema; missing ones are null."""
    if table.schema.names == schema.names and table.schema.types == schema.types:
        return pa.Table.from_arrays(table.columns, schema=schema)
    present = set(table.column_names)
    columns = [
        table[field.name].cast(field.type) if field.name in present else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
