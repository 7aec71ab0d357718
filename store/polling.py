"""Pauses between looks at what grows."""

from __future__ import annotations

import time
from typing import Final

#: Looking and reading take a tenth of the time at most, however large a journal is.
_PAUSE_TIMES: Final = 9


def pause_after(began_s: float, least_s: float) -> float:
    """Seconds to wait before the next look.

    Args:
        began_s: When the last look began, by the monotonic clock. It ends now.
        least_s: The shortest pause, in seconds.
    """
    return max(least_s, _PAUSE_TIMES * (time.monotonic() - began_s))
