"""Describes and sets up the running process: its machine, its descriptors and limits, its garbage collection."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, TypedDict


class WriterIdentity(TypedDict, total=False):
    """The process that writes a journal, as far as it was recorded: its machine, the boot, and its id."""

    host: str | None
    boot_id: str | None
    pid: int


def host_name() -> str:
    """This machine's name; the module ``socket`` has it too, but takes 10 ms to import."""
    return os.uname().nodename


@functools.cache
def boot_id() -> str | None:
    """Linux's id of the current boot; None on other systems."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def process_began_ns() -> int:
    """Return the wall clock of this process's start, in nanoseconds since 1970; 0 on systems other than Linux."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0
    booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted_ns + ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def is_of_this_machine(writer: WriterIdentity) -> bool:
    """Whether the writer ran on this machine, so that file locks show if it is alive.

    True for a writer of this boot (whatever its container's host name), or of this host in an earlier boot. A writer
    that recorded neither host nor boot counts as local.

    Args:
        writer: The ``writer`` object of a segment's header: ``host``, ``boot_id``.
    """
    host, boot = writer.get("host"), writer.get("boot_id")
    if host is None and boot is None:
        return True
    return host == host_name() or (boot is not None and boot == boot_id())


_LAST_STANDARD_STREAM: Final = 2


def above_streams(fd: int) -> int:
    """Return a descriptor of the same open file that is none of 0, 1 and 2; the given one is closed if it is.

    A program may run with its standard streams closed (``>&- 2>&-``). A new file would get their numbers, and what a C
    library prints would be written into it.
    """
    if fd > _LAST_STANDARD_STREAM:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD_STREAM + 1)
    finally:
        os.close(fd)


def inode_of(fd: int) -> tuple[int, int] | None:
    """Return the device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


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


#: A limit on processor time allows this multiple of it by the clock: on a busy machine a process waits for its turn.
WALL_TIMES: Final = 20


class TimeBudget:
    """A limit on the processor time of a process, from now on, and a far larger one by the clock.

    Args:
        seconds: The processor time, of all threads.
        pid: A child of this process; by default this process itself.

    Attributes:
        until_s: When the limit by the clock ends, on the monotonic clock.
    """

    def __init__(self, seconds: float, pid: int | None = None) -> None:
        self.until_s = time.monotonic() + WALL_TIMES * seconds
        self._pid = pid
        self._until_cpu_s = self._cpu_s() + seconds

    @property
    def is_spent(self) -> bool:
        """Whether the processor time is used up. A process that has ended spends nothing."""
        return self._cpu_s() > self._until_cpu_s

    @property
    def is_late(self) -> bool:
        """Whether the limit by the clock is exceeded: the machine is busy."""
        return time.monotonic() > self.until_s

    def _cpu_s(self) -> float:
        if self._pid is None:
            return time.process_time()
        if sys.platform != "linux":
            return time.monotonic()  # No other system has a clock of another process.
        try:
            return time.clock_gettime(~self._pid << 3 | 2)  # The kernel's id of a process's clock (CPUCLOCK_SCHED).
        except OSError:
            return 0.0


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


@contextmanager
def collection_paused() -> Iterator[None]:
    """Disable cyclic garbage collection inside the context.

    Collecting repeatedly while the events of a run are created takes as long as creating them. Reference counting still
    frees unreferenced objects at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def thread_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread by its id.

    A collection meanwhile, of a ``threading.local``, would deadlock the interpreter: CPython 3.11 holds a lock here.
    """
    with collection_paused():
        return sys._current_frames()


#: A poll takes at most a tenth of the time, however large a journal is.
_PAUSE_TIMES: Final = 9


def pause_after(began_s: float, least_s: float) -> float:
    """Return the seconds to wait before the next poll.

    Args:
        began_s: Start of the last poll on the monotonic clock. It ends now.
        least_s: The shortest pause, in seconds.
    """
    return max(least_s, _PAUSE_TIMES * (time.monotonic() - began_s))
