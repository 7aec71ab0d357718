"""Reads sealed Parquet files as Arrow tables, in the types that ``schemas`` defines.

The file's last writer may have requested other containers for the same values (large strings, text dictionaries); these
are converted. Numbers of another type have another meaning, and count as damage.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import DamagedLog
from ..objects.access import fetch, in_blocks
from .schemas import (
    ATTRS_FIELD,
    CODE,
    CODED,
    EVENT_FIELDS,
    IDS_AS_INTEGERS,
    METRICS_SCHEMA,
    SAMPLE_FIELDS,
    SAMPLES_SCHEMA,
    VECTORS_SCHEMA,
    is_coded,
    with_ids_of,
)

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
                yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: a damaged name.
        raise DamagedLog(f"not a complete Parquet file ({error})", where=str(path)) from None


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
