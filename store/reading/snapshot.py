"""Reads one run's folder at one moment: sealed files and the unsealed journal tail, combined.

A snapshot holds all events. Its effective timeline is the lineage of the newest attempt: what no resume rolled back. A
run of one attempt is read without lineage columns or filters.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from ..annotations import Notes, Shown, read_notes
from ..columns import Columns, read_columns
from ..errors import TelemetryError
from ..events import ENVELOPE, Event
from ..journal.segment_reading import is_being_written, read_segment
from ..lineage import DECIDING_RANK, Cut, Lineage, ancestors_of, lineage_of, merged
from ..objects.mirror_access import fetch, freshen, is_live
from ..parquet.digests import kept_log_digest, read_digests
from ..parquet.event_rows import SAMPLE_COLUMNS, VECTOR_COLUMNS, EventRows, LongRows, with_samples, with_vectors
from ..parquet.event_summary import EventSummary, kept_summary, last_sign_ns
from ..parquet.from_journal import Tail
from ..parquet.tables import (
    METRICS_SCHEMA,
    SAMPLES_SCHEMA,
    VECTORS_SCHEMA,
    events_schema,
    joint_samples_schema,
    read_long_values,
    read_metrics,
    read_parquet,
    read_samples,
    require_own,
    with_ids_of,
)
from ..run_folder import Listing, SealedFile, Stream, list_files, retrying
from ..run_info import LEAST_SILENCE_NS, Attempt, Pace, RunInfo, read_run_info
from .tally import ProgressCounts, RankTally

_NO_TAIL: Final = Tail(())

#: Rows of one (attempt, rank).
_Part = tuple[Stream, pa.Table]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run's folder when it was read.

    Attributes:
        folder: The run's folder.
        info: Its ``run.json``: what was recorded.
        notes: What people noted on it.
        listing: Its files.
        tail: Journal records not yet in an ``events`` file, in (attempt, rank, seq) order.
        tail_samples, tail_metrics, tail_vectors: The same for the tables ``samples``, ``metrics`` and ``vectors``.
        columns: The column of every metric, including those of the tail.
        is_live: Whether a process is writing to it.
        read_ns: Wall clock when it was read.
    """

    folder: Path
    info: RunInfo
    notes: Notes
    listing: Listing
    tail: Tail
    tail_samples: Tail
    tail_metrics: Tail
    tail_vectors: Tail
    columns: Columns
    is_live: bool
    read_ns: int

    @property
    def shown(self) -> Shown:
        """The name, tags and archive that readers show."""
        return self.notes.shown(self.info)

    @property
    def status(self) -> str:
        """Status of the newest attempt: one of ``SHOWN_STATUSES``.

        A ``running`` attempt is shown as ``crashed`` when its writer is gone, and as ``stalled`` when it is live and
        silent for longer than its pace allows.
        """
        return shown_status(self.info, is_live=self.is_live, is_stalled=lambda: self.is_stalled)

    @property
    def is_stalled(self) -> bool:
        """Whether the run is live and was silent for longer than ``Pace.allowed_silence_ns`` when it was read."""
        tail = self.tail.segments
        # Most live runs have just written: the rest of their events need not be read.
        if not self.is_live or (tail and self.read_ns - last_sign_ns(tail[-1]) <= LEAST_SILENCE_NS):
            return False
        return self.pace.is_stalled(self.read_ns)

    @property
    def pace(self) -> Pace:
        """How fast its events follow one another."""
        return self.summary.pace

    @property
    def summary(self) -> EventSummary:
        """What its events amount to. Reads those that the kept summary lacks."""
        kept = kept_summary(self.folder, self.info)
        ends = {file.stream: file.last + 1 for file in self.listing.table("events")}
        ends |= {segment.stream: int(segment.seq[-1]) + 1 for segment in self.tail.segments}
        # A sealer may have kept a newer one meanwhile.
        is_within = kept is not None and all(seq <= ends.get(stream, 0) for stream, seq in kept.next_seq.items())
        found = kept if kept is not None and is_within else EventSummary(self.info)
        found.add_files(self.listing, self.columns)
        for segment in self.tail.segments:
            found.add_segment(segment)
        return found

    @property
    def lineage(self) -> Lineage:
        """The lineage of the newest attempt: the events that no resume rolled back."""
        return lineage_of(self.info.attempts)

    @property
    def log_digest(self) -> str:
        """Digest of everything recorded, as stored when the run ended; empty when there is none (yet).

        Read on access: a digest names the last ``seq`` it covers, so one from a later moment does not match.
        """
        return kept_log_digest(read_digests(self.folder), self.listing)

    def events_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the events as rows, in (attempt, rank, seq) order.

        Args:
            columns: The columns to read; all when None. Unknown ones are left out.
        """
        schema = events_schema(self.columns)
        wanted = [name for name in schema.names if columns is None or name in columns]
        metric_of = self.columns.by_column()
        asked = Columns({metric_of[name]: name for name in wanted if name in metric_of})
        parts = [(file.stream, self._sealed_events(file, wanted, asked)) for file in self.listing.table("events")]
        run_id = self.info.run_id
        tails = [(stream, tail.events_table(run_id, asked)) for stream, tail in self.tail.by_stream().items()]
        empty = events_schema(asked).empty_table()
        return pa.concat_tables([empty, *_in_order(parts, tails)], promote_options="default").select(wanted)

    def samples_table(self) -> pa.Table:
        """Return the sample losses, one row per sample, in (attempt, rank, seq, position) order."""
        parts = [(f.stream, read_samples(f.path, SAMPLES_SCHEMA.names)) for f in self.listing.table("samples")]
        run_id = self.info.run_id
        tails = [(stream, tail.samples_table(run_id)) for stream, tail in self.tail_samples.by_stream().items()]
        # Files without token losses lack that column.
        empty = SAMPLES_SCHEMA.empty_table()
        return pa.concat_tables([empty, *_in_order(parts, tails)], promote_options="default")

    def vectors_table(self) -> pa.Table:
        """Return the vectors, one row each, in (attempt, rank, seq) order."""
        parts = [(f.stream, read_parquet(f.path, VECTORS_SCHEMA.names)) for f in self.listing.table("vectors")]
        run_id = self.info.run_id
        tails = [(stream, tail.vectors_table(run_id)) for stream, tail in self.tail_vectors.by_stream().items()]
        return pa.concat_tables([VECTORS_SCHEMA.empty_table(), *_in_order(parts, tails)])

    def events(self, rank: int | None = None, *, samples: bool = False) -> Iterator[Event]:
        """Yield the events in (attempt, rank, seq) order, of all ranks or one.

        Args:
            samples: Whether events carry their sample losses and vectors.
        """
        files = itertools.groupby(self.listing.table("events"), key=lambda file: file.stream)
        sealed = {stream: list(group) for stream, group in files}
        unsealed = self.tail.by_stream()
        for stream in sorted(sealed.keys() | unsealed.keys()):
            if rank in (None, stream[1]):
                for file in sealed.get(stream, ()):
                    events: Iterable[Event] = self._event_rows(file)
                    if samples:
                        events = with_samples(events, self._sample_rows(file))
                        events = with_vectors(events, self._vector_rows(file))
                    yield from events
                for record in unsealed.get(stream, ()):
                    yield record.whole if samples else record.event

    def event_rows(self, rank: int) -> EventRows | None:
        """The events of a rank as the rows of its only file; None if the rank has several files or a tail."""
        files = [file for file in self.listing.table("events") if file.rank == rank]
        if len(files) != 1 or any(stream[1] == rank for stream in self.tail.by_stream()):
            return None
        return self._event_rows(files[0], [*ENVELOPE, *self.columns.by_metric.values(), "attrs"])

    def _sealed_events(self, file: SealedFile, wanted: Sequence[str], asked: Columns) -> pa.Table:
        """Read the wanted columns of an events file, including those stored in ``metrics`` files."""
        long = [metric for metric in self.columns.long() if metric in asked.by_metric]
        if not long:
            return read_parquet(file.path, wanted)
        table = read_parquet(file.path, ["seq", *wanted])
        held = dict(zip(table.column_names, table.columns, strict=True))
        nothing = pa.nulls(table.num_rows, pa.float64())
        held |= {asked.by_metric[metric]: nothing for metric in long}
        # Grouped once, and joined once: filtering all rows for each of 5,000 metrics took a second per thousand values.
        rows = self._long_rows(file, long).group_by("metric", use_threads=False)
        own = rows.aggregate([("seq", "list"), ("value", "list")])
        for metric, seqs, values in zip(own["metric"].to_pylist(), own["seq_list"], own["value_list"], strict=True):
            place = pc.index_in(table["seq"], value_set=seqs.values)
            held[asked.by_metric[metric]] = values.values.take(place)
        return pa.table({name: held[name] for name in wanted if name in held})

    def _event_rows(self, file: SealedFile, columns: Sequence[str] | None = None) -> EventRows:
        """Return the events of a file; their metrics in ``metrics`` files are decoded when they are read."""
        table = read_parquet(file.path, columns, threads=columns is None)
        parts = [read_long_values(f.path) for f in self.listing.table("metrics") if f.overlaps(file)]
        return EventRows(table, self.columns.by_column(), LongRows(pa.concat_tables(parts)) if parts else None)

    def _long_rows(self, file: SealedFile, metrics: Collection[str]) -> pa.Table:
        """Read the rows of ``metrics`` files for these metrics within the range of an events file."""
        beside = [other for other in self.listing.table("metrics") if metrics and other.overlaps(file)]
        rows = pa.concat_tables([METRICS_SCHEMA.empty_table(), *(read_metrics(f.path, metrics) for f in beside)])
        return _within(rows, file)

    def _sample_rows(self, file: SealedFile) -> pa.Table:
        """Read the rows of ``samples`` files within the range of an events file."""
        beside = [other for other in self.listing.table("samples") if other.overlaps(file)]
        if not beside:
            return SAMPLES_SCHEMA.empty_table().select(SAMPLE_COLUMNS)
        parts = [read_parquet(f.path, SAMPLE_COLUMNS) for f in beside]
        schema = joint_samples_schema([part.schema for part in parts])
        alike = [with_ids_of(part, schema) for part in parts]
        return _within(pa.concat_tables(alike, promote_options="default"), file)

    def _vector_rows(self, file: SealedFile) -> pa.Table:
        """Read the rows of ``vectors`` files within the range of an events file."""
        beside = [other for other in self.listing.table("vectors") if other.overlaps(file)]
        empty = VECTORS_SCHEMA.empty_table().select(VECTOR_COLUMNS)
        return _within(pa.concat_tables([empty, *(read_parquet(f.path, VECTOR_COLUMNS) for f in beside)]), file)


def read_snapshot(folder: Path) -> Snapshot:
    """Read a run's folder.

    Raises:
        NotARun: The folder is not a run.
        DamagedLog: One of its journals is not a journal, or one of its files is not a regular file.
        RunChanging: As ``retrying``.
    """
    return retrying(lambda: _read_snapshot(folder))


class FolderState(NamedTuple):
    """The state of a run's folder without its events.

    Attributes:
        info: Its ``run.json``.
        listing: Its files.
        is_live: Whether a process is writing to it.
        read_ns: Wall clock when it was read.
    """

    info: RunInfo
    listing: Listing
    is_live: bool
    read_ns: int


def shown_status(info: RunInfo, *, is_live: bool, is_stalled: Callable[[], bool]) -> str:
    """Return the status that a run is shown with, one of ``SHOWN_STATUSES``.

    Args:
        info: The run.
        is_live: Whether a process is writing to it.
        is_stalled: Whether it has been silent for longer than its pace allows; asked of a live run alone.
    """
    status = info.last.status
    if status != "running":
        return status
    if not is_live:
        return "crashed"
    return "stalled" if is_stalled() else status


def read_state(folder: Path) -> FolderState:
    """Read a run's folder without its events.

    Raises:
        FileNotFoundError: A file was merged into another one meanwhile.
        TelemetryError: As ``read_snapshot``.
    """
    freshen(folder)
    read_ns = time.time_ns()
    listing = list_files(folder)
    listing.require_files()
    # Liveness before run.json: a writer releases its journal only after it has recorded how it ended.
    is_live = _is_held(listing)
    info = read_run_info(folder)
    if not is_live and info.last.status == "running":
        # A writer opens its next segment before it releases the last. So a new segment shows that the writer was alive,
        # and the first listing is still a state that the run was in.
        is_live = not set(list_files(folder).journals) <= set(listing.journals)
    require_own(listing.sealed, info.run_id)
    return FolderState(info, listing, is_live, read_ns)


def _read_snapshot(folder: Path) -> Snapshot:
    info, listing, is_live, read_ns = read_state(folder)
    if not listing.journals:
        return sealed_snapshot(folder, info, listing, is_live=is_live, read_ns=read_ns)
    fetch(journal.path for journal in listing.journals)
    segments = [(journal, read_segment(journal.path, info.run_id)) for journal in listing.journals]
    for journal, segment in segments:
        info.require_recording(segment.header, journal.path)

    def tail_of(table: str) -> Tail:
        ends = {stream: listing.sealed_until(table, stream) for stream in {journal.stream for journal, _ in segments}}
        unsealed = (segment.from_seq(ends[journal.stream]) for journal, segment in segments)
        return Tail(tuple(segment for segment in unsealed if len(segment)))

    tail = tail_of("events")
    columns = read_columns(folder)
    for segment in tail.segments:
        columns.extend(segment.metric_names())
    samples, metrics, vectors = map(tail_of, ("samples", "metrics", "vectors"))
    notes = read_notes(folder)
    return Snapshot(folder, info, notes, listing, tail, samples, metrics, vectors, columns, is_live, read_ns)


def sealed_snapshot(
    folder: Path, info: RunInfo, listing: Listing, *, is_live: bool = False, read_ns: int = 0
) -> Snapshot:
    """Return the snapshot of a run without journals, from what was read of its folder before."""
    notes, columns = read_notes(folder), read_columns(folder)
    return Snapshot(folder, info, notes, listing, _NO_TAIL, _NO_TAIL, _NO_TAIL, _NO_TAIL, columns, is_live, read_ns)


def _is_held(listing: Listing) -> bool:
    """Whether a live process holds a journal.

    Checks the last two segments of each (attempt, rank), since the newest may just be being created. The older is
    checked first, because the writer releases it only once it holds the newer.
    """
    streams = itertools.groupby(listing.journals, key=lambda journal: journal.stream)
    newest = itertools.chain.from_iterable(list(journals)[-2:] for _, journals in streams)
    return any(is_being_written(journal.path, is_live(journal.path.parent)) for journal in newest)


def _within(rows: pa.Table, file: SealedFile) -> pa.Table:
    """Return the rows whose ``seq`` is in the range of a file."""
    return rows.filter(pc.and_(pc.greater_equal(rows["seq"], file.first), pc.less_equal(rows["seq"], file.last)))


def _in_order(parts: Sequence[_Part], tails: Sequence[_Part]) -> list[pa.Table]:
    """Sort tables of sealed files and of tails by (attempt, rank), the tail of each after its files."""
    # The sort is stable and keeps the order within an (attempt, rank).
    return [table for _, table in sorted([*parts, *tails], key=lambda part: part[0])]


def of_rank(snapshot: Snapshot, rank: int, attempt: int | None = None) -> Snapshot:
    """Return the snapshot with only the events of this rank and, where one is given, this attempt."""
    return _only(snapshot, lambda an_attempt, a_rank, _: a_rank == rank and attempt in (None, an_attempt))


def snapshot_after(snapshot: Snapshot, place: tuple[int, int]) -> Snapshot:
    """Return the snapshot without the files and events that end at or before (attempt, seq).

    A reader that continues from a cursor then skips early files.
    """
    return _only(snapshot, lambda attempt, _, seq: (attempt, seq) > place)


def _only(snapshot: Snapshot, keeps: Callable[[int, int, int], bool]) -> Snapshot:
    """Return the snapshot with only the events whose (attempt, rank, seq) passes; a file passes by its last event."""
    sealed = tuple(file for file in snapshot.listing.sealed if keeps(file.attempt, file.rank, file.last))
    listing = snapshot.listing._replace(sealed=sealed)
    return dataclasses.replace(snapshot, listing=listing, tail=snapshot.tail.only(keeps))


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


def rows_along(snapshot: Snapshot, rank: int, columns: Mapping[str, str]) -> EventRows:
    """Return the effective events of one rank with only some of their metrics.

    Args:
        snapshot: The run.
        rank: The rank.
        columns: The names of the metrics to read, by their columns.
    """
    table = effective_rows(snapshot.events_table((*ENVELOPE, *columns, "attrs")), snapshot.lineage.cuts)
    return EventRows(table if ranks_of(snapshot) == [rank] else table.filter(pc.equal(table["rank"], rank)), columns)


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
