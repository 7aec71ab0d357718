"""How the sample of digests of format 1 was written: ``python write_sample.py TARGET``.

The sample is kept as it is, for good, as those of the formats beside this one are.
"""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path

from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.run_info import Attempt, RunInfo, write_run_info
from steptape.store.sample_losses import INTEGER_IDS, TEXT_IDS, SampleLosses

STARTED_NS = 1_767_323_045_000_000_000
WRITER = {"host": "node-1", "boot_id": "11111111-2222-3333-4444-555555555555", "pid": 4321}


def main(target: Path) -> None:
    """A sealed run of two ranks. A metric comes late, another one is missing now and then, attrs come and go."""
    folder = target / "20260102T030405-d19e57"
    folder.mkdir(parents=True)
    attempt = Attempt(0, "completed", STARTED_NS, STARTED_NS + 10**9, environment=WRITER, steps=8)
    write_run_info(folder, RunInfo(folder.name, "sample", (attempt,)))
    for rank in (0, 1):
        writer = JournalWriter(folder, run_id=folder.name, rank=rank, writer=WRITER)
        for step in range(1, 9):
            clock = {"time_ns": STARTED_NS + step, "elapsed_ns": step}
            late = {"late": -0.0} if step > 5 else {}
            metrics = {"loss": math.nan if step == 3 else 1 / step, **late}
            values = tuple(metrics.values())
            writer.append("step_end", tuple(metrics), values, step=step, samples=losses(step, rank), **clock)
            if step % 4 == 0:
                attrs = b'{"text":"\xc3\xa9"}' if step == 4 else b""
                writer.append("evaluate", ("eval_loss",), (2 / step,), step=step, epoch=step / 7, attrs=attrs, **clock)
        end = {"time_ns": STARTED_NS + 9, "elapsed_ns": 9}
        writer.append("train_end", (), (), step=8, attrs=b'{"status":"completed"}', **end)
        writer.close()
    seal(folder, other_hosts=True)


def losses(step: int, rank: int) -> SampleLosses:
    """A batch of two: with whole numbers as ids on rank 0, with text, tokens and tokens' losses on rank 1."""
    packed = struct.pack("<2f", step / 2, math.inf)
    if rank == 0:
        return SampleLosses(packed, struct.pack("<2q", step, -(2**40)), INTEGER_IDS)
    return SampleLosses(
        packed,
        f'["{step}","b"]'.encode(),
        TEXT_IDS,
        tokens=struct.pack("<2i", 2, step),
        flagged=struct.pack("<I", 0),
        flagged_tokens=struct.pack("<I", 2),
        token_losses=struct.pack("<2f", 0.5, step),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
