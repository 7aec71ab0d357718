"""Keeps parts of runs in the user's cache, by digest. The parts that were not read for longest go first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..errors import NotWritten, TelemetryError

#: Environment variable with the size limit of the cache in gigabytes, and its default.
LIMIT_VARIABLE: Final = "STEPTAPE_CACHE_GB"
_LIMIT_GB: Final = 20.0

#: A part is not evicted within so many seconds: one statement may need more parts than the limit allows.
_KEPT_S: Final = 600.0

#: Share of the limit that a process fetches between two looks at the size of the cache.
_LOOK_SHARE: Final = 0.05


class PartsCache:
    """The cached parts. Any number of processes may share the folder.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._limit_bytes = _limit_bytes()
        self._fetched_bytes = float("inf")

    def keep(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Write a part unless its content is another one; return whether it was written.

        Args:
            name: ``SHA256.SIZE``, which is its file name.
            pieces: Its content. No more is read than the size in its name.

        Raises:
            NotWritten: The cache has no room.
        """
        sha256, _, size = name.partition(".")
        self._make_room(int(size))
        digest, left = hashlib.sha256(), int(size)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.NamedTemporaryFile(dir=self.folder, prefix=".", delete=False)  # noqa: SIM115
        except OSError as error:
            raise _unwritten(self.folder, error) from None
        try:
            with file:
                for piece in pieces:
                    left -= len(piece)
                    if left < 0:
                        break
                    digest.update(piece)
                    try:
                        file.write(piece)
                        file.flush()
                    except OSError as error:
                        raise _unwritten(self.folder, error) from None
            is_whole = left == 0 and digest.hexdigest() == sha256
            if is_whole:
                os.replace(file.name, self.folder / name)
            return is_whole
        finally:
            Path(file.name).unlink(missing_ok=True)

    def _make_room(self, size_bytes: int) -> None:
        """Evict parts once the limit is exceeded. Looks at the size of the cache only now and then."""
        self._fetched_bytes += size_bytes
        if self._fetched_bytes < _LOOK_SHARE * self._limit_bytes:
            return
        self._fetched_bytes = 0.0
        found: list[tuple[float, int, str]] = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    found.append((max(status.st_atime, status.st_mtime), status.st_size, entry.path))
        held, oldest_s = sum(size for _, size, _ in found) + size_bytes, time.time() - _KEPT_S
        for read_s, size, path in sorted(found):
            if held <= self._limit_bytes or read_s > oldest_s:
                return
            Path(path).unlink(missing_ok=True)
            held -= size


def _limit_bytes() -> float:
    text = os.environ.get(LIMIT_VARIABLE)
    try:
        return 1e9 * (_LIMIT_GB if not text else max(0.0, float(text)))
    except ValueError:
        what = f"{LIMIT_VARIABLE} must be a number of gigabytes"
        raise TelemetryError(what, got=text) from None


def _unwritten(folder: Path, error: OSError) -> NotWritten:
    fix = f"Free some space, or set {LIMIT_VARIABLE} or STEPTAPE_CACHE"
    return NotWritten(f"the cache cannot be written ({error.strerror})", where=str(folder), fix=fix)
