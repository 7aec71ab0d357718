"""Waits for a condition instead of sleeping for a fixed time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: Seconds after which a test gives up. A test of 4 s on an idle machine has taken 180 s on a busy one.
PATIENCE_S: Final = float(os.environ.get("STEPTAPE_PATIENCE_S", "600"))


def until(look: Callable[[], T]) -> T:
    """Poll ``look`` every 50 ms and return its first true result.

    Raises:
        AssertionError: ``PATIENCE_S`` have passed; the message holds the last result.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s; seen last: {seen!r}"
        time.sleep(0.05)
    return seen
