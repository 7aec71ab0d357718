"""Reads a run's effective timeline, or all of its events and samples: takes snapshots, returns Arrow tables and events.

The effective timeline is the lineage of the newest attempt. A run of one attempt is read without lineage columns or
filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import TelemetryError
from ..events import AWAITED, LATE_FOR, Event
from ..lineage import DECIDING_RANK, Cut, Lineage, ancestors_of, merged
from ..run_info import Attempt
from .snapshot import Snapshot

#: The events to select: the lineage of the newest attempt, or all, rolled-back ones included.
Attempts = Literal["effective", "all"]

#: The columns that determine whether an event was rolled back.
PLACE: Final = ("attempt", "rank", "seq", "step")

_EVERYTHING: Final = Lineage((), {})


def check_attempts(attempts: Attempts) -> None:
    """Raise TelemetryError unless ``attempts`` is ``effective`` or ``all``."""
    if attempts not in get_args(Attempts):
        raise TelemetryError("attempts must be 'effective' or 'all'", got=attempts)


def effective_lineage(snapshot: Snapshot, attempts: Attempts = "effective") -> Lineage:
    """Return the lineage of a run's newest attempt, or with ``all`` a lineage that includes every event.

    Raises:
        TelemetryError: ``attempts`` is neither ``effective`` nor ``all``.
    """
    check_attempts(attempts)
    return snapshot.lineage if attempts == "effective" else _EVERYTHING


def events_along(snapshot: Snapshot, rank: int | None, attempts: Attempts, *, samples: bool = False) -> Iterator[Event]:
    """Return the events of one rank, or of all ranks (None), optionally with their sample losses and vectors.

    Effective events of one rank come in (attempt, seq) order. Those of several ranks are merged by (step, rank), with
    each rank's own order kept. With ``all``, the order is (attempt, rank, seq).
    """
    lineage = effective_lineage(snapshot, attempts)
    if rank is None and attempts == "effective" and len(ranks := ranks_of(snapshot)) > 1:
        return merged([lineage.events(snapshot.events(each, samples=samples)) for each in ranks])
    return lineage.events(snapshot.events(rank, samples=samples))


def deciding_stream(snapshot: Snapshot, *, samples: bool = False) -> Sequence[Event]:
    """Return the deciding rank's effective events; when one file holds them all, each is built on access.

    Args:
        snapshot: The run.
        samples: Whether events carry their sample losses and vectors.
    """
    if not samples and not effective_lineage(snapshot).cuts:
        rows = snapshot.event_rows(DECIDING_RANK)
        if rows is not None:
            return rows
    return list(events_along(snapshot, DECIDING_RANK, "effective", samples=samples))


def events_table_along(snapshot: Snapshot, columns: Sequence[str], attempts: Attempts = "effective") -> pa.Table:
    """Return these columns of the events of all ranks, in the order of ``events_along``."""
    lineage = effective_lineage(snapshot, attempts)
    merges = attempts == "effective" and len(ranks_of(snapshot)) > 1
    wanted = {*columns, *PLACE} if lineage.cuts or merges else columns
    table = effective_rows(snapshot.events_table(tuple(wanted)), lineage.cuts)
    return _merged_rows(table) if merges else table


def samples_table_along(snapshot: Snapshot, attempts: Attempts = "effective") -> pa.Table:
    """Return the sample losses of all ranks, in the order of ``events_along``; those of one event by position."""
    lineage = effective_lineage(snapshot, attempts)
    table = effective_rows(snapshot.samples_table(), lineage.cuts)
    return _merged_rows(table) if attempts == "effective" and len(ranks_of(snapshot)) > 1 else table


def vectors_table_along(snapshot: Snapshot, attempts: Attempts = "effective") -> pa.Table:
    """Return the vectors of all ranks, in the order of ``events_along``; those of one event as recorded."""
    lineage = effective_lineage(snapshot, attempts)
    table = effective_rows(snapshot.vectors_table(), lineage.cuts)
    return _merged_rows(table) if attempts == "effective" and len(ranks_of(snapshot)) > 1 else table


def rows_with_late_values(table: pa.Table) -> pa.ChunkedArray:
    """Whether each event's attributes mention late values; a text in the loop's own attributes may match, too."""
    tells = pc.match_substring_regex(table["attrs"], f'"({AWAITED}|{LATE_FOR})"')
    return pc.fill_null(tells, fill_value=False)


def effective_rows(table: pa.Table, cuts: Mapping[int, Cut]) -> pa.Table:
    """Return the rows that no resume rolled back; the table itself without cuts."""
    return table.filter(pc.invert(rolled_back(table, cuts))) if cuts else table


def rolled_back(table: pa.Table, cuts: Mapping[int, Cut]) -> pa.ChunkedArray:
    """Return for each row whether a resume rolled it back.

    Args:
        table: Rows with the columns of ``PLACE``.
        cuts: The cuts of a lineage.
    """
    which = pc.index_in(table["attempt"], pa.array(list(cuts), pa.int32()))

    def within(column: str, limits: Iterable[int]) -> pa.ChunkedArray:
        return pc.less_equal(table[column], pa.array(list(limits), pa.int64()).take(which))

    held = pc.if_else(
        pc.equal(table["rank"], DECIDING_RANK),
        pc.and_(
            within("seq", (cut.last_seq for cut in cuts.values())),
            within("step", (cut.last_step for cut in cuts.values())),
        ),
        within("step", (cut.last_step_elsewhere for cut in cuts.values())),
    )
    return pc.fill_null(pc.invert(held), False)


def ancestry(snapshot: Snapshot, attempt: Attempt, *, samples: bool = False) -> list[tuple[Attempt, list[Event]]]:
    """Return an attempt's ancestors, each with the deciding rank's events that are still effective.

    Args:
        snapshot: The run.
        attempt: The attempt; ``run.json`` need not list it yet.
        samples: Whether events carry their sample losses and vectors.
    """
    return ancestors_of(snapshot.info.attempts, attempt, snapshot.events(DECIDING_RANK, samples=samples))


def ranks_of(snapshot: Snapshot) -> list[int]:
    """Return the ranks that a run has logs of, in order."""
    listing = snapshot.listing
    return sorted({file.rank for file in listing.sealed} | {journal.rank for journal in listing.journals})


def _merged_rows(table: pa.Table) -> pa.Table:
    """Merge the rows of several ranks into one timeline, by (step, rank). Each rank keeps its own order.

    A late value has an earlier step than the event before it. So rows are sorted by the highest step that their rank
    had reached, which equals merging the ranks event by event.
    """
    parts = [table.filter(pc.equal(table["rank"], rank)) for rank in sorted(table["rank"].unique().to_pylist())]
    if not parts:
        return table
    reached = pa.concat_arrays([pc.cumulative_max(part["step"].combine_chunks()) for part in parts])
    # The sort is stable, and the parts are in order of rank.
    return pa.concat_tables(parts).take(pc.sort_indices(reached))
