"""Converts Arrow tables to and from bytes and JSON values (CSV, Arrow stream, Parquet, plain rows), and selects rows.

A date or time that Python's own types cannot hold becomes its text. Arrow holds dates of any year, infinite ones,
nanoseconds and ``24:00:00``; Python's types end at the year 9999 and at microseconds. Arrow itself raises, rounds, or
returns what pandas has, depending on what is installed.
"""

from __future__ import annotations

import base64
import io
import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from .event_json import encoded, encoded_float

#: One row of a table, by column.
Row: TypeAlias = dict[str, Any]

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
    """Build a table of these columns; lists and objects become JSON text, missing values null.

    An integer in a column of floats becomes the nearest float, which is infinite beyond the greatest one.
    """
    held = list(rows)
    arrays = [
        pa.array([_as_cell(row.get(name), type_) for row in held], _TYPES[type_], from_pandas=False)
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


def to_json_rows(table: pa.Table) -> bytes:
    """Encode the table as a JSON array with an object for each row; values are those of ``to_plain_rows``.

    >>> to_json_rows(pa.table({"step": [1, 2], "loss": [0.5, float("nan")]})).decode()
    '[{"step": 1, "loss": 0.5}, {"step": 2, "loss": "NaN"}]'
    """
    rows = [dict(zip(table.column_names, row, strict=True)) for row in to_plain_rows(table)]
    return json.dumps(encoded(rows), ensure_ascii=False).encode()


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


def _as_cell(value: Any, type_: ColumnType) -> Any:
    if type_ == "float64" and isinstance(value, int):
        try:  # Arrow refuses to round integers.
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value > 0 or -1)
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


#: Days of the Gregorian calendar's cycle of 400 years, and the date from which Arrow counts.
_CYCLE_DAYS: Final = 146_097
_EPOCH: Final = date(1970, 1, 1)

_DAY_S: Final = 86_400
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

#: Numbers of days from the first to the last date that Python has.
_FIRST_DAY: Final = (date.min - _EPOCH).days
_LAST_DAY: Final = (date.max - _EPOCH).days

#: DuckDB's counts for an infinite date and an infinite timestamp, without their sign.
_INFINITE_DATE: Final = 2**31 - 1
_INFINITE_TIMESTAMP: Final = 2**63 - 1


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, each as Python's own type or, if that cannot hold it, as text."""
    is_nested = pa.types.is_nested(column.type)
    if _has_moments(column.type) and (is_nested or _is_fine(column.type) or not is_within_calendar(column)):
        return [_value(scalar) for scalar in column]
    return list(column.to_pylist())


def is_within_calendar(column: pa.ChunkedArray) -> bool:
    """Whether every date and time of a column is one of the years 1 to 9999; True for all other columns."""
    if pa.types.is_nested(column.type) or not _has_moments(column.type):
        return True
    ends = pc.min_max(column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())).as_py()
    return all(end is None or _is_python_s(column.type, end) for end in ends.values())


def _is_fine(type_: pa.DataType) -> bool:
    """Whether it counts nanoseconds, which Python's own types do not."""
    return getattr(type_, "unit", "") == "ns"


def _has_moments(type_: pa.DataType) -> bool:
    """Whether it is a date, a time or a timestamp, or holds any."""
    if pa.types.is_nested(type_):
        return any(_has_moments(type_.field(index).type) for index in range(type_.num_fields))
    return bool(pa.types.is_date(type_) or pa.types.is_time(type_) or pa.types.is_timestamp(type_))


def _value(scalar: pa.Scalar) -> Any:
    """Return the value of one scalar, which may be nested."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(entry) for name, entry in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        return [tuple(map(_value, entry.values())) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_value(entry) for entry in scalar.values]
    if not _has_moments(scalar.type):
        return scalar.as_py()
    return _moment(scalar.type, scalar.value, scalar)


def _moment(type_: pa.DataType, count: int, scalar: pa.Scalar) -> Any:
    """Convert the count that Arrow stores for a date, a time or a timestamp."""
    if not _is_python_s(type_, count) or (_is_fine(type_) and count % 1000):
        return _text(type_, count)
    if _is_fine(type_):
        coarse = pa.time64("us") if pa.types.is_time(type_) else pa.timestamp("us", type_.tz)
        scalar = scalar.cast(coarse)
    return scalar.as_py()


def _is_python_s(type_: pa.DataType, count: int) -> bool:
    """Whether Python's own type reaches this far. The first and last day stay out: a time zone may shift them."""
    if pa.types.is_date32(type_):
        return _FIRST_DAY <= count <= _LAST_DAY
    if abs(count) == _INFINITE_TIMESTAMP:
        return False
    day = _DAY_S * _PER_SECOND[type_.unit]
    if pa.types.is_time(type_):
        return 0 <= count < day
    return _FIRST_DAY < count // day < _LAST_DAY


def _text(type_: pa.DataType, count: int) -> str:
    """Return a date, a time or a timestamp (in UTC) in ISO 8601; a year beyond four digits has its sign."""
    if abs(count) == (_INFINITE_DATE if pa.types.is_date32(type_) else _INFINITE_TIMESTAMP):
        return "infinity" if count > 0 else "-infinity"
    if pa.types.is_date32(type_):
        return _date_text(count)
    per_second = _PER_SECOND[type_.unit]
    seconds, fraction = divmod(count, per_second)
    days, seconds = (0, seconds) if pa.types.is_time(type_) else divmod(seconds, _DAY_S)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    clock += f".{fraction:0{len(str(per_second)) - 1}}" if fraction else ""
    if pa.types.is_time(type_):
        return clock
    return f"{_date_text(days)}T{clock}{'+00:00' if type_.tz else ''}"


def _date_text(days: int) -> str:
    cycles, rest = divmod(days, _CYCLE_DAYS)
    within = _EPOCH + timedelta(rest)
    year = within.year + 400 * cycles
    return f"{year:04}-{within:%m-%d}" if 0 <= year <= 9999 else f"{year:+05}-{within:%m-%d}"


def row_after(table: Any, columns: Sequence[str], place: Sequence[int]) -> int:
    """Return the first row after a cursor, in a table ordered by these columns."""

    def place_of(row: int) -> tuple[int, ...]:
        return tuple(table[name][row].as_py() for name in columns)

    return bisect_right(range(table.num_rows), tuple(place), key=place_of)


def rows_at(table: Any, rows: Sequence[int]) -> Any:
    """Return the rows with these numbers."""
    # Arrow cannot infer the integer type of an empty list.
    return table.take(list(rows)) if rows else table.slice(0, 0)


def rows_where(table: Any, column: str, value: object) -> Any:
    """Return the rows with this value in this column."""
    present = table[column].unique().to_pylist()
    if present == [value]:
        return table
    if value not in present:
        return table.slice(0, 0)
    return rows_at(table, [row for row, found in enumerate(table[column].to_pylist()) if found == value])
