"""Restricts a snapshot to one rank or attempt, or to the events after a position in the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .snapshot import Snapshot


def of_rank(snapshot: Snapshot, rank: int, attempt: int | None = None) -> Snapshot:
    """Return the snapshot with only the events of this rank and, where one is given, this attempt."""
    return _only(snapshot, lambda an_attempt, a_rank, _: a_rank == rank and attempt in (None, an_attempt))


def after(snapshot: Snapshot, place: tuple[int, int]) -> Snapshot:
    """Return the snapshot without the files and events that end at or before (attempt, seq).

    A reader that continues from a cursor then skips early files.
    """
    return _only(snapshot, lambda attempt, _, seq: (attempt, seq) > place)


def _only(snapshot: Snapshot, keeps: Callable[[int, int, int], bool]) -> Snapshot:
    """Return the snapshot with only the events whose (attempt, rank, seq) passes; a file passes by its last event."""
    sealed = tuple(file for file in snapshot.listing.sealed if keeps(file.attempt, file.rank, file.last))
    listing = snapshot.listing._replace(sealed=sealed)
    return dataclasses.replace(snapshot, listing=listing, tail=snapshot.tail.only(keeps))
