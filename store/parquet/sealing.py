"""Sealing: finished journal segments in, Parquet out, and of a finished run one file per table, attempt and rank.

Runs in a process of its own beside a live run (``python -m steptape.store.parquet.sealing RUN_FOLDER``): in a thread
it would stall the training loop for milliseconds. Each step leaves a folder that reads the same:

1. the samples of a segment, its metrics beyond the columns, and then its events are written aside, made durable, and
   renamed once all checksums of the segment have been looked at;
2. only then the segment is deleted (until then readers pass over its sealed events);
3. the files of a finished (attempt, rank) are merged into one, and only then deleted (until then readers pass over
   files whose range another file holds);
4. of what is finished a digest is kept.

A second thread makes one half of most tables, and looks at checksums and takes digests while the first one writes: most
of what either does goes on without the interpreter.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from ..columns import Columns, read_columns, write_columns
from ..errors import TelemetryError
from ..host import is_of_this_machine
from ..journal.reading import Segment, idle, is_being_written, is_sound, read_segment
from ..run_folder import COLUMNS_JSON, JournalFile, SealedFile, list_files, publish, remove_files, sealed_name
from ..run_info import RunInfo, read_run_info
from .column_digests import Alongside, ColumnDigest
from .digests import DIGESTS_JSON, compute_digests
from .durable_file import durable_file
from .from_journal import events_table, metrics_table, samples_schema_of, samples_table
from .reading import read_schema, row_groups_of
from .schemas import (
    CELLS_PER_ROW_GROUP,
    EVENT_ALWAYS,
    METRICS_ALWAYS,
    METRICS_SCHEMA,
    SAMPLES_ALWAYS,
    SAMPLES_SCHEMA,
    events_schema,
    joint_samples_schema,
    with_ids_of,
    write_tables,
)

#: The first format whose files may hold ids of samples as integers, or no column of token losses.
SAMPLES_AS_THEY_COME: Final = 3

#: What is freed below this size is kept for the next allocation (the most that glibc can be told).
KEPT_BYTES: Final = 31 * 1024 * 1024

#: A file that a sealer writes aside; the recorder's own, of ``run.json``, is none.
_LEFTOVER: Final = re.compile(rf"\..*\.parquet\.tmp|\.({re.escape(COLUMNS_JSON)}|{re.escape(DIGESTS_JSON)})\..*\.tmp")

#: A stream that goes on has at most so many files a table before some of them are merged.
FILES_OF_A_GROWING_STREAM: Final = 3


def seal(folder: Path, *, other_hosts: bool = False) -> int:
    """Turn every journal segment that nobody writes any more into Parquet, and compact what is finished.

    Idempotent, and safe to run from several processes at once: they take turns.

    Args:
        folder: A run's folder.
        other_hosts: Seal what another machine wrote, too. Whether its writer lives cannot be told from here: whoever
            says so knows that it does not.

    Returns:
        Events that became Parquet.

    Raises:
        NotARun: The folder is none.
        DamagedLog: A segment is no journal; it stays as it is.
    """
    info = read_run_info(folder)
    _keep_freed_memory()
    with _turn(folder), _no_leftovers(folder), ThreadPoolExecutor(1) as thread:
        sealer = _Sealer(folder, info, other_hosts, thread)
        streams = itertools.groupby(list_files(folder).journals, key=lambda journal: journal[1:3])
        sealed = sum(sealer.seal_stream(list(journals)) for _, journals in streams)
        sealer.compact()
        compute_digests(folder, sealer.digests())
    return sealed


def foreign_journals(folder: Path) -> list[Path]:
    """The segments that another machine wrote: only ``other_hosts`` seals them.

    Raises:
        NotARun: The folder is none.
        DamagedLog: A segment is no journal.
    """
    journals = (journal.path for journal in list_files(folder).journals if not is_being_written(journal.path))
    return [path for path in journals if not is_of_this_machine(read_segment(path).header.get("writer") or {})]


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold the lock that one sealer of a run has at a time; it ends with the process."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def _no_leftovers(folder: Path) -> Iterator[None]:
    """Delete what a sealer that died left half-written, and what this one leaves when it fails.

    Where the disk is full, the training that goes on has that room then.
    """
    _remove_leftovers(folder)
    try:
        yield
    except BaseException:
        _remove_leftovers(folder)
        raise


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed while tables are built.

    It returns each column to the kernel otherwise, and a fresh page of 4 KiB costs 2 us on a virtual machine, more than
    all that is done with its content. glibc keeps blocks of a size once one of that size has been freed; other
    libraries take no notice. Memory that nobody touches costs nothing.
    """
    np.empty(KEPT_BYTES, np.uint8)


class _NotSound(Exception):
    """A record has another checksum than it should."""


