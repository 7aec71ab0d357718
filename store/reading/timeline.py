"""A run's events and samples as its newest attempt sees them, or all of them: snapshots in, Arrow and events out.

The effective timeline is the lineage of the newest attempt. A run of one attempt is read as if there were no lineages:
no further column, no filter.
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

#: Which events are meant: those of the newest attempt's lineage, or those that a resume rolled back as well.
Attempts = Literal["effective", "all"]

#: Where an event stands: what tells whether it was rolled back.
PLACE: Final = ("attempt", "rank", "seq", "step")

_EVERYTHING: Final = Lineage((), {})


def check_attempts(attempts: Attempts) -> None:
    """Refuse what is neither of the two words.

    Raises:
        TelemetryError: It is neither.
    """
    if attempts not in get_args(Attempts):
        raise TelemetryError("which attempts: 'effective' or 'all'", got=attempts)


def effective_lineage(snapshot: Snapshot, attempts: Attempts = "effective") -> Lineage:
    """The lineage of a run's newest attempt; one that holds everything, when all attempts are meant.

    Raises:
        TelemetryError: ``attempts`` is neither of the two words.
    """
    check_attempts(attempts)
    return snapshot.lineage if attempts == "effective" else _EVERYTHING


def events_along(snapshot: Snapshot, rank: int | None, attempts: Attempts, *, samples: bool = False) -> Iterator[Event]:
    """The events of one rank, or of all; with their sample losses, if asked for.

    The effective ones of a rank are in (attempt, seq) order, those of several ranks are merged by (step, rank), each
    rank's own order kept. All of them are in (attempt, rank, seq) order.
    """
    lineage = effective_lineage(snapshot, attempts)
    if rank is None and attempts == "effective" and len(ranks := _ranks(snapshot)) > 1:
        return merged([lineage.events(snapshot.events(each, samples=samples)) for each in ranks])
    return lineage.events(snapshot.events(rank, samples=samples))


def deciding_stream(snapshot: Snapshot, *, samples: bool = False) -> Sequence[Event]:
    """The deciding rank's effective events; each made only when it is asked for, where one file holds them all.

    Args:
        snapshot: The run.
        samples: Whether events come with their sample losses.
    """
    if not samples and not effective_lineage(snapshot).cuts:
        rows = snapshot.event_rows(DECIDING_RANK)
        if rows is not None:
            return rows
    return list(events_along(snapshot, DECIDING_RANK, "effective", samples=samples))


def events_table_along(snapshot: Snapshot, columns: Sequence[str], attempts: Attempts = "effective") -> pa.Table:
    """Those columns of the events, of all ranks, in the same order."""
    lineage = effective_lineage(snapshot, attempts)
    merges = attempts == "effective" and len(_ranks(snapshot)) > 1
    wanted = {*columns, *PLACE} if lineage.cuts or merges else columns
    table = effective_rows(snapshot.events_table(tuple(wanted)), lineage.cuts)
    return _merged_rows(table) if merges else table


def samples_table_along(snapshot: Snapshot, attempts: Attempts = "effective") -> pa.Table:
    """The sample losses of all ranks, in the same order, those of an event by their position."""
    lineage = effective_lineage(snapshot, attempts)
    table = effective_rows(snapshot.samples_table(), lineage.cuts)
    return _merged_rows(table) if attempts == "effective" and len(_ranks(snapshot)) > 1 else table


def rows_with_late_values(table: pa.Table) -> pa.ChunkedArray:
    """For each event, whether its attributes tell of values that come late; a text of the loop's own may, too."""
    tells = pc.match_substring_regex(table["attrs"], f'"({AWAITED}|{LATE_FOR})"')
    return pc.fill_null(tells, fill_value=False)


def effective_rows(table: pa.Table, cuts: Mapping[int, Cut]) -> pa.Table:
    """The rows that no resume rolled back; the table itself where there are no cuts."""
    return table.filter(pc.invert(rolled_back(table, cuts))) if cuts else table


def rolled_back(table: pa.Table, cuts: Mapping[int, Cut]) -> pa.ChunkedArray:
    """For each row, whether a resume rolled it back.

    Args:
        table: Rows with the columns of ``PLACE``.
        cuts: Of a lineage.
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
    """The attempts that an attempt goes on from, each with what of the deciding rank's events still counts.

    Args:
        snapshot: The run.
        attempt: The attempt; ``run.json`` need not name it yet.
        samples: Whether events come with their sample losses.
    """
    return ancestors_of(snapshot.info.attempts, attempt, snapshot.events(DECIDING_RANK, samples=samples))


def _ranks(snapshot: Snapshot) -> list[int]:
    listing = snapshot.listing
    return sorted({file.rank for file in listing.sealed} | {journal.rank for journal in listing.journals})


def _merged_rows(table: pa.Table) -> pa.Table:
    """The rows of several ranks as one timeline, by (step, rank), each rank's own order kept.

    A late value names an earlier step than the event before it. So rows are ordered by the highest step that their rank
    had come to, which is what merging the ranks event by event comes to.
    """
    parts = [table.filter(pc.equal(table["rank"], rank)) for rank in sorted(table["rank"].unique().to_pylist())]
    if not parts:
        return table
    reached = pa.concat_arrays([pc.cumulative_max(part["step"].combine_chunks()) for part in parts])
    # The sort is stable, and the parts are in order of rank.
    return pa.concat_tables(parts).take(pc.sort_indices(reached))
