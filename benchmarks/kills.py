"""Kills a thousand training loops and their sealers with SIGKILL at random moments and counts lost or doubled events.

    .venv/bin/python benchmarks/kills.py [--kills N] [--workers N] [--seed N]

Each loop (``victims.py``) counts in shared memory every call that returned. Its run must then hold each event of these
calls once, in order and bit for bit, at most one call more, and the decisions of its rules on them. Its sealers are
killed too, several times, and nothing may differ after each. Findings go to stderr, one JSON line to stdout at the end;
the exit status is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from victims import ACKS_BYTES, POLICY, VARIETIES, Variety, calls_of

from steptape import TelemetryError, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run
from steptape.store.run_folder import RUN_JSON

#: The number of times that the sealing of each run is started and killed.
SEALERS: Final = 4

#: Sealing the runs of a trial takes about 10 ms; it is killed within these bounds, short lives as often as long ones.
SEALER_LIFE_S: Final = (0.0003, 0.03)

#: One loop in this many is killed at a moment counted from its birth, the others from their first record.
UNBORN_EVERY: Final = 8

#: A loop that does not record by then never will.
PATIENCE_S: Final = 60.0

RECORDED_BY_CALLS: Final = ("step_end", "log", "evaluate", "save")


@dataclass(slots=True)
class Tally:
    """The counts of a trial; those from ``lost`` on must be 0.

    Attributes:
        kills: Loops killed.
        sealer_kills: Sealers killed before they were done.
        acked: Calls that had returned.
        events: Events read.
        unborn: Loops killed before they recorded anything.
        lost: Events of calls that had returned, and which are missing or differ.
        doubled: Events, or rows of samples, that occur twice.
        unreadable: Runs that could not be read or sealed.
        undecided: Runs whose decisions differ from those of a replay.
        changed: Runs that read differently after a sealer was killed, or was done.
    """

    kills: int = 0
    sealer_kills: int = 0
    acked: int = 0
    events: int = 0
    unborn: int = 0
    lost: int = 0
    doubled: int = 0
    unreadable: int = 0
    undecided: int = 0
    changed: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def findings(self) -> dict[str, int]:
        """Return the nonzero counts that must be zero."""
        names = ("lost", "doubled", "unreadable", "undecided", "changed")
        return {name: count for name in names if (count := getattr(self, name))}


class Victims:
    """The process that victims are forked from."""

    def __init__(self, place: str) -> None:
        # Not in a folder of git's: asking it for the commit would be most of a victim's life.
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("victims.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=place,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def order(self, *order: Any) -> int:
        """Send an order and return the answer: a pid, or the exit status of a process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return int(json.loads(self._process.stdout.readline()))


def kill_loop(victims: Victims, name: str, seed: int, draw: random.Random, place: Path) -> tuple[int, int]:
    """Let a loop train, and kill it, or its whole process group, at a random moment.

    Returns:
        Its counter, and its process group.
    """
    acks = place / "acks"
    acks.write_bytes(bytes(ACKS_BYTES))
    with open(acks, "r+b") as file, mmap.mmap(file.fileno(), ACKS_BYTES) as shared:
        group = victims.order("record", name, seed, str(place), str(acks))
        if draw.randrange(UNBORN_EVERY):
            give_up_at = time.monotonic() + PATIENCE_S
            while not any(shared[:]) and time.monotonic() < give_up_at:
                time.sleep(0.0002)
        time.sleep(draw.uniform(0, VARIETIES[name].life_s))
        (os.killpg if draw.random() < 0.5 else os.kill)(group, signal.SIGKILL)
        status = victims.order("reap", group)
        if status != -signal.SIGKILL:
            raise RuntimeError(f"a loop ended by itself, with {status}")
        return int.from_bytes(shared[:], sys.byteorder), group


