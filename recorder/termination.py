"""Ending a run properly when its process is asked to: SIGTERM becomes an exception that unwinds the training loop.

Once: launchers pass on what the batch system has sent to everybody already, and the second one must not end the ending.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, Final

#: What a shell reports of a process that SIGTERM ended.
EXIT_STATUS: Final = 128 + signal.SIGTERM

#: Seconds within which SIGTERM again is the same request: less than batch systems wait before they kill.
ONE_REQUEST_S: Final = 5.0


class Terminated(SystemExit):
    """The process was sent SIGTERM. Unless somebody catches it, the program ends with status 143.

    Attributes:
        latest: The one that was raised last, since the interpreter keeps no ``SystemExit`` for exit handlers to see.
        raised_s: When it was made, by the monotonic clock.
    """

    latest: ClassVar[Terminated | None] = None

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)
        self.raised_s = time.monotonic()
        Terminated.latest = self

    def __str__(self) -> str:
        return "the process was sent SIGTERM"


def raise_on_sigterm() -> bool:
    """Turn SIGTERM into ``Terminated`` in the main thread, unless the program has a handler of its own.

    Returns:
        Whether it was done; then ``restore_sigterm`` undoes it, when it was called as often.
    """
    global _wanted
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _raise):
        return False
    signal.signal(signal.SIGTERM, _raise)
    _wanted += 1
    return True


def restore_sigterm() -> None:
    """Give SIGTERM back its default, if ``raise_on_sigterm`` still has it and no other recorder wants it."""
    global _wanted
    _wanted -= 1
    if _wanted == 0:
        Terminated.latest = None
        _restore()


@contextmanager
def signals_held() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM wait for the end of something short; in the main thread, which is where they arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # One that was not set by Python could not be set again.
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
    """In a forked child, which has no run to end: who terminates it, a loader's worker say, means it to be gone."""
    global _wanted
    _wanted = 0
    _restore()


def _restore() -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _raise:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    latest = Terminated.latest
    if latest is None or time.monotonic() - latest.raised_s > ONE_REQUEST_S:
        raise Terminated


#: Recorders that want the handler.
_wanted = 0

os.register_at_fork(after_in_child=_forget)
