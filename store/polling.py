"""Computes the pause between polls of a growing file or folder."""

from __future__ import annotations

import time
from typing import Final

#: A poll takes at most a tenth of the time, however large a journal is.
_PAUSE_TIMES: Final = 9


def pause_after(began_s: float, least_s: float) -> float:
    """Return the seconds to wait before the next poll.

    Args:
        began_s: Start of the last poll on the monotonic clock. It ends now.
        least_s: The shortest pause, in seconds.
    """
    return max(least_s, _PAUSE_TIMES * (time.monotonic() - began_s))
