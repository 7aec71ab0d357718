"""Keeps file descriptors clear of the standard streams, and detects descriptors that no longer hold their file."""

from __future__ import annotations

import fcntl
import os
from typing import Final

_LAST_STANDARD_STREAM: Final = 2


def above_streams(fd: int) -> int:
    """Return a descriptor of the same open file that is none of 0, 1 and 2; the given one is closed if it is.

    A program may run with its standard streams closed (``>&- 2>&-``). A new file would get their numbers, and what a C
    library prints would be written into it.
    """
    if fd > _LAST_STANDARD_STREAM:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD_STREAM + 1)
    finally:
        os.close(fd)


def inode_of(fd: int) -> tuple[int, int] | None:
    """Return the device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
