"""Measures HTTP answers, commands and SQL over a large store: ``python benchmarks/api.py STORE --runs 50000``.

The store is recorded if missing: ``--runs`` runs of ``--steps`` steps and ``--metrics`` metrics, each sealed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import duckdb

from steptape import Recorder, open_store
from steptape.store.parquet.sealing import seal
from steptape.store.sql.statements import text_literal

# Each child would compile hundreds of modules anew, which an installed steptape has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

#: Seconds of many clients at once.
LOAD_S = 12


def make_store(store: Path, runs: int, steps: int, metrics: int) -> None:
    """Record runs: a copy under another name would be refused."""
    for number in range(runs):
        record(store, number, steps, metrics)


def record(store: Path, number: int, steps: int, metrics: int) -> Path:
    """Record one run of a noisy descent, and seal it."""
    noise = random.Random(number)
    names = [f"metric_{index}" for index in range(metrics)]
    with Recorder(
        store,
        name=f"run {number}",
        group=f"group-{number % 50}",
        config={"lr": 0.1, "layers": [64, 10]},
        tags=["bench"],
        quiet=True,
    ) as recorder:
        for step in range(1, steps + 1):
            base = 1 / math.sqrt(step)
            recorder.step({name: base + noise.random() for name in names})
    seal(recorder.folder)
    return recorder.folder


@contextlib.contextmanager
def serving(store: Path) -> Iterator[tuple[int, float, subprocess.Popen[str]]]:
    """Start a server; yield its port, the time from process start to first answer, and the process."""
    started_s = time.perf_counter()
    command = [sys.executable, "-m", "steptape", "serve", str(store), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        match = re.search(r":(\d+)/api", process.stderr.readline())
        assert match is not None
        port = int(match[1])
        status, _ = get(HTTPConnection("127.0.0.1", port), "/healthz")
        assert status == 200
        yield port, time.perf_counter() - started_s, process
    finally:
        process.terminate()
        process.wait()


def get(connection: HTTPConnection, path: str, **parameters: object) -> tuple[int, bytes]:
    """Return status and body of an answer."""
    query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
    connection.request("GET", path + query)
    answer = connection.getresponse()
    return answer.status, answer.read()


def median_ms(ask: Callable[[int], tuple[int, bytes]], times: int = 100) -> tuple[float, float]:
    """Return median and 95th percentile, in milliseconds, over ``times`` different requests."""
    took: list[float] = []
    for number in range(times):
        began_s = time.perf_counter()
        status, _ = ask(number)
        took.append((time.perf_counter() - began_s) * 1e3)
        assert status == 200
    return statistics.median(took), sorted(took)[int(len(took) * 0.95)]


def say(what: str, value: str, aim: str) -> None:
    """Print one line of the report."""
    print(f"{what:<58} {value:>24}   aim {aim}", flush=True)


def measure_http(store: Path, clients: int) -> None:
    """Measure start-up, single answers and many clients."""
    ids = sorted(entry.name for entry in store.iterdir() if entry.is_dir())
    chosen = random.Random(1).choices(ids, k=1000)
    with serving(store) as (port, start_s, process):
        connection = HTTPConnection("127.0.0.1", port)
        ready_s = start_s
        began_s = time.perf_counter()
        while get(connection, "/readyz")[0] != 200:
            time.sleep(0.02)
        assert get(connection, "/api/v1/runs")[0] == 200
        ready_s += time.perf_counter() - began_s
        say("start-up, to the first answer", f"{start_s:.2f} s", "< 2 s")
        say("start-up, to the first page of all runs", f"{ready_s:.2f} s", "< 2 s")

        def series(number: int) -> tuple[int, bytes]:
            return get(connection, f"/api/v1/runs/{chosen[number]}/series", metric="metric_3")

        def page(_: int) -> tuple[int, bytes]:
            return get(connection, "/api/v1/runs")

        def filtered(number: int) -> tuple[int, bytes]:
            return get(connection, "/api/v1/runs", where=f"group:group-{number % 50}", sort="-steps")

        def compared(number: int) -> tuple[int, bytes]:
            runs = chosen[number * 10 % 990 : number * 10 % 990 + 10]
            return get(connection, "/api/v1/series", run=runs, metric="metric_3", points=800)

        asks: list[tuple[str, Callable[[int], tuple[int, bytes]], str]] = [
            ("one metric of one run", series, "< 10 ms"),
            ("first page of runs", page, "< 50 ms"),
            ("runs of a group, sorted", filtered, "< 50 ms"),
            ("10 runs x 1 metric at 800 points", compared, "< 50 ms"),
        ]
        for what, ask, aim in asks:
            middle, late = median_ms(ask)
            say(what, f"{middle:.1f} ms (p95 {late:.1f})", aim)
        measure_load(port, chosen, clients)
        with open(f"/proc/{process.pid}/status") as status_file:
            resident = re.search(r"VmRSS:\s+(\d+)", status_file.read())
        say("memory of the server", f"{int(resident[1]) >> 10 if resident else 0} MiB", "-")


def measure_load(port: int, chosen: list[str], clients: int) -> None:
    """Measure answers to many clients at once, and a health check each second meanwhile."""
    faults: list[object] = []
    answered = [0] * clients
    until_s = time.monotonic() + LOAD_S

    def client(number: int) -> None:
        try:
            own = HTTPConnection("127.0.0.1", port, timeout=60)
            while time.monotonic() < until_s:
                run = chosen[(number * 20 + answered[number]) % 1000]
                paths = ("/api/v1/runs", f"/api/v1/runs/{run}/series?metric=metric_1", f"/api/v1/runs/{run}")
                status, _ = get(own, paths[answered[number] % 3])
                if status != 200:
                    faults.append(status)
                answered[number] += 1
        except OSError as error:
            faults.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    probe = HTTPConnection("127.0.0.1", port)
    took_ms = []
    while time.monotonic() < until_s:
        time.sleep(1)
        began_s = time.perf_counter()
        assert get(probe, "/healthz")[0] == 200
        took_ms.append((time.perf_counter() - began_s) * 1e3)
    for thread in threads:
        thread.join()
    rate = sum(answered) / LOAD_S
    say(f"{clients} clients at once, {LOAD_S} s", f"{len(faults)} errors, {rate:.0f}/s", "0 errors")
    middle, late = statistics.median(took_ms), sorted(took_ms)[int(len(took_ms) * 0.95)]
    say("/healthz each second meanwhile", f"{middle:.1f} ms (p95 {late:.1f})", "p95 <= 50 ms")


def measure_commands(store: Path) -> None:
    """Measure commands as processes, and SQL about one run and about all."""
    runs = sum(1 for entry in store.iterdir() if entry.is_dir())
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "STEPTAPE_CACHE": cache}

        def seconds(*arguments: object) -> float:
            command = [sys.executable, "-m", "steptape", *map(str, arguments)]
            began_s = time.perf_counter()
            ended = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            assert ended.returncode in (0, 1)
            return time.perf_counter() - began_s

        say("steptape runs, without a catalog", f"{seconds('runs', '--store', store):.2f} s", "-")
        say("steptape runs, best of 3", f"{min(seconds('runs', '--store', store) for _ in range(3)):.2f} s", "<= 1 s")
        say("steptape runs --json", f"{seconds('runs', '--store', store, '--json'):.2f} s", "-")
        took_s = seconds("doctor", "--store", store)
        say("steptape doctor", f"{took_s:.1f} s, {took_s / runs * 1e3:.2f} ms a run", "<= 1 ms a run")
    opened = open_store(store)
    recorded_id = opened.newest(1).entries[0].summary.run_id
    for what, statement, aim in (
        ("SQL of one run", f"SELECT count(*), avg(metric_1) FROM steps WHERE run_id = '{recorded_id}'", "<= 50 ms"),
        ("SQL of the list of runs", "SELECT count(*) FROM runs", "-"),
    ):
        took = []
        for _ in range(20):
            began_s = time.perf_counter()
            opened.sql(statement)
            took.append((time.perf_counter() - began_s) * 1e3)
        say(f"{what}, first, then median of 19", f"{took[0]:.0f} ms, {statistics.median(took[1:]):.1f} ms", aim)


def measure_sql(store: Path, values: int, steps: int, metrics: int) -> None:
    """Measure an aggregate over ``values`` values through the views, and in plain DuckDB on the same files."""
    count = max(1, values // (steps * metrics))
    entries = open_store(store).entries()[0][:count]
    snapshots = [entry.snapshot for entry in entries]
    files = [str(file.path) for snapshot in snapshots for file in snapshot.listing.table("events")]
    columns = ", ".join(f"avg(metric_{index}) AS m{index}, max(metric_{index}) AS x{index}" for index in range(metrics))
    listed = ", ".join(text_literal(path) for path in files)
    raw = f"SELECT {columns} FROM read_parquet([{listed}]) WHERE kind = 'step_end'"
    ours = f"SELECT {columns} FROM steps"
    from steptape.store.sql.views import connect

    took: dict[str, list[float]] = {"raw": [], "ours": [], "making the views": []}
    for _ in range(5):
        bare = duckdb.connect()
        began_s = time.perf_counter()
        bare.execute(raw).fetchall()
        took["raw"].append(time.perf_counter() - began_s)
        bare.close()
        began_s = time.perf_counter()
        connection = connect(snapshots)
        took["making the views"].append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        connection.execute(ours).fetchall()
        took["ours"].append(time.perf_counter() - began_s)
        connection.close()
    best = {name: min(times) for name, times in took.items()}
    ratio = best["ours"] / best["raw"]
    say(f"SQL over {len(files) * steps * metrics / 1e6:.0f} M values, best of 5", f"{best['ours']:.2f} s", "-")
    say("the same by raw DuckDB", f"{best['raw']:.2f} s, x {ratio:.2f}", "<= 1.2")
    say("making the views before", f"{best['making the views']:.2f} s", "-")


def main() -> None:
    """Create the store if missing, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--metrics", type=int, default=10)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--sql-values", type=int, default=100_000_000)
    parser.add_argument("--no-sql", action="store_true")
    options = parser.parse_args()
    if not options.store.exists():
        began_s = time.perf_counter()
        make_store(options.store, options.runs, options.steps, options.metrics)
        print(f"{options.runs} runs made in {time.perf_counter() - began_s:.0f} s", flush=True)
    measure_http(options.store, options.clients)
    measure_commands(options.store)
    if not options.no_sql:
        measure_sql(options.store, options.sql_values, options.steps, options.metrics)


if __name__ == "__main__":
    main()
