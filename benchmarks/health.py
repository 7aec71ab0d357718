"""Measures the health of a long run under the default policy: ``python benchmarks/health.py --steps 100000``.

The run has 20 metrics, 12 of them with names that rules read. Prints JSON lines: seconds of processor time for the
first look at the live run, the next one after 100 more steps, one after its end, and one with cached alarms.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from steptape import Recorder, load_policy, open_run
from steptape.replay.health.health import HealthReplay, health_of
from steptape.replay.health.health_summary import DEFAULT_POLICY
from steptape.store.parquet.sealing import seal

METRICS = (
    "loss", "lr", "grad_norm", "Gradients/norm", "Gradients/depth_ratio_first_last", "Time/step_seconds",
    "Tokens/per_second", "Tokens/seen", "GPU/utilization", "GPU/memory_used_frac", "Logits/max", "Weights/norm",
    *"abcdefgh",
)  # fmt: skip

#: Steps between the first look and the next.
MORE = 100


def train(rec: Recorder, steps: int) -> None:
    """Finish updates with noisy values."""
    for step in range(steps):
        rec.step(
            {name: 2 + math.sin(step / 100 + place) / 10 + random.random() / 100 for place, name in enumerate(METRICS)}
        )


def measure(case: str, look: Callable[[], object]) -> None:
    """Time one look."""
    start = time.process_time()
    look()
    print(
        json.dumps({"case": case, "cpu_s": round(time.process_time() - start, 2), "load": os.getloadavg()[0]}),
        flush=True,
    )


def main() -> None:
    """Record the run, and look at it as it grows and ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    policy = load_policy(DEFAULT_POLICY)
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEPTAPE_CACHE"] = str(Path(folder) / "cache")
        replay = HealthReplay(policy)
        with Recorder(Path(folder) / "runs", quiet=True) as rec:
            train(rec, steps)
            measure("first look at a live run", lambda: open_run(rec.folder).read(replay.health))
            train(rec, MORE)
            measure(f"next look, {MORE} steps later", lambda: open_run(rec.folder).read(replay.health))
        seal(rec.folder)
        measure("ended, the same process", lambda: open_run(rec.folder).read(replay.health))
        health_of(open_run(rec.folder), policy, is_cached=True)
        measure("ended, another process", lambda: health_of(open_run(rec.folder), policy, is_cached=True))


if __name__ == "__main__":
    main()
