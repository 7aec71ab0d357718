"""A file that is on its way to the disk while it is written: its last bytes, not all of them, are waited for."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: So much is written at a time, and sent off to the disk.
SENT_BYTES: Final = 1024 * 1024

#: Have the kernel begin to write a range; nothing is waited for, and no error is taken from a later fsync.
#: sync_file_range(2)
_SYNC_FILE_RANGE_WRITE: Final = 2


@contextmanager
def durable_file(path: Path) -> Iterator[io.BufferedWriter]:
    """A new file to write, or one to write anew. It is durable when the context ends well."""
    with io.BufferedWriter(_SentFile(path), SENT_BYTES) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class _SentFile(io.FileIO):
    """What is written to it, the disk is told of at once.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self._sent = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        written = super().write(data)
        _send(self.fileno(), self._sent, written, _SYNC_FILE_RANGE_WRITE)
        self._sent += written
        return written


def _sender() -> Callable[[int, int, int, int], int]:
    """Linux's function for it, or where there is none, one that leaves all to fsync."""
    try:
        send = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return lambda fd, offset, size, flags: -1
    send.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return send  # type: ignore[no-any-return]


_send: Final = _sender()
