"""Appends the events of a push to the segments of one stream, under their lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from ..store.errors import NotWritten
from ..store.events import is_loop_kind
from ..store.journal.format import MAGIC, PREAMBLE, RECEIVED, VERSION, header_record
from ..store.journal.reading import read_segment
from ..store.journal.segment import Segment
from ..store.journal.writer import SEGMENT_BYTES, create_locked
from ..store.parquet.tables import read_parquet
from ..store.reading.snapshot import retrying
from ..store.run_folder import JournalFile, journal_name, list_files
from .chunks import Chunk, Stream, first_time_of
from .errors import IntakeBusy, OutOfStep, RunConflict
from .run_state import OTHER_ID

#: The event that ends a loop. Only what rules and the recorder add may follow.
_END: Final = "train_end"


class ReceivedStream:
    """One stream of a run that is being received. Its open segment is locked, so readers see a live run.

    Args:
        folder: The run's folder.
        run_id: The run.
        stream: Attempt and rank.

    Attributes:
        next_seq: ``seq`` of the next event that is missing.
        first_ns: The time of its first event; None without events.
        has_ended: Whether the loop has ended in it.
        metrics: The metrics of events that it has appended.
        has_closed: Whether it has closed a segment, which can be sealed.

    Raises:
        IntakeBusy: Another process holds the stream's last segment.
        RunChanging: Its files were replaced each time that they were read.
    """

    def __init__(self, folder: Path, run_id: str, stream: Stream) -> None:
        self._folder, self._run_id, self._stream = folder, run_id, stream
        self._fd, self._size, self._path = -1, 0, folder
        self._layouts: dict[int, bytes] = {}
        self.metrics: dict[str, None] = {}
        self.first_ns: int | None = None
        self.has_ended = False
        _cut_torn(folder, stream)
        retrying(self._read)
        self.next_seq = next_seq_of(folder, stream)
        self.has_closed = False

    def _read(self) -> None:
        """Read what the files say of the stream, all of one listing: a sealer may replace some meanwhile."""
        listing = list_files(self._folder)
        for file in listing.table("events"):
            if file[2:4] == self._stream:
                table = read_parquet(file.path, ("seq", "kind", "time_ns"))
                self.first_ns = table["time_ns"][0].as_py() if self.first_ns is None else self.first_ns
                self.has_ended |= _END in table["kind"].unique().to_pylist()
        for journal in listing.journals:
            if journal[1:3] == self._stream:
                segment = read_segment(journal.path)
                self.first_ns = first_time_of(segment) if self.first_ns is None else self.first_ns
                self.has_ended |= _has_end(segment)
                self.metrics |= dict.fromkeys(segment.metric_names())

    def check(self, chunk: Chunk) -> Segment:
        """Return the events of a chunk that are missing.

        Raises:
            OutOfStep: Events before the chunk are missing.
            RunConflict: An event of the loop follows the end of the stream.
        """
        if chunk.after > self.next_seq:
            what = f"event {self.next_seq} of attempt {self._stream[0]}, rank {self._stream[1]} comes next"
            raise OutOfStep(what, where=self._run_id, got=chunk.after)
        news = chunk.segment.from_seq(self.next_seq)
        has_ended = self.has_ended
        for index in news.layout.tolist() if has_ended or _has_end(news) else ():
            kind = news.layouts[index].kind
            if has_ended and is_loop_kind(kind):
                what = "the log at the target has ended, so no step may follow"
                raise RunConflict(what, where=self._run_id, got=kind, fix=OTHER_ID)
            has_ended |= kind == _END
        return news

    def append(self, chunk: Chunk) -> int:
        """Append the events that are missing, and return the number of bytes written.

        Raises:
            OutOfStep, RunConflict: As ``check``.
            IntakeBusy: Another process holds the segment.
            NotWritten: The disk has no room. Nothing of the chunk is kept then.
        """
        news = self.check(chunk)
        first = max(chunk.first_seq, self.next_seq)
        events = chunk.events_from(first)
        try:
            if not events:
                if self._fd < 0:
                    self._begin(chunk, self.next_seq)
                return 0
            others = {n: record for n, record in chunk.layouts.items() if self._layouts.get(n) != record}
            is_other = not self._layouts.keys().isdisjoint(others)
            if self._fd < 0 or is_other or first > self.next_seq or self._size >= SEGMENT_BYTES:
                self._begin(chunk, first)
                others = chunk.layouts
            data = b"".join(others.values()) + events
            self._write(data)
        except OSError as error:
            raise NotWritten(f"the events cannot be written ({error.strerror})", where=str(self._path)) from None
        self._layouts |= others
        self.has_ended |= _has_end(news)
        self.first_ns = first_time_of(news) if self.first_ns is None else self.first_ns
        self.next_seq = chunk.next_seq
        self.metrics |= {name: None for layout in chunk.segment.layouts for name in layout.names}
        return len(data)

    def close(self) -> None:
        """Sync and release the segment. A sealer may convert it from now on."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd, self.has_closed = -1, True

    def _begin(self, chunk: Chunk, first: int) -> None:
        attempt, rank = self._stream
        path = self._folder / journal_name(attempt, rank, first)
        identity = {"run_id": self._run_id, "attempt": attempt, "rank": rank, "first_seq": first}
        header = {**identity, "writer": chunk.writer, RECEIVED: True}
        with contextlib.suppress(FileNotFoundError), _locked(path):
            # It holds no event: the stream would otherwise continue behind it.
            path.unlink()
        fd = create_locked(path)
        self.close()  # Only now, so that the run always has a locked segment.
        self._fd, self._path, self._size, self._layouts = fd, path, 0, {}
        self._write(PREAMBLE.pack(MAGIC, VERSION) + header_record(header))

    def _write(self, data: bytes) -> None:
        """Write everything, or nothing."""
        rest = memoryview(data)
        try:
            while rest:
                written = os.write(self._fd, rest)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]
        except OSError:
            os.ftruncate(self._fd, self._size)
            if not self._size:  # Not even the header fits.
                self._path.unlink(missing_ok=True)
                self.close()
            raise
        self._size += len(data)


def _has_end(segment: Segment) -> bool:
    """Whether the loop ends in a segment, whose layouts may be of events that it leaves out."""
    ends = [index for index, layout in enumerate(segment.layouts) if layout.kind == _END]
    return bool(ends) and bool(np.isin(segment.layout, ends).any())


def next_seq_of(folder: Path, stream: Stream) -> int:
    """Return the ``seq`` of the next event that a folder lacks of a stream."""
    listing = list_files(folder)
    ends = [listing.sealed_until("events", *stream)]
    for journal in _journals(folder, stream):
        with contextlib.suppress(FileNotFoundError):
            seqs = read_segment(journal.path).seq
            ends.append(int(seqs[-1]) + 1 if len(seqs) else 0)
    return max(ends)


def _cut_torn(folder: Path, stream: Stream) -> None:
    """Cut what a killed intake left unfinished: it was never acknowledged, so it comes again."""
    for journal in _journals(folder, stream)[-1:]:
        with contextlib.suppress(FileNotFoundError), _locked(journal.path) as fd:
            torn = read_segment(journal.path).torn_bytes
            if torn:
                os.ftruncate(fd, os.fstat(fd).st_size - torn)


def _journals(folder: Path, stream: Stream) -> list[JournalFile]:
    return [journal for journal in list_files(folder).journals if journal[1:3] == stream]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    except BlockingIOError:
        fix = "Wait until it ends"
        raise IntakeBusy("another process writes to this part of the run", where=str(path), fix=fix) from None
    finally:
        os.close(fd)
