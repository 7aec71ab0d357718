"""A file that goes to the disk while it is written: bytes in, and in the end only the last of them are waited for."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

#: So much is written at a time, and sent off to the disk.
SENT_BYTES: Final = 1024 * 1024

#: Begin to write a range to the disk: nothing is waited for, and an error stays for fsync to tell. sync_file_range(2)
_SYNC_FILE_RANGE_WRITE: Final = 2


@contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write anew, durable when the context ends well."""
    with io.BufferedWriter(_SentFile(path), SENT_BYTES) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class _SentFile(io.FileIO):
    """A file of which the disk gets at once what is written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self._sent = 0

    def write(self, data: Any) -> int:
        """Write what can be, and say how many bytes that was."""
        written = super().write(data)
        if _sync_file_range is not None:
            _sync_file_range(self.fileno(), self._sent, written, _SYNC_FILE_RANGE_WRITE)
        self._sent += written
        return written


def _linux_function() -> Any:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except AttributeError:  # Elsewhere all is left to fsync.
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range: Final = _linux_function()
