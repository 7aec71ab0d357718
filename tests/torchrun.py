"""Runs a program of tests on several processes, as torchrun starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waiting import PATIENCE_S


def run_job(
    program: Path, folder: Path, world_size: int, trainings: Sequence[Mapping[str, Any]]
) -> list[list[dict[str, Any]]]:
    """Train in one job of torchrun, and return what each training was on each rank.

    Args:
        program: Takes a file with one training a line, and writes what it returned into one file per rank beside it.
        folder: Where these files go.
        world_size: Processes.
        trainings: The program's arguments for each training.
    """
    given = folder / "trainings.jsonl"
    given.write_text("\n".join(map(json.dumps, trainings)))
    output, status = run_ranks(world_size, [str(program), str(given)])
    assert status == 0, output
    ranks = [json.loads(given.with_suffix(f".{rank}").read_text()) for rank in range(world_size)]
    return [list(each) for each in zip(*ranks, strict=True)]


def run_ranks(world_size: int, program: Sequence[str]) -> tuple[str, int]:
    """Run a program on several processes, and return what they printed and torchrun's exit status."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    # Ranks of gloo train on the CPU, also where the machine has a GPU for fewer of them.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    job = subprocess.Popen(
        [*command, *program],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = job.communicate(timeout=PATIENCE_S)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    return output, job.returncode
