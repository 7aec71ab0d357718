"""Parses the protocol buffer wire format into fields: enough to read messages whose field numbers are known."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

from ..source import UnreadableSource

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_DOUBLE: Final = struct.Struct("<d")
_FLOAT: Final = struct.Struct("<f")

#: A field's number, wire type and value: an unsigned integer, or bytes.
Field: TypeAlias = tuple[int, int, int | bytes]


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message, in order. Fixed-width values are yielded as bytes.

    Raises:
        UnreadableSource: These bytes are no message.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        wire = key & 7
        if wire == VARINT:
            value, position = _varint(message, position)
            yield key >> 3, wire, value
            continue
        if wire == BYTES:
            length, position = _varint(message, position)
        elif wire == FIXED64:
            length = 8
        elif wire == FIXED32:
            length = 4
        else:
            raise UnreadableSource(f"not a protocol buffer: wire type {wire}")
        if length > end - position:
            raise UnreadableSource("not a protocol buffer: a field is longer than its message")
        yield key >> 3, wire, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return an unsigned integer and the position after it."""
    try:
        byte = message[position]
        if byte < 0x80:
            return byte, position + 1
        value, shift = byte & 0x7F, 7
        while True:
            position += 1
            byte = message[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position + 1
            shift += 7
            if shift > 63:
                raise UnreadableSource("not a protocol buffer: an integer of more than 64 bits")
    except IndexError:
        raise UnreadableSource("not a protocol buffer: it ends within an integer") from None


def varints(packed: bytes) -> list[int]:
    """Return the unsigned integers of a packed field."""
    values, position = [], 0
    while position < len(packed):
        value, position = _varint(packed, position)
        values.append(value)
    return values


def signed(value: int) -> int:
    """Convert an unsigned 64-bit integer from two's complement.

    >>> signed(2**64 - 1)
    -1

    """
    return value - 2**64 if value >= 2**63 else value


def text(value: int | bytes) -> str:
    """Decode a string field, and replace bytes that are not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def message(value: int | bytes) -> bytes:
    """Return the bytes of a field that holds a message.

    Raises:
        UnreadableSource: It holds an integer.
    """
    if isinstance(value, int):
        raise UnreadableSource("not a protocol buffer of this kind: an integer in place of a message")
    return value


def double(value: int | bytes) -> float:
    """Unpack a field of eight bytes as a number.

    Raises:
        UnreadableSource: It has another width.
    """
    return _unpacked(_DOUBLE, value)


def float32(value: int | bytes) -> float:
    """Unpack a field of four bytes as a number, which a double holds exactly.

    Raises:
        UnreadableSource: It has another width.
    """
    return _unpacked(_FLOAT, value)


def _unpacked(packing: struct.Struct, value: int | bytes) -> float:
    if isinstance(value, int) or len(value) != packing.size:
        raise UnreadableSource("not a protocol buffer of this kind: a number of the wrong width")
    result: float = packing.unpack(value)[0]
    return result
