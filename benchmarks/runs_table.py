"""Measures the runs table in processor time: ``python benchmarks/runs_table.py [--runs 5000]``.

Records small runs into a temporary store, reads them once, and has the page's own functions filter, sort, group and lay
out tables of them, each in a new scan, as after a change of the store. Prints milliseconds of processor time.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from steptape import Recorder, open_store
from steptape.api.pages.run_columns import first_columns, groups_of, rows_of
from steptape.store.questions import fields_of, selected
from steptape.store.reading.catalog import Look
from steptape.store.run_fields import Field

SHOWN = 50


def record(store: Path, runs: int) -> None:
    """Record runs of a few steps with six settings and three metrics."""
    noise = random.Random(0)
    for number in range(runs):
        model = {"width": 64 * (1 + number % 4), "depth": number % 6, "name": f"model-{number % 3}"}
        config = {"optimizer": {"lr": 10 ** -noise.uniform(1, 5), "beta": 0.9}, "seed": number % 5, "model": model}
        with Recorder(store, name=f"run-{number}", config=config, quiet=True) as rec:
            for _ in range(3):
                rec.step(loss=noise.random(), grad_norm=noise.random())
            rec.evaluate({"eval/loss": noise.random()})


def table(look: Look, where: str, sort: str) -> None:
    """Lay out the first page of a table."""
    found = selected(look, where, sort)
    rows_of(first_columns(found), found[:SHOWN])


def groups(look: Look) -> None:
    """Lay out a table of groups."""
    groups_of(Field("config", "seed"), first_columns(look.entries), look.entries)


CASES: dict[str, Callable[[Look], object]] = {
    "first view": lambda look: table(look, "", "-started"),
    "sorted by a metric": lambda look: table(look, "", "eval/loss"),
    "sorted by a setting": lambda look: table(look, "", "optimizer.lr"),
    "sorted by age": lambda look: table(look, "", "age"),
    "lr<0.01, sorted by a metric": lambda look: table(look, "lr<0.01", "min(eval/loss)"),
    "a word": lambda look: table(look, "run-49", "-started"),
    "groups of a setting": groups,
    "list of fields": fields_of,
}


def main() -> None:
    """Record, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--store", type=Path, help="a store that an earlier call has recorded")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = asked.store or Path(folder) / "runs"
        if not store.exists():
            record(store, asked.runs)
        look = open_store(store).catalog.look()
        began_s = time.process_time()
        table(look, "", "eval/loss")
        print(f"{len(look.entries):,} runs; first reading: {time.process_time() - began_s:.1f} s")
        for name, call in CASES.items():
            taken = []
            for _ in range(5):
                fresh = dataclasses.replace(look, _kept={})
                began_s = time.process_time()
                call(fresh)
                taken.append(time.process_time() - began_s)
            print(f"{name:>30}  {1000 * sorted(taken)[2]:6.1f} ms")


if __name__ == "__main__":
    main()
