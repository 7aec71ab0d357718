"""TensorBoard event files for tests, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from steptape.importers.encodings.tfrecord import crc32c, masked

#: 2026-01-02 03:04:05 UTC.
STARTED_S = 1_767_323_045.0


def varint(value: int) -> bytes:
    """An unsigned integer, or a signed one in two's complement."""
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def field(number: int, content: bytes | str) -> bytes:
    """A field of bytes, of text or of a message."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def event(step: int, wall_s: float, content: bytes) -> bytes:
    """An ``Event`` with a summary."""
    return b"\x09" + struct.pack("<d", wall_s) + b"\x10" + varint(step) + field(5, content)


def simple(tag: str, value: float) -> bytes:
    """A value of version 1."""
    return field(1, field(1, tag) + b"\x15" + struct.pack("<f", value))


def tensor(tag: str, content: bytes, plugin: str = "") -> bytes:
    """A value of version 2, of an encoded ``TensorProto``."""
    metadata = field(9, field(1, field(1, plugin))) if plugin else b""
    return field(1, field(1, tag) + field(8, content) + metadata)


def record(content: bytes) -> bytes:
    """A TFRecord."""
    head = struct.pack("<Q", len(content))
    return head + struct.pack("<I", masked(crc32c(head))) + content + struct.pack("<I", masked(crc32c(content)))


def write_events(path: Path, events: Iterable[bytes]) -> Path:
    """An event file, with the record of its version before all others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    version = b"\x09" + struct.pack("<d", STARTED_S) + field(3, "brain.Event:2")
    path.write_bytes(b"".join(map(record, (version, *events))))
    return path


def losses(values: Iterable[float], tag: str = "loss", *, first_step: int = 1) -> list[bytes]:
    """A value of version 1 each second."""
    return [event(first_step + index, STARTED_S + index, simple(tag, value)) for index, value in enumerate(values)]
