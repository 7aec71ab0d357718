"""Runs requests in worker processes: a request uses the resources of its worker, not of the server.

A worker has one request at a time. Late workers are killed, dead ones replaced. See ``worker`` for their side.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from ...store.arrow_tables import from_arrow_stream
from ...store.child_process import ChildProcess
from ...store.child_protocol import MOST_BYTES, BrokenFrame, Frame
from ...store.errors import DamagedLog, QueryRefused, QueryTimedOut, TelemetryError
from ...store.objects.mirror_access import fetch
from ...store.own_process import TimeBudget
from ...store.sql.statements import DAMAGED_FILE
from ...store.user_cache import CACHE_VARIABLES
from ..limits import Limits
from ..problems import Busy, InvalidRequest
from .worker_requests import HealthTrial, SqlQuestion, Trial

#: Processor time beyond the limit for a worker to report a timeout itself, and for a worker to start, in seconds.
_GRACE_S: Final = 1.0
_START_S: Final = 60.0

#: Interval at which the processor time of a worker is read, in seconds.
_LOOK_EVERY_S: Final = 0.05

#: Times that parts of a store in object storage are fetched for one statement.
_MOST_FETCHES: Final = 5

#: Most runs whose last health is kept.
_MOST_KNOWN: Final = 1000

#: Environment of a worker that runs foreign SQL: variables that locate Python and its packages, and none that may be
#: secret.
_KEPT: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "TZ", "LD_LIBRARY_PATH", *CACHE_VARIABLES,
)  # fmt: skip


def start_worker(service: str, memory_bytes: int, environment: Mapping[str, str] | None = None) -> ChildProcess:
    """Start a worker of a service, a module of this package, which ends with this process.

    Raises:
        OSError: The machine cannot start another process.
    """
    return ChildProcess(f"{__package__}.worker", service, str(memory_bytes), environment=environment, is_bound=True)


def exchange(
    worker: ChildProcess,
    request: Mapping[str, Any],
    *,
    within_s: float,
    most_bytes: int = MOST_BYTES,
    on_progress: Callable[[int], object] | None = None,
) -> Frame:
    """Send a request to a worker and return its answer. A worker from which no whole answer comes is ended.

    Args:
        worker: The worker.
        request: The request.
        within_s: Processor time that the worker may spend on it, once it has begun.
        most_bytes: Largest answer.
        on_progress: Called with the number of runs done.

    Raises:
        TelemetryError: The worker answered with this error.
        TimeoutError: The worker has spent its processor time.
        Busy: It has not, in many times that by the clock.
        BrokenFrame: The answer is larger than ``most_bytes``, or incomplete.
        EOFError, OSError: The worker has ended.
    """
    budget = TimeBudget(max(within_s, _START_S), worker.pid)
    try:
        with suppress(BrokenPipeError):
            worker.send(request, until_s=budget.until_s)
        has_begun = False
        while True:
            while not worker.has_answered(within_s=_LOOK_EVERY_S):
                if budget.is_spent or budget.is_late:
                    raise TimeoutError
            frame = worker.receive(most_bytes=most_bytes, until_s=budget.until_s)
            if "progress" not in frame.head:
                return frame
            if not has_begun:
                budget, has_begun = TimeBudget(within_s, worker.pid), True
            if budget.is_spent or budget.is_late:
                raise TimeoutError
            if on_progress is not None:
                on_progress(frame.head["progress"])
    except (BrokenFrame, EOFError, OSError) as error:
        is_busy = isinstance(error, TimeoutError) and not budget.is_spent
        _end(worker, has_closed=not isinstance(error, (BrokenFrame, TimeoutError)))
        if is_busy:
            raise Busy("the machine is too busy", fix="Try again later") from None
        raise


def _end(worker: ChildProcess, *, has_closed: bool) -> None:
    """End a worker. One that has closed its pipes ends by itself, and has an exit status."""
    if has_closed:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(_GRACE_S)
    worker.end()


class WorkerPool:
    """A few workers of one service; a request waits for a free one, and is refused where too many wait.

    Args:
        start: Starts a worker.
        limits: How many there are, and how many requests wait.
        too_many: Says that too many wait.

    Attributes:
        threads: Threads for the requests, so that those that wait never block others.
    """

    def __init__(self, start: Callable[[], ChildProcess], limits: Limits, too_many: str) -> None:
        places = limits.query_workers + limits.queries_waiting
        self.threads = CapacityLimiter(places + 1)
        self._start = start
        self._count = limits.query_workers
        self._too_many = too_many
        self._is_closed = False
        self._places = threading.Semaphore(places)
        self._free: queue.LifoQueue[ChildProcess | None] = queue.LifoQueue()
        for _ in range(self._count):
            self._free.put(None)

    @contextmanager
    def worker(self) -> Iterator[ChildProcess]:
        """Hold a worker.

        Raises:
            Busy: Too many requests are waiting.
        """
        if not self._places.acquire(blocking=False):
            raise Busy(self._too_many, fix="Try again later")
        held = self._free.get()
        try:
            held = held or self._start()
            yield held
        finally:
            if held is not None and self._is_closed:
                held.end()
            self._free.put(held if held is not None and held.returncode is None else None)
            self._places.release()

    def close(self) -> None:
        """Stop all workers."""
        self._is_closed = True
        for _ in range(self._count):
            with suppress(queue.Empty):
                worker = self._free.get_nowait()
                if worker is not None:
                    worker.end()


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement: rows as an Arrow stream, whether there were more, and the seconds it took."""

    rows: bytes
    truncated: bool
    elapsed_s: float


