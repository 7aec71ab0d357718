"""Measures import and backtest of 200 past runs of 10,000 steps against six baselines, a newcomer's first wait.

    PYTHONPATH=tests .venv/bin/python benchmarks/imports.py [--runs N] [--steps N] [--kind tensorboard|table] [--again]

The logs are written first and not timed: a loss and a learning rate each step, an evaluation each hundred steps. Prints
a JSON line per part, in wall-clock seconds and in seconds of processor time (children included); with --again also the
time of importing the same logs once more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from event_files import STARTED_S, event, simple, write_events

from steptape import backtest, load_policy, open_store
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.runs.objective import Objective
from steptape.rules.policy_file.policy import shipped_policies
from steptape.store.metric_words import Mode

#: Rules on evaluations, on spikes and on nothing at all.
COMPARED = (
    "hf_early_stopping",
    "lightning_early_stopping",
    "kill_loss_spike",
    "lightning_spike_detection",
    "wandb_zscore",
    "prechelt_gl",
)
EVALUATED_EVERY = 100


def loss_at(step: int, noise: random.Random) -> float:
    """Return a noisy falling loss."""
    return 3 / (1 + step / 500) + 0.05 * noise.random()


def write_event_file(folder: Path, steps: int, seed: int) -> None:
    """Write a run as TensorBoard's writers leave it."""
    noise = random.Random(seed)
    contents = []
    for step in range(1, steps + 1):
        values = simple("loss", loss_at(step, noise)) + simple("lr", 1e-3)
        if step % EVALUATED_EVERY == 0:
            values += simple("eval_loss", loss_at(step, noise) * 1.1)
        contents.append(event(step, STARTED_S + step, values))
    write_events(folder / f"run-{seed}" / "events.out.tfevents.1767323045.host", contents)


def write_table(folder: Path, steps: int, seed: int) -> None:
    """Write the same run as CSV."""
    noise = random.Random(seed)
    lines = ["step,loss,lr,eval_loss"]
    for step in range(1, steps + 1):
        evaluated = f"{loss_at(step, noise) * 1.1}" if step % EVALUATED_EVERY == 0 else ""
        lines.append(f"{step},{loss_at(step, noise)},0.001,{evaluated}")
    path = folder / f"run-{seed}" / "metrics.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")


WRITERS: dict[str, Callable[[Path, int, int], None]] = {"tensorboard": write_event_file, "table": write_table}


def timed(part: str, call: Callable[[], int]) -> float:
    """Time a part and print the line; return the wall-clock seconds."""
    clock, processor = time.perf_counter(), sum(os.times()[:4])
    count = call()
    wall_s = time.perf_counter() - clock
    cpu_s = sum(os.times()[:4]) - processor
    document = {"part": part, "count": count, "wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2)}
    print(json.dumps(document), flush=True)
    return wall_s


def main() -> None:
    """Write, import, backtest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--kind", choices=WRITERS, default="tensorboard")
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        logs, store = Path(temporary) / "logs", Path(temporary) / "runs"
        for seed in range(arguments.runs):
            WRITERS[arguments.kind](logs, arguments.steps, seed)

        def import_all() -> int:
            sources = find_sources([logs], all_readers()).sources
            return sum(outcome.events for outcome in import_sources(store, sources, ReadOptions()))

        def judge() -> int:
            policy = load_policy(shipped_policies()["trac_fig4"])
            report = backtest(
                policy,
                list(open_store(store)),
                objective=Objective("eval_loss", Mode.MIN),
                baselines=[BASELINES[name] for name in COMPARED],
                processes=os.cpu_count() or 1,
            )
            return len(report.results)

        total_s = timed("import", import_all) + timed("backtest", judge)
        if arguments.again:
            timed("import again", import_all)
        print(json.dumps({"part": "import and backtest", "wall_s": round(total_s, 1)}))


if __name__ == "__main__":
    main()
