"""Reads journal segments: parses whole records, counts the torn bytes after them, and tests for a live writer."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import DamagedLog, require_version
from ..events import JsonObject
from ..run_folder import MISNAMED, NAME_BACK, journal_at, read_file
from .format import (
    EVENT,
    FRAME,
    LAYOUT,
    LENGTH,
    MAGIC,
    PREAMBLE,
    RECEIVED,
    TAG_EVENT,
    TAG_HEADER,
    TAG_LAYOUT,
    VERSION,
    crc32,
)
from .segment import NOTHING, Codes, EventLayout, Flags, Integers, Segment, field_offset, readable, require

#: Size limit of a segment, which is read as a whole. A writer closes one at 16 MiB, unless it cannot create the next.
MOST_SEGMENT_BYTES: Final = 4 << 30


def read_segment(path: Path, run_id: str | None = None, *, checks: bool = True) -> Segment:
    """Read all whole records of a segment. Bytes from the first torn or damaged record on are counted, not returned.

    Args:
        path: The segment.
        run_id: The run that it must be of; any run when None.
        checks: Whether to verify all checksums. A caller that skips this must call ``is_sound`` before it relies on a
            record.

    Raises:
        FileNotFoundError: The segment was sealed meanwhile.
        DamagedLog: The file is not a journal, is one of another run or name, or is larger than ``MOST_SEGMENT_BYTES``.
        UnsupportedVersion: The journal has another version.
    """
    data = read_file(path.parent, path.name, MOST_SEGMENT_BYTES)
    if not _has_preamble(data, path):
        return Segment(torn_bytes=len(data))
    segment = segment_of(data, str(path), checks=checks)
    _require_own(segment.header, path, run_id)
    return segment


def _has_preamble(data: bytes, path: Path) -> bool:
    """Whether bytes begin like a journal. False for zeros, and for too few bytes to hold a record.

    Raises:
        DamagedLog, UnsupportedVersion: They are something else.
    """
    # A power loss leaves zeros where the file's length was durable and its content was not.
    if len(data) < PREAMBLE.size or not any(data[: PREAMBLE.size]):
        return False
    magic, version = PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise DamagedLog(
            "not a journal",
            where=str(path),
            got=magic,
            fix="Its name says that it is one; check the program that wrote it",
        )
    require_version("journal version", version, VERSION, where=str(path))
    return True


class SegmentTail:
    """Reads a segment that grows, each time from where the last read ended.

    Args:
        path: The segment.
        run_id: The run that it must be of.

    Attributes:
        has_more: Whether the last read ended before the end of the file.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self._path, self._run_id = path, run_id
        self._scan: _Scan | None = None
        self._at = PREAMBLE.size
        self.has_more = True

    def read(self, most_bytes: int) -> tuple[Segment, int]:
        """Return the next whole records, and how many bytes were read.

        Args:
            most_bytes: Bytes to read; more are read for a longer record. With 0, only ``has_more`` is updated.

        Raises:
            FileNotFoundError, DamagedLog, UnsupportedVersion: As ``read_segment``.
        """
        with open(self._path, "rb", buffering=0, opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_SEGMENT_BYTES:
                read_file(self._path.parent, self._path.name, MOST_SEGMENT_BYTES)  # It says what is wrong.
            if status.st_size < self._at:
                self._scan, self._at = None, PREAMBLE.size
            self.has_more = status.st_size > self._at and most_bytes <= 0
            if status.st_size <= self._at or most_bytes <= 0:
                return Segment(), 0
            preamble = os.pread(file.fileno(), PREAMBLE.size, 0)
            if not _has_preamble(preamble, self._path):
                return Segment(), 0
            while True:
                data = preamble + os.pread(file.fileno(), most_bytes, self._at)
                self.has_more = self._at + len(data) - PREAMBLE.size < status.st_size
                with readable(str(self._path)):
                    scan = _Scan(data, before=self._scan)
                    segment = scan.to_segment(str(self._path), checks=True)
                if segment.torn_bytes < len(data) - PREAMBLE.size or not self.has_more:
                    break
                most_bytes *= 2
        _require_own(segment.header, self._path, self._run_id)
        self._scan = scan
        self._at += len(data) - PREAMBLE.size - segment.torn_bytes
        return segment, len(data)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)


