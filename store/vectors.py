"""Holds the vectors of one event: named lists of numbers, such as the tokens of each expert, and packs them as bytes.

The journal holds the packed form. Readers and rules get doubles.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

#: The vectors of an event by name. Never mutated.
Vectors: TypeAlias = Mapping[str, Sequence[float]]

#: An event's vectors where it has none. A plain dictionary, because events are pickled.
NO_VECTORS: Final[Vectors] = {}

#: The most values of one vector, and of all vectors of one event together (8 MiB, half a journal segment).
MOST_VALUES: Final = 65_536
MOST_VALUES_OF_EVENT: Final = 1_048_576

_LENGTH: Final = struct.Struct("<I")


def packed(vectors: Vectors) -> bytes:
    """Pack vectors as an event record holds them: name and values of each, in order."""
    parts = []
    for name, values in vectors.items():
        encoded, numbers = name.encode(), _swapped(array("d", values)).tobytes()
        parts += [_LENGTH.pack(len(encoded)), encoded, _LENGTH.pack(len(values)), numbers]
    return b"".join(parts)


def unpacked(block: bytes) -> Vectors:
    """Unpack such bytes.

    Raises:
        ValueError: They are cut short, a name is not UTF-8, or two vectors have one name.
    """
    vectors: dict[str, array[float]] = {}
    position = 0
    while position < len(block):
        encoded, position = _sized(block, position, 1)
        values, position = _sized(block, position, 8)
        name = encoded.decode()
        if name in vectors:
            raise ValueError("two of its vectors have one name")
        vectors[name] = vector_of(values)
    return vectors


def vector_of(values: bytes) -> array[float]:
    """Return little-endian doubles as an array."""
    vector = array("d")
    vector.frombytes(values)
    return _swapped(vector)


def _sized(block: bytes, position: int, width: int) -> tuple[bytes, int]:
    """Return the bytes of so many items as the length at this position says, and the position behind them."""
    begin = position + _LENGTH.size
    if begin > len(block):
        raise ValueError("its vectors are cut short")
    end = begin + width * _LENGTH.unpack_from(block, position)[0]
    if end > len(block):
        raise ValueError("its vectors are cut short")
    return block[begin:end], end


def _swapped(values: array[float]) -> array[float]:
    """Convert between the machine's byte order and little-endian."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values
