"""Seals finished journal segments into Parquet, and merges the files of finished streams into one per table.

Runs in a separate process during a live run (``python -m steptape.store.parquet.sealing RUN_FOLDER``): a thread would
stall the training loop for milliseconds. Each step leaves a folder that reads the same:

1. The sealer writes a segment's samples, its vectors, its metrics beyond the columns, and then its events to temporary
   files. It makes them durable, and renames them once all checksums of the segment are verified.
2. Only then it deletes the segment; until then readers skip its sealed events.
3. It merges the files of a finished (attempt, rank) into one, and only then deletes them; until then readers skip files
   whose range another file covers.
4. It adds the sealed events to the run's summary.
5. It stores a digest of everything finished.

A second thread builds half of most tables. It also verifies checksums and computes digests while the first thread
writes. Most of this work releases the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import io
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from ..columns import Columns, read_columns, write_columns
from ..errors import TelemetryError
from ..journal.format import RECEIVED
from ..journal.segment import EventColumns, Segment, segment_of_columns
from ..journal.segment_reading import idle, is_being_written, is_sound, read_segment
from ..own_process import is_of_this_machine
from ..run_folder import (
    COLUMNS_JSON,
    DIGESTS_JSON,
    SUMMARY_JSONL,
    JournalFile,
    SealedFile,
    list_files,
    locked_folder,
    publish,
    remove_files,
    sealed_at,
    sealed_name,
)
from ..run_info import RunInfo, read_run_info
from ..user_cache import require_writable
from .digests import Alongside, ColumnDigest, compute_digests
from .event_summary import EventSummary, keep_summary, kept_summary
from .from_journal import events_table, metrics_table, samples_schema_of, samples_table, vectors_table
from .tables import (
    CELLS_PER_ROW_GROUP,
    EVENT_ALWAYS,
    METRICS_ALWAYS,
    METRICS_SCHEMA,
    SAMPLES_ALWAYS,
    VECTORS_ALWAYS,
    VECTORS_SCHEMA,
    events_schema,
    joint_samples_schema,
    read_schema,
    require_own,
    row_groups_of,
    with_header,
    with_ids_of,
    write_tables,
)

#: Freed blocks below this size are kept for the next allocation (the largest threshold that glibc accepts).
KEPT_BYTES: Final = 31 * 1024 * 1024

#: A sealer's temporary file; the recorder's own, for ``run.json``, does not match.
_SMALL_FILES: Final = "|".join(map(re.escape, (COLUMNS_JSON, DIGESTS_JSON, SUMMARY_JSONL)))
_LEFTOVER: Final = re.compile(rf"\..*\.parquet\.tmp|\.({_SMALL_FILES})\..*\.tmp")

#: The tables that have the same columns in every file.
_FIXED_SCHEMAS: Final = {"metrics": METRICS_SCHEMA, "vectors": VECTORS_SCHEMA}

#: Files per table that a growing stream may have before some are merged.
FILES_OF_A_GROWING_STREAM: Final = 3


def seal(folder: Path, *, other_hosts: bool = False) -> int:
    """Convert every journal segment without a live writer into Parquet, and merge the files of finished streams.

    Idempotent, and safe to run from several processes at once: they take turns.

    Args:
        folder: A run's folder.
        other_hosts: Also seal segments written on another machine. This machine cannot detect whether their writer
            lives, so the caller must know that it does not.

    Returns:
        The number of events sealed.

    Raises:
        NotARun: The folder is not a run.
        ReadOnlyStore: The run is in object storage.
        DamagedLog: A segment is not a journal, or something is not a regular file; it is left unchanged.
    """
    require_writable(folder.parent, folder.name)
    read_run_info(folder)
    _keep_freed_memory()
    with locked_folder(folder), _no_leftovers(folder), ThreadPoolExecutor(1) as thread:
        info = read_run_info(folder)
        sealer = _Sealer(folder, info, other_hosts, thread)
        listing = list_files(folder)
        listing.require_files()
        # A file under another one's name would count as the events of that log, whose own files would be deleted.
        require_own((*listing.sealed, *listing.superseded), info.run_id)
        streams = itertools.groupby(listing.journals, key=lambda journal: journal.stream)
        sealed = sum(sealer.seal_stream(list(journals)) for _, journals in streams)
        sealer.compact()
        sealer.summarize()
        compute_digests(folder, sealer.digests())
    return sealed


def seal_columns(folder: Path, info: RunInfo, columns: Sequence[EventColumns]) -> None:
    """Write all events of a finished run as Parquet, with digests, as sealing their journal would.

    A journal of 1,000 events would take 5 ms to write and 0.8 ms to read.

    Args:
        folder: The folder of a run of one attempt, without events. Nobody else knows it yet.
        info: The run, as its ``run.json`` has it.
        columns: The events, numbered from 0.
    """
    _keep_freed_memory()
    with _AtOnce() as thread:
        sealer = _Sealer(folder, info, other_hosts=False, thread=thread)
        sealer.seal_columns(segment_of_columns(columns, attempt=info.last.attempt))
        sealer.summarize()
        compute_digests(folder, sealer.digests())


def foreign_journals(folder: Path) -> list[Path]:
    """Return the segments that another machine wrote: only ``other_hosts`` seals them.

    Raises:
        NotARun: The folder is not a run.
        DamagedLog: A segment is not a journal.
    """
    journals = (journal.path for journal in list_files(folder).journals if not is_being_written(journal.path))
    return [path for path in journals if not _is_of_this_machine(read_segment(path))]


def _is_of_this_machine(segment: Segment) -> bool:
    """Whether a lock shows if the segment's writer lives. Not if a push brought it: only the pusher sees the writer."""
    header = segment.header
    return not header.get(RECEIVED) and is_of_this_machine(header.get("writer") or {})


