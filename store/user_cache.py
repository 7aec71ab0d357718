"""Locates steptape's folder in the user's cache, keeps small results there, and recognizes its mirrors.

A mirror is a copy of a store in object storage. All of the folder may be deleted at any time: it is derived, but
for the count of tries on the same runs.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from .errors import ReadOnlyStore
from .run_folder import replace_file

#: Environment variables that locate the folder: the first names it, the second its parent.
CACHE_VARIABLES: Final = ("STEPTAPE_CACHE", "XDG_CACHE_HOME")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return ``STEPTAPE_CACHE``, or ``steptape`` in the user's cache folder; None without a home."""
    own, shared = (environment.get(name) for name in CACHE_VARIABLES)
    if own:
        return Path(own)
    if shared:
        return Path(shared) / "steptape"
    try:
        return Path.home() / ".cache" / "steptape"
    except RuntimeError:
        return None


class CachedFiles(NamedTuple):
    """Small results in a folder of the user's cache, one file for each key.

    A file begins with a digest of its key and content: a torn or foreign one counts as missing. The key has the number
    of the format. Any number of processes may read and write, since a file is replaced as a whole.

    Attributes:
        kind: The name of the folder.
        most: Files to keep; the least recently written ones are deleted first.
    """

    kind: str
    most: int

    def read(self, key: str) -> bytes | None:
        """Return what was written under a key; None if there is nothing."""
        place = self._place(key)
        with suppress(OSError):
            content = b"" if place is None else place.read_bytes()
            body = content[_DIGEST_BYTES:]
            return body if content == _digest(key, body) + body else None
        return None

    def write(self, key: str, body: bytes) -> None:
        """Keep a result under a key, unless the cache cannot be written."""
        place = self._place(key)
        if place is None:
            return
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, _digest(key, body) + body, is_durable=False)
            if len(os.listdir(place.parent)) > self.most:
                kept = sorted(place.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
                # A tenth more than needed, so that not every write looks at all files.
                for path in kept[: len(kept) - self.most * 9 // 10]:
                    path.unlink(missing_ok=True)

    def _place(self, key: str) -> Path | None:
        cache = cache_folder()
        return None if cache is None else cache / self.kind / hashlib.sha256(os.fsencode(key)).hexdigest()[:32]


_DIGEST_BYTES: Final = hashlib.sha256().digest_size


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(os.fsencode(key) + b"\0" + body).digest()


def mirrors_folder() -> Path | None:
    """Return the folder of all mirrors in the user's cache; None without a home."""
    cache = cache_folder()
    return None if cache is None else Path(os.path.abspath(cache), "objects", "stores")


@functools.lru_cache(maxsize=1024)
def is_mirror(store: Path) -> bool:
    """Whether a store's folder is a mirror. Where it lies says so: nothing in a foreign folder makes it one."""
    return Path(os.path.abspath(store)).parent == mirrors_folder()


def require_writable(store: Path, run: str = "") -> None:
    """Check that a store is one of this machine.

    Args:
        store: Its folder.
        run: The name of the run that would be changed.

    Raises:
        ReadOnlyStore: It is a copy of a store in object storage.
    """
    if is_mirror(store):
        fix = "Do it where the runs were pushed from, and push again"
        raise ReadOnlyStore("a store in object storage is only read", where=run, fix=fix)
