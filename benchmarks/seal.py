"""Measures the cost of sealing: one JSON line a case, over a journal written in this run.

    .venv/bin/python benchmarks/seal.py [--steps N]

A value is a metric's value or a sample loss. The ids of samples, random and different, are sealed with them;
``ns_per_number`` counts them, too. Times are the best of several runs; ``cpu_ns_per_value`` is the computation of the
process, without waiting for the disk (four syncs a seal). Both cover all that the sealer of a finished run does,
including the digest of its log. ``digest_of_files_ns_per_value`` is the cost of computing that digest from the files,
as ``verify`` does. ``checksums_one_by_one`` is the yardstick: the cost of a reader that calls zlib for each record.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from steptape.store.events import INTEGER_IDS, SampleLosses
from steptape.store.journal.format import FRAME, PREAMBLE
from steptape.store.journal.segment_reading import read_segment
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.digests import digest_faults
from steptape.store.parquet.sealing import seal
from steptape.store.run_folder import list_files
from steptape.store.run_info import Attempt, RunInfo, write_run_info

REPETITIONS = 25

NAMES = tuple(f"train/metric_{index}" for index in range(10))


def curves(step: int, count: int) -> list[float]:
    """Return values as in training logs: single precision, falling, noisy."""
    scale = 2 / (1 + step / 5000) ** 0.5
    values = [scale * (1 + 0.05 * random.gauss(0, 1)) for _ in range(count)]
    return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}f", *values)))


def noise(_step: int, count: int) -> list[float]:
    """Return full-precision noise: the worst case."""
    return [random.random() for _ in range(count)]


def write_journal(folder: Path, steps: int, values: Callable[[int, int], list[float]], samples: int) -> None:
    """Write a dead run of ``steps`` steps."""
    write_run_info(folder, RunInfo("bench", "bench", (Attempt(0, "completed", 0, 1),)))
    writer = JournalWriter(folder, run_id="bench")
    for step in range(1, steps + 1):
        losses = None
        if samples:
            ids = struct.pack(f"<{samples}q", *(random.randrange(1_000_000) for _ in range(samples)))
            losses = SampleLosses(struct.pack(f"<{samples}f", *values(step, samples)), ids, INTEGER_IDS)
        elapsed_ns = step * 2_000_000 + random.randrange(100_000)
        writer.append(
            "step_end", NAMES, values(step, len(NAMES)), step=step, time_ns=1_767_323_045_000_000_000 + elapsed_ns,
            elapsed_ns=elapsed_ns, samples=losses,
        )  # fmt: skip
    writer.close()


def frames_of(path: Path) -> Iterator[memoryview]:
    """Yield the frame of each record of a journal."""
    data, position = memoryview(path.read_bytes()), PREAMBLE.size
    while position < len(data):
        length = FRAME.unpack_from(data, position)[0]
        yield data[position + FRAME.size : position + FRAME.size + length]
        position += FRAME.size + length


def column_bytes(path: Path, *columns: str) -> float:
    """Return the bytes per row of some columns of a Parquet file."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    size = sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)
    return float(size / metadata.num_rows)


class Best:
    """The least time of an operation, wall-clock and processor, in seconds."""

    def __init__(self) -> None:
        self.clock = self.computed = math.inf

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time one more repetition."""
        started, computed = time.perf_counter(), time.process_time()
        yield
        self.clock = min(self.clock, time.perf_counter() - started)
        self.computed = min(self.computed, time.process_time() - computed)


def measure(name: str, steps: int, values: Callable[[int, int], list[float]], samples: int) -> dict[str, object]:
    """Seal one journal several times, and return the costs."""
    sealing, digesting, reading, checking = Best(), Best(), Best(), Best()
    with tempfile.TemporaryDirectory() as place:
        template, folder = Path(place) / "template", Path(place) / "run"
        template.mkdir()
        write_journal(template, steps, values, samples)
        journals = [journal.path for journal in list_files(template).journals]
        journal_bytes = sum(path.stat().st_size for path in journals)
        frames = [frame for path in journals for frame in frames_of(path)]
        for _ in range(REPETITIONS):
            with reading.timed():
                for path in journals:
                    read_segment(path)
            with checking.timed():
                for frame in frames:
                    zlib.crc32(frame)
            shutil.copytree(template, folder)
            with sealing.timed():
                seal(folder)
            with digesting.timed():
                digest_faults(folder)
            files = {file.table: file.path for file in list_files(folder).sealed}
            sizes = {table: path.stat().st_size for table, path in files.items()}
            loss_bytes = column_bytes(files["samples"], "loss") if samples else None
            shutil.rmtree(folder)
    count = steps * (len(NAMES) + samples)

    def ns(seconds: float) -> float:
        return round(seconds / count * 1e9, 1)

    return {
        "case": name,
        "steps": steps,
        "values": count,
        "ns_per_value": ns(sealing.clock),
        "ns_per_number": round(sealing.clock / (count + steps * samples) * 1e9, 1),
        "cpu_ns_per_value": ns(sealing.computed),
        "digest_of_files_ns_per_value": ns(digesting.clock),
        "reading_ns_per_value": ns(reading.clock),
        "checksums_one_by_one": ns(checking.clock),
        "journal_mb_per_s": round(journal_bytes / sealing.clock / 1e6, 1),
        "bytes_per_metric_value": round(sizes["events"] / steps / len(NAMES), 2),
        "bytes_per_sample_loss": loss_bytes and round(loss_bytes, 2),
        "bytes_per_value_ids_included": round(sum(sizes.values()) / count, 2),
    }


def main() -> None:
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    random.seed(0)
    for samples in (0, 64):
        beside = f", {samples} samples" if samples else ""
        for values in (curves, noise):
            of = steps if not samples else steps // 8
            print(json.dumps(measure(f"10 floats{beside}: {values.__name__}", of, values, samples)), flush=True)


if __name__ == "__main__":
    main()