class Expected:
    """The expected record of a loop of this variety and seed after this many returned calls.

    Attributes:
        events: Kind, step and metrics (as text, so that NaN equals NaN) recorded by those calls and one more.
        returned: The number of these events from calls that returned.
        samples: Position, loss and id of each sample, a list for each step.
    """

    def __init__(self, variety: Variety, seed: int, calls: int) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.returned = 0
        self.samples: list[list[tuple[int, float, int]]] = []
        step = 0
        for call in itertools.islice(calls_of(variety, seed), calls + 1):
            self.returned = len(self.events)
            metrics = repr(call.metrics)
            if call.method != "step":
                self.events.append((call.method, step, metrics))
                continue
            step += 1
            self.events.append(("step_end", step, metrics))
            if variety.log_every and step % variety.log_every == 0:
                self.events.append(("log", step, metrics))
            numbered = zip(itertools.count(), call.losses or (), call.ids or ())
            self.samples.append(list(numbered))


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything read of a run. Equality is exact to the last bit; ``facts`` are the events with NaN as text."""

    events: list[Event] = dataclasses.field(compare=False)
    facts: list[str]
    samples: list[tuple[Any, ...]]

    @classmethod
    def of(cls, run: Run) -> Reading:
        """Read a run."""
        events = list(run.events())
        facts = [repr((*event[:10], dict(event.metrics), dict(event.attrs))) for event in events]
        table = run.samples().select(["seq", "position", "loss", "sample_id"])
        return cls(events, facts, list(zip(*(column.to_pylist() for column in table.columns), strict=True)))

    def of_calls(self) -> list[Event]:
        """Return the events that calls recorded, without the recorder's own and the rules' outcomes."""
        return [event for event in self.events if event.kind in RECORDED_BY_CALLS]


def check(reading: Reading, expected: Expected) -> Tally:
    """Return the faults in a reading of a dead run."""
    tally = Tally()
    seqs = [event.seq for event in reading.events]
    tally.doubled += len(seqs) - len(set(seqs)) + len(reading.samples) - len({row[:2] for row in reading.samples})
    tally.lost += seqs[-1] + 1 - len(set(seqs)) if seqs else 0

    written = reading.of_calls()
    recorded = [(event.kind, event.step, repr(dict(event.metrics))) for event in written]
    pairs = zip(recorded, expected.events, strict=False)
    agreeing = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if agreeing < len(recorded) or agreeing < expected.returned:
        tally.lost += max(expected.returned - agreeing, 1)

    step_seqs = [event.seq for event in written if event.kind == "step_end"]
    # The last expected step may be missing: its call had not returned.
    wanted = [(seq, *row) for seq, rows in zip(step_seqs, expected.samples, strict=False) for row in rows]
    found = [(seq, position, loss, int(sample_id)) for seq, position, loss, sample_id in reading.samples]
    tally.lost += found != wanted
    return tally


def is_decided(run: Run, variety: Variety, in_flight: bool) -> bool:
    """Whether the run's decisions equal those of its replay: all of them, unless a call had not returned."""
    verdict = verify(run)
    if in_flight or not variety.has_rules:
        return verdict.identical
    return verdict.identical and verdict.outcomes == len(replay(parse_policy(POLICY), run).outcomes)


def try_once(victims: Victims, number: int, seed: int, place: Path) -> Tally:
    """Kill one loop and the sealers of its run, and check the run."""
    draw = random.Random(f"{seed}:{number}")
    name = list(VARIETIES)[number % len(VARIETIES)]
    variety, loop_seed = VARIETIES[name], draw.getrandbits(32)
    counter, group = kill_loop(victims, name, loop_seed, draw, place)
    tally = Tally(kills=1, acked=max(counter - 1, 0))
    folders = [path.parent for path in place.glob(f"*/{RUN_JSON}")]
    try:
        if counter == 0 and not folders:
            tally.unborn = 1
            return tally
        (folder,) = folders
        run = open_run(folder)
        before = Reading.of(run)
        tally.events = len(before.events)
        expected = Expected(variety, loop_seed, tally.acked)
        in_flight = len(before.of_calls()) > expected.returned
        tally.add(check(before, expected))
        tally.undecided += not is_decided(run, variety, in_flight)
        for _ in range(SEALERS):
            shortest, longest = map(math.log, SEALER_LIFE_S)
            pid = victims.order("seal", str(folder))
            time.sleep(math.exp(draw.uniform(shortest, longest)))
            os.kill(pid, signal.SIGKILL)
            tally.sealer_kills += victims.order("reap", pid) == -signal.SIGKILL
            tally.changed += Reading.of(run) != before
        tally.unreadable += victims.order("reap", victims.order("seal", str(folder))) != 0
        tally.changed += Reading.of(run) != before or any(folder.glob("journal-*"))
        tally.undecided += not is_decided(run, variety, in_flight)
    except (TelemetryError, OSError, ValueError) as error:
        print(f"trial {number}: {error!r}", file=sys.stderr, flush=True)
        tally.unreadable += 1
    finally:
        # A sealer that the loop started may still be at work.
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    if findings := tally.findings():
        what = {"trial": number, "seed": seed, "variety": name, "counter": counter, **findings}
        print(json.dumps(what), file=sys.stderr, flush=True)
    return tally


def run_trials(numbers: range, seed: int) -> Tally:
    """Run some of the trials in sequence."""
    total = Tally()
    with tempfile.TemporaryDirectory() as store, Victims(store) as victims:
        for number in numbers:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                total.add(try_once(victims, number, seed, Path(place)))
    return total


def main() -> int:
    """Run all trials and print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    started = time.monotonic()
    total = Tally()
    shares = [range(worker, arguments.kills, arguments.workers) for worker in range(arguments.workers)]
    with ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn")) as pool:
        for tally in pool.map(run_trials, shares, itertools.repeat(arguments.seed)):
            total.add(tally)
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps({**dataclasses.asdict(total), "seed": arguments.seed, "seconds": seconds}))
    return 1 if total.findings() else 0


if __name__ == "__main__":
    sys.exit(main())
