"""Writes a file that the kernel flushes to disk during the writing, so that the final fsync waits only for the rest."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

#: Bytes written and flushed at a time.
SENT_BYTES: Final = 1024 * 1024

#: Start flushing a range without waiting; errors are left for fsync to report. See sync_file_range(2).
_SYNC_FILE_RANGE_WRITE: Final = 2


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing that is durable when the context ends without an error."""
    with io.BufferedWriter(_SentFile(path), SENT_BYTES) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class _SentFile(io.FileIO):
    """A file that starts flushing every write to disk at once.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self._sent = 0

    def write(self, data: Any) -> int:
        """Write as many bytes as possible, and return their number."""
        written = super().write(data)
        if _sync_file_range is not None:
            _sync_file_range(self.fileno(), self._sent, written, _SYNC_FILE_RANGE_WRITE)
        self._sent += written
        return written


def _linux_function() -> Any:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except AttributeError:  # Other systems rely on fsync alone.
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range: Final = _linux_function()
