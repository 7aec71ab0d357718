"""Seals journals to Parquet in one child process of the program, because a thread stalls the loop by 7 ms.

The first closed segment or run starts the process, and it serves all recorders of the program. A segment that closes
during training starts it from a short-lived thread that does not hold the recorder's lock. The program waits for it at
exit, for a limited time, and gives it up when it is stalled: a process computes, reads or writes, however slowly,
unless it waits for a lock or for a lost disk, or is stopped.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ...store.child_process import ChildProcess, import_path
from ...store.child_protocol import BrokenFrame
from ...store.errors import counted
from .locking import forkable_lock

logger = logging.getLogger("steptape")

#: Seconds between two samples.
LOOK_EVERY_S: Final = 1.0

#: Consecutive samples without activity after which a process counts as stalled. A slow disk with half a gigabyte to
#: write needs five seconds before activity shows; batch systems kill a job 30 s after they ask it to end.
MOST_QUIET_LOOKS: Final = 20

#: Seconds within which the process takes a request, unless it is stalled: it reads them in a thread of its own.
_TAKEN_WITHIN_S: Final = 1.0

#: Times that a killed process is started again without having answered.
_MOST_STARTS: Final = 3

_STALLED: Final = "the sealing process is stalled (stopped, or waiting for a disk or lock)"


class BackgroundSealing:
    """The sealing process of this program and the runs that wait for it. Threads may share it."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._has_pyarrow: bool | None = None
        self._forget()

    def _forget(self) -> None:
        self._process: ChildProcess | None = None
        self._standstill = Standstill(0)
        self._starts_left = _MOST_STARTS
        self._pending: dict[str, int] = {}
        self._stores: set[str] = set()
        self._unsealed: dict[str, str] = {}
        self._reported: set[str] = set()
        self._wait_s = -1.0

    def wait_at_exit(self, within_s: float) -> None:
        """Make the program's exit wait up to ``within_s`` seconds for sealing; the largest of all calls counts.

        Exit handlers run in reverse order, so a recorder calls this before it registers its own.
        """
        if self._wait_s < 0:
            atexit.register(self._finish)
        self._wait_s = max(self._wait_s, within_s)

    def seal_segments(self, folder: str) -> None:
        """Request sealing of a live run's finished segments, unless a request is pending. Never blocks the loop."""
        if not self._lock.acquire(blocking=False):
            return  # The process is being started. The next segment, or the end, will ask again.
        try:
            self._take_answers()
            if folder in self._pending:
                return
            if self._process is not None:
                self._request(folder)
            elif self._has_pyarrow is not False:
                with suppress(RuntimeError):  # No thread starts while the interpreter shuts down; the end will ask.
                    threading.Thread(target=self.hand_over, args=(folder,), name="steptape-seal", daemon=True).start()
        finally:
            self._lock.release()

    def hand_over(self, folder: str) -> None:
        """Request sealing of a run, which may go on. Does not wait for it."""
        with self._lock:
            self._take_answers()
            if self._has_pyarrow is None:
                self._look_for_pyarrow(folder)
            if self._has_pyarrow:
                self._request(folder)

    def finish_run(self, folder: str) -> None:
        """Seal a closed run, waiting as long as the process makes progress. Warn if the run stays unsealed."""
        self.hand_over(folder)
        self._wait(lambda: folder in self._pending, until_s=math.inf)
        with self._lock:
            self._report([folder])

    def _finish(self) -> None:
        """Wait for pending runs at the program's exit; after that the process continues alone."""
        limit = f"within {self._wait_s:g} s (Journal.seal_wait_s)"
        try:
            self._wait(lambda: bool(self._pending), until_s=time.monotonic() + self._wait_s)
        except KeyboardInterrupt:
            limit = "before Ctrl-C ended the wait"
        with self._lock:
            self._report(list(self._unsealed))
            if self._pending and self._wait_s > 0:
                logger.warning(
                    "%s not sealed %s, the first is %s. Sealing continues without the program; "
                    "journals that it leaves stay readable, and the next recorder of the store, or 'steptape seal', "
                    "will try again",
                    "1 run is" if len(self._pending) == 1 else f"{len(self._pending)} runs are",
                    limit,
                    next(iter(self._pending)),
                )
            process, self._process = self._process, None
        if process is not None:
            process.requests.close()
            if not self._pending:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY_S)
            process.abandon()

    def _wait(self, is_due: Callable[[], bool], *, until_s: float) -> None:
        """Wait while something is due and the process makes progress, without holding the lock."""
        while True:
            with self._lock:
                self._take_answers()
                if not is_due() or time.monotonic() >= until_s:
                    return
                if self._process is None:  # It was killed, perhaps only just now.
                    self._begin()
                process = self._process
            if process is None:
                return
            within_s = min(LOOK_EVERY_S, max(0.0, until_s - time.monotonic()))
            if not process.has_answered(within_s=within_s) and self._standstill.is_reached():
                with self._lock:
                    self._give_up(_STALLED)
                return

    def _look_for_pyarrow(self, folder: str) -> None:
        self._has_pyarrow = find_spec("pyarrow") is not None
        if not self._has_pyarrow:
            logger.warning(
                "pyarrow is not installed: %s and later runs stay journals. To convert them to Parquet, run 'steptape "
                "seal' in a full installation",
                folder,
            )

    def _request(self, folder: str) -> None:
        self._pending[folder] = self._pending.get(folder, 0) + 1
        if self._process is None:
            self._begin()
        else:
            self._send({"folder": folder})
        store = os.path.dirname(folder)
        if store not in self._stores:
            self._stores.add(store)
            self._send({"store": store})

    def _begin(self) -> None:
        """Start the process and request all that is pending."""
        if not self._starts_left:
            self._give_up("the sealing process was killed repeatedly")
            return
        self._starts_left -= 1
        environment = {**os.environ, "PYTHONPATH": import_path()}
        try:
            self._process = ChildProcess("steptape.store.parquet.sealing_service", environment=environment)
        except OSError as error:
            self._give_up(f"the sealing process could not be started: {error}")
            return
        self._standstill = Standstill(self._process.pid)
        self._pending = dict.fromkeys(self._pending, 1)
        for folder in self._pending:
            self._send({"folder": folder})

    def _send(self, request: dict[str, str]) -> None:
        if self._process is None:
            return
        try:
            self._process.send(request, until_s=time.monotonic() + _TAKEN_WITHIN_S)
        except OSError:
            # It was killed, by a terminal's hangup or for memory, or it is stopped. The next wait starts a new one.
            self._drop()

    def _take_answers(self) -> None:
        while self._process is not None and self._process.has_answered(within_s=0):
            try:
                answer = self._process.receive().head
                self._settle(answer["folder"], answer["why"])
            except (EOFError, BrokenFrame):
                self._drop()

    def _settle(self, folder: str, why: str) -> None:
        """Count a request as answered: the run is sealed, or else says why not."""
        self._starts_left = _MOST_STARTS
        self._pending[folder] = self._pending.get(folder, 1) - 1
        if not self._pending[folder]:
            del self._pending[folder]
        if why:
            self._unsealed[folder] = why
            if not self._reported:
                self._report([folder])
        else:
            self._unsealed.pop(folder, None)

    def _give_up(self, why: str) -> None:
        """Leave all pending runs unsealed, and end the process, so that other sealers can do its work."""
        self._unsealed |= dict.fromkeys(self._pending, why)
        self._pending.clear()
        self._starts_left = _MOST_STARTS
        self._drop()

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # A process blocked in the kernel, as on a lost disk, survives even SIGKILL. Do not wait for it.
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
            process.abandon()

    def _report(self, folders: Sequence[str]) -> None:
        """Log one warning for those of these runs that are unsealed and not yet reported."""
        fresh = [folder for folder in folders if folder in self._unsealed and folder not in self._reported]
        if not fresh:
            return
        self._reported.update(fresh)
        others = f" and of {counted(len(fresh) - 1, 'other run')}" if len(fresh) > 1 else ""
        logger.warning(
            "the journal of %s%s could not be sealed: %s. It is kept, and stays readable. The next recorder of this "
            "store, or 'steptape seal', will try again",
            fresh[0],
            others,
            self._unsealed[fresh[0]],
        )

    # --- forks: the child has neither this process's sealer nor its runs ---------------------------------------------

    def before_fork(self) -> None:
        """Wait until the process is started, because a child forked meanwhile would keep its pipes open."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Let sealing continue."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Close the copies of the pipes, because the process exits when its input pipe reaches end of file."""
        if self._process is not None:
            self._process.abandon()
        self._forget()


