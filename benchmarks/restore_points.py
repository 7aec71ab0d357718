"""Measures what restore points cost a training: the same small GPT with and without them, by turns, update by update.

    .venv/bin/python benchmarks/restore_points.py [--every 50] [--windows 12]

Both train a decoder of 5.8 million weights with AdamW under a recorder, on CUDA if there is one. A window is as many
updates as lie between two points, so each window with points takes one. Prints one JSON line: the ratio of processor
and of wall time, with points over without, as the geometric mean over the windows with its 95 % interval; and the bytes
of a point, in all and for each update. The first windows, in which memory is allocated for the points, do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import torch
from probes import Training, Transformer

from steptape import Recorder, open_run

VOCABULARY, WIDTH, HEADS, DEPTH, TOKENS, BATCH = 4096, 256, 8, 6, 64, 2

KEEP: Final = 3

#: Of Student's distribution, with 10 or more degrees of freedom.
WIDE: Final = 2.23

DEVICE: Final = "cuda" if torch.cuda.is_available() else "cpu"


def training() -> Training:
    """Return a training of fresh weights."""
    torch.manual_seed(0)
    model = Transformer(VOCABULARY, WIDTH, HEADS, DEPTH, TOKENS).to(DEVICE)
    batch = torch.randint(VOCABULARY, (BATCH, TOKENS), device=DEVICE)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-4), batch)


def window(loops: list[tuple[Training, Recorder]], updates: int) -> list[tuple[float, float]]:
    """Train by turns, and return processor and wall seconds of each loop."""
    sums = [(0.0, 0.0) for _ in loops]
    for update in range(updates):
        for number in (0, 1) if update % 2 else (1, 0):
            loop, rec = loops[number]
            processor, wall = time.process_time(), time.perf_counter()
            loop.step(rec)
            spent = time.process_time() - processor, time.perf_counter() - wall
            sums[number] = sums[number][0] + spent[0], sums[number][1] + spent[1]
    return sums


def ratio(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Return the geometric mean of the second over the first, and the ends of its interval."""
    logs = [math.log(other / plain) for plain, other in pairs]
    mean, half = statistics.mean(logs), WIDE * statistics.stdev(logs) / len(logs) ** 0.5
    return {key: round(math.exp(mean + add), 4) for key, add in (("ratio", 0.0), ("from", -half), ("to", half))}


def main() -> None:
    """Train both, and print what the points cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--windows", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        loops = [(training(), Recorder(Path(place) / name, quiet=True)) for name in ("plain", "points")]
        loop, rec = loops[1]
        rec.restore_points(loop.model, loop.optimizer, every=options.every, keep=KEEP)
        windows = [window(loops, options.every) for _ in range(KEEP + options.windows)][KEEP:]
        for _, each in loops:
            each.close()
        sizes = [event.attrs["size_bytes"] for event in open_run(rec.folder).events() if event.kind == "restore_point"]
    result: dict[str, object] = {"device": DEVICE, "weights": sum(each.numel() for each in loop.model.parameters())}
    update_ms = 1000 * statistics.median(plain[0] for plain, _ in windows) / options.every
    result |= {"every": options.every, "windows": len(windows), "update_ms": round(update_ms, 1)}
    for index, clock in enumerate(("processor", "wall")):
        result[clock] = ratio([(plain[index], other[index]) for plain, other in windows])
    print(json.dumps(result | {"point_bytes": sizes[-1], "bytes_an_update": sizes[-1] // options.every}))


if __name__ == "__main__":
    main()
