"""Times calls and their floor by turns, so that other load on the machine affects both alike."""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from steptape import Recorder

#: Makes one call with a recorder and its values, and returns the time in nanoseconds.
Call = Callable[[Recorder, Any], int]

clock = time.perf_counter_ns


@dataclass(slots=True)
class Rounds:
    """The times of calls by rounds, and the longest that the kernel did not interrupt, in nanoseconds."""

    taken_ns: list[list[int]] = field(default_factory=list)
    longest_unpreempted_ns: int = 0

    def add(self, call: Callable[[Any], int], values: Sequence[Any]) -> None:
        """Start a new round: call with each of the values."""
        self.taken_ns.append([])
        self.extend(call, values)

    def extend(self, call: Callable[[Any], int], values: Sequence[Any]) -> None:
        """Add calls to the newest round."""
        taken_ns = self.taken_ns[-1]
        preemptions = preemptions_so_far()
        for given in values:
            taken_ns.append(call(given))
            before, preemptions = preemptions, preemptions_so_far()
            if preemptions == before and taken_ns[-1] > self.longest_unpreempted_ns:
                self.longest_unpreempted_ns = taken_ns[-1]

    def medians_ns(self) -> list[float]:
        """Return the median of each round."""
        return [statistics.median(taken_ns) for taken_ns in self.taken_ns]

    def figures(self) -> dict[str, Any]:
        """Return the median over the medians of rounds, and percentiles over all calls."""
        every = sorted(itertools.chain.from_iterable(self.taken_ns))
        return {
            "calls": len(every),
            "median_us": in_us(statistics.median(self.medians_ns())),
            "p99_us": in_us(every[int(len(every) * 0.99)]),
            "p999_us": in_us(every[int(len(every) * 0.999)]),
            "longest_us": in_us(every[-1]),
            "longest_unpreempted_us": in_us(self.longest_unpreempted_ns),
        }


def preemptions_so_far() -> int:
    """Return how often this thread lost the processor involuntarily."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


@dataclass(slots=True)
class Case:
    """A recorder and a floor, which take turns.

    Attributes:
        call: What is timed.
        values: Its arguments, by turns.
        rules: The live policy; none if empty.
        share: This case's share of the calls of other cases.
    """

    call: Call
    values: list[Any]
    rules: str = ""
    share: float = 1.0
    recorder: Recorder = field(init=False)
    step: Callable[[Any], int] = field(init=False)
    floor: Callable[[object], int] = field(init=False)
    record_bytes: int = field(init=False)
    rounds: Rounds = field(default_factory=Rounds)
    floor_rounds: Rounds = field(default_factory=Rounds)

    @contextmanager
    def opened(self, place: Path) -> Iterator[None]:
        """Open a recorder, and a file to which records of the same length are written."""
        policy = place / "policy.yaml"
        policy.write_text(self.rules)
        fd = os.open(place / f"floor-{id(self)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with Recorder(place / "runs", rules=policy if self.rules else None, quiet=True) as self.recorder:
            self.step = partial(self.call, self.recorder)
            # The second record of its kind is like all later ones.
            for values in self.values[:2]:
                before = journal_bytes(self.recorder.folder)
                self.step(values)
            self.record_bytes = journal_bytes(self.recorder.folder) - before
            record = bytes(self.record_bytes)

            def write_floor(_: object) -> int:
                start = clock()
                os.write(fd, record)
                return clock() - start

            self.floor = write_floor
            yield
        os.close(fd)

    def take_turns(self, calls: int) -> None:
        """Run one round: this many writes of the floor, then this many steps."""
        calls = max(int(calls * self.share), 1)
        values = list(itertools.islice(itertools.cycle(self.values), calls))
        self.floor_rounds.add(self.floor, values)
        self.rounds.add(self.step, values)

    def figures(self) -> dict[str, Any]:
        """Return the figures of its line."""
        mine, floor = self.rounds, self.floor_rounds
        ratios = (mine_ns / bare_ns for mine_ns, bare_ns in zip(mine.medians_ns(), floor.medians_ns(), strict=True))
        floor_figures = {f"floor_{name}": figure for name, figure in floor.figures().items() if name != "calls"}
        return {
            "record_bytes": self.record_bytes,
            **mine.figures(),
            **floor_figures,
            "ratio": round(statistics.median(ratios), 2),
        }


def journal_bytes(folder: Path) -> int:
    """Return the size of a run's journal."""
    return sum(path.stat().st_size for path in folder.glob("journal-*"))


def in_us(ns: float) -> float:
    """Return microseconds, rounded to the hundredth."""
    return round(ns / 1e3, 2)
