"""Stops jobs of several ranks by a rule, at random steps and delays, and counts ranks that disagree or wait too long.

    .venv/bin/python benchmarks/agreement_stops.py [--stops N] [--kills N] [--ranks N] [--timeout-s S] [--seed N]

Each set of processes, forked once PyTorch is imported and connected by gloo, trains one run after the other. In one run
of 20 a rank sleeps or is suspended, most of them around the order, some for longer than ``agree_timeout_s``. In the
last run of a set a rank is killed, around the order too. The journals of all ranks, also of the killed one, must agree:
all that say anything stopped, at the same step, or none did and each says that it is steered no more. Findings go to
stderr, one JSON line to stdout at the end; the exit status is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from forked_ranks import forked_ranks, join_group, serve_store

from steptape import Ranks, Recorder, open_run

RULES: Final = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 0.5, operations: [hfcontrols.should_training_stop]}
"""

#: Steps after the one of the rule, in a run that is not stopped.
STEPS_AFTER: Final = 8

#: A set that takes longer is killed, which is a finding.
SET_S: Final = 300.0


@dataclass
class Tally:
    """The counts; the last three must be 0.

    Attributes:
        stops: Runs.
        killed: Runs in which a rank was killed.
        delayed: Runs in which a rank slept, or was suspended.
        obeyed: Runs that all living ranks stopped.
        off: Runs in which no rank stopped.
        longest_s: The longest wait of a rank that was not suspended.
        disagreements: Runs in which ranks differ, or a rank trained on without a word.
        waits_beyond: Waits of more than the timeout.
        missing: Runs that a set did not finish.
    """

    stops: int = 0
    killed: int = 0
    delayed: int = 0
    obeyed: int = 0
    off: int = 0
    longest_s: float = 0.0
    disagreements: int = 0
    waits_beyond: int = 0
    missing: int = 0


@dataclass
class Plan:
    """The incident of one run.

    Attributes:
        stop_at: The step of the rule.
        agree_every: Steps between agreements.
        event: ``kill``, ``suspend``, ``sleep`` or nothing.
        rank: The rank to which it happens.
        after_s: Seconds from that rank's step ``stop_at`` on.
        seconds: How long it sleeps or is suspended.
    """

    stop_at: int
    agree_every: int
    event: str
    rank: int
    after_s: float
    seconds: float

    @classmethod
    def of(cls, seed: str, ranks: int, timeout_s: float, *, is_last: bool) -> Plan:
        """Return a random plan."""
        chance = random.Random(seed)
        event = "kill" if is_last else chance.choices(("", "suspend", "sleep"), (38, 1, 1))[0]
        return cls(
            stop_at=chance.randint(1, 25),
            agree_every=chance.randint(1, 3),
            event=event,
            rank=chance.randrange(ranks),
            after_s=chance.uniform(0.0, 0.01),
            seconds=timeout_s * chance.uniform(0.1, 1.5),
        )


def _train(folder: Path, name: str, plan: Plan, rank: int, timeout_s: float) -> dict[str, Any]:
    """Train one run on one rank."""
    longest_s, step, chance = 0.0, 0, random.Random(f"{name} {rank}")
    with Recorder(
        folder, rules=folder / "rules.yaml", run_id=name, ranks=Ranks(agree_timeout_s=timeout_s), quiet=True
    ) as rec:
        for step in range(1, plan.stop_at + STEPS_AFTER):
            time.sleep(chance.uniform(0.0, 0.003))
            if step == plan.stop_at and rank == plan.rank and plan.event:
                _happen(plan)
            rec.step(loss=float(step == plan.stop_at))
            if step % plan.agree_every == 0:
                began = time.monotonic()
                rec.agree()
                longest_s = max(longest_s, time.monotonic() - began)
            if rec.control.should_stop:
                break
    is_suspended = plan.event == "suspend" and rank == plan.rank
    return {"run": name, "rank": rank, "left": step, "longest_s": 0.0 if is_suspended else longest_s}


def _happen(plan: Plan) -> None:
    if plan.event == "sleep":
        time.sleep(plan.seconds)
        return
    pid = os.getpid()
    if plan.event == "kill":
        threading.Timer(plan.after_s, os.kill, (pid, signal.SIGKILL)).start()
    elif (middle := os.fork()) == 0:  # Its child is nobody's to wait for.
        if os.fork() == 0:
            time.sleep(plan.after_s)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(plan.seconds)
            os.kill(pid, signal.SIGCONT)
        os._exit(0)
    else:
        os.waitpid(middle, 0)


