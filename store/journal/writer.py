"""Appends events to a journal as checksummed records, each written before the call returns."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ..events import NO_VECTORS, JsonObject, SampleLosses, Vectors
from ..own_process import WriterIdentity, above_streams, inode_of
from ..run_folder import journal_name
from .format import (
    EVENT_HEAD,
    MAGIC,
    PREAMBLE,
    RECORDING,
    TAG_EVENT,
    VERSION,
    event_tail,
    framed,
    header_record,
    layout_record,
)
from .syncing import Syncer

#: A segment is closed at this size. So it can be sealed while the run continues, and readers of a live run parse less
#: than this.
SEGMENT_BYTES: Final = 16 * 1024 * 1024

#: Interval at which a writer checks its file, by the monotonic clock of the events.
LOOK_EVERY_NS: Final = 1_000_000_000
#: A file that is closer to its size limit than this, besides the event's attributes, vectors and samples, may be at it.
_ROOM_BYTES: Final = 1 << 16

AT_ONCE: Final = -(2**63)

DELETED: Final = "the run's folder was deleted"
CLOSED: Final = "the program closed the journal's file descriptor; the events that it wrote since then are missing"

#: The kind and the metric names of a layout.
_Key: TypeAlias = tuple[str, tuple[str, ...]]


@dataclass(slots=True)
class Layout:
    """A kind of event and its metric names, as one segment numbers them.

    Attributes:
        segment: The segment of this numbering, counted from 1.
        number: The ``layout_id`` that its events refer to.
        pack: Packs ``TAG_EVENT``, the flags, the number, the other ``EVENT_FIELDS`` and one float per metric.
        record: The record to write before its first event in the segment; empty after that.
    """

    segment: int
    number: int
    pack: Callable[..., bytes]
    record: bytes


class JournalWriter:
    """The journal of one (run, attempt, rank). Not thread-safe; a forked child cannot write through it.

    Every ``append`` is one ``write``: once it returns, a ``SIGKILL`` loses nothing of it. The open segment stays locked
    while the writer lives; readers use the lock to distinguish a live run from a crashed one.

    Args:
        folder: The run's folder, which must exist.
        run_id, attempt, rank: The stream that the events belong to.
        first_seq: ``seq`` of the first event, when continuing a finished log.
        writer: Identity of the process (host, boot id, pid); stored in each segment's header.
        recording: Identity of the attempt; stored in each segment's header. Empty if it is unknown.
        segment_bytes: Size at which a segment is closed and the next one begins.
        on_segment_closed: Called with the path of each segment closed before the end. Must not raise.
        sync_every_s: Seconds between syncs from a separate thread, which a power loss can cost. None never syncs; a
            ``SIGKILL`` loses nothing in either case.
        on_sync_failed: Called in that thread with the error of a sync. Must not raise.
        on_begun_anew: Called when a segment replaced one that was lost, with ``DELETED`` or ``CLOSED``. An OSError
            takes the segment back.
        on_moved: Called with the new path of a folder that was moved. Must not raise.
        on_looked: Called after each check of the file, about once a second while events come. Must not raise.

    Attributes:
        seq: ``seq`` of the next event.
        segment: The number of the open segment, from 1.
        look_at_ns: ``append`` checks the file before it writes once ``elapsed_ns`` has reached this.

    Raises:
        OSError: The first segment cannot be created.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        attempt: int = 0,
        rank: int = 0,
        first_seq: int = 0,
        writer: WriterIdentity | None = None,
        recording: str = "",
        segment_bytes: int = SEGMENT_BYTES,
        on_segment_closed: Callable[[Path], None] | None = None,
        sync_every_s: float | None = None,
        on_sync_failed: Callable[[OSError], None] | None = None,
        on_begun_anew: Callable[[str], None] | None = None,
        on_moved: Callable[[Path], None] | None = None,
        on_looked: Callable[[], None] | None = None,
    ) -> None:
        self._folder = folder
        self._identity: JsonObject = {"run_id": run_id, "attempt": attempt, "rank": rank}
        self._recording = {RECORDING: recording} if recording else {}
        self._writer = writer or {}
        self._segment_bytes = segment_bytes
        self._on_segment_closed = on_segment_closed
        self._on_begun_anew = on_begun_anew
        self._on_moved = on_moved
        self._on_looked = on_looked
        self._fd, self._pid = -1, os.getpid()
        self._inode: tuple[int, int] | None = None
        self._size = 0
        self._is_torn = False
        self._lost = ""
        self.look_at_ns = 0
        self._syncer: Syncer | None = None
        self.segment = 0
        self._layouts: dict[_Key, Layout] = {}
        self._layout_count = 0
        self.seq = first_seq
        self._open_segment()
        if sync_every_s is not None:
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
        vectors: Vectors = NO_VECTORS,
    ) -> int:
        """Write one event and return its ``seq``.

        Args:
            names: The metrics of this event, in a stable order: a repeated set is encoded once per segment.
            values: One float for each name.
            epoch: NaN when unknown.
            attrs: A JSON object, or empty.

        A segment that has reached the process's limit of file sizes is followed by another one.

        Raises:
            OSError: The journal holds nothing of the event, and ``seq`` is unchanged. The next call tries again: it
                succeeds once the disk has room, or the folder is back or can be created.
        """
        if elapsed_ns >= self.look_at_ns:
            self._look(elapsed_ns)
        if self._fd < 0:
            raise OSError(self.why_closed())
        if self._is_torn:
            self._cut_torn_record()
        seq = self.seq
        flags, tail = event_tail(attrs, samples, vectors)
        while True:
            layout = self._layouts.get((kind, names)) or self._new_layout(kind, names)
            payload = layout.pack(
                TAG_EVENT, flags, layout.number, seq, step, micro_step, value_lag, time_ns, elapsed_ns, epoch, *values
            )
            try:
                self.append_payload(payload + tail, layout)
                return seq
            except OSError:
                if not self._has_rotated_at_limit(len(tail)):
                    raise

    def layout(self, kind: str, names: tuple[str, ...]) -> Layout | None:
        """The layout of such events; None until the open segment holds one of them."""
        layout = self._layouts.get((kind, names))
        return None if layout is None or layout.record else layout

    @property
    def layout_count(self) -> int:
        """Number of the layouts in the open segment."""
        return len(self._layouts)

    def append_payload(self, payload: bytes, layout: Layout | None = None) -> None:
        """Write one packed event, with ``seq`` in it.

        Args:
            payload: The output of ``Layout.pack``, followed by that of ``event_tail``.
            layout: The event's layout, if the segment may lack its record. A caller that omits it must have checked
                that the layout belongs to the current ``segment`` and that ``elapsed_ns`` is before ``look_at_ns``.

        Raises:
            OSError: As ``append`` does.
        """
        record = framed(payload)
        if layout is not None:
            record = layout.record + record
        # BaseException, because a signal handler (Ctrl-C) may raise right after the write. No function is called
        # between here and the new seq, so no handler can run in between.
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
        """Sync and release the journal. Its events remain for the next sealer.

        Raises:
            OSError: It could not be synced; it is released nevertheless.
        """
        try:
            if self._syncer is not None:
                self._syncer.stop()  # It syncs once more.
            elif self._inode is not None and inode_of(self._fd) == self._inode:
                os.fsync(self._fd)
        finally:
            self._abandon()

    def why_closed(self) -> str:
        """Return why nothing can be appended any more; empty while the journal is open."""
        if self._fd >= 0 or self._lost:
            return ""
        return "the run has ended" if os.getpid() == self._pid else "the run belongs to the parent process"

    def discard(self) -> None:
        """Close and delete a journal without events."""
        self._path.unlink(missing_ok=True)
        self.close()

    def _abandon(self, *, unlocks: bool = True) -> None:
        """Close only the file, as a forked child does: the sync thread belongs to its parent."""
        self._syncer, self._lost, self.look_at_ns = None, "", AT_ONCE
        self._release(unlocks=unlocks)
        _open_writers.discard(self)

    def _new_layout(self, kind: str, names: tuple[str, ...]) -> Layout:
        number = self._layout_count
        self._layout_count += 1
        pack = struct.Struct(f"{EVENT_HEAD}{len(names)}d").pack
        layout = self._layouts[kind, names] = Layout(self.segment, number, pack, layout_record(number, kind, names))
        return layout

    def _release(self, *, unlocks: bool = True) -> None:
        """Close the segment's file, unless the program has closed it: its number may belong to another file by now.

        Args:
            unlocks: Free the segment for sealing even if a child process holds a copy of the descriptor, as one that is
                just being started does. A forked child must leave the lock to its parent.
        """
        if self._inode is not None and inode_of(self._fd) == self._inode:
            if unlocks:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
        self._fd, self._inode = -1, None

    def _cut_torn_record(self) -> None:
        """Truncate the file to its last whole record. Until that succeeds, nothing may follow the torn one."""
        self._is_torn, self.look_at_ns = True, AT_ONCE
        if inode_of(self._fd) == self._inode:
            os.ftruncate(self._fd, self._size)
            self._is_torn = False

    def _look(self, elapsed_ns: int) -> None:
        """Detect that the segment is lost, where further writes would be lost too, or moved.

        Raises:
            FileNotFoundError: It was deleted. Raised once; the next check begins another segment.
            OSError: Another segment cannot be created.
        """
        if self._lost:
            self._begin_anew()
        if self._fd >= 0 and inode_of(self._fd) != self._inode:
            self._lose(CLOSED)
            self._begin_anew()
        if not self._is_torn:
            self.look_at_ns = elapsed_ns + LOOK_EVERY_NS
        if self._fd < 0 or self._is_in_place() or self._follow():
            if self._on_looked is not None:
                self._on_looked()
            return
        self._lose(DELETED)
        raise FileNotFoundError(errno.ENOENT, "the journal was deleted while it was being written", str(self._path))

    def _is_in_place(self) -> bool:
        """Whether the segment still has a name, and its path leads to a file as far as that can be examined."""
        try:
            return bool(os.fstat(self._fd).st_nlink and os.stat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def _follow(self) -> bool:
        """Follow the file to the folder that it was moved to with its folder. Return whether it was."""
        try:
            path = Path(os.readlink(f"/proc/self/fd/{self._fd}"))
            status = os.stat(path)
        except OSError:  # Deleted, or a system without /proc.
            return False
        if (status.st_dev, status.st_ino) != self._inode or self._folder.is_dir():
            return False
        self._folder, self._path = path.parent, path
        if self._syncer is not None:
            self._syncer.follow(path)
        if self._on_moved is not None:
            self._on_moved(self._folder)
        return True

    def _lose(self, why: str) -> None:
        self._release()
        self._lost, self._is_torn, self.look_at_ns = why, False, AT_ONCE

    def _begin_anew(self) -> None:
        """Begin a segment in place of a lost one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._next_path() == self._path:
            self._path.unlink(missing_ok=True)  # It holds no event, and the new segment gets its name.
        self._open_segment()
        if self._on_begun_anew is not None:
            try:
                self._on_begun_anew(self._lost)
            except OSError:
                self._path.unlink(missing_ok=True)
                self._release()
                raise
        self._lost = ""
        if self._syncer is not None:
            self._syncer.follow(self._path)

    def _next_path(self) -> Path:
        return self._folder / journal_name(self._identity["attempt"], self._identity["rank"], self.seq)

    def _open_segment(self) -> None:
        path = self._next_path()
        header = {**self._identity, "first_seq": self.seq, "writer": self._writer, **self._recording}
        beginning = PREAMBLE.pack(MAGIC, VERSION) + header_record(header)
        fd = create_locked(path)
        try:
            _write_all(fd, beginning)
        except BaseException:  # Also Ctrl-C: half a beginning is no journal.
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        self._release()
        self._fd, self._inode, self._path, self._size = fd, inode_of(fd), path, len(beginning)
        self.segment, self._layouts = self.segment + 1, {}

    def _rotate(self) -> None:
        finished_path = self._path
        try:
            self._open_segment()
        except OSError:
            # As on a full disk: keep this segment, and let the next append try again. Written events stay written.
            return
        if self._syncer is not None:
            self._syncer.follow(self._path)
        if self._on_segment_closed is not None:
            self._on_segment_closed(finished_path)

    def _has_rotated_at_limit(self, tail_bytes: int) -> bool:
        """Begin the next segment if this one may have reached the process's limit of file sizes (``ulimit -f``).

        Args:
            tail_bytes: Size of the attributes, vectors and samples of the event that was refused.

        Returns:
            Whether it was begun. Not if this one holds no event: the next would have its name.
        """
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if self._is_torn or limit == resource.RLIM_INFINITY or self._size + tail_bytes + _ROOM_BYTES < limit:
            return False
        segment = self.segment
        self._rotate()
        return self.segment != segment


def create_locked(path: Path) -> int:
    """Create a new file that this process holds locked, and return its descriptor."""
    while True:
        fd = above_streams(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644))
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # A sealer intervened and mistook the empty file for a dead writer's.


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    if written < len(data):
        raise _no_room(written, len(data))


def _no_room(written: int, size: int) -> OSError:
    """Return the error for a short write: the kernel reports ENOSPC only when not one byte fits."""
    return OSError(errno.ENOSPC, f"no space left: {written} of {size} bytes were written, and removed again")


_open_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _close_inherited_journals() -> None:
    """Close the parent's descriptors in a forked child, so that neither journal nor lock outlives the parent here."""
    for writer in list(_open_writers):
        writer._abandon(unlocks=False)


os.register_at_fork(after_in_child=_close_inherited_journals)
