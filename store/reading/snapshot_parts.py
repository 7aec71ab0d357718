"""Parts of a snapshot: of one rank or attempt, or what comes after a place in the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .snapshot import Snapshot


def of_rank(snapshot: Snapshot, rank: int, attempt: int | None = None) -> Snapshot:
    """The snapshot as if this rank alone, and only this attempt where one is given, had written the run's events."""
    return _only(snapshot, lambda an_attempt, a_rank, _: a_rank == rank and attempt in (None, an_attempt))


def after(snapshot: Snapshot, place: tuple[int, int]) -> Snapshot:
    """The snapshot without what ends at a place (attempt, seq) or before it: who reads on need not read early files."""
    return _only(snapshot, lambda attempt, _, seq: (attempt, seq) > place)


def _only(snapshot: Snapshot, keeps: Callable[[int, int, int], bool]) -> Snapshot:
    """The snapshot without the events whose (attempt, rank, seq) is not to be kept; a file goes by its last event."""
    sealed = tuple(file for file in snapshot.listing.sealed if keeps(file.attempt, file.rank, file.last))
    listing = dataclasses.replace(snapshot.listing, sealed=sealed)
    return dataclasses.replace(snapshot, listing=listing, tail=snapshot.tail.only(keeps))
