"""Reads journal segments: parses whole records, counts the torn bytes after them, and tests for a live writer."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..errors import DamagedLog, require_version
from ..objects.access import fetch, is_live
from ..run_folder import read_file
from .checksum import FRAME
from .format import MAGIC, PREAMBLE, RECEIVED, VERSION
from .scan import segment_of
from .segment import Record, Segment
from .whole_frames import runs_of_frames

#: Size limit of a segment, which is read as a whole. A writer closes one at 16 MiB, unless it cannot create the next.
MOST_SEGMENT_BYTES: Final = 4 << 30

__all__ = ["Record", "Segment", "idle", "is_being_written", "is_received", "is_sound", "read_segment"]


def read_segment(path: Path, *, checks: bool = True) -> Segment:
    """Read all whole records of a segment. Bytes from the first torn or damaged record on are counted, not returned.

    Args:
        path: The segment.
        checks: Whether to verify all checksums. A caller that skips this must call ``is_sound`` before it relies on a
            record.

    Raises:
        FileNotFoundError: The segment was sealed meanwhile.
        DamagedLog: The file is not a journal, or is larger than ``MOST_SEGMENT_BYTES``.
        UnsupportedVersion: The journal has another version.
    """
    try:
        data = read_file(path.parent, path.name, MOST_SEGMENT_BYTES)
    except FileNotFoundError:
        fetch([path])
        data = read_file(path.parent, path.name, MOST_SEGMENT_BYTES)
    # A power loss leaves zeros where the file's length was durable and its content was not.
    if len(data) < PREAMBLE.size or not any(data[: PREAMBLE.size]):
        return Segment(torn_bytes=len(data))
    magic, version = PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise DamagedLog(
            "not a journal",
            where=str(path),
            got=magic,
            fix="Its name says that it is one; check the program that wrote it",
        )
    require_version("journal version", version, VERSION, where=str(path))
    return segment_of(data, str(path), checks=checks)


def is_sound(segment: Segment) -> bool:
    """Whether all checksums match in a segment that was read with ``checks=False``."""
    whole = PREAMBLE.size
    for start, length, count in runs_of_frames(segment.data):
        whole = start - FRAME.size + count * (FRAME.size + length)
    return not len(segment) or whole == len(segment.data) - segment.torn_bytes


def is_being_written(path: Path) -> bool:
    """Whether a live process holds the segment. False when the file is gone."""
    is_live_there = is_live(path.parent)
    if is_live_there is not None:
        return is_live_there
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
