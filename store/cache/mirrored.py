"""Recognizes mirrors, the copies of stores in object storage, and refuses to write into them."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from ..errors import ReadOnlyStore
from .user_cache import cache_folder


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
