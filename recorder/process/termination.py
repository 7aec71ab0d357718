"""Turns SIGTERM into an exception that unwinds the training loop, so that the run ends properly.

A repeated SIGTERM is ignored for ``_ONE_REQUEST_S``. Launchers forward what the batch system has already sent to every
process, and the second signal must not interrupt the ending.

Python runs signal handlers in the main thread, once the C code that it is in returns. So a rank that is blocked in a
collective whose peer is gone would outlive SIGTERM, where one without the handler ends at once. Python also writes the
number of each signal into a pipe, from C. A watchdog thread reads it, waits for the handler, and then records the ends
of the runs and lets the signal end the process.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, Final, TypeAlias

from ...store.own_process import above_streams, thread_frames

#: The exit status that a shell reports for a process that SIGTERM ended.
_EXIT_STATUS: Final = 128 + signal.SIGTERM

#: Seconds within which a repeated SIGTERM counts as the same request: shorter than batch systems wait before they kill.
_ONE_REQUEST_S: Final = 5.0


class Terminated(SystemExit):
    """The process received SIGTERM. If nothing catches it, the program exits with status 143.

    Attributes:
        latest: The latest one raised, because the interpreter keeps no ``SystemExit`` for exit handlers.
        raised_s: Its creation time on the monotonic clock.
    """

    latest: ClassVar[Terminated | None] = None

    def __init__(self) -> None:
        super().__init__(_EXIT_STATUS)
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


def _handled_since(moment_s: float) -> bool:
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
    return latest is not None and time.monotonic() - latest.raised_s <= _ONE_REQUEST_S


#: Number of recorders that need the handler.
_wanted = 0

#: When the handler last ran, on the monotonic clock.
_handled_s = -math.inf

os.register_at_fork(after_in_child=_forget)


#: Seconds that the main thread has to handle SIGTERM, and that the ends of the runs may take after that. Together they
#: are less than any launcher waits before it kills: ``docker stop`` waits 10 s, torchrun, Slurm and Kubernetes 30 s.
PATIENCE_S: Final = 6.0
_ENDING_S: Final = 3.0

#: Records the end of a run, given the frame that the main thread is in.
End: TypeAlias = Callable[[FrameType], None]


def watch_for_sigterm(end: End) -> None:
    """Call ``end`` before SIGTERM ends the process, if the main thread does not handle it. Call from the main thread.

    Without effect while another library has the process's wakeup descriptor, as asyncio does.
    """
    global _wakeup_fd
    if _wakeup_fd < 0:
        signals, wakeup = map(above_streams, os.pipe())
        os.set_blocking(wakeup, False)
        if not _exchange_wakeup_fd(-1, wakeup):
            os.close(signals)
            os.close(wakeup)
            return
        _wakeup_fd = wakeup
        threading.Thread(target=_read_signals, args=(signals,), name="steptape-watchdog", daemon=True).start()
    _ends.append(end)


def stop_watching(end: End) -> None:
    """Undo ``watch_for_sigterm``. The last one ends the thread, if called from the main thread."""
    global _wakeup_fd
    if end in _ends:
        _ends.remove(end)
    if not _ends and _wakeup_fd >= 0 and _is_main():
        _exchange_wakeup_fd(_wakeup_fd, -1)
        os.close(_wakeup_fd)
        _wakeup_fd = -1


def _read_signals(signals: int) -> None:
    with open(signals, "rb", buffering=0) as pipe:
        while numbers := pipe.read(1 << 10):
            if signal.SIGTERM in numbers:
                came_s = time.monotonic()
                time.sleep(PATIENCE_S)
                # A repeated SIGTERM is part of the request that was handled.
                if _ends and not _handled_since(came_s - _ONE_REQUEST_S):
                    _end_process()


def _end_process() -> None:
    main = threading.main_thread().ident
    frame = thread_frames().get(main or 0)
    if frame is not None:
        # In a thread, because the main thread may hold the lock of a recorder, or a disk may hang.
        thread = threading.Thread(target=_record_ends, args=(frame,), daemon=True)
        thread.start()
        thread.join(_ENDING_S)
    # Imported late, because it takes milliseconds. Only the main thread could call signal.signal.
    import ctypes

    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
    os.kill(os.getpid(), signal.SIGTERM)


def _record_ends(frame: FrameType) -> None:
    for end in _ends:
        end(frame)


def _exchange_wakeup_fd(known: int, new: int) -> bool:
    """Set the process's wakeup descriptor if it is the known one. Return whether it was."""
    found = signal.set_wakeup_fd(new, warn_on_full_buffer=False)
    if found == known:
        return True
    signal.set_wakeup_fd(found)
    return False


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _before_fork() -> None:
    """Keep the signals of a child that has not run ``_leave_signals_to_parent`` yet out of this process's pipe."""
    if _wakeup_fd >= 0 and _is_main():
        _exchange_wakeup_fd(_wakeup_fd, -1)


def _after_fork() -> None:
    if _wakeup_fd >= 0 and _is_main():
        _exchange_wakeup_fd(-1, _wakeup_fd)


def _leave_signals_to_parent() -> None:
    """Leave the parent's pipe to the parent, and its runs."""
    global _wakeup_fd
    if _wakeup_fd >= 0:
        _exchange_wakeup_fd(_wakeup_fd, -1)
        os.close(_wakeup_fd)
    _wakeup_fd = -1
    _ends.clear()


_ends: list[End] = []

#: The end of the pipe that Python writes to; -1 while nothing is watched.
_wakeup_fd = -1

os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_leave_signals_to_parent)
