"""Maps functions over runs, optionally in a process pool. Results keep the order of the runs; progress is counted.

Workers get blocks of runs: each long enough to outweigh its overhead, short enough to share.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from ..rules.policy_file.policy import Policy
from ..store.errors import TelemetryError
from ..store.objects.mirror_access import fetching_ahead
from ..store.own_process import end_with_parent
from ..store.run import Run
from ..store.user_cache import is_mirror

_Answer = TypeVar("_Answer")


_Asked = TypeVar("_Asked")


#: Seconds that a block should take. A task of Ray adds 1 to 5 ms, so a block of this length hides them.
BLOCK_S: Final = 1.0


#: Growth from one size to the next. The first run in a process also loads modules, and says little about the others.
_GROWTH: Final = 8


#: Blocks per worker into which the rest is cut at least, so that all workers finish at about the same time.
_SHARES: Final = 2


#: Blocks of results per process that may be computed ahead of the next one wanted. This bounds the results in memory.
_AHEAD: Final = 2


#: Seconds of work for which a worker is worth its start: twice the 1.4 s of processor time that its imports take.
_WORTH_A_WORKER_S: Final = 3.0


#: Seconds of work after which the rest can be estimated. The first run also loads modules, for 0.3 s.
_MEASURED_S: Final = 1.0


class Progress(NamedTuple):
    """Progress of a backtest or a comparison.

    Attributes:
        done: Reads finished; a run that is read twice counts twice.
        total: Expected number of reads. It falls when runs turn out to be excluded.
    """

    done: int
    total: int


def checked_runs(caller: str, policy: object, runs: object) -> list[Run]:
    """Return the runs that a caller of a public function gave.

    Raises:
        TelemetryError: They are no runs, or the policy is none.
    """
    if not isinstance(policy, Policy):
        raise TelemetryError(f"{caller} takes a policy", got=policy, fix="Write load_policy(...)")
    fix = "Write open_store(...), or [open_run(...), ...]"
    if isinstance(runs, (str, bytes)) or not isinstance(runs, Iterable):
        raise TelemetryError(f"{caller} takes runs", got=runs, fix=fix)
    given: list[Run] = []
    for run in runs:
        if not isinstance(run, Run):
            raise TelemetryError(f"{caller} takes runs", got=run, fix=fix)
        given.append(run)
    return given


def can_share_work() -> bool:
    """Whether processes can synchronize: a sandbox without a writable ``/dev/shm`` has no semaphores."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError:
        return False
    return True


class Blocks(Generic[_Asked]):
    """The blocks of a sequence, in order. The first ones hold one argument each, to measure.

    Args:
        asked: The arguments.
    """

    def __init__(self, asked: Sequence[_Asked]) -> None:
        self._asked = asked
        self._given = 0
        self._size = 1

    @property
    def is_done(self) -> bool:
        """Whether every argument has been given out."""
        return self._given == len(self._asked)

    def next_block(self, workers: int) -> Sequence[_Asked]:
        """Return the next block; empty at the end.

        Args:
            workers: Number of workers that share the rest.
        """
        share = math.ceil((len(self._asked) - self._given) / (_SHARES * max(workers, 1)))
        block = self._asked[self._given : self._given + min(self._size, share)]
        self._given += len(block)
        return block

    def measure(self, size: int, took_s: float) -> None:
        """Adapt the size of the blocks to come to the time that a block took.

        Args:
            size: Number of arguments in the block.
            took_s: Seconds that they took.
        """
        fitting = size * BLOCK_S / took_s if took_s > 0 else math.inf
        self._size = max(1, int(min(fitting, _GROWTH * size)))


def timed_answers(function: Callable[[_Asked], _Answer], block: Sequence[_Asked]) -> tuple[list[_Answer], float]:
    """Call a function with each argument of a block; return the results, and the seconds that they took.

    Raises:
        Exception: Whatever the function raises, with a note that names its argument.
    """
    answers, began_s = [], time.monotonic()
    for one in block:
        with named_in_errors(one):
            answers.append(function(one))
    return answers, time.monotonic() - began_s


