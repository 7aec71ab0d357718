"""One run's folder at one moment: sealed files and the live tail, read as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from .columns import Columns, read_columns
from .events import Event
from .journal_reading import Record, is_being_written, read_segment
from .run_folder import Listing, list_files
from .run_info import RunInfo, read_run_info
from .tables import SAMPLES_SCHEMA, events_of, events_schema, events_table, read_parquet, samples_table

_Result = TypeVar("_Result")

#: A reader meets a vanished file only when the sealer renamed or merged it in between; each retry sees the newer
#: listing.
ATTEMPTS_TO_READ: Final = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run's folder held when it was looked at.

    Attributes:
        folder: The run's folder.
        info: Its ``run.json``.
        listing: Its files.
        tail: Journal records that no Parquet file of the events table holds, in (attempt, rank, seq) order.
        tail_samples: The same for the samples table; only records with samples matter.
        columns: Column of every metric, those of the tail included.
        is_live: Whether a process is writing to it.
    """

    folder: Path
    info: RunInfo
    listing: Listing
    tail: tuple[Record, ...]
    tail_samples: tuple[Record, ...]
    columns: Columns
    is_live: bool

    @property
    def status(self) -> str:
        """Status of the newest attempt; ``crashed`` when its writer is gone without a word."""
        status = self.info.last.status
        return "crashed" if status == "running" and not self.is_live else status

    def events_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The events as rows, in (attempt, rank, seq) order.

        Args:
            columns: Which columns to read; all when None. Unknown ones are left out.
        """
        schema = events_schema(self.columns)
        wanted = [name for name in schema.names if columns is None or name in columns]
        tail = events_table(self.info.run_id, [record.event for record in self.tail], self.columns).select(wanted)
        parts = [read_parquet(file.path, wanted) for file in self.listing.table("events")]
        table = pa.concat_tables([*parts, tail], promote_options="default").select(wanted)
        return table if not parts or not self.tail else _in_order(table)

    def samples_table(self) -> pa.Table:
        """Sample losses, one row a sample, in (attempt, rank, seq, position) order."""
        parts = [read_parquet(file.path, SAMPLES_SCHEMA.names) for file in self.listing.table("samples")]
        tail = samples_table(self.info.run_id, self.tail_samples)
        table = pa.concat_tables([*parts, tail])
        return table if not parts or not self.tail_samples else _in_order(table)

    def events(self, rank: int | None = None) -> Iterator[Event]:
        """The events in (attempt, rank, seq) order, all ranks or one."""
        metric_of = self.columns.by_column()
        files = itertools.groupby(self.listing.table("events"), key=lambda file: file[2:4])
        sealed = {stream: list(group) for stream, group in files}
        unsealed = {stream: list(group) for stream, group in itertools.groupby(self.tail, key=_stream)}
        for stream in sorted(sealed.keys() | unsealed.keys()):
            if rank in (None, stream[1]):
                for file in sealed.get(stream, ()):
                    yield from events_of(read_parquet(file.path), metric_of)
                yield from (record.event for record in unsealed.get(stream, ()))


def take_snapshot(folder: Path) -> Snapshot:
    """Look at a run's folder.

    Raises:
        NotARun: It is none.
        DamagedLog: One of its journals is no journal.
    """
    return retrying(lambda: _take_snapshot(folder))


def retrying(read: Callable[[], _Result]) -> _Result:
    """The result of a read that may meet a file which a sealer has just replaced."""
    for _ in range(ATTEMPTS_TO_READ - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def _take_snapshot(folder: Path) -> Snapshot:
    listing = list_files(folder)
    # Liveness before run.json: a writer lets go of its journal only after it has written how it ended.
    is_live = any(is_being_written(journal.path) for journal in reversed(listing.journals))
    if not is_live and list_files(folder).journals != listing.journals:
        raise FileNotFoundError(f"{folder}: the writer went on to its next segment while this one was looked at")
    info = read_run_info(folder)
    tail: list[Record] = []
    tail_samples: list[Record] = []
    for journal in listing.journals:
        records = read_segment(journal.path).records
        unsealed = listing.sealed_until("events", journal.attempt, journal.rank)
        tail += [record for record in records if record.event.seq >= unsealed]
        unsealed = listing.sealed_until("samples", journal.attempt, journal.rank)
        tail_samples += [record for record in records if record.samples and record.event.seq >= unsealed]
    columns = read_columns(folder)
    columns.extend(name for record in tail for name in record.event.metrics)
    return Snapshot(folder, info, listing, tuple(tail), tuple(tail_samples), columns, is_live)


def _stream(record: Record) -> tuple[int, int]:
    return record.event.attempt, record.event.rank


def _in_order(table: pa.Table) -> pa.Table:
    keys = [(name, "ascending") for name in ("attempt", "rank", "seq", "position") if name in table.column_names]
    return table.take(pc.sort_indices(table, keys)) if keys else table
