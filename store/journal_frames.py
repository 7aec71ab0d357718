"""The frames of a journal segment: bytes in, and where the whole ones lie; their checksums are looked at here alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from .journal_format import FRAME, PREAMBLE

#: Frames of one length that lie behind each other are worth numpy's overhead from this many on.
LONG_RUN: Final = 16

_U32: Final = np.dtype("<u4")


def runs_of_frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Whole frames up to the first that is cut short or whose checksum differs, neighbours of one length together.

    Yields:
        Where the first payload begins, the length of each, and how many there are.
    """
    position = PREAMBLE.size
    while position + FRAME.size <= len(data):
        length, _ = FRAME.unpack_from(data, position)
        stride = FRAME.size + length
        # A length of zero is what a power loss leaves behind (CRC-32 of nothing is zero too).
        fit = (len(data) - position) // stride if length else 0
        count = _alike(data, position, length, fit)
        whole = _whole(data, position, length, count)
        if whole:
            yield position + FRAME.size, length, whole
        if not count or whole < count:
            return
        position += count * stride


def _alike(data: bytes, position: int, length: int, fit: int) -> int:
    """How many frames of this length lie behind each other here, of at most ``fit``."""
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
    """How many of these frames come before the first whose checksum differs."""
    frames = memoryview(data)[position : position + count * (FRAME.size + length)]
    crc32 = zlib.crc32
    for index, (checksum, payload) in enumerate(struct.Struct(f"<4xI{length}s").iter_unpack(frames)):
        if crc32(payload) != checksum:
            return index
    return count
