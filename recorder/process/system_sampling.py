"""Records samples of the machine: starts the sampling process, reads its pipe without waiting, appends the samples.

A thread in the training process would stall its loop by milliseconds. The pipe is read when the journal looks around,
about once a second while events come, so a silent step pays nothing.
"""

from __future__ import annotations

import errno
import math
import os
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from ...store.child_process import ChildProcess, import_path
from ...store.child_protocol import BrokenFrame
from ...store.errors import TelemetryError
from ...store.events import PLAN, SYSTEM
from ...store.own_process import inode_of
from .locking import forkable_lock

#: Records an event: kind, metrics and attributes.
EmitOwn: TypeAlias = "Callable[[str, Mapping[str, float], Mapping[str, object]], None]"

_PROGRAM: Final = f"{__package__}.sampling_service"

#: Samples that one look takes at most. A pipe holds about a hundred.
_MOST_SAMPLES: Final = 16

#: Size limit of a sample. The process writes it whole only below the 4 KiB of a pipe's atomic write.
_MOST_BYTES: Final = 4096

#: A sampling process counts as stalled after this many looks in a row at which a sample is overdue: by intervals and
#: seconds, or by seconds for the first one, since a loaded machine may take long to start a process.
_OVERDUE_LOOKS: Final = 3
_OVERDUE_INTERVALS: Final = 3
_OVERDUE_S: Final = 2.0
_STARTED_WITHIN_S: Final = 60.0

#: Seconds that the end of a killed process is awaited. One blocked in the kernel, as on a wedged driver, survives.
_ENDED_WITHIN_S: Final = 1.0

_ALL: Final = ("System/*", "GPU/*")

#: Kinds of events of a run whose loop has recorded nothing yet.
_OPENING: Final = frozenset(("train_begin", PLAN))


class _Sample(NamedTuple):
    """One sample: when it was taken, on the monotonic clock, and its metrics."""

    sampled_ns: int
    metrics: Mapping[str, float]


class _Note(NamedTuple):
    """A note about metrics, and why those that it names are absent."""

    text: str
    absent: Mapping[str, str]


