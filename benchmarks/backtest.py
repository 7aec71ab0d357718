"""Measures a backtest of many runs, by columns and by the command, and checks its decisions with the event engine.

    .venv/bin/python benchmarks/backtest.py [--runs N] [--steps N] [--rounds N] [--store FOLDER] [--policy POLICY]

A run is 1,000 updates with a noisy falling loss that spikes in every other run, and twenty evaluations. Prints JSON
lines, with the load of the machine before and after:

- the result of a run by columns and by the event engine, and the same decisions written in numpy for the default
  policy, ``loss_spike``, where runs have losses: seconds of processor time a run, the best of the rounds, the ratio to
  numpy;
- the command, as a process of its own, with the verdict alone and with ``--html`` (baselines and coverage): in one
  process, in two and in as many as it starts by itself. Seconds of processor time, workers included, wall-clock
  seconds, and the peak of its own resident memory;
- the job that the page starts for the same question, and the one for the comparison on its second click;
- the number of runs, 1 % drawn at random and at least ten, whose results differ. The exit status is 1 if one does.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from steptape import Policy, Recorder, load_policy, open_store
from steptape.api.workers.job_requests import BacktestRequest, JobOrder
from steptape.api.workers.pool import exchange, start_worker
from steptape.replay.columns.column_replay import by_columns
from steptape.replay.runs.judging import facts_of_run, result_of
from steptape.replay.runs.objective import Objective
from steptape.replay.runs.replaying import ByEngine, DeciderOf
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import shipped_policies
from steptape.store.metric_words import Mode
from steptape.store.parquet.sealing import seal
from steptape.store.run import Run

#: Runs whose results are timed.
TIMED = 100
OBJECTIVE = Objective("eval_loss", Mode.MIN)


def write_runs(store: Path, runs: int, steps: int) -> None:
    """Write sealed runs."""
    for number in range(runs):
        random = np.random.default_rng(number)
        losses = 3.0 / np.sqrt(1 + np.arange(steps) / 50) * (1 + 0.05 * random.standard_normal(steps))
        for begin in random.integers(0, steps, 4 * (number % 2)):
            losses[begin : begin + random.integers(1, 15)] *= random.choice([1.2, 1.6, 2.5, 5.0])
        with Recorder(store, name=f"run-{number}", quiet=True, config={"family": number // 4}) as rec:
            for step, loss in enumerate(losses.tolist(), 1):
                rec.step(loss=loss, lr=0.1, grad_norm=abs(loss))
                if step % (steps // 20) == 0:
                    rec.evaluate(eval_loss=loss)
                if step % (steps // 5) == 0:
                    rec.save(f"step-{step}.pt", size_bytes=1_000)
        seal(rec.folder)


def spikes_in_numpy(run: Run) -> int:
    """Return how often the three rules of ``loss_spike`` decide, read and computed with numpy alone."""
    (file,) = run.folder.glob("events-*.parquet")
    table = pq.read_table(file, columns=["kind", "step", "loss"], use_threads=False)
    losses = table["loss"].to_numpy()[table["kind"].to_numpy(zero_copy_only=False) == "step_end"]
    if len(losses) <= 50:
        return int((~np.isfinite(losses)).sum())
    sums = np.zeros(len(losses) - 49)
    for age in range(50):
        sums += losses[age : len(losses) - 49 + age]
    is_high = (losses[49:] > 2.0 * (sums / 50))[1:]
    edges = np.flatnonzero(np.diff(is_high, prepend=False, append=False))
    in_a_row = int(((edges[1::2] - edges[::2]) // 5).sum())
    return int((~np.isfinite(losses)).sum()) + int(is_high.sum()) + in_a_row


def result(policy: Policy, run: Run, *, decider_of: DeciderOf = ByEngine) -> RunResult:
    """Return what a backtest says of a run."""
    return result_of(facts_of_run(policy, run, decider_of=decider_of, with_curves=False), OBJECTIVE)


def cpu_s(rounds: int, work: Callable[[Run], object], runs: Sequence[Run]) -> float:
    """Return seconds of processor time a run, the best of the rounds."""
    best = math.inf
    for _ in range(rounds):
        start = time.process_time()
        for run in runs:
            work(run)
        best = min(best, (time.process_time() - start) / len(runs))
    return best


def measure_library(policy: Policy, runs: Sequence[Run], rounds: int, *, is_default: bool) -> None:
    """Time the result of a run."""
    timed = runs[:TIMED]
    ways: dict[str, Callable[[Run], object]] = {
        "columns": functools.partial(result, policy, decider_of=by_columns),
        "event engine": functools.partial(result, policy),
    }
    if is_default:
        ways["numpy, decisions alone"] = spikes_in_numpy
    taken_s = {way: cpu_s(rounds, work, timed) for way, work in ways.items()}
    for way, seconds in taken_s.items():
        line = {"case": "result of a run", "by": way, "ms_per_run": round(seconds * 1e3, 3)}
        if is_default:
            line["times_numpy"] = round(seconds / taken_s["numpy, decisions alone"], 1)
        print(json.dumps(line), flush=True)


def measure_command(policy: str, store: Path, page: Path) -> None:
    """Time the command, children included."""
    base = [sys.executable, "-m", "steptape", "backtest", policy, "--store", str(store), "--json"]
    processes: dict[str, list[str]] = {
        "one process": ["--processes", "1"],
        "two processes": ["--processes", "2"],
        "as many as are worth it": [],
    }
    for what, more in {"alone": [], "--html": ["--html", str(page)]}.items():
        for case, options in processes.items():
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            child = subprocess.Popen([*base, *more, *options], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            line = {"case": f"command, {what}, {case}", "cpu_s": round(cpu_s, 2)}
            line |= {"wall_s": round(time.perf_counter() - start, 2), "status": child.returncode}
            print(json.dumps({**line, "peak_mib": round(_peak_mib(usage)), "load": os.getloadavg()[0]}), flush=True)


def measure_job(policy: str, store: Path) -> None:
    """Time the job that the page starts for the same question, and the one for its comparison."""
    text = shipped_policies()[policy].read_text() if policy in shipped_policies() else Path(policy).read_text()
    names = [run.folder.name for run in open_store(store)]
    for what, more in {"page's job": {}, "page's comparison": {"baselines": ["all"], "coverage": True}}.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        request = BacktestRequest.model_validate({"policy": policy, **more}).model_dump()
        worker = start_worker("job_worker", 8 << 30)
        exchange(worker, JobOrder("backtest", str(store), request, names, text, policy)._asdict(), within_s=math.inf)
        worker.end()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps({"case": what, "cpu_s": round(cpu_s, 2), "load": os.getloadavg()[0]}), flush=True)


def _peak_mib(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def disagreeing(policy: Policy, runs: Sequence[Run]) -> int:
    """Return how many of those runs have other results by columns than by the event engine."""
    deciders = (by_columns, ByEngine)
    facts = ([repr(result(policy, run, decider_of=decider_of)) for decider_of in deciders] for run in runs)
    return sum(by_columns != by_engine for by_columns, by_engine in facts)


def main() -> None:
    """Write the runs, time, check, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policy", default="loss_spike")
    parser.add_argument("--store", type=Path, help="where the runs are, or are to be; a temporary folder by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or Path(folder) / "runs"
        if not store.exists():
            write_runs(store, given.runs, given.steps)
        runs = list(open_store(store))
        policy = load_policy(shipped_policies().get(given.policy, given.policy))
        print(json.dumps({"case": "sizes", "runs": len(runs), "cores": os.cpu_count(), "load": os.getloadavg()}))
        has_losses = all("loss" in run.metrics() for run in runs[:TIMED])
        measure_library(policy, runs, given.rounds, is_default=given.policy == "loss_spike" and has_losses)
        measure_command(given.policy, store, Path(folder) / "report.html")
        measure_job(given.policy, store)
        count = min(len(runs), max(10, len(runs) // 100))
        chosen = [runs[place] for place in np.random.default_rng(0).choice(len(runs), count, replace=False).tolist()]
        disagreed = disagreeing(policy, chosen)
        print(json.dumps({"case": "agreement", "runs": len(chosen), "disagreed": disagreed, "load": os.getloadavg()}))
    sys.exit(disagreed > 0)


if __name__ == "__main__":
    main()