@contextmanager
def _no_leftovers(folder: Path) -> Iterator[None]:
    """Delete temporary files of a sealer that died, and this sealer's own when it fails.

    On a full disk, this frees the space for the training that continues.
    """
    _remove_leftovers(folder)
    try:
        yield
    except BaseException:
        _remove_leftovers(folder)
        raise


def _keep_freed_memory() -> None:
    """Make the C library keep freed memory while tables are built.

    Otherwise it returns each column to the kernel. A fresh page of 4 KiB costs 2 us on a virtual machine, more than all
    work on its content. glibc keeps blocks of a size once one of that size has been freed; other libraries ignore it.
    Untouched memory costs nothing.
    """
    np.empty(KEPT_BYTES, np.uint8)


#: A table of fewer rows is built by one thread. Half a table of 10,000 rows takes 0.7 ms to build, and the digests of
#: two parts take 0.6 ms longer than those of one.
_WORTH_HALVING: Final = 10_000


class _AtOnce(Executor):
    """An executor without a thread."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # Executors hand every error to the future.
            future.set_exception(error)
        return future


class _NotSound(Exception):
    """A record's checksum is wrong."""


class _Sealer:
    """Seals and merges the files of one run, during one turn.

    Args:
        folder: The run's folder.
        info: The run.
        other_hosts: Whether to seal segments written on another machine, too.
        thread: Builds half of most tables; verifies checksums and computes digests while tables are written.
    """

    def __init__(self, folder: Path, info: RunInfo, other_hosts: bool, thread: Executor) -> None:
        self._folder = folder
        self._info, self._run_id = info, info.run_id
        self._other_hosts = other_hosts
        self._thread = thread
        self._digests: dict[Path, Alongside] = {}
        self._summary = kept_summary(folder, info) or EventSummary(info)

    def digests(self) -> dict[Path, dict[str, ColumnDigest]]:
        """Column digests of the files that hold a whole finished table, by path."""
        taken = {path: digests.finish() for path, digests in self._digests.items()}
        return {path: digests for path, digests in taken.items() if digests is not None}

    def seal_stream(self, journals: Sequence[JournalFile]) -> int:
        """Seal the segments of one (attempt, rank) in order, up to the first that has or may have a live writer.

        In order, because readers skip all records below the last sealed ``seq``. Each under a lock, because a segment
        that is just being created looks like a dead writer's.
        """
        sealed = 0
        for journal in journals:
            with idle(journal.path) as is_idle:
                if not is_idle:
                    break
                digests = dict(self._digests)
                try:
                    # Checksums are verified during the writing, which takes longer and waits for them in the end.
                    segment = read_segment(journal.path, self._run_id, checks=False)
                    if not (self._other_hosts or _is_of_this_machine(segment)):
                        break
                    sealed += self._seal_segment(journal, segment, is_all=len(journals) == 1)
                except Exception:
                    # Damaged records may fail in any way; failures of sound records fail again. The thread deletes the
                    # leftovers, so that nothing of the first try is still running.
                    self._thread.submit(_remove_leftovers, self._folder).result()
                    self._digests, self._summary = digests, EventSummary(self._info)
                    segment = read_segment(journal.path, self._run_id)
                    sealed += self._seal_segment(journal, segment, is_all=len(journals) == 1)
        return sealed

    def seal_columns(self, segment: Segment) -> None:
        """Write the tables of a segment that no journal holds: all events of the run."""
        columns = Columns()
        columns.extend(segment.metric_names())
        journal = JournalFile(self._folder, *segment.stream, 0)
        self._publish_segment(journal, segment, columns, partial(write_columns, self._folder, columns), is_all=True)

    def _seal_segment(self, journal: JournalFile, segment: Segment, *, is_all: bool) -> int:
        """Convert a segment to tables and delete it.

        Args:
            journal: The segment's file.
            segment: Its content.
            is_all: Whether it is the only segment of its attempt and rank.

        Raises:
            DamagedLog: The segment is of another recording.
            _NotSound: The segment was read without verifying checksums, and one is wrong. Nothing has been changed
                then.
        """
        self._info.require_recording(segment.header, journal.path)
        sealed_until = list_files(self._folder).sealed_until("events", journal.stream)
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
        """Write the tables of a segment, events last: until that file exists, all of the events count as unsealed.

        Args:
            journal: The segment's file.
            segment: Its unsealed part.
            columns: The columns of its metrics and of all earlier ones.
            make_ready: Must finish before any table is published.
            is_all: Whether these are all events of an attempt and rank.
        """
        wide, long = columns.wide(), columns.long()
        first, last = segment.only(np.array([0, len(segment) - 1])).seq.tolist()
        pieces = list(segment.pieces(CELLS_PER_ROW_GROUP))
        readiness = functools.cache(partial(self._thread.submit, make_ready))

        def publish_table(table: str, schema: pa.Schema, always: Collection[str], tables: Iterator[pa.Table]) -> None:
            path = self._folder / sealed_name(table, journal.attempt, journal.rank, first, last)
            tables = itertools.chain([next(tables)], tables)
            # Only now, because the thread would otherwise do this before its half of the first table.
            readiness()
            watched = self._watched(table, tables, path) if is_all else tables
            aside = self._written_aside(watched, schema, always, path)
            readiness().result()
            publish(aside, path)

        if segment.has_samples():
            schema = samples_schema_of(segment)
            tables = self._made_by_both(partial(samples_table, self._run_id, schema=schema), pieces)
            publish_table("samples", schema, SAMPLES_ALWAYS, tables)
        if segment.has_vectors():
            tables = (vectors_table(self._run_id, piece) for piece in pieces)
            publish_table("vectors", VECTORS_SCHEMA, VECTORS_ALWAYS, tables)
        if not set(long).isdisjoint(segment.metric_names()):
            # Each piece whole, because a reader of one metric skips the others.
            tables = (metrics_table(self._run_id, piece, long) for piece in pieces)
            publish_table("metrics", METRICS_SCHEMA, METRICS_ALWAYS, tables)
        common = (wide.by_metric[metric] for metric in segment.common_metrics() if metric in wide.by_metric)
        tables = self._made_by_both(partial(events_table, self._run_id, columns=wide), pieces)
        publish_table("events", events_schema(wide), EVENT_ALWAYS.union(common), tables)
        if first == self._summary.next_seq.get(journal.stream, 0):
            self._summary.add_segment(segment)

    def _made_by_both(self, make: Callable[[Segment], pa.Table], pieces: Iterable[Segment]) -> Iterator[pa.Table]:
        """Yield the tables of a segment's pieces; the thread builds half of each."""
        for piece in pieces:
            if len(piece) < _WORTH_HALVING:
                yield make(piece)
                continue
            middle = len(piece) // 2
            other = self._thread.submit(make, piece.only(slice(middle, None)))
            yield pa.concat_tables([make(piece.only(slice(middle))), other.result()])

    def summarize(self) -> None:
        """Keep the summary of all that is sealed, once there is something."""
        listing = list_files(self._folder)
        if listing.table("events"):
            if not self._summary.has(listing):  # As after a resume, or where a sealer was killed.
                self._summary.add_files(listing, read_columns(self._folder))
            # Now: a writer stores how it ended before it lets go of the journals that were sealed here.
            keep_summary(self._folder, self._summary, read_run_info(self._folder))

    def compact(self) -> None:
        """Merge files: all of each (attempt, rank) without a journal, some of each that is growing.

        Merges one table at a time and deletes the merged files before the next, so that a folder never holds many
        files.
        """
        listing = list_files(self._folder)
        remove_files(file.path for file in listing.superseded)
        live = {journal.stream for journal in listing.journals}
        for (table, *stream), group in itertools.groupby(listing.sealed, key=lambda file: file[1:4]):
            files = list(group)
            goes_on = tuple(stream) in live
            if goes_on:
                files = files[_first_to_merge([file.path.stat().st_size for file in files]) :]
            if len(files) > 1:
                self._merge(table, files, is_all=not goes_on)
                remove_files(file.path for file in files)

    def _merge(self, table: str, files: Sequence[SealedFile], *, is_all: bool) -> None:
        """Merge several files into one, row group by row group: memory does not grow with the run."""
        first, last = files[0], files[-1]
        path = self._folder / sealed_name(table, first.attempt, first.rank, first.first, last.last)
        own = [read_schema(file.path) for file in files]
        groups = (group for file in files for group in row_groups_of(file.path))
        if table == "samples":
            schema = joint_samples_schema(own)
            groups = (with_ids_of(group, schema) for group in groups)
        elif table in _FIXED_SCHEMAS:
            schema = _FIXED_SCHEMAS[table]
        else:
            present = {column for schema in own for column in schema.names}
            by_metric = read_columns(self._folder).by_metric
            schema = events_schema(Columns({m: c for m, c in by_metric.items() if c in present}))
        always = set.intersection(*({field.name for field in schema if not field.nullable} for schema in own))
        watched = self._watched(table, groups, path) if is_all else groups
        publish(self._written_aside(watched, schema, always, path), path)

    def _written_aside(
        self, tables: Iterable[pa.Table], schema: pa.Schema, always: Collection[str], path: Path
    ) -> Path:
        """Write the tables durably to a temporary file and return its path, ready to be renamed to ``path``."""
        aside, named = path.with_name(f".{path.name}.tmp"), sealed_at(path)
        assert named is not None
        with durable_file(aside) as file:
            write_tables(tables, with_header(schema, named, self._run_id), file, always=always)
        return aside

    def _watched(self, table: str, pieces: Iterable[pa.Table], path: Path) -> Iterator[pa.Table]:
        """Yield the pieces of a table unchanged, and compute their digests while they are written."""
        self._digests[path] = Alongside(table, self._thread)
        return self._digests[path].watch(pieces)


