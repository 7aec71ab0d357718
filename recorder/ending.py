"""Converts the exception that ended a run into a status and a failure record."""

from __future__ import annotations

import traceback
from typing import Final

from ..store.errors import shortened
from .termination import Terminated
from .values import as_text

#: Maximum traceback frames kept with a failure.
_TRACEBACK_FRAMES: Final = 12


def status_of(error: BaseException) -> str:
    """Return the status of a run that this exception ended."""
    if isinstance(error, (KeyboardInterrupt, Terminated)):
        return "interrupted"
    return "completed" if isinstance(error, SystemExit) and not error.code else "failed"


def failure_of(error: BaseException) -> dict[str, str]:
    """Return the type and message of the exception."""
    try:
        message = shortened(as_text(error), 2000)
    except Exception:  # An exception class of the user may have a __str__ that fails.
        message = "(its message cannot be read)"
    return {"type": type(error).__name__, "message": message}


def innermost_frames(error: BaseException) -> list[str]:
    """Return the innermost frames of the traceback, last one first, as ``file:line in function``."""
    frames = traceback.extract_tb(error.__traceback__)[-_TRACEBACK_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