class Standstill:
    """A counter of consecutive samples at which a process showed no activity.

    It counts samples, not seconds. While the waiting process is itself stopped, as by Ctrl-Z, no activity is expected.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen = b""
        self._quiet_looks = 0

    def is_reached(self) -> bool:
        """Sample once more and return whether the process is stalled."""
        seen = _activity(self._pid)
        self._quiet_looks = self._quiet_looks + 1 if seen == self._seen else 0
        self._seen = seen
        return self._quiet_looks >= MOST_QUIET_LOOKS


def _activity(pid: int) -> bytes:
    """Return the CPU time and I/O counters of a process, for comparison; empty if they cannot be read."""
    process = Path("/proc", str(pid))
    try:
        # After the name, which may hold anything, and eleven more fields: CPU time in user and in system mode.
        computed = (process / "stat").read_bytes().rpartition(b")")[2].split()[11:13]
        return b" ".join((*computed, (process / "io").read_bytes()))
    except OSError:  # Not every system has /proc.
        return _cpu_time(pid)


def _cpu_time(pid: int) -> bytes:
    try:
        return subprocess.run(("ps", "-o", "time=", "-p", str(pid)), capture_output=True, check=False).stdout
    except OSError:
        return b""


#: The sealing of this program.
SEALING: Final = BackgroundSealing()

os.register_at_fork(
    before=SEALING.before_fork,
    after_in_parent=SEALING.after_fork_in_parent,
    after_in_child=SEALING.after_fork_in_child,
)
