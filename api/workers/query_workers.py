"""The processes that answer SQL: a few, each asked one thing at a time, killed and replaced when late or dead.

What a statement takes, it takes from such a process and not from the server. See ``query_worker``.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ...store.errors import QueryRefused, QueryTimedOut, TelemetryError
from ...store.processes.child_process import ChildProcess
from ...store.processes.protocol import BrokenFrame
from ...store.sql.bounded_query import QueryLimits
from ..errors import Busy
from ..limits import Limits

#: What a worker may take beyond the time limit, to report it itself; and what it may take to start.
_GRACE_S: Final = 1.0
_START_S: Final = 60.0

#: A worker's environment: what finds Python and its packages, and nothing that may be secret.
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement: the rows as an Arrow stream, whether there were more, and how long it took."""

    rows: bytes
    truncated: bool
    elapsed_s: float


class QueryWorkers:
    """Asks workers, waiting for one that is free.

    Args:
        store: The store that they read.
        limits: How many there are, and what they may do.
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
        """The answer to one statement over the whole store, or one run.

        Args:
            statement: SQL.
            run: A run's id, or its name where one run alone has it; None for the store.
            rows: How many rows to hand out at most; as many as the limits say unless given.

        Raises:
            QueryRefused, QueryTimedOut, RunNotFound, TelemetryError: As the worker says; or it died.
            Busy: Too many are waiting.
        """
        limits = self._limits.query if rows is None else replace(self._limits.query, rows=rows)
        with self._worker() as worker:
            return _asked(worker, statement, run, limits, most_bytes=self._limits.query_worker_bytes)

    def warm(self) -> None:
        """Start a worker, so that the first question need not wait for it."""
        with suppress(TelemetryError, OSError), self._worker():
            pass

    def close(self) -> None:
        """End all workers."""
        self._is_closed = True
        for _ in range(self._limits.query_workers):
            with suppress(queue.Empty):
                worker = self._free.get_nowait()
                if worker is not None:
                    worker.end()

    @contextmanager
    def _worker(self) -> Iterator[ChildProcess]:
        if not self._places.acquire(blocking=False):
            raise Busy("too many queries are waiting", fix="Ask again later")
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
    """A worker that has read the store.

    Raises:
        Busy: The machine has no room for a process more.
        TelemetryError: It did not start in time, or at all.
    """
    module = f"{__package__}.query_worker"
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        worker = ChildProcess(module, str(store), str(memory_bytes), environment=environment)
    except OSError as error:
        raise Busy(f"no process could be started ({error.strerror})", fix="Ask again later") from None
    try:
        worker.receive(until_s=time.monotonic() + _START_S)
    except (EOFError, BrokenFrame, OSError):
        worker.end()
        raise TelemetryError("the process that answers queries did not start") from None
    return worker


def _asked(worker: ChildProcess, statement: str, run: str | None, limits: QueryLimits, *, most_bytes: int) -> Answer:
    """A worker's answer. A worker that is late or dead has been ended."""
    until_s = time.monotonic() + limits.seconds + _GRACE_S
    try:
        worker.send({"statement": statement, "run": run, **asdict(limits)}, until_s=until_s)
        frame = worker.receive(most_bytes=most_bytes, until_s=until_s)
    except TimeoutError:
        worker.end()
        fix = "Ask for less, or for one run"
        raise QueryTimedOut("the query took too long, and was ended", got=statement, fix=fix) from None
    except (EOFError, BrokenFrame, OSError):
        worker.end()
        fix = "Ask for less"
        raise QueryRefused("the query took more memory than it may", got=statement, fix=fix) from None
    return Answer(frame.body, **frame.head)
