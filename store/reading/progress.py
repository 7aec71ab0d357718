"""Reads from the log how far a training has come, over all ranks and resumes."""

from __future__ import annotations

from collections.abc import Iterable

from ..lineage import DECIDING_RANK, Lineage
from .snapshot import Snapshot
from .tally import ProgressCounts, RankTally
from .timeline import ranks_of


def progress_of(snapshot: Snapshot) -> ProgressCounts:
    """Return how far the run has come along its effective timeline: what a resume rolled back does not count."""
    tallies = {rank: tally_of(snapshot, rank) for rank in ranks_of(snapshot)}
    own = tallies.get(DECIDING_RANK, RankTally())
    return ProgressCounts(
        own.epochs,
        own.updates,
        own.skipped,
        own.micro_steps,
        _sum(tally.samples for tally in tallies.values()),
        _sum(tally.tokens for tally in tallies.values()),
        snapshot.info.last.newest_plan.max_steps(),
    )


def tally_of(snapshot: Snapshot, rank: int, lineage: Lineage | None = None) -> RankTally:
    """Return the counts of one rank along a lineage: that of the newest attempt if not given."""
    tally = RankTally()
    has_samples = bool(snapshot.listing.table("samples") or snapshot.tail_samples.segments)
    for event in (lineage or snapshot.lineage).events(snapshot.events(rank, samples=has_samples)):
        tally.add(event)
    return tally


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
