"""Converts Arrow tables to and from bytes and JSON values: CSV, Arrow stream, Parquet, plain rows."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ..event_json import encoded_float
from .arrow_values import is_within_calendar, values_of

#: Type names that ``table_of`` accepts.
ColumnType = Literal["int64", "float64", "string", "bool", "timestamp"]

_TYPES: Final[dict[ColumnType, pa.DataType]] = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def table_of(columns: Mapping[str, ColumnType], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build a table of these columns; values that are lists or objects become JSON text, and missing ones null."""
    held = list(rows)
    arrays = [
        pa.array([_as_cell(row.get(name)) for row in held], _TYPES[type_], from_pandas=False)
        for name, type_ in columns.items()
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))


def to_arrow_stream(table: pa.Table) -> bytes:
    """Encode the table in Arrow's IPC streaming format."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_arrow_stream(content: bytes) -> pa.Table:
    """Decode the table from such a stream."""
    return pa.ipc.open_stream(content).read_all()


def to_parquet(table: pa.Table) -> bytes:
    """Encode the table as one Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def to_csv(table: pa.Table) -> bytes:
    """Encode the table as CSV (RFC 4180): a header, quoted text, null as empty, lists and structs as JSON text.

    Text that a spreadsheet would run as a formula stays as it is: a program that reads it back must find what was
    recorded.
    """
    sink, flat = io.BytesIO(), _flat(table)
    # pyarrow before 24 writes what precedes an empty batch twice (apache/arrow#36889).
    batches = [batch for batch in flat.to_batches() if batch.num_rows]
    pacsv.write_csv(pa.Table.from_batches(batches, flat.schema), sink)
    return sink.getvalue()


def to_plain_rows(table: pa.Table) -> list[list[Any]]:
    """Return the rows as values that strict JSON can hold.

    Non-finite numbers become their names, times ISO 8601, bytes base64, and decimals (so also integers beyond 64 bits)
    text.
    """
    columns = [[plain(value) for value in values_of(column)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(table.num_rows)]


def plain(value: Any) -> Any:
    """Convert a value of Arrow's to one that strict JSON can hold."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return encoded_float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case Mapping():
            return {str(key): plain(entry) for key, entry in value.items()}
        case Sequence():
            return [plain(entry) for entry in value]
        case _:
            return str(value)


def _as_cell(value: Any) -> Any:
    return json.dumps(plain(value), ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else value


def _flat(table: pa.Table) -> pa.Table:
    """Replace columns that CSV cannot represent with JSON text, base64 or the text of dates beyond the calendar."""
    for index, field in enumerate(table.schema):
        is_binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
        if pa.types.is_nested(field.type) or is_binary or not is_within_calendar(table.column(index)):
            text = [None if value is None else _as_text(value) for value in values_of(table.column(index))]
            table = table.set_column(index, field.name, pa.array(text, pa.string()))
    return table


def _as_text(value: Any) -> str:
    shown = plain(value)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
