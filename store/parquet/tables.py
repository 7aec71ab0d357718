"""Defines the schemas of the Parquet tables, writes tables with the store's encodings, and reads them as Arrow tables.

The last writer of a file may have requested other containers for the same values (large strings, text dictionaries);
these are converted. Numbers of another type have another meaning, and count as damage.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..columns import Columns
from ..errors import DamagedLog
from ..events import JsonObject
from ..objects.mirror_access import fetch, in_blocks
from ..run_folder import MISNAMED, NAME_BACK, SealedFile, sealed_at

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

#: Key of the header in a Parquet file's metadata: the log and the events that the file holds.
LOG_KEY: Final = b"steptape.log"

_MOST_SEQ: Final = 2**63 - 1

#: The header is the last entry of the metadata, so it is found in the last bytes of a file. A run id has at most 128
#: characters, and three bytes for each of up to 524 columns follow.
_HEADER_BYTES: Final = 4096


def events_schema(columns: Columns) -> pa.Schema:
    """Return the schema of events: envelope, one float64 column per metric, attrs."""
    metrics = [pa.field(column, pa.float64()) for column in columns.by_metric.values()]
    mapping = json.dumps(columns.by_metric, ensure_ascii=False).encode()
    return pa.schema([*EVENT_FIELDS, *metrics, ATTRS_FIELD], metadata={COLUMNS_KEY: mapping})


def with_header(schema: pa.Schema, file: SealedFile, run_id: str) -> pa.Schema:
    """Return the schema with the header of a file, as the last entry of its metadata."""
    return schema.with_metadata({**(schema.metadata or {}), LOG_KEY: _packed(file.header(run_id))})


def require_own(files: Iterable[SealedFile], run_id: str) -> None:
    """Check that the files hold what their names say, as far as they can be read.

    Parts in object storage are checked when they are read.

    It takes 15 us a file of ours. The columns of a file without a header, which another program wrote, are read.

    Raises:
        FileNotFoundError: A file was merged into another one meanwhile.
        DamagedLog: A file holds events of another log, or others of this one.
    """
    for file in files:
        header = file.header(run_id)
        try:
            has_header = _packed(header) in _last_bytes(file.path)
        except FileNotFoundError:
            if file.path.is_symlink():
                continue
            raise
        except OSError:
            has_header = False  # Opening it says what is wrong.
        if not has_header:
            try:
                with _opened(file.path) as opened:
                    said = _header_of(opened, file)
            except DamagedLog as error:
                if error.what == MISNAMED:
                    raise
                continue  # It cannot be read at all, which its readers say.
            if said != header:
                raise DamagedLog(MISNAMED, where=str(file.path), got=said, fix=NAME_BACK)


def _packed(header: Mapping[str, str | int]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def _last_bytes(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, _HEADER_BYTES, max(0, os.fstat(fd).st_size - _HEADER_BYTES))
    finally:
        os.close(fd)


def _header_of(opened: pq.ParquetFile, file: SealedFile) -> JsonObject:
    """Return the header of a file: that of its metadata or, without one, of its rows."""
    if (kept := _kept_header(opened, file.path)) is not None:
        return kept
    _require_columns(opened.schema_arrow, set(opened.schema_arrow.names), file.path)
    rows = opened.read(columns=["run_id", "attempt", "rank", "seq"], use_threads=False)
    distinct = {name: rows[name].unique().to_pylist() for name in ("run_id", "attempt", "rank")}
    first, last = pc.min_max(rows["seq"]).as_py().values()
    if file.table != "events" and file.first <= first and last <= file.last:
        first, last = file.first, file.last  # Not every event has samples.
    said = {name: values[0] if len(values) == 1 else values for name, values in distinct.items()}
    return said | {"first_seq": first, "last_seq": last}


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


#: The allowed types of each table's columns.
_TYPES: Final = {
    table: {field.name: [field.type] for field in fields}
    for table, fields in {
        "events": (*EVENT_FIELDS, ATTRS_FIELD),
        "samples": SAMPLE_FIELDS,
        "metrics": tuple(METRICS_SCHEMA),
        "vectors": tuple(VECTORS_SCHEMA),
    }.items()
}
_TYPES["samples"]["sample_id"].append(IDS_AS_INTEGERS)

#: The columns that every file of the table has.
_REQUIRED: Final = {table: frozenset(types) - {"token_losses"} for table, types in _TYPES.items()}

#: The type of all other columns of events: each is a metric.
_METRIC: Final = [pa.float64()]


def read_parquet(path: Path, wanted: Iterable[str] | None = None, *, threads: bool = True) -> pa.Table:
    """Read a sealed file, or only the wanted columns. The path itself adds no columns.

    If ``seq`` is read, rows come in ``seq`` order, whatever order the file's last writer used.

    Args:
        path: The file.
        wanted: Names of columns, which the file may lack; all when None.
        threads: Whether to use all cores, which costs a third more CPU time.

    Raises:
        FileNotFoundError: The file was merged into another one meanwhile.
        DamagedLog: The file is truncated or corrupt, or its columns do not match the table in its name.
    """
    with _opened(path, whole=wanted is None) as file:
        present = set(file.schema_arrow.names)
        columns = None if wanted is None else [name for name in wanted if name in present]
        table = file.read(columns=columns, use_threads=threads)
    # Columns that are not read are not checked: in a wide file, that would take a sixth of the time of reading two
    # metrics.
    _require_columns(table.schema, present, path)
    readable, has_types = _readable(table.schema.remove_metadata())
    schema = readable.with_metadata(table.schema.metadata)
    # A cast calls a function for each column, even if its type stays.
    table = pa.Table.from_arrays(table.columns, schema=schema) if has_types else table.cast(schema)
    return _in_seq_order(table) if "seq" in table.column_names else table


def _in_seq_order(table: pa.Table) -> pa.Table:
    seq = table["seq"].to_numpy()
    if (seq[:-1] <= seq[1:]).all():
        return table
    keys = [name for name in ("seq", "position") if name in table.column_names]
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in keys]))


def read_metrics(path: Path, metrics: Collection[str]) -> pa.Table:
    """Read the rows of a ``metrics`` file that belong to these metrics.

    Raises:
        FileNotFoundError, DamagedLog: As ``read_parquet``.
    """
    wanted = pa.array(sorted(metrics), pa.string())
    with _opened(path, whole=False) as file:
        _require_columns(file.schema_arrow, set(file.schema_arrow.names), path)
        groups = [group for group in range(file.num_row_groups) if _may_hold(file.metadata.row_group(group), metrics)]
        parts = [file.read_row_group(group).select(METRICS_SCHEMA.names).cast(METRICS_SCHEMA) for group in groups]
        found = [part.filter(pc.is_in(part["metric"], wanted)) for part in parts]
        return pa.concat_tables([METRICS_SCHEMA.empty_table(), *found])


def read_long_values(path: Path) -> pa.Table:
    """Read a ``metrics`` file as ``seq``, ``metric`` (dictionary-encoded) and ``value``: a third of its size in memory.

    Raises:
        FileNotFoundError, DamagedLog: As ``read_parquet``.
    """
    with _opened(path, read_dictionary=["metric"]) as file:
        _require_columns(file.schema_arrow, set(file.schema_arrow.names), path)
        table = file.read(columns=["seq", "metric", "value"], use_threads=False)
    if any(column.null_count for column in table.columns):
        raise DamagedLog("a metric's event, name or value is missing", where=str(path))
    return table.cast(pa.schema([("seq", pa.int64()), ("metric", CODE), ("value", pa.float64())]))


def read_samples(path: Path, wanted: Iterable[str] | None = None) -> pa.Table:
    """Read a ``samples`` file, or only the wanted columns.

    Raises:
        FileNotFoundError, DamagedLog: As ``read_parquet``.
    """
    return with_ids_of(read_parquet(path, wanted), SAMPLES_SCHEMA)


def read_schema(path: Path) -> pa.Schema:
    """Read the columns of a sealed file.

    Raises:
        FileNotFoundError, DamagedLog: As ``read_parquet``.
    """
    with _opened(path, whole=False) as file:
        schema = file.schema_arrow
    _require_columns(schema, set(schema.names), path)
    return pa.schema([field.with_type(_kept(field.type)) for field in schema], schema.metadata)


def row_groups_of(path: Path, *, threads: bool = True) -> Iterator[pa.Table]:
    """Yield a sealed file by row groups, in stored order and in the types that ``write_tables`` takes.

    Args:
        path: The file, which is opened once.
        threads: Whether to use all cores.

    Raises:
        FileNotFoundError, DamagedLog: As ``read_parquet``.
    """
    table = path.name.partition("-")[0]
    coded = sorted(CODED & _REQUIRED.get(table, frozenset()))
    try:
        with _opened(path, read_dictionary=coded) as file:
            columns = file.schema_arrow
            _require_columns(columns, set(columns.names), path)
            schema = pa.schema([field.with_type(_kept(field.type)) for field in columns], columns.metadata)
            for group in range(file.num_row_groups):
                yield _as_written(file.read_row_group(group, use_threads=threads), schema)
    except KeyError:  # pyarrow's, of a missing column that was to be read as codes.
        read_schema(path)
        raise


def rows_from(path: Path, seq: int) -> Iterator[pa.Table]:
    """Yield the rows of an ``events`` file from this ``seq`` on, in ``seq`` order and in parts of one row group.

    Row groups below it are not read. A file whose row groups overlap, as another program may write it, is one part.

    Raises:
        FileNotFoundError, DamagedLog: As ``read_parquet``.
    """
    with _opened(path, whole=False) as file:
        spans = [_seq_span(file.metadata.row_group(group)) for group in range(file.num_row_groups)]
        is_ordered = all(one[1] < other[0] for one, other in pairwise(spans))
        for group, (_, last) in enumerate(spans if is_ordered else ()):
            if last >= seq:
                part = _in_seq_order(file.read_row_group(group, use_threads=False))
                _require_columns(part.schema, set(part.column_names), path)
                yield part.filter(pc.greater_equal(part["seq"], seq)) if part["seq"][0].as_py() < seq else part
    if not is_ordered:
        whole = read_parquet(path, threads=False)
        yield whole.filter(pc.greater_equal(whole["seq"], seq))


def _seq_span(row_group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Return the lowest and the highest ``seq`` by a row group's statistics; without any, a span of all."""
    columns = map(row_group.column, range(row_group.num_columns))
    statistics = next((column.statistics for column in columns if column.path_in_schema == "seq"), None)
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (0, _MOST_SEQ)


