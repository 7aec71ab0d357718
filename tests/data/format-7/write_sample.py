"""Writes the sample of the run format: ``python write_sample.py TARGET``.

The committed sample stands for the runs that people have: never write it anew while the format has this number. A
format with another number gets another folder, and this one goes.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from pathlib import Path

from steptape.store.events import INTEGER_IDS, SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.run_info import Attempt, PolicyRecord, RunInfo, write_run_info

STARTED_NS = 1_767_323_045_000_000_000
POLICY = PolicyRecord("sha256:0f", "policy.yaml", "controllers: []\n", {"patience": 3}, 1)
WRITER = {"host": "node-1", "boot_id": "11111111-2222-3333-4444-555555555555", "pid": 4321}


def main(target: Path) -> None:
    """Write a sealed run and one that a dead process left in its journal."""
    sealed = target / "20260102T030405-5ea1ed"
    journal = target / "20260102T030405-0a11ed"
    ended = {"ended_ns": STARTED_NS + 2_500_000_000, "steps": 2}
    late = {"declared": Plan(20, 5, 2, constants={"params": 2.5}), "reason": "EarlyStoppingCallback"}
    write_run(
        sealed,
        Attempt(0, "stopped", STARTED_NS, plan=Plan(10, 5, 2), policy=POLICY, environment=WRITER, **ended, **late),
    )
    seal(sealed, other_hosts=True)
    failure = {"type": "ValueError", "message": "loss is nan"}
    write_run(journal, Attempt(0, "running", STARTED_NS, plan=Plan(), failure=failure))


def write_run(folder: Path, attempt: Attempt) -> None:
    """A run with one event of each sort."""
    folder.mkdir(parents=True)
    config = {"lr": 0.1, "seed": 2**60, "nested": {"a": [1, None]}}
    write_run_info(folder, RunInfo(folder.name, "sample", (attempt,), group="g", tags=("a", "ü"), config=config))
    writer = JournalWriter(folder, run_id=folder.name, writer=WRITER)
    ids = struct.pack("<2q", -1, 2**60)
    flagged = SampleLosses(
        struct.pack("<2f", math.inf, 0.25),
        struct.pack("<2q", 7, 0),
        INTEGER_IDS,
        tokens=struct.pack("<2i", 7, 8),
        positions=struct.pack("<2i", 31, 4),
        flagged=struct.pack("<2I", 1, 0),
        flagged_tokens=struct.pack("<2I", 3, 1),
        token_losses=struct.pack("<4f", 0.0, 0.5, math.nan, math.inf),
    )
    vectors = {"expert_tokens/größe": array("d", [3.0, math.nan, 2.0**53]), "empty": array("d")}
    clock = {"time_ns": STARTED_NS, "elapsed_ns": 0}
    later = {"time_ns": STARTED_NS + 1_000, "elapsed_ns": 1_000}
    names = ("loss", "Loss", "epoch")
    writer.append("train_begin", (), (), step=0, **clock)
    losses = SampleLosses(struct.pack("<2f", 1.5, math.nan), ids, INTEGER_IDS)
    writer.append("step_end", names, (0.1, -0.0, 5e-324), step=1, epoch=0.5, micro_step=1, samples=losses, **clock)
    writer.append(
        "step_end",
        names,
        (math.nan, math.inf, -math.inf),
        step=2,
        value_lag=2,
        samples=flagged,
        vectors=vectors,
        **later,
    )
    writer.append("evaluate", ("eval/größe",), (1e300,), step=2, epoch=1.0, attrs=b'{"n":1152921504606846977}', **later)
    decision = (
        b'{"controller":"stop","trigger":"on_evaluate","event_seq":3,'
        b'"operations":["hfcontrols.should_training_stop"],"values":{"loss":"NaN"}}'
    )
    writer.append("decision", (), (), step=2, epoch=1.0, attrs=decision, **later)
    writer.append("save", (), (), step=2, attrs=b'{"path":"checkpoint-2","size_bytes":1099511627776}', **later)
    writer.append("train_end", (), (), step=2, **later)
    # Not in the order of a loop: the events of earlier samples keep their places.
    writer.append("plan", (), (), step=2, attrs=b'{"total_steps":20,"constants":{"params":2.5}}', **later)
    writer.append("load", (), (), step=2, attrs=b'{"path":"checkpoint-1"}', **later)
    for kind in ("sleep", "wake"):
        writer.append(kind, (), (), step=2, **later)
    writer.append("ranks", ("loss@0", "loss@1"), (0.5, math.nan), step=2, attrs=b'{"world_size":2}', **later)
    writer.append("agreement", (), (), step=2, **later)
    route = {"route": array("d", [-math.inf])}
    writer.append("custom:reward", ("score",), (0.25,), step=2, vectors=route, **later)
    spent = b'{"name":"eval","began_ns":-500,"failed":"ValueError","trace":"eval.json"}'
    writer.append("span", ("Time/eval_seconds",), (1.5e-6,), step=2, attrs=spent, **later)
    sampled = ("System/rss_mb", "GPU/utilization")
    writer.append("system", sampled, (512.25, math.nan), step=2, attrs=b'{"sampled_ns":900}', **later)
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
