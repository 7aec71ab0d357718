"""Measures events per second that a replay reads and folds under the policy of TrAC's Fig. 4, on one core.

    .venv/bin/python benchmarks/replay.py [--runs N] [--steps N] [--rounds N]

A run is 10,000 updates with ten numbers each, a log entry and an evaluation at every hundredth, a checkpoint at every
five hundredth, sealed. There are two sorts. In ``falling`` runs the evaluation loss falls by 4 % each time, so that the
policy decides little. In ``settled`` runs it falls and then stays, so that the two rules on settled losses are true
most of the time and one step in five is a decision, each with its readings. Decisions are counted in the output.

Prints a JSON line for each way to fold, in seconds of processor time of all threads, the best of the rounds: from
Parquet as ``replay`` and ``backtest`` do it, events in memory by the same path, event objects one by one as a live run
observes them, and the same three rules as trees parsed by simpleeval. Beside them the same decisions written in numpy,
from Parquet, for this policy alone. Ratios are within one run. The exit status is 1 if numpy counts other decisions.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import simpleeval  # type: ignore[import-untyped]

from steptape import Policy, Recorder, load_policy, open_store
from steptape.replay.columns.column_replay import by_columns
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.judging import facts_of_run, result_of
from steptape.replay.runs.replaying import observed_in, replay
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


def decisions_in_numpy(run: Run) -> int:
    """Return how often the three rules of Fig. 4 decide, read and computed with numpy alone."""
    (file,) = run.folder.glob("events-*.parquet")
    table = pq.read_table(file, columns=["kind", "eval_loss"], use_threads=False)
    kinds, losses = table["kind"].to_numpy(zero_copy_only=False), table["eval_loss"].to_numpy()
    evaluated = np.flatnonzero(kinds == "evaluate")
    known = losses[evaluated]
    newest = np.searchsorted(evaluated, np.flatnonzero(kinds == "step_end")) - 1
    drops, settled = np.zeros(len(known) + 1, np.bool_), np.zeros(len(known) + 1, np.bool_)
    drops[1:-1] = known[1:] <= 0.85 * known[:-1]
    for number in range(9, len(known)):
        mean = sum(known[number - 9 : number + 1]) / 10
        settled[number] = 0.9 * known[number] <= mean <= 1.1 * known[number]
    counts = ((drops, 2), (settled, 11), (settled, 21))
    return sum(_in_a_row(is_true[newest], needed) for is_true, needed in counts)


def _in_a_row(is_true: npt.NDArray[np.bool_], needed: int) -> int:
    edges = np.flatnonzero(np.diff(is_true, prepend=False, append=False))
    return int(((edges[1::2] - edges[::2]) // needed).sum())


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


def measure(sort: str, runs: Sequence[Run], rounds: int) -> bool:
    """Time each way to fold the runs, and print it; return whether numpy counts the same decisions."""
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
        "backtest's result, from Parquet": lambda: [
            result_of(facts_of_run(policy, run, decider_of=by_columns, with_curves=False), None) for run in runs
        ],
        "decisions in numpy, from Parquet": lambda: [decisions_in_numpy(run) for run in runs],
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
    in_numpy_s = taken_s["decisions in numpy, from Parquet"]
    for way, seconds in [*taken_s.items(), ("simpleeval, parsed, rules alone", naive * count)]:
        rates = {"events_per_s": round(count / seconds), "ns_per_event": round(seconds / count * 1e9)}
        ratios = {"times_simpleeval": round(naive * count / seconds, 1), "of_numpy": round(seconds / in_numpy_s, 1)}
        print(json.dumps({"runs": sort, "way": way, **rates, **ratios}))
    line = {"runs": sort, "count": len(runs), "events": count, "decisions": decisions, "load": os.getloadavg()}
    print(json.dumps(line))
    return decisions == sum(map(decisions_in_numpy, runs))


def main() -> int:
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
            if not measure(sort, list(open_store(store)), given.rounds):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
