"""Locates steptape's folder in the user's cache. Everything in it is derived and may be deleted at any time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
