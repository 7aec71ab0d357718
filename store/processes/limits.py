"""Limits that a child process sets on itself: memory, file writes, priority, exit with its parent, and its stdout."""

from __future__ import annotations

import os
import resource
import select
import sys
import threading


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


def end_with_parent() -> None:
    """End this process, whatever it is computing, as soon as its parent ends or closes the pipe to its stdin.

    Uses a thread. Linux's ``PR_SET_PDEATHSIG`` signal is unsuitable: it already fires when the parent thread that
    started the child ends, and a server's threads come and go.
    """
    threading.Thread(target=_end_at_hangup, name="end-with-parent", daemon=True).start()


def claim_stdout() -> int:
    """Return a descriptor for writing answers, and redirect everything printed from now on to stderr."""
    sys.stdout.flush()
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _end_at_hangup() -> None:
    hangup = select.poll()
    hangup.register(0, 0)  # Pending requests are no event; the end of the pipe always is.
    hangup.poll()
    os._exit(1)
