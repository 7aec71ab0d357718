"""Finds the whole frames of a journal segment and verifies their checksums; no other module does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .checksum import FRAME, crc32
from .format import PREAMBLE

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