def _make_ready(segment: Segment, keep_columns: Callable[[], None] | None = None) -> None:
    """Verify a segment's checksums, then write its columns to disk. Both must precede the segment's tables.

    Raises:
        _NotSound: A checksum is wrong.
    """
    if not is_sound(segment):
        raise _NotSound
    if keep_columns is not None:
        keep_columns()


def _first_to_merge(sizes: Sequence[int]) -> int:
    """Return the index of the first file of a growing stream to merge; no file is merged while there are few.

    A file is kept while it is at least twice as large as all newer ones together. So there are at most
    ``FILES_OF_A_GROWING_STREAM`` files plus one per tripling, and each event is rewritten about that often.

    >>> _first_to_merge([900, 10, 10, 10]), _first_to_merge([10, 10, 10])
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


def _remove_leftovers(folder: Path) -> None:
    """Delete temporary files."""
    remove_files(path for path in folder.glob(".*.tmp") if _LEFTOVER.fullmatch(path.name))


def check_tables(run_id: str, segment: Segment) -> None:
    """Build the tables that sealing makes of a segment with events.

    Raises:
        DamagedLog, ValueError, ArithmeticError: An event cannot be sealed.
    """
    events_table(run_id, segment, Columns())
    samples_table(run_id, segment)
    vectors_table(run_id, segment)


def complaints(folder: Path, *, other_hosts: bool = False) -> list[str]:
    """Seal a run folder, as ``seal`` does; return why some or all of it could not be sealed."""
    try:
        seal(folder, other_hosts=other_hosts)
        what = "another machine wrote it and may still be writing"
        return [f"{path}: {what}" for path in foreign_journals(folder)]
    except (TelemetryError, OSError) as error:
        return [str(error)]


#: Bytes written and flushed at a time.
SENT_BYTES: Final = 1024 * 1024

#: Start flushing a range without waiting; errors are left for fsync to report. See sync_file_range(2).
_SYNC_FILE_RANGE_WRITE: Final = 2


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing that is durable when the context ends without an error."""
    with io.BufferedWriter(_SentFile(path), SENT_BYTES) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class _SentFile(io.FileIO):
    """A file that starts flushing every write to disk at once.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self._sent = 0

    def write(self, data: Any) -> int:
        """Write as many bytes as possible, and return their number."""
        written = super().write(data)
        if _sync_file_range is not None:
            _sync_file_range(self.fileno(), self._sent, written, _SYNC_FILE_RANGE_WRITE)
        self._sent += written
        return written


def _linux_function() -> Any:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except AttributeError:  # Other systems rely on fsync alone.
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range: Final = _linux_function()
