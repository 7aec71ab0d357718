"""Turns SIGTERM into an exception that unwinds the training loop, so that the run ends properly.

A repeated SIGTERM is ignored for ``ONE_REQUEST_S``. Launchers forward what the batch system has already sent to every
process, and the second signal must not interrupt the ending.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, Final

#: The exit status that a shell reports for a process that SIGTERM ended.
EXIT_STATUS: Final = 128 + signal.SIGTERM

#: Seconds within which a repeated SIGTERM counts as the same request: shorter than batch systems wait before they kill.
ONE_REQUEST_S: Final = 5.0


class Terminated(SystemExit):
    """The process received SIGTERM. If nothing catches it, the program exits with status 143.

    Attributes:
        latest: The latest one raised, because the interpreter keeps no ``SystemExit`` for exit handlers.
        raised_s: Its creation time on the monotonic clock.
    """

    latest: ClassVar[Terminated | None] = None

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)
        self.raised_s = time.monotonic()
        Terminated.latest = self

    def __str__(self) -> str:
        return "the process received SIGTERM"


def raise_on_sigterm() -> bool:
    """Turn SIGTERM into ``Terminated`` in the main thread, unless the program has its own handler.

    Returns:
        Whether the handler is installed. If so, ``restore_sigterm`` removes it, once called as often.
    """
    global _wanted
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _raise):
        return False
    signal.signal(signal.SIGTERM, _raise)
    if not _wanted:
        Terminated.latest = None
    _wanted += 1
    return True


def handled_since(moment_s: float) -> bool:
    """Whether the handler has run since a time on the monotonic clock."""
    return _handled_s >= moment_s


def restore_sigterm() -> None:
    """Restore SIGTERM's default handler, if ours is still installed and no other recorder needs it.

    After a SIGTERM the handler stays, to ignore repetitions while the program ends.
    """
    global _wanted
    _wanted -= 1
    if _wanted == 0 and not _is_repeated():
        _restore()


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until a short block ends, in the main thread, which is where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A handler that was not set from Python could not be set again.
    known = {number: handler for number, handler in handlers.items() if handler is not None}
    for number in known:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)
        for held in dict.fromkeys(came):
            signal.raise_signal(held)


def _forget() -> None:
    """Restore SIGTERM's default in a forked child.

    The child, such as a loader's worker, has no run to end. SIGTERM is meant to end the process at once.
    """
    global _wanted
    _wanted = 0
    _restore()


def _restore() -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _raise:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    global _handled_s
    _handled_s = time.monotonic()
    if _is_repeated():
        return
    if not _wanted:
        _restore()
        signal.raise_signal(signal.SIGTERM)
    raise Terminated


def _is_repeated() -> bool:
    """Whether a SIGTERM that came now would be a repetition."""
    latest = Terminated.latest
    return latest is not None and time.monotonic() - latest.raised_s <= ONE_REQUEST_S


#: Number of recorders that need the handler.
_wanted = 0

#: When the handler last ran, on the monotonic clock.
_handled_s = -math.inf

os.register_at_fork(after_in_child=_forget)
