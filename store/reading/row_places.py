"""Places in an event log: which rows of a table a request asks for.

Tables are Arrow tables, handled through their own methods: pyarrow itself is the store's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any


def row_after(table: Any, columns: Sequence[str], place: Sequence[int]) -> int:
    """The first row of a table in the order of these columns that comes after a place."""

    def place_of(row: int) -> tuple[int, ...]:
        return tuple(table[name][row].as_py() for name in columns)

    return bisect_right(range(table.num_rows), tuple(place), key=place_of)


def rows_at(table: Any, rows: Sequence[int]) -> Any:
    """The rows with these numbers."""
    # Of an empty list, Arrow cannot tell that it means integers.
    return table.take(list(rows)) if rows else table.slice(0, 0)


def rows_where(table: Any, column: str, value: object) -> Any:
    """The rows that have this value in this column."""
    present = table[column].unique().to_pylist()
    if present == [value]:
        return table
    if value not in present:
        return table.slice(0, 0)
    return rows_at(table, [row for row, found in enumerate(table[column].to_pylist()) if found == value])
