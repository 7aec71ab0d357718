"""Measures from how many runs a Ray cluster pays: one process, two processes, Ray on one node and on two.

    .venv/bin/python benchmarks/scale.py [--runs N ...] [--store FOLDER] [--policy POLICY]

Runs are those of ``backtest.py``: 1,000 updates and twenty evaluations each. All nodes are on this machine, one core
each, so two nodes show the cost of a cluster, not the speed of two machines. Prints JSON lines with the load of the
machine:

- for each number of runs and each pool: wall-clock seconds of a backtest, seconds to start or join, and
  milliseconds a run. The exit status is 1 if a report differs from that of one process;
- for an empty function over 2,000 arguments: milliseconds of overhead a task and a run;
- bytes that travel to a worker and back: the policy, once a task, and a run's path and facts.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backtest import write_runs

from steptape import backtest, load_policy, open_store
from steptape.replay.backtests.backtesting import Request
from steptape.replay.backtests.backtesting import _Judge as Judge
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.ray_pool import RayPool
from steptape.replay.run_pool import Pool, RunPool

#: Arguments of the empty function.
EMPTY = 2_000


@contextmanager
def nodes(count: int) -> Iterator[str]:
    """Start a cluster of nodes with one core each, and yield its address."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def print_line(**fields: object) -> None:
    """Print a JSON line with the load of the machine."""
    print(json.dumps({**fields, "load": round(os.getloadavg()[0], 1)}), flush=True)


def measured(name: str, store: Path, policy: str, counts: list[int], make: Callable[[], Pool]) -> dict[int, Backtest]:
    """Backtest growing numbers of runs in a pool, and print how long it takes."""
    runs, reports = [*open_store(store)], {}
    for count in counts:
        began_s = time.monotonic()
        with make() as pool:
            started_s = time.monotonic()
            reports[count] = backtest(load_policy(policy), runs[:count], pool=pool)
            done_s = time.monotonic()
        fields = {"start_s": round(started_s - began_s, 2), "s": round(done_s - started_s, 2)}
        print_line(pool=name, runs=count, **fields, ms_per_run=round(1e3 * (done_s - started_s) / count, 2))
    return reports


def print_overhead(name: str, make: Callable[[], Pool]) -> None:
    """Print what an empty function costs: each argument alone in a task, and in blocks."""
    with make() as pool:
        list(pool.mapped(abs, range(8)))
        took_ms = []
        for asked in ([[number] for number in range(64)], [range(EMPTY)]):
            began_s = time.monotonic()
            for block in asked:
                list(pool.mapped(abs, block))
            took_ms.append(1e3 * (time.monotonic() - began_s))
    print_line(pool=name, ms_per_task=round(took_ms[0] / 64, 2), ms_per_argument=round(took_ms[1] / EMPTY, 3))


def print_bytes(store: Path, policy: str) -> None:
    """Print the bytes that travel for a run, in blocks of one and of a hundred."""
    runs = [*open_store(store)][:100]
    asked = Judge.of(Request(load_policy(policy), tuple(runs)))
    judged = [asked(run) for run in runs]
    sizes = {f"run_bytes_of_{count}": len(pickle.dumps(runs[:count])) // count for count in (1, len(runs))}
    answers = {f"result_bytes_of_{count}": len(pickle.dumps(judged[:count])) // count for count in (1, len(runs))}
    print_line(function_bytes=len(pickle.dumps(asked)), **sizes, **answers)


def main() -> int:
    """Measure all pools, and return 1 if a report differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--store", type=Path, help="A store to read, or to write if it does not exist.")
    parser.add_argument("--policy", default="loss_spike")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or Path(folder, "runs")
        if not store.exists():
            write_runs(store, max(options.runs), 1_000)
        asked = (store, options.policy, options.runs)
        print_bytes(store, options.policy)
        expected = measured("1 process", *asked, RunPool)
        reports = [measured("2 processes", *asked, lambda: RunPool(2))]
        for count in (1, 2):
            with nodes(count) as address:
                name = f"Ray, {count} node" + "s" * (count > 1)
                print_overhead(name, lambda address=address: RayPool(address))  # type: ignore[misc]
                reports.append(measured(name, *asked, lambda address=address: RayPool(address)))  # type: ignore[misc]
        return int(any(report != expected for report in reports))


if __name__ == "__main__":
    raise SystemExit(main())
