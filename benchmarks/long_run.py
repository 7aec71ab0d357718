"""Measures a growing run of a million steps: number of files, time to read one metric, memory. Prints JSON lines.

    .venv/bin/python benchmarks/long_run.py [--steps N] [--samples N]

Sealing runs in its own process whenever a segment is closed, as a recorder does it, but is waited for, so that the
count of files does not depend on which of the two is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from steptape import open_run
from steptape.store.events import SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.run_info import Attempt, RunInfo, write_run_info

NAMES = tuple(f"train/metric_{index}" for index in range(10))

#: Seals, and prints its own peak memory in MiB. (``getrusage`` would begin with that of the process that forked it.)
SEALER = """
import sys
from pathlib import Path
from steptape.store.parquet.sealing import seal
seal(Path(sys.argv[1]))
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""


class Sealers:
    """Seals a run on request, and keeps the largest count of files, peak memory and time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.most_files = 0
        self.peak_mib = 0
        self.seconds = 0.0

    def seal(self, _closed: Path | None = None) -> None:
        """Seal in another process, and count the files meanwhile."""
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", SEALER, str(self._folder)], stdout=subprocess.PIPE, text=True
        ) as sealer:
            while sealer.poll() is None:
                self.most_files = max(self.most_files, len(os.listdir(self._folder)))
                time.sleep(0.002)
            self.peak_mib = max(self.peak_mib, int(sealer.stdout.read() if sealer.stdout else 0))
        self.seconds += time.perf_counter() - started


def opening(folder: Path) -> dict[str, float]:
    """Return seconds to open the run and read one metric, in this process: the first time, and the best of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        open_run(folder).series("train/metric_3")
        times.append(time.perf_counter() - started)
    return {"first_open_s": round(times[0], 4), "best_open_s": round(min(times), 4)}


def main() -> None:
    """Grow a run and print a line at each tenth of it, and one at its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_run_info(folder, RunInfo("long", "long", (Attempt(0, "running", time.time_ns()),)))
        sealers = Sealers(folder)
        writer = JournalWriter(folder, run_id="long", on_segment_closed=sealers.seal)
        losses = None
        if arguments.samples:
            losses = SampleLosses(struct.pack(f"<{arguments.samples}f", *(i / 7 for i in range(arguments.samples))))
        for step in range(1, arguments.steps + 1):
            now = time.time_ns()
            values = [(step * 7919 % (1000 + index)) / 1000 for index in range(10)]
            writer.append("step_end", NAMES, values, step=step, time_ns=now, elapsed_ns=step * 1000, samples=losses)
            if step % (arguments.steps // 10) == 0:
                print(json.dumps({"steps": step, "files": len(os.listdir(folder)), **opening(folder)}), flush=True)
        recorder_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        writer.close()
        sealers.seal()
        summary = {
            "steps": arguments.steps,
            "files": len(os.listdir(folder)),
            "most_files_ever": sealers.most_files,
            "sealing_s": round(sealers.seconds, 1),
            "peak_mib_of_a_sealer": sealers.peak_mib,
            "peak_mib_of_writer_and_reader": recorder_mib,
            "mb_at_rest": round(sum(path.stat().st_size for path in folder.iterdir()) / 1e6, 1),
        }
        print(json.dumps({**summary, **opening(folder)}))


if __name__ == "__main__":
    main()
