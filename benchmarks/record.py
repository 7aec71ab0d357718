"""What recording costs the training thread, beside a bare ``os.write`` of an equally long record in the same run.

One JSON line a case, times in microseconds per call: ``python benchmarks/record.py [--steps N]``. Call after call
without a pause, each call timed, the timer's own cost left in both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from steptape.recorder import Recorder
from steptape.store.journal_format import EVENT, FRAME

SCALARS = {f"metric_{number}": number / 7 for number in range(10)}
RECORD_BYTES = FRAME.size + EVENT.size + 8 * len(SCALARS)

#: Ten rules of two conditions each over windows of ten values, none of which fires.
RULES = "controllers:\n" + "".join(
    f"  - name: rule_{number}\n    triggers: [on_step_end]\n    operations: [hfcontrols.should_training_stop]\n"
    f"    rule: len(metric_{number}) > 9 and metric_{number} > 2 * mean(metric_{number}, 10) + 1\n"
    for number in range(10)
)


def timed(call: Callable[[], object], times: int) -> dict[str, float]:
    """Median, 99.9th percentile and longest of so many calls, in microseconds."""
    clock = time.perf_counter_ns
    taken = []
    for _ in range(times):
        start = clock()
        call()
        taken.append(clock() - start)
    taken.sort()
    return {
        "median_us": statistics.median(taken) / 1e3,
        "p999_us": taken[int(times * 0.999)] / 1e3,
        "longest_us": taken[-1] / 1e3,
    }


def main() -> None:
    """Run every case and print its line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    losses = [number / 64 for number in range(64)]
    ids = list(range(64))
    with tempfile.TemporaryDirectory() as folder:
        fd = os.open(Path(folder) / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        record = bytes(RECORD_BYTES)
        floor = timed(lambda: os.write(fd, record), steps)
        os.close(fd)
        print(json.dumps({"case": "os.write", "bytes": RECORD_BYTES, **floor}))
        policy = Path(folder) / "policy.yaml"
        policy.write_text(RULES)
        cases: dict[str, tuple[Path | None, Callable[[Recorder], object]]] = {
            "10 floats": (None, lambda rec: rec.step(**SCALARS)),
            "10 floats, 64 samples": (None, lambda rec: rec.step(**SCALARS, samples=losses, sample_ids=ids)),
            "10 floats, 10 rules": (policy, lambda rec: rec.step(**SCALARS)),
        }
        for name, (rules, call) in cases.items():
            with Recorder(Path(folder) / "runs", rules=rules) as rec:
                call(rec)
                figures = timed(lambda call=call, rec=rec: call(rec), steps)  # type: ignore[misc]
            print(json.dumps({"case": name, **figures, "ratio": figures["median_us"] / floor["median_us"]}))


if __name__ == "__main__":
    main()
