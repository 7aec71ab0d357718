"""When Python looks for garbage: not while very many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Leave cyclic garbage alone meanwhile.

    To look through the events of a run again and again while they are made takes as long as to make them. What nothing
    refers to is freed at once all the same.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