def _require_own(header: JsonObject, path: Path, run_id: str | None) -> None:
    """Raise DamagedLog if a segment's header is not that of the segment that its name says."""
    named = journal_at(path)
    if not header or named is None:
        return
    own: JsonObject = {"attempt": named.attempt, "rank": named.rank, "first_seq": named.first}
    own |= {} if run_id is None else {"run_id": run_id}
    said = {key: header.get(key) for key in own}
    if said != own:
        raise DamagedLog(MISNAMED, where=str(path), got=said, fix=NAME_BACK)


def is_sound(segment: Segment) -> bool:
    """Whether all checksums match in a segment that was read with ``checks=False``."""
    whole = PREAMBLE.size
    for start, length, count in runs_of_frames(segment.data):
        whole = start - FRAME.size + count * (FRAME.size + length)
    return not len(segment) or whole == len(segment.data) - segment.torn_bytes


def is_being_written(path: Path, is_live_elsewhere: bool | None = None) -> bool:
    """Whether a live process holds the segment. False when the file is gone.

    Args:
        path: The segment.
        is_live_elsewhere: Whether its run, the copy of one elsewhere, has a writer there; None for a run of this
            machine, whose locks say so.
    """
    if is_live_elsewhere is not None:
        return is_live_elsewhere
    try:
        with idle(path) as is_idle:
            return not is_idle
    except FileNotFoundError:
        return False


def is_received(path: Path) -> bool:
    """Whether a push brought the segment's events, so that its recorder is elsewhere. False when the file is gone."""
    try:
        return bool(read_segment(path, checks=False).header.get(RECEIVED))
    except FileNotFoundError:
        return False


