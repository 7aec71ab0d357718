"""Forks the victims of ``kills.py`` from one warmed-up process: training loops that count their progress, and sealers.

    python benchmarks/victims.py     # orders on stdin, answers on stdout, a JSON value a line each

Orders are ``["record", variety, seed, store, acks]`` and ``["seal", folder]``, both answered with the pid of a process
that leads its own group, and ``["reap", pid]``, answered with its exit status, or minus a signal. A loop's records
depend only on its variety and seed, so that its killer knows what must be there.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from steptape import Journal, Recorder
from steptape.store.journal.writer import SEGMENT_BYTES, JournalWriter
from steptape.store.parquet import sealing

#: The counter that a loop shares with its killer: 0, then 1 when it records, then one more for each call that returned.
ACKS_BYTES: Final = 8

#: Rules that fire often, by one value and by a window, so that many kills fall between an event and its decisions.
POLICY: Final = """
controllers:
  - {name: high, triggers: [on_step_end], rule: "loss > 1.2", operations: [hfcontrols.should_save]}
  - {name: far, triggers: [on_step_end], rule: "loss > 1.2 * mean(loss, 5)", operations: [hfcontrols.should_evaluate]}
  - {name: worse, triggers: [on_evaluate], rule: "eval_loss > 1", operations: [hfcontrols.should_log]}
"""


@dataclass(frozen=True, slots=True)
class Variety:
    """One kind of training loop.

    Attributes:
        samples: Sample losses of each step.
        has_rules: Whether ``POLICY`` steers it.
        log_every: As the recorder's.
        sync_every_s: As the journal's.
        segment_bytes: Size at which the journal begins a new segment, and a sealer is started.
        pause_s: Between two calls.
        life_s: It is killed before this.
    """

    samples: int = 0
    has_rules: bool = False
    log_every: int | None = None
    sync_every_s: float | None = None
    segment_bytes: int = SEGMENT_BYTES
    pause_s: float = 0.0
    life_s: float = 0.05


VARIETIES: Final = {
    "bare": Variety(),
    "paced": Variety(pause_s=0.0005, life_s=0.2),
    "samples": Variety(samples=64, has_rules=True),
    "rules": Variety(has_rules=True, log_every=7),
    "power": Variety(sync_every_s=0.01, samples=3),
    "segments": Variety(segment_bytes=8 * 1024, pause_s=0.001, life_s=1.0),
    "segments, rules and samples": Variety(
        segment_bytes=32 * 1024, samples=16, has_rules=True, log_every=3, pause_s=0.001, life_s=1.0
    ),
}


class Call(NamedTuple):
    """One call of the recorder: the method's name, the metrics, and a step's sample losses with their ids."""

    method: Literal["step", "evaluate", "save"]
    metrics: dict[str, float]
    losses: list[float] | None = None
    ids: list[int] | None = None


def calls_of(variety: Variety, seed: int) -> Iterator[Call]:
    """Yield a loop's calls, endlessly: two sets of metrics by turns, now and then a new one, a NaN or a checkpoint."""
    draw = random.Random(seed)
    for number in range(sys.maxsize):
        if number % 10 == 9:
            yield Call("evaluate", {"eval_loss": draw.gauss(1, 1), "accuracy": draw.random()})
        elif number % 25 == 24:
            yield Call("save", {"eval_loss": draw.random()})
        else:
            metrics = {"loss": math.nan if draw.random() < 0.01 else draw.gauss(1, 0.2), "lr": 0.1 / (number + 1)}
            if number % 3 == 0:
                metrics |= {f"grad/layer_{layer}": draw.random() for layer in range(8)}
            if number % 97 == 96:
                metrics[f"seen_at_{number}"] = float(number)
            # Numbers of 20 bits, which single precision keeps exactly.
            losses = [draw.getrandbits(20) / 1024 for _ in range(variety.samples)]
            ids = [draw.getrandbits(40) for _ in range(variety.samples)]
            yield Call("step", metrics, losses or None, ids or None)


def record(name: str, seed: int, store: str, acks: str) -> None:
    """Train until killed."""
    variety = VARIETIES[name]
    # A training loop cannot choose the size of a segment.
    assert JournalWriter.__init__.__kwdefaults__ is not None
    JournalWriter.__init__.__kwdefaults__["segment_bytes"] = variety.segment_bytes
    policy = None
    if variety.has_rules:
        policy = Path(store) / "policy.yaml"
        policy.write_text(POLICY)
    with open(acks, "r+b") as file:
        counter = memoryview(mmap.mmap(file.fileno(), ACKS_BYTES)).cast("q")
    recorder = Recorder(
        store,
        name=name,
        rules=policy,
        log_every=variety.log_every,
        journal=Journal(sync_every_s=variety.sync_every_s),
        quiet=True,
    )
    counter[0] = 1
    for call in calls_of(variety, seed):
        if call.method == "step":
            recorder.step(call.metrics, samples=call.losses, sample_ids=call.ids)
        elif call.method == "evaluate":
            recorder.evaluate(call.metrics)
        else:
            recorder.save("checkpoint.pt", size_bytes=1, eval_loss=call.metrics["eval_loss"])
        counter[0] += 1
        if variety.pause_s:
            time.sleep(variety.pause_s)


def fork(order: list[Any]) -> int:
    """Fork a child, in its own process group, that carries out an order and exits."""
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        # The pipes belong to the giver of the orders; a sealer that the loop starts must not hold them open.
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        what, *arguments = order
        if what == "record":
            record(*arguments)
        else:
            complaints = [complaint for folder in arguments for complaint in sealing.complaints(Path(folder))]
            for complaint in complaints:
                print(complaint, file=sys.stderr, flush=True)
            status = int(bool(complaints))
    except BaseException as error:
        print(f"{order[0]}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def reap(pid: int) -> int:
    """Wait for a child. Return its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Carry out orders until there are no more."""
    for line in sys.stdin:
        order = json.loads(line)
        answer = reap(order[1]) if order[0] == "reap" else fork(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
