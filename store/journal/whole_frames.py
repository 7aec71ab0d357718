"""The frames of a journal segment: bytes in, and where the whole ones lie; their checksums are looked at here alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .checksum import FRAME, crc32
from .format import PREAMBLE

#: Frames of one length that lie behind each other are worth numpy's overhead from this many on.
LONG_RUN: Final = 16

#: So many bytes of neighbours are checked by one call (which costs as much as checking 300 bytes). It is the longest
#: message (91,607 bits) in which CRC-32 finds every damage of up to three bits, wherever they are.
#: Koopman, "32-Bit Cyclic Redundancy Codes for Internet Applications", 2002.
CHECKED_TOGETHER_BYTES: Final = 91_607 // 8

#: Neighbours are put into order for that in pieces that stay in the processor's cache.
_ORDERED_BYTES: Final = 256 * 1024

#: What CRC-32 makes of any bytes that their own checksum follows.
_RESIDUE: Final = 0x2144DF1C

_U32: Final = np.dtype("<u4")


def runs_of_frames(data: bytes, *, checks: bool = True) -> Iterator[tuple[int, int, int]]:
    """Whole frames up to the first that is cut short or whose checksum differs, neighbours of one length together.

    Args:
        data: The segment.
        checks: Whether to look at the checksums of many neighbours of one length; of few they are looked at anyway.

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
        whole = _whole(data, position, length, count) if checks or count < LONG_RUN else count
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
    stride = FRAME.size + length
    together = CHECKED_TOGETHER_BYTES // (length + _U32.itemsize)
    right = _whole_together(data, position, length, count, together) if count >= LONG_RUN and together > 1 else 0
    # What is left was too little to be checked together, or has the damaged frame at its beginning.
    frames = memoryview(data)[position + right * stride : position + count * stride]
    for index, (checksum, payload) in enumerate(struct.Struct(f"<4xI{length}s").iter_unpack(frames)):
        if crc32(payload) != checksum:
            return right + index
    return count


def _whole_together(data: bytes, position: int, length: int, count: int, together: int) -> int:
    """How many frames are certainly whole, found out for so many neighbours at a time.

    A payload behind which its checksum lies is a codeword of CRC-32, and so are codewords in a row: each begins in the
    state that the one before it ends in, whatever it holds, and the difference from the state that it was made in goes
    into its first four bytes. So one call checks them all, as strictly as it checks one frame of their length: it finds
    every burst of 32 bits, every three bits within ``CHECKED_TOGETHER_BYTES``, and of any other damage all but one in
    2**32 cases.
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
