"""Finds what a recorded path names on disk, and deletes it without following a link out of its folder.

Takes paths as runs recorded them; returns places with their sizes, or the reason why nothing there may be deleted.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..store.run_folder import RUN_JSON

#: Why a path is no checkpoint any more; ``MISSING`` alone says that nothing is there.
MISSING: Final = "missing"

#: Names of files in a run's folder that belong to its log.
_OF_A_LOG: Final = re.compile(r"(run|columns|digests)\.json|annotations\.jsonl|(torn-)?journal-.*|.*\.parquet")

#: How many characters of a name an ``aside`` keeps: file systems allow 255 bytes.
_KEPT_OF_NAME: Final = 50


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The size and age of a file or a folder.

    Attributes:
        size_bytes: Its size; for a folder, that of all files in it.
        newest_ns: The newest modification time in it, nanoseconds since 1970.
        holds_log: Whether a run's log is in it.
    """

    size_bytes: int
    newest_ns: int
    holds_log: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The file or folder that a recorded path names.

    Attributes:
        path: The path, without links.
        extent: What is there; None if ``fault`` is not empty.
        fault: Why it is neither judged nor deleted; empty for a sound checkpoint.
    """

    path: Path
    extent: DiskUse | None
    fault: str = ""

    @property
    def is_there(self) -> bool:
        """Whether something may be there."""
        return self.fault != MISSING


@dataclass(frozen=True, slots=True)
class Grounds:
    """The folders in which checkpoints may be deleted.

    Attributes:
        base: The folder that relative paths are relative to.
        allowed: The folders, without links.
    """

    base: Path
    allowed: tuple[Path, ...]

    def ground_of(self, path: Path) -> Path | None:
        """Return the allowed folder that a path without links lies in; None for any other path."""
        return next((ground for ground in self.allowed if ground in path.parents), None)

    def resolved(self, recorded: str) -> Path:
        """Return a recorded path without links."""
        return Path(os.path.realpath(self.base / recorded.replace("\0", "")))

    def place(self, recorded: str, size_bytes: int | None) -> CheckpointPlace:
        """Return what a recorded path names.

        Args:
            recorded: The path, as the run gave it.
            size_bytes: The size that the run recorded; None if it did not.
        """
        if "\0" in recorded or "://" in recorded:
            return CheckpointPlace(Path(recorded), None, "not a path on this machine")
        path = self.resolved(recorded)
        if self.ground_of(path) is None:
            return CheckpointPlace(path, None, "outside the root" if os.path.lexists(path) else MISSING)
        try:
            extent = extent_of(path)
        except FileNotFoundError:
            return CheckpointPlace(path, None, MISSING)
        except OSError as error:
            return CheckpointPlace(path, None, f"cannot be read ({error.strerror})")
        fault = "holds the log of a run" if extent.holds_log else ""
        if _OF_A_LOG.fullmatch(path.name) and (path.parent / RUN_JSON).exists():
            fault = "part of the log of a run"
        elif size_bytes is None and not os.path.isabs(recorded):
            fault = "a relative path without a recorded size"
        elif size_bytes not in (None, extent.size_bytes):
            fault = f"holds {extent.size_bytes:,} bytes, not the {size_bytes:,} recorded"
        return CheckpointPlace(path, None if fault else extent, fault)


def extent_of(path: Path, *, without: frozenset[Path] = frozenset()) -> DiskUse:
    """Return what a file or a folder holds. Links in it count as links.

    Args:
        path: The file or folder.
        without: Files and folders in it that do not count.

    Raises:
        OSError: It is missing, cannot be read, or is neither a file nor a folder.
    """
    status = os.lstat(path)
    if stat.S_ISREG(status.st_mode):
        return DiskUse(status.st_size, status.st_mtime_ns)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(0, "neither a file nor a folder", str(path))
    size_bytes, newest_ns, holds_log = 0, status.st_mtime_ns, False
    for entry in _entries(path, without):
        own = entry.stat(follow_symlinks=False)
        newest_ns = max(newest_ns, own.st_mtime_ns)
        if not entry.is_dir():  # As the recorder counts: no link to a folder.
            size_bytes += own.st_size
            holds_log |= entry.name == RUN_JSON
    return DiskUse(size_bytes, newest_ns, holds_log)


def _entries(folder: Path, without: frozenset[Path]) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if Path(entry.path) not in without:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    yield from _entries(Path(entry.path), without)


def aside_of(path: Path, token: str) -> Path:
    """Return the name that a file or folder takes before it is removed: no reader takes that for a run."""
    return path.with_name(f".deleted-{path.name[:_KEPT_OF_NAME]}-{token}")


def remove(path: Path, ground: Path, aside: Path) -> None:
    """Delete a file, or a folder with its content. It is renamed first, so that nobody takes a half of it for whole.

    Args:
        path: The file or folder, without links.
        ground: A folder above it. A link on the way from there is an error.
        aside: The name that it takes meanwhile, in the same folder.

    Raises:
        OSError: It cannot be deleted.
    """
    inner = path.relative_to(ground).parts[:-1]
    fd = os.open(ground, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in inner:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            deeper = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = deeper
        os.rename(path.name, aside.name, src_dir_fd=fd, dst_dir_fd=fd)
        if stat.S_ISDIR(os.stat(aside.name, dir_fd=fd, follow_symlinks=False).st_mode):
            shutil.rmtree(aside.name, dir_fd=fd)
        else:
            os.unlink(aside.name, dir_fd=fd)
        os.fsync(fd)
    finally:
        os.close(fd)
