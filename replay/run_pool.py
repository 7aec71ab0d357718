"""Functions over many runs, here or in several processes, the answers in the order of the runs, with one progress."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from ..store.errors import TelemetryError

_Answer = TypeVar("_Answer")
_Asked = TypeVar("_Asked")

#: Answers that a process may be ahead of the one that is wanted next: so many are in memory at most.
_AHEAD: Final = 4


class Progress(NamedTuple):
    """How far a backtest or a comparison has come.

    Attributes:
        done: Runs that were read, each time that one is.
        total: How many that will be in all. It falls when runs turn out not to be judged.
    """

    done: int
    total: int


def can_share_work() -> bool:
    """Whether processes can wait for each other: a sandbox without a ``/dev/shm`` to write to has no semaphores."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError:
        return False
    return True


class RunPool:
    """What reads runs: this process, or several others. Passes over the runs, one after the other, share them.

    Args:
        processes: How many; 1 is this one alone, which reads all where processes cannot share work.
        on_progress: Told after each run that is read.
    """

    def __init__(self, processes: int = 1, on_progress: Callable[[Progress], object] | None = None) -> None:
        self._processes = processes if processes > 1 and can_share_work() else 1
        self._on_progress = on_progress
        self._done = self._total = 0
        self._pool: ProcessPoolExecutor | None = None
        self._children: frozenset[BaseProcess] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(wait=error is None, cancel_futures=True)
        if error is not None:
            # Interrupted, or failed: what they are reading is of no use to anybody.
            for child in self._children:
                child.terminate()

    def expect(self, reads: int) -> None:
        """Say that so many runs more will be read; less than none takes back what was said."""
        self._total += reads

    def mapped(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        """The answers, in order, each as soon as it and those before it are there.

        Args:
            function: What to do; picklable, as are its answers, when there are several processes.
            asked: What to do it to, each of which counts as one read.

        Raises:
            TelemetryError: A process was lost. Whatever the function raises, with a note of what it was asked.
        """
        read = self._elsewhere if self._processes > 1 and len(asked) > 1 else self._here
        for answer in read(function, asked):
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(Progress(self._done, self._total))
            yield answer

    def _here(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        for one in asked:
            with _told_of(one):
                answer = function(one)
            yield answer

    def _elsewhere(self, function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> Iterator[_Answer]:
        payload = pickle.dumps(function)
        rest = iter(asked)
        waiting: deque[tuple[_Asked, Future[_Answer]]] = deque()
        for one in itertools.islice(rest, self._processes * _AHEAD):
            waiting.append((one, self._submitted(payload, one)))
        while waiting:
            one, future = waiting.popleft()
            with _told_of(one):
                answer = future.result()
            waiting.extend((following, self._submitted(payload, following)) for following in itertools.islice(rest, 1))
            yield answer

    def _submitted(self, payload: bytes, one: object) -> Future[Any]:
        if self._pool is None:
            # Not forked: DuckDB, Arrow and polars have threads of their own, and what those hold a fork never lets go.
            context = multiprocessing.get_context("spawn")
            before = frozenset(multiprocessing.active_children())
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=_ignore_interrupts)
            future = self._pool.submit(_called, payload, one)
            self._children = frozenset(multiprocessing.active_children()) - before
            return future
        return self._pool.submit(_called, payload, one)


@contextmanager
def _told_of(asked: object) -> Iterator[None]:
    """Tell what was asked when something fails over it."""
    try:
        yield
    except BrokenProcessPool as error:
        fix = "It may have run out of memory: read with fewer processes"
        raise TelemetryError("a process that read runs was lost", where=repr(asked), fix=fix) from error
    except Exception as error:
        error.add_note(f"This came of {asked!r}")
        raise


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that was started by hand: it ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _called(payload: bytes, asked: object) -> Any:
    return _loaded(payload)(asked)


@functools.lru_cache(maxsize=4)
def _loaded(payload: bytes) -> Callable[[Any], Any]:
    """A function that came from another process, made once: to read a policy takes as long as a small run."""
    function: Callable[[Any], Any] = pickle.loads(payload)
    return function
