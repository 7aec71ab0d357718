"""Reading a journal segment: bytes in, whole records out, and what was wrong with the rest."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DamagedLog, UnsupportedVersion
from .checksum import FRAME
from .format import MAGIC, PREAMBLE, VERSION
from .scan import segment_of
from .segment import Record, Segment
from .whole_frames import runs_of_frames

__all__ = ["Record", "Segment", "idle", "is_being_written", "is_sound", "read_segment"]


def read_segment(path: Path, *, checks: bool = True) -> Segment:
    """All whole records of a segment; what follows a torn or damaged one is counted, not returned.

    Args:
        path: The segment.
        checks: Whether to look at all checksums. Who does not has ``is_sound`` do so before it counts on a record.

    Raises:
        FileNotFoundError: The segment was sealed meanwhile.
        DamagedLog: The file is no journal.
        UnsupportedVersion: A newer steptape wrote it.
    """
    data = path.read_bytes()
    # Zeros are what a power loss leaves of a file whose length was durable and whose content was not.
    if len(data) < PREAMBLE.size or not any(data[: PREAMBLE.size]):
        return Segment(torn_bytes=len(data))
    magic, version = PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise DamagedLog(
            "this is no journal", where=str(path), got=magic, fix="Its name says it is; look at what wrote it"
        )
    # Version 2 added what version 1 left free, so that one reader reads both.
    if not 1 <= version <= VERSION:
        what = f"journal version {version}, and this steptape reads up to {VERSION}"
        raise UnsupportedVersion(what, where=str(path), fix="Upgrade steptape")
    return segment_of(data, str(path), checks=checks)


def is_sound(segment: Segment) -> bool:
    """Whether all events of a segment that was read without a look at their checksums have the right ones."""
    whole = PREAMBLE.size
    for start, length, count in runs_of_frames(segment.data):
        whole = start - FRAME.size + count * (FRAME.size + length)
    return not len(segment) or whole == len(segment.data) - segment.torn_bytes


def is_being_written(path: Path) -> bool:
    """Whether a live process holds the segment. False when it is gone."""
    try:
        with idle(path) as is_idle:
            return not is_idle
    except FileNotFoundError:
        return False


@contextmanager
def idle(path: Path) -> Iterator[bool]:
    """Whether nobody writes the segment; and if so, nobody can begin to while the context lasts.

    The lock is a shared one, so that those who look at the same time do not take each other for a writer.

    Raises:
        FileNotFoundError: The segment is gone.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        is_idle = True
    except BlockingIOError:
        is_idle = False
    try:
        yield is_idle
    finally:
        os.close(fd)
