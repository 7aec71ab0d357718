"""Reads a large part of a mirrored run by blocks, so that a reader of a few columns fetches those alone.

The manifest has a digest of each block: a block is checked, cached and evicted like a part.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

#: Size of a part from which its pusher takes digests of its blocks.
LEAST_BYTES: Final = 16 << 20

#: Size of a block, but for the last. A column of 1,000 has about 32 KiB in each row group of 32 MiB.
BLOCK_BYTES: Final = 1 << 18


def block_digests(path: Path) -> tuple[str, ...]:
    """Return the SHA-256 of each block of a large file, in hexadecimal; empty for a smaller file."""
    if path.stat().st_size < LEAST_BYTES:
        return ()
    with open(path, "rb") as file:
        return tuple(hashlib.sha256(block).hexdigest() for block in iter(lambda: file.read(BLOCK_BYTES), b""))


class PartInBlocks(io.RawIOBase):
    """A part as a file whose blocks are fetched when they are read. Fetches the whole part once half of it was read.

    Args:
        path: Where the whole part appears.
        names: The file name of each block in the cache: ``SHA256.SIZE``.
        read: Returns the content of some consecutive blocks, given their indices.
        fetch: Fetches the whole part.
    """

    def __init__(
        self, path: Path, names: Sequence[str], read: Callable[[range], bytes], fetch: Callable[[Path], None]
    ) -> None:
        self._path, self._read, self._fetch = path, read, fetch
        self._count = len(names)
        self._size = sum(int(name.partition(".")[2]) for name in names)
        self._at, self._seen = 0, set[int]()

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes, or fewer at the end; all if negative."""
        start, end = self._at, self._size if size < 0 else min(self._at + size, self._size)
        if end <= start:
            return b""
        self._at = end
        blocks = range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)
        self._seen.update(blocks)
        if 2 * len(self._seen) <= self._count:
            before = blocks.start * BLOCK_BYTES
            return self._read(blocks)[start - before : end - before]
        self._fetch(self._path)
        with open(self._path, "rb") as file:
            file.seek(start)
            return file.read(end - start)
