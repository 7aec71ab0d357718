"""Locates steptape's folder in the user's cache, and recognizes mirrors there: copies of stores in object storage.

All of the folder may be deleted at any time. It is derived, but for the count of tries on the same runs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .errors import ReadOnlyStore

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
