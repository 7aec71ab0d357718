"""Measures what importing CSV files costs, against pyarrow's reading them and writing Parquet.

    .venv/bin/python benchmarks/import_speed.py [--files N] [--rows N] [--profile]

The tables are written first and not timed: a step, a loss, a learning rate and an accuracy in each row, and a
validation loss in each hundredth. Prints a JSON line with the seconds of processor time of both, in this process and
all of its threads, and their ratio. ``--profile`` prints where the import's time goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet

from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import State, import_sources
from steptape.importers.source import ReadOptions

EVALUATED_EVERY = 100

#: Files that one of both reads before the other has its turn.
IN_TURN = 10


def write_table(path: Path, rows: int, seed: int) -> None:
    """Write a run's log as scripts do."""
    noise = random.Random(seed)
    lines = ["step,loss,lr,accuracy,val_loss"]
    for step in range(1, rows + 1):
        loss = 3 / (1 + step / 500) + 0.05 * noise.random()
        evaluated = f"{loss * 1.1}" if step % EVALUATED_EVERY == 0 else ""
        lines.append(f"{step},{loss},{1e-3 * (1 - step / rows)},{1 - loss / 4},{evaluated}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def import_all(logs: Path, store: Path) -> None:
    """Import every table into a new store."""
    sources = find_sources([logs], all_readers()).sources
    for outcome in import_sources(store, sources, ReadOptions()):
        assert outcome.state is State.NEW, outcome.problem


def convert_all(logs: Path, folder: Path) -> None:
    """Convert every table to Parquet."""
    folder.mkdir(exist_ok=True)
    for path in sorted(logs.iterdir()):
        table = pyarrow.csv.read_csv(path)
        pyarrow.parquet.write_table(table, folder / f"{path.stem}.parquet")


def cpu_s(call: Callable[[Path, Path], None], logs: Path, output: Path) -> float:
    """Return the processor time of a conversion, in seconds."""
    begun = time.process_time()
    call(logs, output)
    return time.process_time() - begun


def main() -> None:
    """Write the tables, import and convert them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        folders = [place / "logs" / f"{first}" for first in range(0, arguments.files, IN_TURN)]
        for seed in range(arguments.files):
            write_table(folders[seed // IN_TURN] / f"run-{seed}.csv", arguments.rows, seed)
        write_table(place / "first" / "run.csv", arguments.rows, 0)
        # Libraries are loaded at the first use of either.
        import_all(place / "first", place / "first-runs")
        convert_all(place / "first", place / "first-converted")
        if arguments.profile:
            with cProfile.Profile() as profile:
                import_all(place / "logs", place / "runs")
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
            return
        converting_s = importing_s = 0.0
        # In turn, because other work on the machine slows both down.
        for folder in folders:
            converting_s += cpu_s(convert_all, folder, place / "converted")
            importing_s += cpu_s(import_all, folder, place / "runs")
        document = {"files": arguments.files, "rows": arguments.rows, "import_cpu_s": round(importing_s, 2)}
        ratio = round(importing_s / converting_s, 1)
        print(json.dumps(document | {"pyarrow_cpu_s": round(converting_s, 2), "ratio": ratio}))


if __name__ == "__main__":
    main()
