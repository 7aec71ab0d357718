"""Limits that a child process puts on itself: memory, files, priority, the life of its parent, and its stdout."""

from __future__ import annotations

import os
import resource
import select
import sys
import threading


def limit_process(memory_bytes: int, *, writes_files: bool = True, niceness: int = 0) -> None:
    """Limit what this process may take. It leaves no core file.

    Args:
        memory_bytes: Of data; what goes beyond it is a MemoryError, or ends the process.
        writes_files: Without, no file can grow by its hand. Pipes are no files.
        niceness: By how much it steps back behind other processes.
    """
    os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not writes_files:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def end_with_parent() -> None:
    """End this process, whatever it computes, as soon as its parent has ended or has closed the pipe to its stdin.

    A thread does it. Linux could send a signal (``PR_SET_PDEATHSIG``), but already when the parent's thread ends that
    started the child, and a server's threads come and go.
    """
    threading.Thread(target=_end_at_hangup, name="end-with-parent", daemon=True).start()


def claim_stdout() -> int:
    """The descriptor that answers are written to. What code prints from now on goes to stderr."""
    sys.stdout.flush()
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _end_at_hangup() -> None:
    hangup = select.poll()
    hangup.register(0, 0)  # Requests that wait to be read are no event; the end of the pipe always is.
    hangup.poll()
    os._exit(1)
