"""Appending events to a journal: events in, checksummed records on disk before the call returns."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from ..run_folder import journal_name
from ..sample_losses import SampleLosses
from .checksum import framed
from .format import EVENT_HEAD, MAGIC, PREAMBLE, TAG_EVENT, VERSION, event_tail, header_record, layout_record
from .syncing import SYNC_EVERY_S, Syncer

#: A segment is closed at this size, so that it can be sealed while the run goes on, and a reader of a live run has less
#: than this to take apart.
SEGMENT_BYTES: Final = 16 * 1024 * 1024

#: How often a writer looks whether its file is still there, by the clock of the events.
LOOK_EVERY_NS: Final = 1_000_000_000
AT_ONCE: Final = -(2**63)


#: The kind and the metric names of a layout.
_Key: TypeAlias = tuple[str, tuple[str, ...]]


@dataclass(slots=True)
class Layout:
    """A kind of event and its metric names, as one segment numbers them.

    Attributes:
        segment: The segment that numbers it so, counted from 1.
        number: What its events refer to it by.
        pack: Packs ``TAG_EVENT``, the flags, the number, the other ``EVENT_FIELDS`` and one float for each metric.
        record: What must precede its first event in the segment; empty after that.
    """

    segment: int
    number: int
    pack: Callable[..., bytes]
    record: bytes


class JournalWriter:
    """The journal of one (run, attempt, rank). Not thread-safe; a forked child cannot write through it.

    Every ``append`` is one ``write``: when it returns, a ``SIGKILL`` loses nothing of it. The open segment is locked
    for as long as the writer lives, which is how others tell a live run from a dead one.

    Args:
        folder: The run's folder, which exists.
        run_id, attempt, rank: Whose events these are.
        first_seq: ``seq`` of the first event, where a finished log is gone on with.
        writer: What identifies the process (host, boot id, pid); kept in each segment's header.
        segment_bytes: Size from which a segment is closed and the next one begun.
        on_segment_closed: Called with the path of each segment that is closed before the end. Must not raise.
        durability: ``process`` loses nothing at a ``SIGKILL``; ``power`` also syncs the journal, from a thread of its
            own, so that a power loss costs what was written since, about ``sync_every_s`` seconds.
        on_sync_failed: Called in that thread with the error of a sync. Must not raise.
        on_begun_anew: Called when a segment was begun in place of one that somebody had deleted. Must not raise.

    Attributes:
        seq: ``seq`` of the next event.
        segment: The number of the open segment, from 1.
        look_at_ns: The time from which ``append`` has more to do than to write.

    Raises:
        OSError: The first segment cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        attempt: int = 0,
        rank: int = 0,
        first_seq: int = 0,
        writer: dict[str, Any] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        on_segment_closed: Callable[[Path], None] | None = None,
        durability: Literal["process", "power"] = "process",
        sync_every_s: float = SYNC_EVERY_S,
        on_sync_failed: Callable[[OSError], None] | None = None,
        on_begun_anew: Callable[[], None] | None = None,
    ) -> None:
        self._folder = folder
        self._identity: dict[str, Any] = {"run_id": run_id, "attempt": attempt, "rank": rank}
        self._writer = writer or {}
        self._segment_bytes = segment_bytes
        self._on_segment_closed = on_segment_closed
        self._on_begun_anew = on_begun_anew
        self._fd = -1
        self._size = 0
        self._is_torn = False
        self._is_deleted = False
        self.look_at_ns = 0
        self._syncer: Syncer | None = None
        self.segment = 0
        self._layouts: dict[_Key, Layout] = {}
        self._layout_count = 0
        self.seq = first_seq
        self._open_segment()
        if durability == "power":
            self._syncer = Syncer(sync_every_s, on_sync_failed)
            self._syncer.follow(self._path)
        _open_writers.add(self)

    @property
    def path(self) -> Path:
        """The segment being written."""
        return self._path

    def append(
        self,
        kind: str,
        names: tuple[str, ...],
        values: Sequence[float],
        *,
        step: int,
        micro_step: int = 0,
        epoch: float = float("nan"),
        time_ns: int,
        elapsed_ns: int,
        value_lag: int = 0,
        attrs: bytes = b"",
        samples: SampleLosses | None = None,
    ) -> int:
        """Write one event and return its ``seq``.

        Args:
            names: The metrics of this event, in a stable order: a set that repeats is encoded once per segment.
            values: One float for each name.
            epoch: NaN when unknown.
            attrs: A JSON object, or empty.

        Raises:
            OSError: Nothing of the event is in the journal, and ``seq`` has not moved. The next call tries again: it
                works when the disk has room, or the folder is back or can be made.
        """
        if time_ns >= self.look_at_ns:
            self._look(time_ns)
        if self._fd < 0:
            raise OSError("the journal is closed")
        if self._is_torn:
            self._cut_torn_record()
        layout = self._layouts.get((kind, names)) or self._new_layout(kind, names)
        seq = self.seq
        flags, tail = event_tail(attrs, samples)
        payload = layout.pack(
            TAG_EVENT, flags, layout.number, seq, step, micro_step, value_lag, time_ns, elapsed_ns, epoch, *values
        )
        self.append_payload(payload + tail, layout)
        return seq

    def layout(self, kind: str, names: tuple[str, ...]) -> Layout | None:
        """The layout of such events; None before the open segment holds one of them."""
        layout = self._layouts.get((kind, names))
        return None if layout is None or layout.record else layout

    def append_payload(self, payload: bytes, layout: Layout | None = None) -> None:
        """Write one event that has been packed, with ``seq`` in it.

        Args:
            payload: What ``Layout.pack`` returned, and what ``event_tail`` did.
            layout: The event's layout, where the segment may lack its record. Without it the caller has found that its
                layout is of this ``segment``, and that the time is before ``look_at_ns``.

        Raises:
            OSError: As ``append`` does.
        """
        record = framed(payload)
        if layout is not None:
            record = layout.record + record
        # BaseException, because the handler of a signal (Ctrl-C) may raise as soon as the write is done. Nothing is
        # called between here and the new seq, so no handler can run in between.
        try:
            written = os.write(self._fd, record)
            if written < len(record):
                raise _no_room(written, len(record))
        except BaseException:
            self._cut_torn_record()
            raise
        self._size += written
        self.seq += 1
        if layout is not None:
            layout.record = b""
        if self._size >= self._segment_bytes:
            self._rotate()

    def close(self) -> None:
        """Release the journal. Its events stay; whoever seals the run next turns them into Parquet."""
        if self._syncer is not None:
            self._syncer.stop()
        self._abandon()

    def discard(self) -> None:
        """Close and delete a journal that holds no event."""
        self._path.unlink(missing_ok=True)
        self.close()

    def _abandon(self) -> None:
        """Let go of the file alone, as a forked child does: the thread that syncs is its parent's."""
        self._syncer, self._is_deleted, self.look_at_ns = None, False, AT_ONCE
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _open_writers.discard(self)

    def _new_layout(self, kind: str, names: tuple[str, ...]) -> Layout:
        number = self._layout_count
        self._layout_count += 1
        pack = struct.Struct(f"{EVENT_HEAD}{len(names)}d").pack
        layout = self._layouts[kind, names] = Layout(self.segment, number, pack, layout_record(number, kind, names))
        return layout

    def _cut_torn_record(self) -> None:
        """Cut the file after its last whole record. Until that worked, nothing may be written behind the torn one."""
        self._is_torn, self.look_at_ns = True, AT_ONCE
        os.ftruncate(self._fd, self._size)
        self._is_torn = False

    def _look(self, time_ns: int) -> None:
        """Notice that somebody has deleted the segment, or its folder: what is written into it then is lost.

        Raises:
            FileNotFoundError: It is so, this once; the next look begins another segment.
            OSError: Another one cannot be made.
        """
        if self._is_deleted:
            self._begin_anew()
        if not self._is_torn:
            self.look_at_ns = time_ns + LOOK_EVERY_NS
        if self._fd < 0 or os.fstat(self._fd).st_nlink:
            return
        os.close(self._fd)
        self._fd, self._is_deleted, self._is_torn, self.look_at_ns = -1, True, False, AT_ONCE
        raise FileNotFoundError(errno.ENOENT, "the journal was deleted while it was written", str(self._path))

    def _begin_anew(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open_segment()
        self._is_deleted = False
        if self._syncer is not None:
            self._syncer.follow(self._path)
        if self._on_begun_anew is not None:
            self._on_begun_anew()

    def _open_segment(self) -> None:
        path = self._folder / journal_name(self._identity["attempt"], self._identity["rank"], self.seq)
        header = {**self._identity, "first_seq": self.seq, "writer": self._writer}
        beginning = PREAMBLE.pack(MAGIC, VERSION) + header_record(header)
        fd = _create_locked(path)
        try:
            _write_all(fd, beginning)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        self._fd, self._path, self._size = fd, path, len(beginning)
        self.segment, self._layouts = self.segment + 1, {}

    def _rotate(self) -> None:
        finished_fd, finished_path = self._fd, self._path
        try:
            self._open_segment()
        except OSError:
            # As on a full disk: this segment goes on, and the next append tries again. What was written stays written.
            return
        os.close(finished_fd)
        if self._syncer is not None:
            self._syncer.follow(self._path)
        if self._on_segment_closed is not None:
            self._on_segment_closed(finished_path)


def _create_locked(path: Path) -> int:
    """A new file under the lock of this process."""
    while True:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # A sealer came in between and took the empty file for a dead writer's.


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    if written < len(data):
        raise _no_room(written, len(data))


def _no_room(written: int, size: int) -> OSError:
    """What a short write means: the kernel says ENOSPC only when not one byte fits."""
    return OSError(errno.ENOSPC, f"no room: {written} of {size} bytes were written, and taken back")


_open_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _close_inherited_journals() -> None:
    """In a forked child: drop the parent's descriptors, so that neither its journal nor its lock outlives it here."""
    for writer in list(_open_writers):
        writer._abandon()


os.register_at_fork(after_in_child=_close_inherited_journals)
