"""Limits that a child process sets on itself: memory, file writes, priority, exit with its parent, and its stdout."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import sys
import threading
from typing import Final

#: Environment variable with the descriptor of a child's lifeline.
LIFELINE: Final = "STEPTAPE_LIFELINE"


def limit_process(memory_bytes: int, *, writes_files: bool = True, niceness: int = 0) -> None:
    """Limit the resources of this process. It writes no core file.

    Args:
        memory_bytes: Limit on its data; exceeding it raises MemoryError or ends the process.
        writes_files: Whether it may grow files. Pipes are always allowed.
        niceness: Increment to its nice value, which lowers its priority.
    """
    os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not writes_files:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def end_with_parent(lifeline: int | None = None) -> None:
    """End this process, whatever it is computing, as soon as its parent ends or closes the pipe between them.

    Uses a thread and, on Linux, a signal from the lifeline: a thread cannot run while the process is stopped, or while
    C code holds the interpreter's lock, as a regular expression may for hours. ``PR_SET_PDEATHSIG`` is unsuitable: it
    already fires when the parent thread that started the child ends, and a server's threads come and go.

    Args:
        lifeline: The read end of a pipe that the parent holds open and never writes to. By default stdin, which may
            carry requests, and the lifeline of a ``ChildProcess`` that is bound.
    """
    made = os.environ.pop(LIFELINE, None)
    pipe = 0 if lifeline is None else lifeline
    if lifeline is None and made is not None:
        lifeline = int(made)
    if lifeline is not None:
        _kill_at_hangup(lifeline)
    threading.Thread(target=_end_at_hangup, args=[pipe], name="end-with-parent", daemon=True).start()


def claim_stdout() -> int:
    """Return a descriptor for writing answers, and redirect everything printed from now on to stderr."""
    sys.stdout.flush()
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _kill_at_hangup(lifeline: int) -> None:
    """Have the kernel kill this process when all writers of a pipe have ended."""
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if _hangup_of(lifeline).poll(0):  # It came before the signal was set.
        os._exit(1)


def _end_at_hangup(pipe: int) -> None:
    _hangup_of(pipe).poll()
    os._exit(1)


def _hangup_of(pipe: int) -> select.poll:
    hangup = select.poll()
    hangup.register(pipe, 0)  # Pending requests are no event; the end of the pipe always is.
    return hangup