class SystemSampling:
    """The samples of one recorder's machine. They outlast its attempts.

    Args:
        store: The folder whose disk is watched.

    Attributes:
        waiting: Samples and notes that are not recorded yet.
        absent: Why metrics are absent, by name or pattern.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._process: ChildProcess | None = None
        self._pipe: object = None
        self._interval_s = math.inf
        self._overdue_s = self._overdue_looks = 0.0
        self._has_stalled = False
        self.waiting: list[_Sample | _Note] = []
        self.absent: dict[str, str] = {}
        _SAMPLINGS.add(self)

    def start(self, interval_s: float) -> None:
        """Start the process, if none samples at this interval or a shorter one. It is never started twice for one."""
        if interval_s >= self._interval_s:
            return
        self.close()
        self._interval_s = interval_s
        arguments = (str(os.getpid()), repr(interval_s), str(self._store))
        environment = {**os.environ, "PYTHONPATH": import_path()}
        try:
            with _STARTING:
                self._process = ChildProcess(_PROGRAM, *arguments, environment=environment, is_bound=True)
        except OSError as error:
            self._give_up(f"the sampling process could not be started: {error}")
            return
        self._pipe = inode_of(self._process.answers.fileno())
        self._expect(_STARTED_WITHIN_S)

    def look(self) -> None:
        """Read the samples that have come. Never waits, and never raises: the journal is in the middle of an event."""
        try:
            for _ in range(_MOST_SAMPLES):
                process = self._process
                if process is None:
                    return
                if inode_of(process.answers.fileno()) != self._pipe:
                    raise BrokenPipeError(errno.EBADF, "the program has closed this descriptor")
                if not process.has_answered(within_s=0):
                    break
                head = process.receive(most_bytes=_MOST_BYTES, until_s=0).head
                self._add_sample(head["metrics"], head["sampled_ns"], head["absent"])
            else:
                return
            self._check_whether_stalled()
        except EOFError:
            self._end()
        except (BrokenFrame, TelemetryError, OSError, ValueError, TypeError, KeyError) as error:
            self._give_up(f"the pipe of the sampling process broke ({type(error).__name__}: {error})")

    def carry_out(self, kinds: Set[str], started_ns: int, warn: Callable[[str], None], emit: EmitOwn) -> None:
        """Record what has come, once the loop has recorded something: before, it may load a checkpoint.

        Args:
            kinds: The kinds of the events of the attempt so far.
            started_ns: The monotonic clock at its start.
            warn: Logs a warning, once per message.
            emit: Records an event.
        """
        if kinds <= _OPENING:
            return
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if isinstance(each, _Sample):
                emit(SYSTEM, each.metrics, {"sampled_ns": each.sampled_ns - started_ns})
                continue
            if "GPU/*" not in each.absent or len(each.absent) > 1:
                warn(each.text)  # A machine without a GPU is no news.
            emit("annotation", {}, {"text": each.text, **({"absent": each.absent} if each.absent else {})})

    def finish(self, kinds: Set[str], started_ns: int, warn: Callable[[str], None], emit: EmitOwn) -> None:
        """Record the last samples of a run that ends, and end the process."""
        self.look()
        self.carry_out(kinds, started_ns, warn, emit)
        self.close()

    def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDED_WITHIN_S)
            process.abandon()

    def forget(self) -> None:
        """Close the copies of the pipes in a forked child, which neither reads nor ends its parent's process."""
        process, self._process = self._process, None
        if process is not None:
            process.abandon()
        self.waiting.clear()

    def _add_sample(self, metrics: Mapping[str, float], sampled_ns: int, absent: Mapping[str, str]) -> None:
        """Keep a sample until it is recorded."""
        sample = _Sample(int(sampled_ns), {str(name): float(value) for name, value in metrics.items()})
        self._note_absent({str(name): str(why) for name, why in absent.items()})
        if sample.metrics:
            self.waiting.append(sample)
        self._expect(_OVERDUE_INTERVALS * self._interval_s + _OVERDUE_S)

    def _expect(self, within_s: float) -> None:
        self._overdue_s, self._overdue_looks = time.monotonic() + within_s, 0

    def _check_whether_stalled(self) -> None:
        """Note once that samples are overdue. Several looks count, since the whole job may have been stopped."""
        if self._has_stalled or time.monotonic() < self._overdue_s:
            return
        self._overdue_looks += 1
        if self._overdue_looks == _OVERDUE_LOOKS:
            self._has_stalled = True
            self._note("the sampling process is stalled: system metrics are missing until it continues", {})

    def _end(self) -> None:
        """Note that the process has ended, unless it had nothing to sample."""
        if not self.absent.keys() >= {*_ALL}:
            status = None if self._process is None else self._process.poll()
            self._give_up(f"the sampling process has ended{'' if status is None else f' with status {status}'}")
        self.close()

    def _give_up(self, why: str) -> None:
        """Sample no more."""
        self._note(f"{why}: system metrics end here", dict.fromkeys(_ALL, why))
        self.close()

    def _note_absent(self, absent: dict[str, str]) -> None:
        """Note metrics that are absent, those of one reason together."""
        new = {name: why for name, why in absent.items() if self.absent.get(name) != why}
        if new:
            by_reason: dict[str, list[str]] = {}
            for name, why in new.items():
                by_reason.setdefault(why, []).append(name)
            listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
            self._note(f"system metrics are absent: {listed}", new)

    def _note(self, text: str, absent: dict[str, str]) -> None:
        self.absent |= absent
        self.waiting.append(_Note(text, absent))


_SAMPLINGS: Final[weakref.WeakSet[SystemSampling]] = weakref.WeakSet()

#: Held while a process starts: a child that is forked meanwhile would keep its pipes open.
_STARTING: Final = forkable_lock()


def _forget_in_child() -> None:
    for sampling in list(_SAMPLINGS):
        sampling.forget()


os.register_at_fork(before=_STARTING.acquire, after_in_parent=_STARTING.release, after_in_child=_forget_in_child)
