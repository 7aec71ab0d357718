"""Appending events to a journal: events in, checksummed records on disk before the call returns."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ..run_folder import journal_name
from ..sample_losses import SampleLosses
from .checksum import crc32
from .format import (
    EVENT_HEAD,
    FRAME,
    HAS_ATTRS,
    HAS_SAMPLES,
    LENGTH,
    MAGIC,
    PREAMBLE,
    TAG_EVENT,
    VERSION,
    header_record,
    layout_record,
    samples_block,
)
from .syncing import SYNC_EVERY_S, Syncer

#: A segment is closed at this size, so that it can be sealed while the run goes on, and a reader of a live run has less
#: than this to take apart.
SEGMENT_BYTES: Final = 16 * 1024 * 1024

#: How often a writer looks whether its file is still there, by the clock of the events.
LOOK_EVERY_NS: Final = 1_000_000_000
AT_ONCE: Final = -(2**63)


#: The kind and the metric names of a layout.
_Key: TypeAlias = tuple[str, tuple[str, ...]]


class InlineAppend(NamedTuple):
    """The statements of an append, for a function that is generated around them: a call would cost 0.2 us more.

    Attributes:
        condition: Whether the statements may run at ``_time_ns``; where it is false, ``append`` is to be called.
        statements: They write an event of the locals ``_step``, ``_epoch`` (a float), ``_time_ns``, ``_elapsed_ns`` and
            of one float named as each metric, and leave its ``_seq``. What they raise is what ``append`` raises. Every
            name of theirs begins with an underscore.
        bindings: The values of the free names in both; builtins among them, because a metric may be called ``len``.
    """

    condition: str
    statements: tuple[str, ...]
    bindings: Mapping[str, Any]


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
        self._look_at_ns = 0
        self._syncer: Syncer | None = None
        self._layouts: dict[_Key, tuple[int, struct.Struct]] = {}
        self._kept_layouts: dict[_Key, tuple[int, struct.Struct]] = {}
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
        if time_ns >= self._look_at_ns:
            self._look(time_ns)
        layout_id, packer, prefix = self._layout(kind, names)
        flags = (HAS_ATTRS if attrs else 0) | (HAS_SAMPLES if samples else 0)
        seq = self.seq
        payload = packer.pack(
            TAG_EVENT, flags, layout_id, seq, step, micro_step, value_lag, time_ns, elapsed_ns, epoch, *values
        )
        if attrs:
            payload += LENGTH.pack(len(attrs)) + attrs
        if samples:
            payload += samples_block(samples)
        self._write(b"".join((prefix, FRAME.pack(len(payload), crc32(payload)), payload)))
        if prefix:
            self._layouts[kind, names] = (layout_id, packer)
            self._layout_count += 1
        self.seq = seq + 1
        if self._size >= self._segment_bytes:
            self._rotate()
        return seq

    def inline_append(
        self, kind: str, names: tuple[str, ...], variables: tuple[str, ...], *, with_samples: bool = False
    ) -> InlineAppend | None:
        """The same for events of one layout, as source; None when no such event was written yet.

        Args:
            kind, names: The layout.
            variables: The locals that hold the values of the metrics.
            with_samples: The local ``_samples`` holds the bytes of the event's sample losses.
        """
        if (kind, names) not in self._layouts:
            return None
        # The statements know the layout's number, so every later segment begins with this layout.
        layout_id, packer = self._kept_layouts[kind, names] = self._layouts[kind, names]
        flags = HAS_SAMPLES if with_samples else 0
        event = (
            f"{TAG_EVENT}, {flags}, {layout_id}, _seq, _step, 0, 0, _time_ns, _elapsed_ns, _epoch, "
            f"{', '.join(variables)}"
        )
        size = "_len(_payload)" if with_samples else f"{packer.size}"
        statements = (
            "_seq = _journal.seq",
            f"_payload = _pack({event}){' + _samples' if with_samples else ''}",
            f"_record = _frame({size}, _crc32(_payload)) + _payload",
            "try:",
            "    _written = _write(_journal._fd, _record)",
            f"    if _written != {FRAME.size} + {size}:",
            "        raise _no_room(_written, _len(_record))",
            "except _BaseException:",
            "    _journal._cut_torn_record()",
            "    raise",
            "_journal._size += _written",
            "_journal.seq = _seq + 1",
            "if _journal._size >= _journal._segment_bytes:",
            "    _journal._rotate()",
        )
        bindings = {
            "_journal": self,
            "_len": len,
            "_BaseException": BaseException,
            "_pack": packer.pack,
            "_frame": FRAME.pack,
            "_crc32": crc32,
            "_write": os.write,
            "_no_room": _no_room,
        }
        return InlineAppend("_time_ns < _journal._look_at_ns", statements, bindings)

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
        self._syncer, self._is_deleted, self._look_at_ns = None, False, AT_ONCE
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _open_writers.discard(self)

    def _layout(self, kind: str, names: tuple[str, ...]) -> tuple[int, struct.Struct, bytes]:
        """Number and packer of a layout, and the record that must precede its first event in this segment."""
        known = self._layouts.get((kind, names))
        if known is not None:
            return *known, b""
        layout_id = self._layout_count
        return layout_id, struct.Struct(f"{EVENT_HEAD}{len(names)}d"), layout_record(layout_id, kind, names)

    def _write(self, record: bytes) -> None:
        if self._fd < 0:
            raise OSError("the journal is closed")
        if self._is_torn:
            self._cut_torn_record()
        size = len(record)
        # BaseException, because the handler of a signal (Ctrl-C) may raise as soon as the write is done. Nothing is
        # called between here and the end of append, so no handler can run in between.
        try:
            written = os.write(self._fd, record)
            if written < size:
                raise _no_room(written, size)
        except BaseException:
            self._cut_torn_record()
            raise
        self._size += size

    def _cut_torn_record(self) -> None:
        """Cut the file after its last whole record. Until that worked, nothing may be written behind the torn one."""
        self._is_torn, self._look_at_ns = True, AT_ONCE
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
            self._look_at_ns = time_ns + LOOK_EVERY_NS
        if self._fd < 0 or os.fstat(self._fd).st_nlink:
            return
        os.close(self._fd)
        self._fd, self._is_deleted, self._is_torn, self._look_at_ns = -1, True, False, AT_ONCE
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
        layouts = (layout_record(kept[0], *key) for key, kept in self._kept_layouts.items())
        beginning = b"".join((PREAMBLE.pack(MAGIC, VERSION), header_record(header), *layouts))
        fd = _create_locked(path)
        try:
            _write_all(fd, beginning)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        self._fd, self._path, self._size, self._layouts = fd, path, len(beginning), dict(self._kept_layouts)

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
