"""Measures short runs: a thousand in one program, and one in a fresh process, beside goodseed's and a bare Python.

    .venv/bin/python benchmarks/short_runs.py [--runs N] [--steps N] [--rounds N] [--peer PYTHON]

PYTHON is an interpreter that has goodseed (``pip install goodseed`` in an environment of its own). Prints a JSON line
per part. Times are wall-clock seconds: ``until_closed_s`` from the first import to the return of ``close``,
``process_s`` from the start of the process to its end, which includes sealing at exit. ``cpu_s`` is the processor time
of the process and of the children that it waited for. Rounds alternate between the programs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

#: Print the seconds from the first import on.
CLOCK: Final = "import time; began = time.perf_counter()\n"
TOLD: Final = "\nprint('seconds', time.perf_counter() - began, flush=True)\n"

TIMES: Final = ("until_closed_s", "process_s", "cpu_s")

MANY: Final = """
import sys
from steptape import Recorder
for run in range(int(sys.argv[2])):
    with Recorder(sys.argv[1], name=f"run-{run}") as rec:
        for step in range(int(sys.argv[3])):
            rec.step(loss=1.0 / (step + 1), lr=0.1)
"""

STEPTAPE: Final = """
import sys
from steptape import Recorder
rec = Recorder(sys.argv[1], name="short")
rec.step(loss=1.0)
rec.close()
"""

STARTING: Final = """
import sys
from steptape.recorder.process.sealing_process import ChildProcess
def timed():
    began = time.perf_counter()
    process = ChildProcess("steptape.store.parquet.sealing_service")
    took = time.perf_counter() - began
    process.end()
    return took
tries = sorted(timed() for _ in range(20))
began = time.perf_counter() - tries[10]
"""

#: Everything that costs time and that steptape does not do is off.
GOODSEED: Final = """
import sys, goodseed
run = goodseed.Run(name="short", storage="local", log_dir=sys.argv[1], capture_hardware_metrics=False,
    capture_stdout=False, capture_stderr=False)
run["loss"].log(1.0, step=1)
run.close()
"""


def timed(python: str, code: str, *arguments: object) -> tuple[float, float, float]:
    """Run a program; return the seconds until it has closed its runs, those until it has ended, and its CPU time."""
    began, cpu_began = time.perf_counter(), sum(os.times()[2:4])
    command = [python, "-c", CLOCK + code + TOLD, *map(str, arguments)]
    quiet = {**os.environ, "STEPTAPE_QUIET": "1"}
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=quiet)
    process_s = time.perf_counter() - began
    return float(result.stdout.rpartition("seconds")[2]), process_s, sum(os.times()[2:4]) - cpu_began


def print_part(part: str, **numbers: object) -> None:
    """Print a line."""
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}
    print(json.dumps({"part": part, **rounded}), flush=True)


def print_many(store: Path, runs: int, steps: int) -> None:
    """Record many runs in one program."""
    taken = dict(zip(TIMES, timed(sys.executable, MANY, store, runs, steps), strict=True))
    unsealed = sum(1 for _ in store.glob("*/journal-*"))
    print_part(f"{runs} runs of {steps} steps", **taken, unsealed_at_exit=unsealed)


def print_fresh(place: Path, peer: str | None, rounds: int) -> None:
    """Record one step in fresh processes."""
    programs = {"bare Python": (sys.executable, "pass"), "steptape": (sys.executable, STEPTAPE)}
    if peer is not None:
        programs["goodseed"] = (peer, GOODSEED)
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in programs}
    for number in range(rounds):
        for name, (python, code) in programs.items():
            taken[name].append(timed(python, code, place / f"{name}-{number}"))
    for name, times in taken.items():
        medians = map(statistics.median, zip(*times, strict=True))
        print_part(f"import, open, one step, close: {name}", **dict(zip(TIMES, medians, strict=True)))
    if peer is None:
        print_part("import, open, one step, close: goodseed", missing="give --peer an interpreter that has goodseed")


def main() -> None:
    """Measure all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peer", metavar="PYTHON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        place = Path(temporary)
        os.chdir(place)  # No repository of git's, whose size would count.
        print_fresh(place, arguments.peer, arguments.rounds)
        print_part("start of the sealing process, median", seconds=timed(sys.executable, STARTING)[0])
        print_many(place / "many", arguments.runs, arguments.steps)


if __name__ == "__main__":
    main()
