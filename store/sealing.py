"""Sealing: finished journal segments in, Parquet out, and of a finished run one file per table, attempt and rank.

Runs in a process of its own beside a live run (``python -m steptape.store.sealing RUN_FOLDER``): in a thread it would
stall the training loop for milliseconds. Each step leaves a folder that reads the same:

1. the samples of a segment, then its events, are written aside, made durable, renamed;
2. only then the segment is deleted (until then readers pass over its sealed events);
3. the files of a finished (attempt, rank) are merged into one, and only then deleted (until then readers pass over
   files whose range another file holds).
"""

from __future__ import annotations

import fcntl
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from .columns import Columns, read_columns, write_columns
from .errors import TelemetryError
from .journal_reading import Segment, idle, read_segment
from .run_folder import COLUMNS_JSON, JournalFile, SealedFile, list_files, publish, remove_files, sealed_name
from .run_info import read_run_info
from .tables import events_schema, events_table, read_parquet, samples_table, write_table


def seal(folder: Path) -> int:
    """Turn every journal segment that nobody writes any more into Parquet, and compact what is finished.

    Idempotent, and safe to run from several processes at once: they take turns.

    Args:
        folder: A run's folder.

    Returns:
        Events that became Parquet.

    Raises:
        NotARun: The folder is none.
        DamagedLog: A segment is no journal; it stays as it is.
    """
    run_id = read_run_info(folder).run_id
    with _turn(folder):
        _remove_leftovers(folder)
        streams = itertools.groupby(list_files(folder).journals, key=lambda journal: journal[1:3])
        sealed = sum(_seal_stream(folder, run_id, journals) for _, journals in streams)
        _compact(folder)
    return sealed


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold the lock that one sealer of a run has at a time; it ends with the process."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _seal_stream(folder: Path, run_id: str, journals: Iterable[JournalFile]) -> int:
    """Seal the segments of one (attempt, rank) from the first on, up to one that is being written.

    In order, because readers pass over all records below the last sealed ``seq``. Each under a lock, because a segment
    that is this moment being created looks like a dead writer's.
    """
    sealed = 0
    for journal in journals:
        with idle(journal.path) as is_idle:
            if not is_idle:
                break
            sealed += _seal_segment(folder, run_id, journal)
    return sealed


def _seal_segment(folder: Path, run_id: str, journal: JournalFile) -> int:
    segment = read_segment(journal.path)
    records = segment.records
    sealed_until = list_files(folder).sealed_until("events", journal.attempt, journal.rank)
    fresh = Segment(segment.header, [record for record in records if record.event.seq >= sealed_until])
    if fresh.records:
        columns = read_columns(folder)
        columns.extend(name for record in fresh.records for name in record.event.metrics)
        write_columns(folder, columns)
        _publish_segment(folder, run_id, journal, fresh, columns)
    if segment.torn_bytes:
        journal.path.rename(journal.path.with_name(f"torn-{journal.path.name}"))
    else:
        journal.path.unlink()
    return len(fresh.records)


def _publish_segment(folder: Path, run_id: str, journal: JournalFile, segment: Segment, columns: Columns) -> None:
    first, last = segment.records[0].event.seq, segment.records[-1].event.seq
    samples = samples_table(run_id, segment.records)
    if samples.num_rows:
        _publish(samples, folder / sealed_name("samples", journal.attempt, journal.rank, first, last))
    events = events_table(run_id, [record.event for record in segment.records], columns)
    _publish(events, folder / sealed_name("events", journal.attempt, journal.rank, first, last))


def _compact(folder: Path) -> None:
    """Merge the files of each (attempt, rank) that has no journal left."""
    listing = list_files(folder)
    live = {(journal.attempt, journal.rank) for journal in listing.journals}
    for (table, attempt, rank), group in itertools.groupby(listing.sealed, key=lambda file: file[1:4]):
        files = list(group)
        if len(files) > 1 and (attempt, rank) not in live:
            _merge(folder, table, files)
    remove_files(file.path for file in list_files(folder).superseded)


def _merge(folder: Path, table: str, files: list[SealedFile]) -> None:
    first, last = files[0], files[-1]
    name = sealed_name(table, first.attempt, first.rank, first.first, last.last)
    parts = [read_parquet(file.path) for file in files]
    merged = pa.concat_tables(parts, promote_options="default")
    if table == "events":
        present = {m: c for m, c in read_columns(folder).by_metric.items() if c in merged.column_names}
        schema = events_schema(Columns(present))
        merged = merged.select(schema.names).cast(schema)
    _publish(merged, folder / name)


def _publish(table: pa.Table, path: Path) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    write_table(table, aside)
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    publish(aside, path)


def _remove_leftovers(folder: Path) -> None:
    """Delete what a sealer that died left half-written."""
    remove_files(folder.glob(".*.parquet.tmp"))
    remove_files(folder.glob(f".{COLUMNS_JSON}.*.tmp"))


def main(arguments: list[str]) -> int:
    """Seal the run folders named; the exit status is 1 when one could not be."""
    status = 0
    for argument in arguments:
        try:
            seal(Path(argument))
        except (TelemetryError, OSError) as error:
            print(f"steptape: cannot seal {argument}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
