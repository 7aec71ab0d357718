"""Sends frames and errors between a process and its children over pipes.

A frame is two lengths (4 and 8 bytes, big-endian), a head (one JSON object in ASCII), and a body of arbitrary bytes. A
parent writes requests to its child's stdin and reads answers from its stdout. A child ends when its stdin does.

A child may wait through a whole training with only this module loaded, so it imports neither ``subprocess`` nor
pyarrow.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from .errors import TelemetryError

#: Default limit on the size of a frame that is read.
MOST_BYTES: Final = 256 << 20

_LENGTHS: Final = struct.Struct(">IQ")
_PIECE_BYTES: Final = 1 << 20


class Frame(NamedTuple):
    """One message: a JSON object and the bytes that belong to it."""

    head: dict[str, Any]
    body: bytes


class BrokenFrame(ValueError):
    """The frame exceeds its limit, or the bytes are not a frame."""


def write_frame(fd: int, head: Mapping[str, Any], body: bytes = b"", *, until_s: float = math.inf) -> None:
    """Write one frame.

    Args:
        fd: A descriptor. The deadline only applies to a non-blocking one.
        head: A mapping that JSON can hold.
        body: Arbitrary bytes.
        until_s: Deadline, on the monotonic clock.

    Raises:
        TimeoutError: The other process has not read all of it in time.
        OSError: Such as BrokenPipeError, when the other process has ended.
    """
    content = json.dumps(head).encode()
    for part in (_LENGTHS.pack(len(content), len(body)) + content, body):
        rest = memoryview(part)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                _wait(fd, select.POLLOUT, until_s)


def read_frame(fd: int, *, most_bytes: int = MOST_BYTES, until_s: float = math.inf) -> Frame:
    """Read one frame, and not a byte beyond it.

    Args:
        fd: A descriptor.
        most_bytes: Limit on head and body together.
        until_s: Deadline, on the monotonic clock.

    Raises:
        EOFError: The other process ended or closed its end, before the frame or within it.
        BrokenFrame: The frame is longer than ``most_bytes``, or its head is not JSON.
        TimeoutError: The frame did not arrive whole in time.
    """
    head_bytes, body_bytes = _LENGTHS.unpack(_read(fd, _LENGTHS.size, until_s))
    if head_bytes + body_bytes > most_bytes:
        raise BrokenFrame(f"a frame of {head_bytes + body_bytes:,} bytes exceeds the limit of {most_bytes:,}")
    try:
        return Frame(json.loads(_read(fd, head_bytes, until_s)), _read(fd, body_bytes, until_s))
    except ValueError as error:
        raise BrokenFrame("the head of a frame is not valid JSON") from error


def frames(fd: int) -> Iterator[Frame]:
    """Yield frames until the other process closes its end."""
    with suppress(EOFError):
        while True:
            yield read_frame(fd)


def is_ready(fd: int, *, within_s: float, event: int = select.POLLIN) -> bool:
    """Wait up to ``within_s`` seconds for a descriptor; return whether it is readable (or writable) or at its end."""
    poll = select.poll()  # select.select fails for descriptors above 1023.
    poll.register(fd, event)
    return bool(poll.poll(None if within_s == math.inf else max(0.0, within_s) * 1000))


def error_to_json(error: TelemetryError) -> dict[str, object]:
    """Encode an error as a JSON object: its own fields, and the names of its class and base classes."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, TelemetryError)]
    return {"kinds": kinds, **error.to_json()}


def error_from_json(document: Mapping[str, Any]) -> TelemetryError:
    """Rebuild the error, with the same message, as the nearest of its classes that this process has loaded."""
    known = {kind.__name__: kind for kind in _kinds(TelemetryError)}
    return next(known[name] for name in document["kinds"] if name in known).from_json(document)


def _kinds(root: type[TelemetryError]) -> Iterator[type[TelemetryError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _read(fd: int, count: int, until_s: float) -> bytes:
    parts: list[bytes] = []
    while count:
        _wait(fd, select.POLLIN, until_s)
        part = os.read(fd, min(count, _PIECE_BYTES))
        if not part:
            raise EOFError("the other process has ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _wait(fd: int, event: int, until_s: float) -> None:
    if not is_ready(fd, within_s=until_s - time.monotonic(), event=event):
        raise TimeoutError
