"""The file format of W&B's offline runs: LevelDB's log, records in, their bytes out."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import UnreadableSource

#: Seven bytes before everything else; they count as a part of the first block.
HEADER: Final = b":W&B\xe1\xbe\x00"

BLOCK_BYTES: Final = 32 * 1024

#: Checksum, length and sort of a piece of a record. A block's last bytes that are fewer than this are padding.
_HEAD: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

_KEPT: Final = "The records before were taken"


def records(path: Path, *, is_growing: bool = False) -> Iterator[bytes]:
    """The records of a ``.wandb`` file.

    Args:
        path: The file.
        is_growing: Whether a last record that is cut short is still being written, and no fault.

    Raises:
        UnreadableSource: It is none, cannot be opened, is cut short, or a checksum differs. All records before were
            yielded.
    """
    parts: list[bytes] = []
    for position, sort, data in _pieces(path, is_growing):
        is_begin = sort in (_FULL, _FIRST)
        if is_begin == bool(parts) or sort > _LAST:
            raise UnreadableSource("pieces of records are out of order", where=f"{path} @ byte {position}", fix=_KEPT)
        parts.append(data)
        if sort in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
    if parts and not is_growing:
        raise UnreadableSource("the file is cut short within a record", where=str(path), fix=_KEPT)


def _pieces(path: Path, is_growing: bool) -> Iterator[tuple[int, int, bytes]]:
    """Where each piece of a record stands, its sort, and its bytes."""
    try:
        with open(path, "rb") as file:
            if file.read(len(HEADER)) != HEADER:
                raise UnreadableSource("this is no W&B run file", where=str(path))
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
                    raise UnreadableSource("the file is cut short within a record", where=where, fix=_KEPT)
                if zlib.crc32(data, zlib.crc32(bytes((sort,)))) != checksum:
                    raise UnreadableSource("a record's checksum differs", where=where, fix=_KEPT)
                yield position, sort, data
                position += _HEAD.size + length
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None
