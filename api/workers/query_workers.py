"""Manages a small pool of worker processes for SQL: one statement per worker at a time, late or dead workers replaced.

A statement uses the resources of its worker, not of the server. See ``query_worker``.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ...store.child_process import ChildProcess
from ...store.child_protocol import BrokenFrame
from ...store.errors import QueryRefused, QueryTimedOut, TelemetryError
from ...store.objects.access import fetch
from ...store.sql.statements import QueryLimits
from ...store.user_cache import CACHE_VARIABLES
from ..errors import Busy
from ..limits import Limits

#: Seconds beyond the time limit for a worker to report a timeout itself; seconds for a worker to start.
_GRACE_S: Final = 1.0
_START_S: Final = 60.0

#: Times that parts of a store in object storage are fetched for one statement.
_MOST_FETCHES: Final = 5

#: Environment of a worker: variables that locate Python and its packages, and none that may be secret.
_KEPT: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "TZ", "LD_LIBRARY_PATH", *CACHE_VARIABLES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement: rows as an Arrow stream, whether there were more, and the seconds it took."""

    rows: bytes
    truncated: bool
    elapsed_s: float


class QueryWorkers:
    """A pool of workers; a request waits for a free one.

    Args:
        store: The store that they read.
        limits: How many there are, and what each may use.
    """

    def __init__(self, store: Path, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._free: queue.LifoQueue[ChildProcess | None] = queue.LifoQueue()
        for _ in range(limits.query_workers):
            self._free.put(None)
        self._places = threading.Semaphore(limits.queries_waiting + limits.query_workers)
        self._is_closed = False

    def ask(self, statement: str, run: str | None, *, rows: int | None = None) -> Answer:
        """Run one statement over the whole store, or one run.

        Args:
            statement: SQL.
            run: A run's id, or its name if no other run has it; None for the store.
            rows: Most rows to return; by default the limit on rows.

        Raises:
            QueryRefused, QueryTimedOut, RunNotFound, TelemetryError: The worker reported it, or died.
            Busy: Too many queries are waiting.
        """
        limits = self._limits.query if rows is None else replace(self._limits.query, rows=rows)
        with self._worker() as worker:
            for _ in range(_MOST_FETCHES):
                answer = _asked(worker, statement, run, limits, most_bytes=self._limits.query_worker_bytes)
                if isinstance(answer, Answer):
                    return answer
                fetch(answer)
        raise Busy("parts of the runs are replaced too fast", fix="Try again")

    def warm(self) -> None:
        """Start a worker in advance, so that the first query need not wait for it."""
        with suppress(TelemetryError, OSError), self._worker():
            pass

    def close(self) -> None:
        """Stop all workers."""
        self._is_closed = True
        for _ in range(self._limits.query_workers):
            with suppress(queue.Empty):
                worker = self._free.get_nowait()
                if worker is not None:
                    worker.end()

    @contextmanager
    def _worker(self) -> Iterator[ChildProcess]:
        if not self._places.acquire(blocking=False):
            raise Busy("too many queries are waiting", fix="Try again later")
        held = self._free.get()
        try:
            held = held or _started(self._store, self._limits.query_worker_bytes)
            yield held
        finally:
            if held is not None and self._is_closed:
                held.end()
            self._free.put(held if held is not None and held.returncode is None else None)
            self._places.release()


def _started(store: Path, memory_bytes: int) -> ChildProcess:
    """Start a worker, and wait until it has read the store.

    Raises:
        Busy: The machine cannot start another process.
        TelemetryError: The worker did not start, or not in time.
    """
    module = f"{__package__}.query_worker"
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        worker = ChildProcess(module, str(store), str(memory_bytes), environment=environment, is_bound=True)
    except OSError as error:
        raise Busy(f"the query process could not be started ({error.strerror})", fix="Try again later") from None
    try:
        worker.receive(until_s=time.monotonic() + _START_S)
    except TelemetryError:
        worker.end()
        raise
    except (EOFError, BrokenFrame, OSError):
        worker.end()
        raise TelemetryError("the query process did not start") from None
    return worker


def _asked(
    worker: ChildProcess, statement: str, run: str | None, limits: QueryLimits, *, most_bytes: int
) -> Answer | list[Path]:
    """Return a worker's answer, or the parts that it lacks of a store in object storage.

    A worker that is late or dead is stopped.
    """
    until_s = time.monotonic() + limits.seconds + _GRACE_S
    try:
        worker.send({"statement": statement, "run": run, **asdict(limits)}, until_s=until_s)
        frame = worker.receive(most_bytes=most_bytes, until_s=until_s)
    except TimeoutError:
        worker.end()
        fix = "Query less, or a single run"
        raise QueryTimedOut("the query exceeded its time limit and was stopped", got=statement, fix=fix) from None
    except BrokenFrame:
        worker.end()
        raise QueryRefused("the result is too large", got=statement, fix="Query less") from None
    except (EOFError, OSError):
        what = f"the query process {_ending_of(worker)}"
        fix = "It may have exceeded its memory limit: query less"
        raise QueryRefused(what, got=statement, fix=fix) from None
    if "missing" in frame.head:
        return [Path(path) for path in frame.head["missing"]]
    return Answer(frame.body, **frame.head)


def _ending_of(worker: ChildProcess) -> str:
    """End a worker that answers no more, and say how it ended."""
    with suppress(subprocess.TimeoutExpired):
        worker.wait(_GRACE_S)
    worker.end()
    if worker.returncode >= 0:
        return f"failed (exit status {worker.returncode})"
    return f"was ended by {signal.Signals(-worker.returncode).name}"
