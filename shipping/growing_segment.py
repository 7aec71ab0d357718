"""Reads the frames of one journal segment while it grows, and after a sealer has deleted it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..store.errors import DamagedLog, require_version
from ..store.journal.format import EVENT, FRAME, LAYOUT, MAGIC, PREAMBLE, TAG_EVENT, TAG_HEADER, TAG_LAYOUT, VERSION
from ..store.journal.reading import runs_of_frames

#: Room in front of the bytes that are read, where a segment has its preamble.
_ROOM: Final = bytes(PREAMBLE.size)


class Frames(NamedTuple):
    """Consecutive events of one segment.

    Attributes:
        first_seq: ``seq`` of the first.
        next_seq: The ``seq`` after the last.
        layouts: The records of the layouts that they use.
        events: Their frames.
    """

    first_seq: int
    next_seq: int
    layouts: bytes
    events: bytes


class GrowingSegment:
    """An open journal segment. Its descriptor outlives the deletion of the file.

    Args:
        path: The segment.
        first: The ``seq`` in its name.

    Attributes:
        first: ``seq`` of its first event.
        next_seq: ``seq`` of the next event to read.
        writer: Identity of its writer; empty until the header can be read.

    Raises:
        FileNotFoundError: It was sealed meanwhile.
    """

    def __init__(self, path: Path, first: int) -> None:
        self.first = self.next_seq = first
        self.writer: dict[str, Any] = {}
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._offset = 0
        self._seen_bytes = os.fstat(self._fd).st_size
        self._layouts: dict[int, bytes] = {}

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""
        return not os.fstat(self._fd).st_nlink

    def take(self, seq: int, most_bytes: int, *, is_final: bool) -> Frames | None:
        """Return the next events from this ``seq`` on; None if there are no more.

        Args:
            seq: The first event wanted.
            most_bytes: Bytes to read at a time. A larger frame is returned alone.
            is_final: Whether the writer is done with the segment. Otherwise only bytes count that the previous call
                has seen: a writer that a signal interrupts takes its last record back at once.

        Raises:
            DamagedLog: The file is not a journal.
            UnsupportedVersion: The journal has another version.
        """
        if seq < self.next_seq:
            self.next_seq, self._offset, self._layouts = self.first, 0, {}
        size = os.fstat(self._fd).st_size
        end = size if is_final else min(size, self._seen_bytes)
        self._seen_bytes = size
        if not self._offset and end >= PREAMBLE.size:
            self._check_preamble()
        while self._offset and self._offset < end:
            found = self._next(seq, end, most_bytes)
            if found is None or found.events:
                return found
        return None

    def _check_preamble(self) -> None:
        preamble = os.pread(self._fd, PREAMBLE.size, 0)
        magic, version = PREAMBLE.unpack(preamble)
        if not any(preamble):
            return  # A power loss left zeros, and no event.
        if magic != MAGIC:
            raise DamagedLog("not a journal", where=str(self._path), got=magic)
        require_version("journal version", version, VERSION, where=str(self._path))
        self._offset = PREAMBLE.size

    def _next(self, seq: int, end: int, most_bytes: int) -> Frames | None:
        """Return the events of the next bytes, which may be none; None if no whole frame follows."""
        head = os.pread(self._fd, FRAME.size, self._offset)
        if len(head) < FRAME.size:
            return None
        most_bytes = max(most_bytes, FRAME.size + FRAME.unpack(head)[0])
        data = _ROOM + os.pread(self._fd, min(most_bytes, end - self._offset), self._offset)
        events: list[bytes] = []
        used: dict[int, None] = {}
        whole = PREAMBLE.size
        for frame, payload in _frames(data):
            whole += len(frame)
            tag = payload[0]
            if tag == TAG_EVENT:
                layout, number = EVENT.unpack_from(payload)[2:4]
                self.next_seq = number + 1
                if number >= seq:
                    events.append(frame)
                    used[layout] = None
            elif tag == TAG_LAYOUT:
                self._layouts[LAYOUT.unpack_from(payload)[1]] = frame
            elif tag == TAG_HEADER:
                self.writer = json.loads(payload[1:]).get("writer") or {}
        if whole == PREAMBLE.size:
            return None
        self._offset += whole - PREAMBLE.size
        layouts = b"".join(self._layouts[layout] for layout in used)
        return Frames(self.next_seq - len(events), self.next_seq, layouts, b"".join(events))


def _frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the whole frames behind the room for a preamble, each with its payload."""
    for start, length, count in runs_of_frames(data):
        for begin in range(start, start + count * (FRAME.size + length), FRAME.size + length):
            yield data[begin - FRAME.size : begin + length], data[begin : begin + length]
