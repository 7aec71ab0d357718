"""Converts the exception that ended a run into a status and a failure record."""

from __future__ import annotations

import functools
import signal
import sys
import traceback
from types import FrameType
from typing import Final

from ..store.errors import InvalidEvent, shortened
from ..store.run_info import redacted_code
from .process.termination import Terminated
from .values import as_text

#: Maximum traceback frames kept with a failure.
_TRACEBACK_FRAMES: Final = 12

#: Maximum characters of its text, and of each line.
_TRACEBACK_CHARACTERS: Final = 8_000
_LINE_CHARACTERS: Final = 2_000


#: The statuses with which a loop may end its run.
_ENDS: Final = ("completed", "stopped", "interrupted", "failed")


def as_end_status(status: object) -> str:
    """Return the status that a loop gives to its run's end.

    Raises:
        InvalidEvent: It is none.
    """
    if status not in _ENDS:
        raise InvalidEvent(f"status must be one of {', '.join(_ENDS)}", got=status)
    return str(status)


def status_of(error: BaseException) -> str:
    """Return the status of a run that this exception ended."""
    if isinstance(error, (KeyboardInterrupt, Terminated)) or _is_ctrl_c_of_asyncio(error):
        return "interrupted"
    return "completed" if isinstance(error, SystemExit) and not error.code else "failed"


def _is_ctrl_c_of_asyncio(error: BaseException) -> bool:
    """Whether Ctrl-C cancelled the main task of ``asyncio.run``, which raises ``KeyboardInterrupt`` only afterwards.

    Any other cancellation is a failure: of a sibling task, or by a timeout. The runner counts the signals in an
    attribute without a public name; where it is missing, the run ends as failed.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    handler = signal.getsignal(signal.SIGINT)
    runner = getattr(handler.func, "__self__", None) if isinstance(handler, functools.partial) else None
    return isinstance(runner, asyncio.Runner) and getattr(runner, "_interrupt_count", 0) > 0


def failure_of(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of the exception."""
    try:
        message = shortened(as_text(error), 2000)
    except Exception:  # An exception class of the user may have a __str__ that fails.
        message = "(its message cannot be read)"
    return {"type": type(error).__name__, "message": message, "traceback": _traceback_text(error)}


def blocked_failure(frame: FrameType) -> dict[str, str]:
    """Return the failure record of a run that SIGTERM ended while the main thread was blocked in this frame."""
    stack = traceback.extract_stack(frame)[-_TRACEBACK_FRAMES:]
    where = f"{stack[-1].filename}:{stack[-1].lineno} in {stack[-1].name}"
    message = f"the process received SIGTERM while its main thread was blocked in {where}"
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(stack)]
    return {"type": Terminated.__name__, "message": message, "traceback": _shown(lines)}


def _traceback_text(error: BaseException) -> str:
    """Return the traceback as Python prints it, with secrets in its code redacted; empty if it cannot be formatted."""
    try:
        return _shown(traceback.format_exception(error, limit=-_TRACEBACK_FRAMES))
    except Exception:  # The code of an exception class of the user.
        return ""


def _shown(lines: list[str]) -> str:
    text = "\n".join(redacted_code(line[:_LINE_CHARACTERS]) for line in "".join(lines).rstrip().splitlines())
    return shortened(as_text(text), _TRACEBACK_CHARACTERS)