def _rank(rank: int, options: argparse.Namespace, port: int, folder: Path, plans: dict[str, Plan], out: int) -> None:
    join_group(port, rank, options.ranks, SET_S)
    for name, plan in plans.items():
        result = _train(folder, name, plan, rank, options.timeout_s)
        os.write(out, (json.dumps(result) + "\n").encode())


def _run_set(options: argparse.Namespace, folder: Path, plans: dict[str, Plan]) -> list[dict[str, Any]]:
    """Train the runs of one set of processes, and return what its ranks say."""
    reading, writing = os.pipe()
    server, port = serve_store()
    ranks = forked_ranks(options.ranks, lambda rank: _rank(rank, options, port, folder, plans, writing))
    os.close(writing)
    timer = threading.Timer(SET_S, lambda: [*map(_kill, ranks)])
    timer.start()
    for pid in ranks:
        os.waitpid(pid, 0)
    timer.cancel()
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    with open(reading) as pipe:
        return [json.loads(line) for line in pipe]


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _judge(folder: Path, name: str, plan: Plan, results: list[dict[str, Any]], tally: Tally, ranks: int) -> str:
    """Count a run. Return what is wrong with it, if anything."""
    run = open_run(folder / name)
    said: dict[int, dict[str, Any]] = {rank: {} for rank in range(ranks)}
    for row in run.rows("SELECT rank, step, attrs FROM events WHERE kind = 'agreement' ORDER BY rank, seq"):
        attrs = json.loads(row["attrs"])
        said[row["rank"]] |= {"stopped": row["step"]} if "orders" in attrs else {"off": attrs.get("off", attrs)}
    left = {result["rank"]: result["left"] for result in results}
    stopped = {each["stopped"] for each in said.values() if "stopped" in each}
    killed = plan.rank if plan.event == "kill" else -1
    tally.obeyed += all("stopped" in said[rank] for rank in range(ranks) if rank != killed)
    tally.off += not stopped
    living = [rank for rank in range(ranks) if rank != killed or rank in left]
    is_silent = any(not said[rank] for rank in living)
    differs = bool(stopped) and ({left.get(rank) for rank in living} != stopped or len(stopped) > 1)
    if is_silent or differs:
        tally.disagreements += 1
        return f"{name}: {plan}: {said}, left at {left}"
    return ""


def main() -> int:
    """Run the sets and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stops", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--timeout-s", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import torch.distributed  # noqa: F401 - before the forks

    logging.getLogger("steptape").setLevel(logging.CRITICAL)
    tally, began, per_set = Tally(), time.monotonic(), max(1, options.stops // max(1, options.kills))
    names = [f"stop-{number}" for number in range(options.stops)]
    for first in range(0, options.stops, per_set):
        of_set = names[first : first + per_set]
        plans = {
            name: Plan.of(
                f"{options.seed} {name}",
                options.ranks,
                options.timeout_s,
                is_last=options.kills > 0 and name == of_set[-1],
            )
            for name in of_set
        }
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            (folder / "rules.yaml").write_text(RULES)
            results = _run_set(options, folder, plans)
            for name, plan in plans.items():
                own = [result for result in results if result["run"] == name]
                finding, waits_s = "", [result["longest_s"] for result in own]
                if len(own) < options.ranks - (plan.event == "kill"):
                    tally.missing += 1
                    finding = f"{name}: {plan}: finished by {[result['rank'] for result in own]} only"
                else:
                    finding = _judge(folder, name, plan, own, tally, options.ranks)
                tally.stops += 1
                tally.killed += plan.event == "kill"
                tally.delayed += plan.event in ("sleep", "suspend")
                tally.longest_s = max([tally.longest_s, *waits_s])
                tally.waits_beyond += sum(wait_s > options.timeout_s for wait_s in waits_s)
                if finding:
                    print(finding, file=sys.stderr, flush=True)
    counts = {**asdict(tally), "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps({key: round(value, 3) for key, value in counts.items()}), flush=True)
    return bool(tally.disagreements or tally.waits_beyond or tally.missing)


if __name__ == "__main__":
    raise SystemExit(main())
