"""Says how a run ended: its status, the record of its failure, and one line on stderr at its begin and its end."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Final

from ..store.errors import InvalidEvent, counted, shortened
from ..store.redaction import redacted_text
from .loop_values import as_text
from .process.termination import Terminated

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
    # Another thread may be importing it.
    if asyncio is None or not isinstance(error, getattr(asyncio, "CancelledError", ())):
        return False
    handler = signal.getsignal(signal.SIGINT)
    runner = getattr(handler.func, "__self__", None) if isinstance(handler, functools.partial) else None
    return isinstance(runner, asyncio.Runner) and getattr(runner, "_interrupt_count", 0) > 0


def failure_of(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of the exception, with secrets redacted."""
    try:
        message = shortened(redacted_text(as_text(error)), 2000)
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
    """Return the traceback as Python prints it, with secrets redacted; empty if it cannot be formatted."""
    try:
        return _shown(traceback.format_exception(error, limit=-_TRACEBACK_FRAMES))
    except Exception:  # The code of an exception class of the user.
        return ""


def _shown(lines: list[str]) -> str:
    text = "\n".join(redacted_text(line[:_LINE_CHARACTERS]) for line in "".join(lines).rstrip().splitlines())
    return shortened(as_text(text), _TRACEBACK_CHARACTERS)


#: The environment variable that silences the lines, unless its value is one of ``_LOUD``.
QUIET_VARIABLE: Final = "STEPTAPE_QUIET"
_LOUD: Final = ("", "0", "false", "no", "off")

#: Maximum metrics in the last line.
_SHOWN: Final = 4


class ConsoleLines:
    """The lines of one run.

    Args:
        folder: The run's folder.
        name: The run's name.
        is_quiet: Print nothing. The environment variable has the same effect.
        counts_steps: Whether the number of the last step is that of the steps.

    Attributes:
        folder: The run's folder, as the lines name it.
    """

    def __init__(self, folder: Path, name: str, *, is_quiet: bool, counts_steps: bool = True) -> None:
        self.folder, self._name, self._counts_steps = folder, name, counts_steps
        self._is_quiet = is_quiet or os.environ.get(QUIET_VARIABLE, "").lower() not in _LOUD

    def begin(self) -> None:
        """Print that the run is recorded."""
        self._say(f"recording {self._name!r}. {self._how_to_look()}")

    def end(
        self, status: str, steps: int, metrics: Mapping[str, float], lost_events: int, ignored: int, who: str
    ) -> None:
        """Print how the run ended, with the first of its last values.

        Args:
            status: The status of the run, or what ended the attempt.
            steps: Updates finished, or the newest step.
            metrics: Its last values.
            lost_events: Events that could not be recorded.
            ignored: Updates after the loop was asked to stop.
            who: Asked for it.
        """
        values = ", ".join(f"{name} {value:.4g}" for name, value in islice(metrics.items(), _SHOWN))
        more = f" and {len(metrics) - _SHOWN} more" if len(metrics) > _SHOWN else ""
        late = f", {ignored} of them after {who} asked for a stop" if ignored > 0 else ""
        reached = f"after {counted(steps, 'step')}" if self._counts_steps else f"at step {steps:,}"
        ended = f"{self._name!r} {status} {reached}{late}"
        lost = f". {counted(lost_events, 'event')} could not be recorded" if lost_events else ""
        self._say(f"{ended}{': ' if values else ''}{values}{more}{lost}. {self._how_to_look()}")

    def _how_to_look(self) -> str:
        return f"To look at it: steptape show {shlex.quote(str(self.folder))}"

    def _say(self, line: str) -> None:
        if self._is_quiet or sys.stderr is None:
            return
        # A closed or full stderr must not end the training.
        try:
            sys.stderr.write(f"steptape: {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self._is_quiet = True
