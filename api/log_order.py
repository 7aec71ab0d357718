"""Places in an event log: which files hold what a request asks for, and which of their rows.

Tables are Arrow tables, handled through their own methods: pyarrow itself is the store's.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from ..store.snapshot import Snapshot


def of_rank(snapshot: Snapshot, rank: int, attempt: int | None = None) -> Snapshot:
    """The snapshot as if this rank alone, and only this attempt where one is given, had written the run's events."""
    return _only(snapshot, lambda an_attempt, a_rank, _: a_rank == rank and attempt in (None, an_attempt))


def after(snapshot: Snapshot, place: tuple[int, int]) -> Snapshot:
    """The snapshot without what ends at a place (attempt, seq) or before it: late pages need not read early files."""
    return _only(snapshot, lambda attempt, _, seq: (attempt, seq) > place)


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


def _only(snapshot: Snapshot, keeps: Callable[[int, int, int], bool]) -> Snapshot:
    """The snapshot without the events whose (attempt, rank, seq) is not to be kept; a file goes by its last event."""
    sealed = tuple(file for file in snapshot.listing.sealed if keeps(file.attempt, file.rank, file.last))
    listing = dataclasses.replace(snapshot.listing, sealed=sealed)
    return dataclasses.replace(snapshot, listing=listing, tail=snapshot.tail.only(keeps))
