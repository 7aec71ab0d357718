"""Reads the records of W&B's offline run files, which use LevelDB's log format."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..source import BEGINNING_IMPORTED, UnreadableSource

#: The first seven bytes of the file; they count as part of the first block.
HEADER: Final = b":W&B\xe1\xbe\x00"

BLOCK_BYTES: Final = 32 * 1024

#: Checksum, length and type of one fragment of a record. Fewer remaining bytes at the end of a block are padding.
_HEAD: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path, *, is_growing: bool = False) -> Iterator[bytes]:
    """Yield the records of a ``.wandb`` file.

    Args:
        path: The file.
        is_growing: Whether a truncated last record is still being written, and no error.

    Raises:
        UnreadableSource: The file is of another format, cannot be opened, is truncated, or has a wrong checksum. All
            records before that point have been yielded.
    """
    parts: list[bytes] = []
    for position, sort, data in _pieces(path, is_growing):
        is_begin = sort in (_FULL, _FIRST)
        if is_begin == bool(parts) or sort > _LAST:
            raise UnreadableSource(
                "fragments of records are out of order", where=f"{path} @ byte {position}", fix=BEGINNING_IMPORTED
            )
        parts.append(data)
        if sort in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
    if parts and not is_growing:
        raise UnreadableSource("the file ends inside a record", where=str(path), fix=BEGINNING_IMPORTED)


def _pieces(path: Path, is_growing: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yield the position, type and bytes of each fragment of a record."""
    try:
        with open(path, "rb") as file:
            if file.read(len(HEADER)) != HEADER:
                raise UnreadableSource("not a W&B run file", where=str(path))
            position = len(HEADER)
            while True:
                left = BLOCK_BYTES - position % BLOCK_BYTES
                if left < _HEAD.size:
                    position += len(file.read(left))
                head = file.read(_HEAD.size)
                if not head:
                    return
                where = f"{path} @ byte {position}"
                checksum, length, sort = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, BLOCK_BYTES, 0)
                data = file.read(length) if len(head) == _HEAD.size else b""
                if len(data) < length:
                    if is_growing:
                        return
                    raise UnreadableSource("the file ends inside a record", where=where, fix=BEGINNING_IMPORTED)
                if zlib.crc32(data, zlib.crc32(bytes((sort,)))) != checksum:
                    raise UnreadableSource("a record's checksum is wrong", where=where, fix=BEGINNING_IMPORTED)
                yield position, sort, data
                position += _HEAD.size + length
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None