def _as_written(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the types of this schema; dictionary-encoded text stays so."""
    for place, field in enumerate(schema):
        column = table.column(place)
        if column.type != (CODE if is_coded(field) else field.type):
            column = column.cast(field.type)
            table = table.set_column(place, field, column.dictionary_encode() if is_coded(field) else column)
    return table


@contextmanager
def _opened(path: Path, *, whole: bool = True, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a file. Unless the whole is read, a large part in object storage is fetched by blocks."""
    try:
        # By its path, pyarrow looks for the file system first, and takes half as long again for a small file.
        # Reading ahead is for storage far away: for a local file it costs a tenth of the time.
        with _source(path, whole=whole) as source:
            settings = {"page_checksum_verification": True, "pre_buffer": not isinstance(source, pa.OSFile), **options}
            with pq.ParquetFile(source, **settings) as file:
                _require_named(file, path)
                yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: a damaged name.
        raise DamagedLog(f"not a complete Parquet file ({error})", where=str(path)) from None


def _require_named(opened: pq.ParquetFile, path: Path) -> None:
    """Raise DamagedLog if the header in a file's metadata is not that of its name. The run is not compared."""
    said, named = _kept_header(opened, path), sealed_at(path)
    if said is not None and named is not None and said != named.header(said["run_id"]):
        raise DamagedLog(MISNAMED, where=str(path), got=said, fix=NAME_BACK)


def _kept_header(opened: pq.ParquetFile, path: Path) -> JsonObject | None:
    """Return the header in a file's metadata; None without one."""
    said = (opened.metadata.metadata or {}).get(LOG_KEY)
    try:
        header: JsonObject | None = None if said is None else json.loads(said)
        return header if header is None else header | {"run_id": header["run_id"]}
    except (ValueError, TypeError, KeyError):
        raise DamagedLog("its header cannot be read", where=str(path), got=said) from None


def _source(path: Path, *, whole: bool) -> pa.NativeFile:
    try:
        return pa.OSFile(str(path))
    except FileNotFoundError:
        if not whole and (blocks := in_blocks(path)) is not None:
            return pa.PythonFile(blocks, mode="r")
        fetch([path])
        return pa.OSFile(str(path))


def _require_columns(columns: pa.Schema, present: Collection[str], path: Path) -> None:
    """Raise DamagedLog if columns do not match the table in a file's name.

    Numbers of another type may have the same bits, which is all that a digest covers, but another meaning.

    Args:
        columns: Some of its columns.
        present: The names of all its columns.
        path: The file.
    """
    table = path.name.partition("-")[0]
    missing = _REQUIRED.get(table, frozenset()).difference(present)
    if missing:
        raise DamagedLog("the file lacks a column of its table", where=str(path), got=min(missing))
    types = _TYPES.get(table, {})
    for name, type_ in zip(columns.names, columns.types, strict=True):
        known = types.get(name, _METRIC if table == "events" else None)
        if known is not None and type_ not in known and _kept(type_) not in known:
            raise DamagedLog(f"the column {name!r} of this file has the wrong type", where=str(path), got=type_)


@functools.lru_cache(maxsize=256)
def _readable(schema: pa.Schema) -> tuple[pa.Schema, bool]:
    """Return a schema with canonical types, all nullable, and whether the types are the same.

    Files differ in that, but their tables need one schema. The files of a store have few schemas.
    """
    fields = [field.with_type(_kept(field.type)).with_nullable(True) for field in schema]
    return pa.schema(fields), [field.type for field in fields] == schema.types


def _kept(type_: pa.DataType) -> pa.DataType:
    """Return the canonical type of the same values, whatever container the file's last writer requested."""
    if pa.types.is_dictionary(type_):
        return _kept(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(pa.field("element", _kept(type_.value_type)))
    return type_


def _may_hold(row_group: pq.RowGroupMetaData, metrics: Collection[str]) -> bool:
    """Whether a row group may hold rows of one of these metrics, according to its statistics."""
    column = next(i for i in range(row_group.num_columns) if row_group.column(i).path_in_schema == "metric")
    statistics = row_group.column(column).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    # Parquet orders text by UTF-8 bytes, which equals Python's order by code points.
    return any(statistics.min <= metric <= statistics.max for metric in metrics)