@contextmanager
def idle(path: Path) -> Iterator[bool]:
    """Yield whether the segment has no writer; if so, none can start while the context lasts.

    Takes a shared lock, so that concurrent readers do not mistake each other for a writer.

    Raises:
        FileNotFoundError: The segment is gone.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        is_idle = True
    except BlockingIOError:
        is_idle = False
    try:
        yield is_idle
    finally:
        os.close(fd)


def segment_of(data: bytes, where: str, *, checks: bool = True, most_layouts: int | None = None) -> Segment:
    """Parse a segment whose preamble has been verified.

    Args:
        data: The segment's bytes.
        where: The file, for messages.
        checks: As for ``runs_of_frames``.
        most_layouts: Most layout records; None for any number.

    Raises:
        DamagedLog: A record cannot be parsed although its checksum is right, or there are too many layouts.
    """
    with readable(where):
        return _Scan(data, most_layouts).to_segment(where, checks)


#: The first bytes of an event record. The dtype is also a plain u64, because numpy copies those in an eighth of the
#: time.
_HEAD: Final = np.dtype(("<u8", [("tag", "u1"), ("flags", "u1"), ("layout_id", "<u4"), ("begin_of_seq", "<u2")]))


class _Scan:
    """One pass over a segment's frames.

    Args:
        data: The preamble and frames.
        most_layouts: Most layout records; None for any number.
        before: The pass over the frames before them.
    """

    def __init__(self, data: bytes, most_layouts: int | None = None, before: _Scan | None = None) -> None:
        self._data = data
        self._most_layouts = most_layouts
        self._header: JsonObject = {} if before is None else before._header
        self._layouts: list[EventLayout] = [] if before is None else before._layouts
        self._known: dict[int, int] = {} if before is None else before._known
        self._few: list[tuple[int, int, int, int]] = []
        self._parts: list[tuple[Codes, Flags, Integers, Integers]] = []

    def to_segment(self, where: str, checks: bool) -> Segment:
        whole = PREAMBLE.size
        for start, length, count in runs_of_frames(self._data, checks=checks):
            stride = FRAME.size + length
            if count < LONG_RUN or length < _HEAD.itemsize:
                for index in range(count):
                    self._frame(start + index * stride, length)
            else:
                self._run(start, length, count)
            whole = start - FRAME.size + count * stride
        self._flush()
        layout, flags, starts, ends = (_joined(column) for column in zip(*(self._parts or [NOTHING]), strict=True))
        sizes = np.zeros(len(self._layouts), np.int64)
        for index in np.flatnonzero(np.bincount(layout)).tolist():
            sizes[index] = EVENT.size + 8 * len(self._layouts[index].names)
        require(ends - starts >= sizes[layout], "it is shorter than its layout requires")
        if len(layout) and not all(isinstance(self._header[name], int) for name in ("attempt", "rank")):
            raise TypeError("its header does not name the attempt and rank of its events")
        torn = len(self._data) - whole
        return Segment(self._header, torn, where, self._data, tuple(self._layouts), layout, flags, starts, ends)

    def _frame(self, start: int, length: int) -> None:
        tag, end = self._data[start], start + length
        if tag == TAG_EVENT:
            (layout_id,) = LENGTH.unpack_from(self._data, start + field_offset("layout_id"))
            self._few.append((self._known[layout_id], self._data[start + field_offset("flags")], start, end))
        elif tag == TAG_LAYOUT:
            if len(self._layouts) == self._most_layouts:
                raise DamagedLog(f"the layout at byte {start} exceeds the limit of {self._most_layouts:,} layouts")
            layout_id = LAYOUT.unpack_from(self._data, start)[1]
            kind, *names = json.loads(self._data[start + LAYOUT.size : end])
            "".join((kind, *names)).encode()  # All must be text, without lone surrogates.
            self._known[layout_id] = len(self._layouts)
            self._layouts.append(EventLayout(kind, tuple(names)))
        elif tag == TAG_HEADER:
            self._header = json.loads(self._data[start + 1 : end])
            if not isinstance(self._header, dict) or not isinstance(self._header.get("writer") or {}, dict):
                raise TypeError("its header, or the writer in it, is not a JSON object")

    def _run(self, start: int, length: int, count: int) -> None:
        """Parse frames of one length: nearly always events."""
        stride = FRAME.size + length
        # Copied once, because reading each field separately would walk through the whole segment.
        heads = np.ndarray((count,), _HEAD, self._data, start, (stride,)).copy()
        first = 0
        for other in [*np.flatnonzero(heads["tag"] != TAG_EVENT).tolist(), count]:
            if other > first:
                self._events(heads[first:other], start + first * stride, length)
            if other < count:
                self._frame(start + other * stride, length)
            first = other + 1

    def _events(self, heads: npt.NDArray[np.void], start: int, length: int) -> None:
        self._flush()
        starts = start + (FRAME.size + length) * np.arange(len(heads), dtype=np.int64)
        self._parts.append((self._layout_of(heads["layout_id"]), heads["flags"], starts, starts + length))

    def _layout_of(self, ids: npt.NDArray[np.uint32]) -> Codes:
        if (ids == ids[0]).all():
            return np.full(len(ids), self._known[int(ids[0])], np.int32)
        distinct, which = np.unique(ids, return_inverse=True)
        return np.array([self._known[layout_id] for layout_id in distinct.tolist()], np.int32)[which]

    def _flush(self) -> None:
        if self._few:
            layout, flags, starts, ends = np.array(self._few, np.int64).T
            self._parts.append((layout.astype(np.int32), flags.astype(np.uint8), starts, ends))
            self._few = []


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


#: Minimum number of consecutive frames of one length that is worth numpy's overhead.
LONG_RUN: Final = 16

#: Bytes of consecutive frames checked by one call (a call costs as much as checking 300 bytes). It is the longest
#: message (91,607 bits) for which CRC-32 detects every error of up to three bits, wherever they are. Koopman, "32-Bit
#: Cyclic Redundancy Codes for Internet Applications", 2002.
CHECKED_TOGETHER_BYTES: Final = 91_607 // 8

#: Frames are rearranged for that in pieces that stay in the processor's cache.
_ORDERED_BYTES: Final = 256 * 1024

#: The CRC-32 of any bytes followed by their own checksum.
_RESIDUE: Final = 0x2144DF1C

_U32: Final = np.dtype("<u4")


def runs_of_frames(data: bytes, *, checks: bool = True) -> Iterator[tuple[int, int, int]]:
    """Iterate over runs of whole frames of one length, up to the first truncated frame or wrong checksum.

    Args:
        data: The segment.
        checks: Whether to verify the checksums of long runs; those of short runs are always verified.

    Yields:
        The offset of the first payload, the length of each payload, and the number of frames.
    """
    position = PREAMBLE.size
    while position + FRAME.size <= len(data):
        length, _ = FRAME.unpack_from(data, position)
        stride = FRAME.size + length
        # A power loss leaves lengths of zero (and the CRC-32 of nothing is zero too).
        fit = (len(data) - position) // stride if length else 0
        count = _alike(data, position, length, fit)
        whole = _whole(data, position, length, count) if checks or count < LONG_RUN else count
        if whole:
            yield position + FRAME.size, length, whole
        if not count or whole < count:
            return
        position += count * stride


def _alike(data: bytes, position: int, length: int, fit: int) -> int:
    """Count the consecutive frames of this length from here on, up to ``fit``."""
    stride = FRAME.size + length
    count = min(fit, 1)
    if fit < 2 or FRAME.unpack_from(data, position + stride)[0] != length:
        return count
    window = LONG_RUN
    while count < fit:
        window = min(window * 8, fit - count)
        lengths = np.ndarray((window,), _U32, data, position + count * stride, (stride,))
        others = np.flatnonzero(lengths != length)
        if len(others):
            return count + int(others[0])
        count += window
    return count


def _whole(data: bytes, position: int, length: int, count: int) -> int:
    """Count the frames before the first wrong checksum."""
    stride = FRAME.size + length
    together = CHECKED_TOGETHER_BYTES // (length + _U32.itemsize)
    right = _whole_together(data, position, length, count, together) if count >= LONG_RUN and together > 1 else 0
    # The rest was too small for a block check, or begins with the block that holds the damaged frame.
    frames = memoryview(data)[position + right * stride : position + count * stride]
    for index, (checksum, payload) in enumerate(struct.Struct(f"<4xI{length}s").iter_unpack(frames)):
        if crc32(payload) != checksum:
            return right + index
    return count


def _whole_together(data: bytes, position: int, length: int, count: int, together: int) -> int:
    """Return a lower bound on the number of whole frames, checking blocks of ``together`` frames at a time.

    A payload followed by its checksum is a codeword of CRC-32, and so is a sequence of codewords. Each begins in the
    CRC state that the previous one ends in, whatever that holds. The difference from the initial state it was computed
    with is XORed into its first four bytes. So one call checks a whole block as strictly as it checks one frame of that
    length. It detects every burst of 32 bits, every error of three bits within ``CHECKED_TOGETHER_BYTES``, and all but
    one in 2**32 of any other errors.
    """
    if length < _U32.itemsize:
        return 0
    frame = np.dtype([("length", _U32), ("checksum", _U32), ("payload", f"V{length}")])
    word = np.dtype([("payload", f"V{length}"), ("checksum", _U32)])
    frames = np.ndarray((count,), frame, data, position)
    ordered = np.empty(together * max(1, _ORDERED_BYTES // (together * word.itemsize)), word)
    first = np.ndarray((len(ordered),), _U32, ordered, 0, (word.itemsize,))
    for begin in range(0, count, len(ordered)):
        some = frames[begin : begin + len(ordered)]
        words: npt.NDArray[Any] = ordered[: len(some)]
        words["payload"], words["checksum"] = some["payload"], some["checksum"]
        first[: len(some)] ^= _RESIDUE
        view = words.view(np.uint8).data
        size = together * word.itemsize
        for offset in range(0, len(view), size):
            if crc32(view[offset : offset + size], _RESIDUE) != _RESIDUE:
                return begin + offset // word.itemsize
    return count
