"""Measures the query for the samples that drove a spike, and whether it finds them: one JSON line a case.

    .venv/bin/python benchmarks/spikes.py [--losses N]

A run has heavy-tailed losses of 64 samples a step; 20 around one step are bad. ``ask_s`` is ``Run.spiking_samples``
from files on disk, ``sealed`` or in the ``journal``, best of several.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
from pathlib import Path

from steptape import open_run
from steptape.store.events import INTEGER_IDS, SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info

SAMPLES = 64
RADIUS = 4
BAD = 20
REPETITIONS = 5


def write_run(folder: Path, steps: int, spike: int) -> set[tuple[int, int]]:
    """Write a dead run, and return the (step, position) of its bad samples."""
    around = [(step, place) for step in range(spike - RADIUS, spike + RADIUS + 1) for place in range(SAMPLES)]
    bad = set(random.sample(around, BAD))
    write_run_info(folder, RunInfo("bench", "bench", (Attempt(0, "completed", 0, 1),)))
    writer = JournalWriter(folder, run_id="bench")
    for step in range(1, steps + 1):
        losses = [
            random.uniform(8, 25) if (step, place) in bad else random.lognormvariate(0.5, 0.5)
            for place in range(SAMPLES)
        ]
        ids = struct.pack(f"<{SAMPLES}q", *(random.randrange(20_000) for _ in losses))
        block = SampleLosses(struct.pack(f"<{SAMPLES}f", *losses), ids, INTEGER_IDS)
        mean = sum(losses) / SAMPLES
        writer.append("step_end", ("loss",), (mean,), step=step, time_ns=step, elapsed_ns=step, samples=block)
    writer.close()
    return bad


def main() -> None:
    """Query the journal, then the sealed run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=100_000)
    steps = parser.parse_args().losses // SAMPLES
    random.seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder, spike = Path(place) / "bench", steps * 3 // 4
        folder.mkdir()
        bad = write_run(folder, steps, spike)
        for case in ("journal", "sealed"):
            if case == "sealed":
                seal(folder)
            times = []
            for _ in range(REPETITIONS):
                started = time.perf_counter()
                table = open_run(folder).spiking_samples(spike, radius=RADIUS)
                times.append(time.perf_counter() - started)
            top = {(row["step"], row["position"]) for row in table.to_pylist()}
            found = f"{len(bad & top)} of {BAD}"
            print(
                json.dumps({"case": case, "losses": steps * SAMPLES, "ask_s": round(min(times), 3), "in_top_50": found})
            )


if __name__ == "__main__":
    main()
