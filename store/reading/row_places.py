"""Selects rows of Arrow tables: by value, by row number, or after a cursor.

Calls only the tables' own methods and does not import pyarrow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any


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