class QueryWorkers:
    """The workers that run SQL.

    Args:
        store: The store that they read.
        limits: How many there are, and what each may use.
    """

    def __init__(self, store: Path, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._pool = WorkerPool(self._started, limits, "too many queries are waiting")
        self.threads = self._pool.threads

    def run_sql(self, statement: str, run: str | None, *, rows: int | None = None) -> Answer:
        """Run one statement over the whole store, or one run.

        Args:
            statement: SQL.
            run: A run's id, or its name, the newest run's of several; None for the store.
            rows: Most rows to return; by default the limit on rows.

        Raises:
            QueryRefused, QueryTimedOut, RunNotFound, TelemetryError: The worker reported it, or died.
            Busy: Too many queries are waiting.
        """
        limits = self._limits.query if rows is None else replace(self._limits.query, rows=rows)
        question = SqlQuestion(str(self._store), asdict(limits), statement, run)
        with self._pool.worker() as worker:
            for _ in range(_MOST_FETCHES):
                frame = self._asked(worker, question, statement, limits.seconds)
                if "missing" not in frame.head:
                    return Answer(frame.body, **frame.head)
                fetch(Path(path) for path in frame.head["missing"])
        raise Busy("parts of the runs are replaced too fast", fix="Try again")

    def warm(self) -> None:
        """Start a worker in advance, so that the first query need not wait for it."""
        with suppress(TelemetryError, OSError), self._pool.worker():
            pass

    def close(self) -> None:
        """Stop all workers."""
        self._pool.close()

    def _asked(self, worker: ChildProcess, question: SqlQuestion, statement: str, seconds: float) -> Frame:
        """Return a worker's answer."""
        most_bytes = self._limits.query_worker_bytes
        try:
            return exchange(worker, question._asdict(), within_s=seconds + _GRACE_S, most_bytes=most_bytes)
        except TimeoutError:
            fix = "Query less, or a single run"
            what = f"the query exceeded its limit of {seconds:g} s of processor time and was stopped"
            raise QueryTimedOut(what, got=statement, fix=fix) from None
        except BrokenFrame:
            raise QueryRefused("the result is too large", got=statement, fix="Query less") from None
        except (EOFError, OSError):
            what = f"the query process {_ending_of(worker)}"
            fix = "It may have exceeded its memory limit: query less"
            raise QueryRefused(what, got=statement, fix=fix) from None

    def _started(self) -> ChildProcess:
        """Start a worker, and wait until it has read the store.

        Raises:
            Busy: The machine cannot start another process.
            TelemetryError: The worker did not start, or not in time.
        """
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        try:
            worker = start_worker("query_worker", self._limits.query_worker_bytes, environment)
        except OSError as error:
            raise Busy(f"the query process could not be started ({error.strerror})", fix="Try again later") from None
        try:
            exchange(worker, SqlQuestion(str(self._store), {})._asdict(), within_s=_START_S)
        except TelemetryError:
            worker.end()
            raise
        except (EOFError, BrokenFrame, OSError):
            raise TelemetryError("the query process did not start") from None
        return worker


def _ending_of(worker: ChildProcess) -> str:
    """Say how a worker ended."""
    if worker.returncode >= 0:
        return f"failed (exit status {worker.returncode})"
    return f"was ended by {signal.Signals(-worker.returncode).name}"


class RuleWorkers:
    """The workers that try rules. They keep what they have read of runs; a late or dead one is replaced.

    Args:
        limits: How many run, how many wait, and what each may use.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        places = limits.query_workers + limits.queries_waiting
        self._pool = WorkerPool(self._started, limits, f"{places} clients are already waiting")

    async def run_trial(self, trial: Trial) -> Any:
        """Return the answer of ``rule_worker`` to a trial.

        Raises:
            Busy: Too many trials are waiting, or the machine cannot start another process.
            InvalidRequest: The trial took too long or too much memory, or its answer is too long.
            PolicyError: A job's policy or its values are wrong.
            TelemetryError: A run cannot be read.
        """
        return await to_thread.run_sync(self._answer, trial, limiter=self._pool.threads)

    def _answer(self, trial: Trial) -> Any:
        limits = self._limits
        request = {"kind": type(trial).__name__, **trial._asdict()}
        with self._pool.worker() as worker:
            try:
                most_bytes = limits.job_result_bytes
                return exchange(worker, request, within_s=limits.rules_s, most_bytes=most_bytes).head["answer"]
            except TimeoutError:
                what = f"the rules exceeded their limit of {limits.rules_s:g} s of processor time and were stopped"
                raise InvalidRequest(what, fix="Use fewer steps, rules or runs") from None
            except BrokenFrame:
                what = f"the answer exceeds the limit of {limits.job_result_bytes:,} bytes"
                raise InvalidRequest(what, fix="Use fewer steps or rules") from None
            except (EOFError, OSError):
                fix = "It may have run out of memory: use fewer steps, rules or runs"
                raise InvalidRequest("the process that ran the rules ended early", fix=fix) from None

    def close(self) -> None:
        """Stop all workers."""
        self._pool.close()

    def _started(self) -> ChildProcess:
        return _started_for_rules("rule_worker", self._limits)


def _started_for_rules(service: str, limits: Limits) -> ChildProcess:
    try:
        return start_worker(service, limits.query_worker_bytes)
    except OSError as error:
        what = f"the process for the rules could not be started ({error.strerror})"
        raise Busy(what, fix="Try again later") from None


class KnownHealth(NamedTuple):
    """The health of a run as a worker last answered, and how long ago in seconds: 0 for an answer to this request."""

    answer: Any
    age_s: float


class HealthWorkers:
    """The worker that replays rules over runs for their health, and what it last answered about each run.

    Args:
        limits: How many requests wait, and what the worker may use.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # One worker, since it keeps what it has replayed.
        too_many = "too many requests for health are waiting"
        self._pool = WorkerPool(self._started, replace(limits, query_workers=1), too_many)
        self._known: OrderedDict[HealthTrial, tuple[Any, float]] = OrderedDict()

    async def health(self, trial: HealthTrial) -> KnownHealth:
        """Return the health of a run: what is known already if the worker cannot answer.

        Raises:
            Busy: The worker cannot answer, and nothing is known.
            TelemetryError: The run or the policy cannot be read.
        """
        return await to_thread.run_sync(self._answer, trial, limiter=self._pool.threads)

    def close(self) -> None:
        """Stop the worker."""
        self._pool.close()

    def _answer(self, trial: HealthTrial) -> KnownHealth:
        limits = self._limits
        try:
            with self._pool.worker() as worker:
                try:
                    frame = exchange(
                        worker, trial._asdict(), within_s=limits.rules_s, most_bytes=limits.job_result_bytes
                    )
                except (Busy, BrokenFrame, EOFError, OSError):
                    raise Busy("the process that replays the rules was ended", fix="Try again") from None
        except Busy:
            if trial not in self._known:
                raise
            answer, at_s = self._known[trial]
            return KnownHealth(answer, time.monotonic() - at_s)
        self._known[trial] = frame.head["answer"], time.monotonic()
        self._known.move_to_end(trial)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return KnownHealth(frame.head["answer"], 0.0)

    def _started(self) -> ChildProcess:
        return _started_for_rules("health_worker", self._limits)


class Found(NamedTuple):
    """The result of a query: an Arrow table, and whether rows are missing because the result was too large."""

    table: Any
    is_cut_short: bool


async def query_run(request: Request, run: Path, statement: str, *, rows: int) -> Found:
    """Run the server's own SQL over the views of one run, in a worker, since it may read the whole log.

    Args:
        request: The request to answer.
        run: The run's folder.
        statement: One statement, written by the server.
        rows: Most rows that it can return.

    Raises:
        QueryRefused, QueryTimedOut: The query exceeds its limits; the message omits the statement.
        DamagedLog: A file of the run is damaged.
        Busy: Too many queries are waiting.
    """
    workers: QueryWorkers = request.app.state.query_workers

    def run_sql() -> Answer:
        return workers.run_sql(statement, run.name, rows=rows)

    try:
        answer = await to_thread.run_sync(run_sql, limiter=workers.threads)
    except (QueryRefused, QueryTimedOut) as error:
        if error.what == DAMAGED_FILE:
            raise DamagedLog(error.what, where=error.where or run.name, fix=error.fix) from None
        raise type(error)(error.what, where=run.name, got=error.got, fix=error.fix) from None
    return Found(from_arrow_stream(answer.rows), answer.truncated)
