"""Reading a journal segment: bytes in, whole records out, and what was wrong with the rest."""

from __future__ import annotations

import fcntl
import json
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .errors import DamagedLog, UnsupportedVersion
from .events import Event
from .journal_format import (
    EVENT,
    FRAME,
    HAS_ATTRS,
    HAS_SAMPLES,
    LAYOUT,
    LENGTH,
    MAGIC,
    PREAMBLE,
    TAG_EVENT,
    TAG_HEADER,
    TAG_LAYOUT,
    VERSION,
    SampleLosses,
)


class Record(NamedTuple):
    """One event as the journal holds it, with its sample losses."""

    event: Event
    samples: SampleLosses | None


@dataclass(frozen=True, slots=True)
class Segment:
    """What could be read of one journal segment.

    Attributes:
        header: Whose events they are and who wrote them; empty when not even that was readable.
        records: The events, in ``seq`` order, up to the first byte that is not whole.
        torn_bytes: Bytes after the last whole record. A killed writer leaves at most one unfinished record.
    """

    header: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    torn_bytes: int = 0


def read_segment(path: Path) -> Segment:
    """All whole records of a segment; what follows a torn or damaged one is counted, not returned.

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
    if version != VERSION:
        raise UnsupportedVersion(
            f"journal version {version}, and this steptape reads {VERSION}", where=str(path), fix="Upgrade steptape"
        )
    try:
        return _segment_of(data)
    except (KeyError, TypeError, ValueError, struct.error) as error:
        what = f"a record whose checksum is right cannot be read ({type(error).__name__}: {error})"
        raise DamagedLog(what, where=str(path), fix="Look at what wrote it") from None


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


def _segment_of(data: bytes) -> Segment:
    header: dict[str, Any] = {}
    records: list[Record] = []
    layouts: dict[int, tuple[str, tuple[str, ...], struct.Struct]] = {}
    whole = PREAMBLE.size
    for start, end in _whole_frames(data):
        tag = data[start]
        if tag == TAG_EVENT:
            records.append(_record(data[start:end], layouts, header))
        elif tag == TAG_LAYOUT:
            layout_id = LAYOUT.unpack_from(data, start)[1]
            kind, *names = json.loads(data[start + LAYOUT.size : end])
            layouts[layout_id] = (kind, tuple(names), struct.Struct(f"<{len(names)}d"))
        elif tag == TAG_HEADER:
            header = json.loads(data[start + 1 : end])
        whole = end
    return Segment(header, records, len(data) - whole)


def _whole_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of every payload, up to the first that is cut short or whose checksum differs."""
    position = PREAMBLE.size
    while position + FRAME.size <= len(data):
        length, checksum = FRAME.unpack_from(data, position)
        start, end = position + FRAME.size, position + FRAME.size + length
        # A length of zero is what a power loss leaves behind (CRC-32 of nothing is zero too).
        if length == 0 or end > len(data) or zlib.crc32(data[start:end]) != checksum:
            return
        yield start, end
        position = end


def _record(
    payload: bytes, layouts: dict[int, tuple[str, tuple[str, ...], struct.Struct]], header: dict[str, Any]
) -> Record:
    _, flags, layout_id, seq, step, micro_step, value_lag, time_ns, elapsed_ns, epoch = EVENT.unpack_from(payload)
    kind, names, values = layouts[layout_id]
    metrics = dict(zip(names, values.unpack_from(payload, EVENT.size), strict=True))
    position = EVENT.size + values.size
    attrs: dict[str, Any] = {}
    if flags & HAS_ATTRS:
        (size,) = LENGTH.unpack_from(payload, position)
        position += LENGTH.size
        attrs = json.loads(payload[position : position + size])
        position += size
    samples = SampleLosses.from_bytes(payload[position:]) if flags & HAS_SAMPLES else None
    event = Event(
        kind,
        step,
        seq,
        header["attempt"],
        header["rank"],
        micro_step,
        None if math.isnan(epoch) else epoch,
        time_ns,
        elapsed_ns,
        value_lag,
        metrics,
        attrs,
    )
    return Record(event, samples)
