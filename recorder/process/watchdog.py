"""Ends a process that SIGTERM reaches while its main thread is blocked, as in a collective whose peer is gone.

Python runs signal handlers in the main thread, once the C code that it is in returns. So a rank with the handler of
``termination.py`` would outlive SIGTERM, where one without it ends at once. Python also writes the number of each
signal into a pipe, from C. A thread reads it, waits for the handler, and then records the ends of the runs and lets the
signal end the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeAlias

from ...store.own_process import above_streams
from .termination import ONE_REQUEST_S, handled_since

#: Seconds that the main thread has to handle SIGTERM, and that the ends of the runs may take after that. Together they
#: are less than any launcher waits before it kills: ``docker stop`` waits 10 s, torchrun, Slurm and Kubernetes 30 s.
PATIENCE_S: Final = 6.0
ENDING_S: Final = 3.0

#: Records the end of a run, given the frame that the main thread is in.
End: TypeAlias = Callable[[FrameType], None]


def watch(end: End) -> None:
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


def unwatch(end: End) -> None:
    """Undo ``watch``. The last one ends the thread, if called from the main thread."""
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
                if _ends and not handled_since(came_s - ONE_REQUEST_S):
                    _end_process()


def _end_process() -> None:
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main or 0)
    if frame is not None:
        # In a thread, because the main thread may hold the lock of a recorder, or a disk may hang.
        thread = threading.Thread(target=_record_ends, args=(frame,), daemon=True)
        thread.start()
        thread.join(ENDING_S)
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
    """Keep the signals of a child, which come before it runs ``_forget``, out of this process's pipe."""
    if _wakeup_fd >= 0 and _is_main():
        _exchange_wakeup_fd(_wakeup_fd, -1)


def _after_fork() -> None:
    if _wakeup_fd >= 0 and _is_main():
        _exchange_wakeup_fd(-1, _wakeup_fd)


def _forget() -> None:
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

os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget)
