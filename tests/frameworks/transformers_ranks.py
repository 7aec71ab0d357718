"""Trains Hugging Face's trainers on the ranks of a job of torchrun: one training for each line of a file."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback

from frameworks import tiny_trainer as trainers
from steptape.integrations.transformers import SteptapeCallback


class Killing(TrainerCallback):
    """An exception as a step begins."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def train(
    folder: str,
    policy: str,
    make: str = "tiny_trainer",
    nan: tuple[int, int] | None = None,
    save_s: float = 0.0,
    killed_at: int | None = None,
    resume: bool | None = None,
    arguments: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, int]:
    """Train under a policy, and return the step at which this rank ended.

    Args:
        folder: Of the runs and checkpoints.
        policy: A policy.
        make: The function that makes the trainer.
        nan: Rank and micro-batch at which the loss is NaN.
        save_s: How long rank 0 takes for a checkpoint.
        killed_at: The step before which all ranks are interrupted.
        resume: Whether from the newest checkpoint.
        arguments: Of the callback.
        changes: Of the trainer's arguments.
    """
    module = trainers
    if make != "tiny_trainer":
        from frameworks import tiny_trl as module  # type: ignore[no-redef]
    callback = SteptapeCallback(Path(folder, "runs"), policy, quiet=True, **(arguments or {}))
    trainer = getattr(module, make)(Path(folder), [callback, Killing(killed_at)], ddp_backend="gloo", **changes)
    if nan is not None and nan[0] == dist.get_rank():
        trainers.plant_nan(trainer, nan[1])
    if save_s and dist.get_rank() == 0:
        save = trainer._save

        def slow_save(*args: Any, **named: Any) -> None:
            time.sleep(save_s)
            save(*args, **named)

        trainer._save = slow_save
    callback.attach(trainer)
    try:
        with callback.training():
            trainer.train(resume_from_checkpoint=resume)
    except KeyboardInterrupt:
        dist.barrier()  # Rank 0 may still have the checkpoint to write.
    return {"step": trainer.state.global_step}


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    given = Path(sys.argv[1])
    ended = [train(**json.loads(line)) for line in given.read_text().splitlines()]
    given.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(ended))
    dist.destroy_process_group()
