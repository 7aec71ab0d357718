"""The processes that answer SQL: a few, each asked one thing at a time, killed and replaced when it does not come back.

What a statement takes, it takes from such a process and not from the server. See ``steptape.api.workers.query_worker``.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ...store.errors import QueryRefused, QueryTimedOut, RunNotFound, TelemetryError
from ...store.processes.module_command import module_command
from ..errors import Busy
from ..limits import Limits

#: What a worker may take beyond the time limit, to tell of it itself; and what it may take to start.
_GRACE_S: Final = 1.0
_START_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement came to: the rows as an Arrow stream, whether there were more, and how long it took."""

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
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(limits.query_workers):
            self._free.put(None)
        self._waiting = 0
        self._lock = threading.Lock()
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
        with self._worker() as worker:
            limits = self._limits.query if rows is None else replace(self._limits.query, rows=rows)
            request = {"statement": statement, "run": run, **asdict(limits)}
            return worker.ask(request, self._limits.query.seconds + _GRACE_S)

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
                    worker.kill()

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._lock:
            if self._waiting >= self._limits.queries_waiting + self._limits.query_workers:
                raise Busy("too many queries are waiting", fix="Ask again later")
            self._waiting += 1
        try:
            held = self._free.get()
            try:
                if held is None or not held.is_alive:
                    held = _Worker(self._store, self._limits.query_worker_bytes)
                yield held
            finally:
                if held is not None and (self._is_closed or not held.is_alive):
                    held.kill()
                    held = None
                self._free.put(held)
        finally:
            with self._lock:
                self._waiting -= 1


class _Worker:
    """One process, from its start until it is killed."""

    def __init__(self, store: Path, memory_bytes: int) -> None:
        command = module_command("steptape.api.workers.query_worker", str(store), str(memory_bytes))
        # Of the environment it needs what finds Python and its packages, and nothing that may be secret.
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "TZ", "LD_LIBRARY_PATH")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            raise Busy(f"no process could be started ({error.strerror})", fix="Ask again later") from None
        self.is_alive = True
        try:
            self._frame(time.monotonic() + _START_S)
        except (_Gone, TimeoutError):
            self.kill()
            raise TelemetryError("the process that answers queries did not start") from None

    def ask(self, request: dict[str, Any], seconds: float) -> Answer:
        """The answer to a request, which has to be there within so many seconds."""
        until_s = time.monotonic() + seconds
        statement = request["statement"]
        try:
            content = json.dumps(request).encode()
            assert self._process.stdin is not None
            self._process.stdin.write(len(content).to_bytes(8, "big") + content)
            self._process.stdin.flush()
            told: dict[str, Any] = json.loads(self._frame(until_s))
            if told["ok"]:
                return Answer(self._frame(until_s), told["truncated"], told["elapsed_s"])
        except TimeoutError:
            self.kill()
            fix = "Ask for less, or for one run"
            raise QueryTimedOut("the query took too long, and was ended", got=statement, fix=fix) from None
        except (_Gone, OSError):
            self.kill()
            fix = "Ask for less"
            raise QueryRefused("the query took more memory than it may", got=statement, fix=fix) from None
        kind = QueryTimedOut if told["timed_out"] else QueryRefused if told["refused"] else RunNotFound
        raise kind(told["what"], where=told["where"], fix=told["fix"])

    def kill(self) -> None:
        """End the process, whatever it is at."""
        self.is_alive = False
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _frame(self, until_s: float) -> bytes:
        return self._bytes(int.from_bytes(self._bytes(8, until_s), "big"), until_s)

    def _bytes(self, count: int, until_s: float) -> bytes:
        """So many bytes of its output.

        Raises:
            TimeoutError: They are not there in time.
            _Gone: The process has ended.
        """
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        parts: list[bytes] = []
        left = count
        while left:
            ready, _, _ = select.select([fd], [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(fd, min(left, 1 << 20))
            if not part:
                raise _Gone
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


class _Gone(Exception):
    """The process has ended."""
