"""Encodes TensorBoard event files by hand, for tests."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from steptape.importers.encodings.tfrecord import crc32c, masked

#: 2026-01-02 03:04:05 UTC.
STARTED_S = 1_767_323_045.0


def varint(value: int) -> bytes:
    """Encode an unsigned integer, or a signed one in two's complement."""
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def field(number: int, content: bytes | str) -> bytes:
    """Encode a field of bytes, text or a message."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def event(step: int, wall_s: float, content: bytes) -> bytes:
    """Encode an ``Event`` with a summary."""
    return b"\x09" + struct.pack("<d", wall_s) + b"\x10" + varint(step) + field(5, content)


def simple(tag: str, value: float) -> bytes:
    """Encode a value of version 1."""
    return field(1, field(1, tag) + b"\x15" + struct.pack("<f", value))


def tensor(tag: str, content: bytes, plugin: str = "") -> bytes:
    """Encode a value of version 2 from an encoded ``TensorProto``."""
    metadata = field(9, field(1, field(1, plugin))) if plugin else b""
    return field(1, field(1, tag) + field(8, content) + metadata)


def record(content: bytes) -> bytes:
    """Frame a TFRecord."""
    head = struct.pack("<Q", len(content))
    return head + struct.pack("<I", masked(crc32c(head))) + content + struct.pack("<I", masked(crc32c(content)))


def write_events(path: Path, events: Iterable[bytes]) -> Path:
    """Write an event file. The record of its version comes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    version = b"\x09" + struct.pack("<d", STARTED_S) + field(3, "brain.Event:2")
    path.write_bytes(b"".join(map(record, (version, *events))))
    return path


def losses(values: Iterable[float], tag: str = "loss", *, first_step: int = 1) -> list[bytes]:
    """Encode one value of version 1 per second."""
    return [event(first_step + index, STARTED_S + index, simple(tag, value)) for index, value in enumerate(values)]