class _Sealer:
    """What one turn does with the files of a run.

    Args:
        folder: The run's folder.
        info: The run.
        other_hosts: Whether what another machine wrote is sealed, too.
        thread: Makes one half of most tables; looks at checksums and takes digests while tables are written.
    """

    def __init__(self, folder: Path, info: RunInfo, other_hosts: bool, thread: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._run_id = info.run_id
        self._format = info.format
        self._other_hosts = other_hosts
        self._thread = thread
        self._digests: dict[Path, Alongside] = {}

    def digests(self) -> dict[Path, dict[str, ColumnDigest]]:
        """Digests of the columns of files that hold all that there will be of a table, by path."""
        taken = {path: digests.finish() for path, digests in self._digests.items()}
        return {path: digests for path, digests in taken.items() if digests is not None}

    def seal_stream(self, journals: Sequence[JournalFile]) -> int:
        """Seal the segments of one (attempt, rank) from the first on, up to one that is being written or may be.

        In order, because readers pass over all records below the last sealed ``seq``. Each under a lock, because a
        segment that is this moment being created looks like a dead writer's.
        """
        sealed = 0
        for journal in journals:
            with idle(journal.path) as is_idle:
                if not is_idle:
                    break
                digests = dict(self._digests)
                try:
                    # Checksums are looked at beside the writing, which takes longer and waits for them in the end.
                    segment = read_segment(journal.path, checks=False)
                    if not (self._other_hosts or is_of_this_machine(segment.header.get("writer") or {})):
                        break
                    sealed += self._seal_segment(journal, segment, is_all=len(journals) == 1)
                except Exception:
                    # What comes of records that are not sound may fail in any way. What is sound fails again.
                    # By the thread, so that nothing of the first try goes on.
                    self._thread.submit(_remove_leftovers, self._folder).result()
                    self._digests = digests
                    sealed += self._seal_segment(journal, read_segment(journal.path), is_all=len(journals) == 1)
        return sealed

    def _seal_segment(self, journal: JournalFile, segment: Segment, *, is_all: bool) -> int:
        """Turn a segment into tables and delete it.

        Args:
            journal: Where the segment lies.
            segment: What it holds.
            is_all: Whether it is the only one of its attempt and rank.

        Raises:
            _NotSound: It was read without a look at its checksums, and one is wrong. Nothing has happened then.
        """
        sealed_until = list_files(self._folder).sealed_until("events", journal.attempt, journal.rank)
        fresh = segment.from_seq(sealed_until)
        if len(fresh):
            columns = read_columns(self._folder)
            known = len(columns.by_metric)
            columns.extend(fresh.metric_names())
            is_kept = len(columns.by_metric) == known and (self._folder / COLUMNS_JSON).exists()
            keep_columns = None if is_kept else partial(write_columns, self._folder, columns)
            make_ready = partial(_make_ready, segment, keep_columns)
            self._publish_segment(journal, fresh, columns, make_ready, is_all=is_all and not sealed_until)
        else:
            _make_ready(segment)
        if segment.torn_bytes:
            journal.path.rename(journal.path.with_name(f"torn-{journal.path.name}"))
        else:
            journal.path.unlink()
        return len(fresh)

    def _publish_segment(
        self, journal: JournalFile, segment: Segment, columns: Columns, make_ready: Callable[[], None], *, is_all: bool
    ) -> None:
        """The tables of a segment, that of the events last: until it is there, all of its events count as unsealed.

        Args:
            journal: Where the segment lay.
            segment: What of it is not sealed.
            columns: The columns of its metrics and of those before.
            make_ready: What has to be over before any table is there.
            is_all: Whether these are all events of an attempt and rank.
        """
        wide, long = columns.wide(), columns.long()
        first, last = segment.only(np.array([0, len(segment) - 1])).seq.tolist()
        pieces = list(segment.pieces(CELLS_PER_ROW_GROUP))
        readiness = functools.cache(partial(self._thread.submit, make_ready))

        def publish_table(table: str, schema: pa.Schema, always: Collection[str], tables: Iterator[pa.Table]) -> None:
            path = self._folder / sealed_name(table, journal.attempt, journal.rank, first, last)
            tables = itertools.chain([next(tables)], tables)
            # Only now, because the thread would see to this before its half of the first table.
            readiness()
            aside = _written_aside(self._watched(table, tables, path) if is_all else tables, schema, always, path)
            readiness().result()
            publish(aside, path)

        if segment.has_samples():
            schema = samples_schema_of(segment) if self._format >= SAMPLES_AS_THEY_COME else SAMPLES_SCHEMA
            tables = self._made_by_both(partial(samples_table, self._run_id, schema=schema), pieces)
            publish_table("samples", schema, SAMPLES_ALWAYS, tables)
        if not set(long).isdisjoint(segment.metric_names()):
            # In one piece, because a reader of one metric passes over the others.
            tables = (metrics_table(self._run_id, piece, long) for piece in pieces)
            publish_table("metrics", METRICS_SCHEMA, METRICS_ALWAYS, tables)
        common = (wide.by_metric[metric] for metric in segment.common_metrics() if metric in wide.by_metric)
        tables = self._made_by_both(partial(events_table, self._run_id, columns=wide), pieces)
        publish_table("events", events_schema(wide), EVENT_ALWAYS.union(common), tables)

    def _made_by_both(self, make: Callable[[Segment], pa.Table], pieces: Iterable[Segment]) -> Iterator[pa.Table]:
        """The tables of pieces of a segment, one half of each made by the thread."""
        for piece in pieces:
            middle = len(piece) // 2
            other = self._thread.submit(make, piece.only(slice(middle, None)))
            yield pa.concat_tables([make(piece.only(slice(middle))), other.result()])

    def compact(self) -> None:
        """Merge the files of each (attempt, rank): all of one that has no journal left, some of one that goes on.

        Each table in itself, and what was merged is deleted before the next: a folder never holds many files.
        """
        listing = list_files(self._folder)
        remove_files(file.path for file in listing.superseded)
        live = {journal[1:3] for journal in listing.journals}
        for (table, *stream), group in itertools.groupby(listing.sealed, key=lambda file: file[1:4]):
            files = list(group)
            goes_on = tuple(stream) in live
            if goes_on:
                files = files[_first_to_merge([file.path.stat().st_size for file in files]) :]
            if len(files) > 1:
                self._merge(table, files, is_all=not goes_on)
                remove_files(file.path for file in files)

    def _merge(self, table: str, files: Sequence[SealedFile], *, is_all: bool) -> None:
        """One file of several, row group by row group: memory does not grow with the run."""
        first, last = files[0], files[-1]
        path = self._folder / sealed_name(table, first.attempt, first.rank, first.first, last.last)
        own = [read_schema(file.path) for file in files]
        groups = (group for file in files for group in row_groups_of(file.path))
        if table == "samples":
            schema = joint_samples_schema(own)
            groups = (with_ids_of(group, schema) for group in groups)
        elif table == "metrics":
            schema = METRICS_SCHEMA
        else:
            present = {column for schema in own for column in schema.names}
            by_metric = read_columns(self._folder).by_metric
            schema = events_schema(Columns({m: c for m, c in by_metric.items() if c in present}))
        always = set.intersection(*({field.name for field in schema if not field.nullable} for schema in own))
        publish(_written_aside(self._watched(table, groups, path) if is_all else groups, schema, always, path), path)

    def _watched(self, table: str, pieces: Iterable[pa.Table], path: Path) -> Iterator[pa.Table]:
        """The pieces of a table as they are, of which digests are taken while they are written."""
        self._digests[path] = Alongside(table, self._thread)
        return self._digests[path].watch(pieces)


def _make_ready(segment: Segment, keep_columns: Callable[[], None] | None = None) -> None:
    """See to what has to precede the tables of a segment: that it is sound, and that its columns are on the disk.

    Raises:
        _NotSound: It is not.
    """
    if not is_sound(segment):
        raise _NotSound
    if keep_columns is not None:
        keep_columns()


def _first_to_merge(sizes: Sequence[int]) -> int:
    """From which file on those of a stream that goes on are merged; none when there are few.

    A file stays as long as it is twice as large as all newer ones together. So there are never more than
    ``FILES_OF_A_GROWING_STREAM`` files and one for each tripling, and each event is rewritten about as often.

    >>> _first_to_merge([900, 10, 10, 10]), _first_to_merge([900, 90, 10])
    (1, 3)
    """
    if len(sizes) <= FILES_OF_A_GROWING_STREAM:
        return len(sizes)
    newer = sum(sizes)
    for index, size in enumerate(sizes):
        newer -= size
        if size < 2 * newer:
            return index
    return len(sizes) - 1


def _written_aside(tables: Iterable[pa.Table], schema: pa.Schema, always: Collection[str], path: Path) -> Path:
    """Where these tables are durable now, to be renamed to ``path``."""
    aside = path.with_name(f".{path.name}.tmp")
    with durable_file(aside) as file:
        write_tables(tables, schema, file, always=always)
    return aside


def _remove_leftovers(folder: Path) -> None:
    """Delete what is half-written."""
    remove_files(path for path in folder.glob(".*.tmp") if _LEFTOVER.fullmatch(path.name))


def main(arguments: list[str]) -> int:
    """Seal the run folders named; the exit status is 1 when one could not be."""
    status = 0
    for argument in arguments:
        try:
            folder = Path(argument)
            seal(folder)
            for path in foreign_journals(folder):
                print(f"steptape: {path}: another machine wrote it and may still do; it is left alone", file=sys.stderr)
        except (TelemetryError, OSError) as error:
            print(f"steptape: cannot seal {argument}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