def worked_answer(function: Callable[[_Asked], _Answer], asked: _Asked) -> tuple[_Answer, float]:
    """Call a function; return its result, and the seconds of processor time that this thread took.

    Raises:
        Exception: Whatever the function raises, with a note that names its argument.
    """
    began_s = time.thread_time()
    with named_in_errors(asked):
        answer = function(asked)
    return answer, time.thread_time() - began_s


@contextmanager
def named_in_errors(asked: object) -> Iterator[None]:
    """Name the argument in any error that the block raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised for {asked!r}")
        raise


class Pool(Protocol):
    """Workers that map functions, in a ``with`` block: processes (``RunPool``) or a Ray cluster (``RayPool``)."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def mapped(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        """Yield the results of a picklable function in the order of its arguments.

        Raises:
            TelemetryError: A worker was lost.
            Exception: Whatever the function raises, with a note that names its argument.
        """
        ...


def usable_processes(policies: Iterable[Policy], processes: int | None) -> int | None:
    """Return 1 if policies use a class that a worker could not find, because only this program registered it."""
    return processes if all(policy.is_installed for policy in policies) else 1


class RunPool:
    """Reads runs in this process or in a pool of worker processes. Successive passes over the runs share the pool.

    Args:
        processes: Number of processes; 1 reads in this process, as does a system where processes cannot share work. If
            None, this process reads the first runs, and starts workers once the rest is worth their start: at most
            one per core.
        on_progress: Called after each run that is read.
        pool: Workers to use instead of processes of its own.
    """

    def __init__(
        self,
        processes: int | None = 1,
        on_progress: Callable[[Progress], object] | None = None,
        pool: Pool | None = None,
    ) -> None:
        most = multiprocessing.cpu_count() if processes is None else processes
        self._processes = most
        self._measures = processes is None and most > 1
        self._on_progress = on_progress
        self._given = pool
        self._done = self._total = 0
        self._pool: ProcessPoolExecutor | None = None
        self._children: frozenset[BaseProcess] = frozenset()

    def __enter__(self) -> Self:
        if self._given is not None:
            self._given.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._given is not None:
            self._given.__exit__(kind, error, traceback)
        if self._pool is None:
            return
        self._pool.shutdown(wait=error is None, cancel_futures=True)
        if error is not None:
            # Interrupted or failed: the reads still in flight are useless. All workers end: one that is terminated
            # while it holds the lock of the queue would leave the others waiting for it.
            for child in self._children:
                child.terminate()
        self._pool, self._children = None, frozenset()

    def expect(self, reads: int) -> None:
        """Add to the expected number of reads; a negative number corrects an earlier call."""
        self._total += reads

    def mapped(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        """Yield the results in order, each as soon as it and all earlier ones are ready.

        Args:
            function: The function to map; with several processes, it and its results must be picklable.
            asked: Its arguments. Each counts as one read.

        Raises:
            TelemetryError: A process was lost.
            Exception: Whatever the function raises, with a note that names its argument.
        """
        for answer in self._mapped(function, asked):
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(Progress(self._done, self._total))
            yield answer

    def _mapped(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        if self._given is not None:
            yield from self._given.mapped(function, asked)
            return
        with fetching_ahead(_mirrored(asked)):
            if self._measures and self._pool is None:
                asked = yield from self._measured(function, asked)
            if len(asked) > 1 and self._can_share():
                yield from self._in_processes(function, asked)
            else:
                yield from self._here(function, asked)

    def _can_share(self) -> bool:
        """Return whether there are workers. This is asked late: the check for semaphores starts a process (40 ms)."""
        if self._processes > 1 and self._pool is None and not can_share_work():
            self._processes = 1
        return self._processes > 1

    def _measured(
        self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]
    ) -> Generator[_Answer, None, Sequence[_Asked]]:
        """Yield results computed here until the rest is worth workers. Return the rest, and set their number.

        Processor time of this thread counts: on a loaded machine runs and the start of workers take longer alike.
        """
        spent_s = first_s = 0.0
        for done, one in enumerate(asked, 1):
            answer, took_s = worked_answer(function, one)
            spent_s += took_s
            if done == 1:
                first_s = spent_s
            yield answer
            rest = len(asked) - done
            workers = min(self._processes, rest, worthwhile_workers(done, first_s, spent_s, rest))
            if workers > 1:
                self._processes = workers
                return asked[done:]
        return ()

    def _here(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        for one in asked:
            with named_in_errors(one):
                answer = function(one)
            yield answer

    def _in_processes(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        payload, blocks = pickle.dumps(function), Blocks(asked)
        waiting: deque[tuple[Sequence[_Asked], Future[tuple[list[_Answer], float]]]] = deque()
        while waiting or not blocks.is_done:
            while len(waiting) < self._processes * _AHEAD and not blocks.is_done:
                block = blocks.next_block(self._processes)
                waiting.append((block, self._submitted(payload, block)))
            block, future = waiting.popleft()
            with _lost_process_explained(block):
                answers, took_s = future.result()
            blocks.measure(len(block), took_s)
            yield from answers

    def _submitted(self, payload: bytes, block: Sequence[object]) -> Future[Any]:
        if self._pool is None:
            # Not forked: DuckDB, Arrow and polars have threads of their own, and a fork never releases the locks they
            # hold.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=_begin_worker)
        if len(self._children) == self._processes:
            return self._pool.submit(_called, payload, block)
        # The pool starts a worker with a call, when no other one is idle.
        before = frozenset(multiprocessing.active_children())
        future = self._pool.submit(_called, payload, block)
        self._children |= frozenset(multiprocessing.active_children()) - before
        return future


def worthwhile_workers(done: int, first_s: float, spent_s: float, rest: int) -> int:
    """Return how many workers are worth their start, from the time that the first runs took.

    Args:
        done: Number of runs that were measured, at least one.
        first_s: Seconds that the first of them took. They count only if they are far more than modules take to load.
        spent_s: Seconds that all of them took.
        rest: Number of runs that remain.
    """
    if spent_s < _MEASURED_S or (done == 1 and first_s < _WORTH_A_WORKER_S):
        return 0
    seconds_a_run = first_s if done == 1 else (spent_s - first_s) / (done - 1)
    return int(rest * seconds_a_run / _WORTH_A_WORKER_S)


def folders_in(asked: Iterable[object]) -> list[Path]:
    """Return the folders of the runs that arguments are, or hold in a tuple."""
    parts = (part for one in asked for part in (one if isinstance(one, tuple) else (one,)))
    return [part.folder for part in parts if isinstance(part, Run)]


def _mirrored(asked: Sequence[object]) -> list[Path]:
    """Return the folders of the runs if the first is in object storage: arguments of other stores may be made late."""
    first = folders_in(asked[:1])
    return folders_in(asked) if first and is_mirror(first[0].parent) else []


@contextmanager
def _lost_process_explained(block: Sequence[object]) -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        where = f"{block[0]!r}" + (f" to {block[-1]!r}" if len(block) > 1 else "")
        fix = "It may have run out of memory: use fewer processes"
        raise TelemetryError("a process that reads runs ended unexpectedly", where=where, fix=fix) from error


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent process, which ends its workers; and end with it when it is killed.

    A worker of an executor would otherwise wait for the next call forever: each holds both ends of the queue's pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with_parent(parent.sentinel)


def _called(payload: bytes, block: Sequence[Any]) -> tuple[list[Any], float]:
    return timed_answers(_loaded(payload), block)


@functools.lru_cache(maxsize=4)
def _loaded(payload: bytes) -> Callable[[Any], Any]:
    """Unpickle a function once per process: parsing a policy takes as long as reading a small run."""
    function: Callable[[Any], Any] = pickle.loads(payload)
    return function
