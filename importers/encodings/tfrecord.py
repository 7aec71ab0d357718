"""Reads TFRecord, the format of TensorBoard's event files: length-prefixed records with masked CRC-32C checksums."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..source import BEGINNING_IMPORTED, UnreadableSource

_HEAD: Final = struct.Struct("<QI")
_CHECKSUM: Final = struct.Struct("<I")

#: A longer record is damage, or a picture that no import needs; it is never read into memory.
LONGEST_RECORD: Final = 256 * 1024 * 1024


def _table() -> list[int]:
    """Build the CRC-32C table (Castagnoli, reflected) for one byte."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_ONE_BYTE: Final = _table()

#: The table for two bytes: takes half the time of a byte at a time.
_TWO_BYTES: Final = array("L", ((_ONE_BYTE[pair & 0xFF] >> 8) ^ _ONE_BYTE[(_ONE_BYTE[pair & 0xFF] ^ (pair >> 8)) & 0xFF]
                                for pair in range(65536)))  # fmt: skip


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'

    """
    value = 0xFFFFFFFF
    even = len(data) & ~1
    table = _TWO_BYTES
    for pair in struct.unpack(f"<{even // 2}H", data[:even]):
        value = (value >> 16) ^ table[(value ^ pair) & 0xFFFF]
    if even != len(data):
        value = (value >> 8) ^ _ONE_BYTE[(value ^ data[even]) & 0xFF]
    return value ^ 0xFFFFFFFF


def masked(checksum: int) -> int:
    """Return a checksum as TFRecord stores it."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path: Path, *, is_growing: bool = False) -> Iterator[bytes]:
    """Yield the records of a file.

    Args:
        path: The file.
        is_growing: Whether a truncated last record is still being written, and no error.

    Raises:
        UnreadableSource: The file cannot be opened, is truncated, or has a wrong checksum. All records before that
            point have been yielded.
    """
    try:
        with open(path, "rb") as file:
            position = 0
            while head := file.read(_HEAD.size):
                where = f"{path} @ byte {position}"
                length = _length(head, where) if len(head) == _HEAD.size else LONGEST_RECORD
                body = file.read(length + _CHECKSUM.size) if len(head) == _HEAD.size else b""
                if len(body) < length + _CHECKSUM.size:
                    if is_growing:
                        return
                    raise UnreadableSource("the file ends inside a record", where=where, fix=BEGINNING_IMPORTED)
                data = body[:length]
                if _CHECKSUM.unpack_from(body, length)[0] != masked(crc32c(data)):
                    raise UnreadableSource("a record's checksum is wrong", where=where, fix=BEGINNING_IMPORTED)
                yield data
                position += _HEAD.size + length + _CHECKSUM.size
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None


def _length(head: bytes, where: str) -> int:
    length: int
    length, checksum = _HEAD.unpack(head)
    if checksum != masked(crc32c(head[:8])):
        raise UnreadableSource(
            "not a TFRecord file: the checksum of a record's length is wrong", where=where, fix=BEGINNING_IMPORTED
        )
    if length > LONGEST_RECORD:
        raise UnreadableSource(
            f"a record of more than {LONGEST_RECORD} bytes", where=where, got=length, fix=BEGINNING_IMPORTED
        )
    return length
