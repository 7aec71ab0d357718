"""Waiting for what comes in its own time: until it is there, and not for so many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: Seconds after which a test gives up. What takes 4 s on an idle machine has taken 180 s on a busy one.
PATIENCE_S: Final = 600.0


def until(look: Callable[[], T]) -> T:
    """Look every 50 ms, and return what was seen as soon as it is true.

    Raises:
        AssertionError: ``PATIENCE_S`` have passed; the message has what was seen last.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s; seen last: {seen!r}"
        time.sleep(0.05)
    return seen
