"""Measures events per second that a replay reads and folds under the policy of TrAC's Fig. 4, on one core.

    .venv/bin/python benchmarks/replay.py [--runs N] [--steps N] [--rounds N]

A run is 10,000 updates with ten numbers each, a log entry and an evaluation at every hundredth, a checkpoint at every
five hundredth, sealed. There are two sorts. In ``falling`` runs the evaluation loss falls by 4 % each time, so that the
policy decides little. In ``settled`` runs it falls and then stays, so that the two rules on settled losses are true
most of the time and one step in five is a decision, each with its readings. Decisions are counted in the output.

Prints a JSON line for each way to fold, in seconds of processor time of all threads, the best of the rounds: from
Parquet as ``replay`` and ``backtest`` do it, events in memory by the same path, event objects one by one as a live run
observes them, and the same three rules as trees parsed by simpleeval. Ratios are within one run.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import simpleeval  # type: ignore[import-untyped]

from steptape import Policy, Recorder, load_policy, open_store
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.replaying import observed_in, replay
from steptape.replay.runs.run_result import facts_of_run
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import shipped_policies
from steptape.store.events import Event
from steptape.store.parquet.sealing import seal
from steptape.store.run import Run

NUMBERS = ("lr", "grad_norm", *(f"metric_{number}" for number in range(7)))
#: Steps of the naive loop, which is slow.
NAIVE_STEPS = 2_000


def write_runs(store: Path, runs: int, steps: int, *, settles: bool) -> None:
    """Write sealed runs of one sort."""
    for number in range(runs):
        random = np.random.default_rng(number)
        values = random.standard_normal((steps, len(NUMBERS))).tolist()
        with Recorder(store, name=f"run-{number}", quiet=True) as rec:
            for step, others in enumerate(values, 1):
                evaluated = 3.0 * (math.exp(-step / 2_500) if not settles else 0.3 + math.exp(-step / 500))
                rec.step(loss=evaluated * (1 + 0.1 * others[0]), **dict(zip(NUMBERS, others, strict=True)))
                if step % 100 == 0:
                    rec.log(loss=evaluated)
                    rec.evaluate(eval_loss=evaluated * (1 + 0.01 * others[1]))
                if step % 500 == 0:
                    rec.save(f"step-{step}.pt", size_bytes=1_000_000)
        seal(rec.folder)


def observe_all(policy: Policy, events: Sequence[Event]) -> None:
    """Observe every event, as a live run does."""
    engine = Engine(policy)
    engine.start()
    for event in events:
        engine.observe(event)


def naive_s(policy: Policy, steps: int) -> float:
    """Return simpleeval's seconds for the policy's rules at a step, parsed once."""
    trees = [(c.rule.text, simpleeval.SimpleEval.parse(c.rule.text)) for c in policy.controllers]
    window = [1.0 / (1 + number) for number in range(10)]
    names = {"eval_loss_window": {"metrics": {"eval_loss": window}}}
    start = time.process_time()
    for _ in range(steps):
        evaluator = simpleeval.EvalWithCompoundTypes(functions={"len": len, "sum": sum}, names=names)
        for text, tree in trees:
            evaluator.eval(text, tree)
    return (time.process_time() - start) / steps


def measure(sort: str, runs: Sequence[Run], rounds: int) -> None:
    """Time each way to fold the runs, and print it."""
    policy = load_policy(shipped_policies()["trac_fig4"])
    streams = [event_stream(run.stream()) for run in runs]
    events = [list(run.events()) for run in runs]
    count = sum(map(len, events))
    decisions = sum(len(replay(policy, run).decisions) for run in runs)

    def fold_streams() -> None:
        for stream in streams:
            engine = Engine(policy)
            engine.start()
            for _ in observed_in(engine, stream):
                pass

    def observe_each() -> None:
        for own in events:
            observe_all(policy, own)

    ways: dict[str, Callable[[], object]] = {
        "replay, from Parquet": lambda: [replay(policy, run) for run in runs],
        "backtest's facts, from Parquet": lambda: [facts_of_run(policy, run) for run in runs],
        "folding alone": fold_streams,
        "event objects, one by one": observe_each,
    }
    taken_s = dict.fromkeys(ways, math.inf)
    naive = math.inf
    for _ in range(rounds):
        naive = min(naive, naive_s(policy, NAIVE_STEPS))
        for way, work in ways.items():
            start = time.process_time()
            work()
            taken_s[way] = min(taken_s[way], time.process_time() - start)
    for way, seconds in [*taken_s.items(), ("simpleeval, parsed, rules alone", naive * count)]:
        rates = {"events_per_s": round(count / seconds), "ns_per_event": round(seconds / count * 1e9)}
        print(json.dumps({"runs": sort, "way": way, **rates, "times_simpleeval": round(naive * count / seconds, 1)}))
    print(json.dumps({"runs": sort, "count": len(runs), "events": count, "decisions": decisions}))


def main() -> None:
    """Write the runs, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for sort in ("falling", "settled"):
            store = Path(folder) / sort
            write_runs(store, given.runs, given.steps, settles=sort == "settled")
            measure(sort, list(open_store(store)), given.rounds)


if __name__ == "__main__":
    main()
