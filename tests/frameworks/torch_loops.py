"""Plain DDP and FSDP2 loops on gloo. torchrun runs this file: it trains as each line of its input says, one by one.

A process group and the import of torch take seconds, a training takes none: hence many trainings for one start.
"""

from __future__ import annotations

import copy
import datetime
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from steptape import Recorder

STEPS = 12
MICRO_STEPS = 2

#: The checkpoint that a training keeps and a later one resumes from.
kept: dict[str, Any] = {}


def build(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a small model, the same on each rank, and its optimizer."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model: torch.nn.Module = layers
    if kind == "ddp":
        model = DistributedDataParallel(layers)
    else:
        for layer in (layers[0], layers[2]):
            fully_shard(layer)
        fully_shard(layers)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def micro_loss(model: torch.nn.Module, step: int, micro_step: int, poison: list[int] | None) -> torch.Tensor:
    """Return the loss of this rank's micro-batch; NaN where ``poison`` names rank, step and micro-step."""
    data = torch.Generator().manual_seed(1_000 * step + 10 * micro_step + dist.get_rank())
    batch = torch.randn(8, 4, generator=data)
    if poison == [dist.get_rank(), step, micro_step]:
        batch[3, 1] = float("nan")
    loss: torch.Tensor = (model(batch).squeeze() - batch.sum(dim=1)).pow(2).mean() / MICRO_STEPS
    return loss


def train(
    kind: str,
    store: str | None = None,
    rules: str | None = None,
    poison: list[int] | None = None,
    keep_at: int = 0,
    resume: bool = False,
    end: int = STEPS,
    partial_norm: bool = False,
) -> dict[str, Any]:
    """Train and return what happened on this rank.

    Args:
        kind: ddp or fsdp.
        store, rules: The recorder's; None trains without one.
        poison: Rank, step and micro-step of a NaN.
        keep_at: The step of a checkpoint.
        resume: Begin from the checkpoint that a training before this one kept.
        end: The last step.
        partial_norm: Give the recorder, on rank 0 alone, a distributed tensor of which each rank has a part.
    """
    model, optimizer = build(kind)
    if resume:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    rec = None if store is None else Recorder(store, rules=rules, resume=kept["recorder"] if resume else None)
    losses = []
    for step in range(keep_at + 1 if resume else 1, end + 1):
        loss = torch.zeros(())
        for micro_step in range(MICRO_STEPS):
            part = micro_loss(model, step, micro_step, poison)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if partial_norm:
            norm = torch.linalg.vector_norm(next(model.parameters()).grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss).hex())
        if rec is not None:
            rec.step(loss=loss, grad_norm=None if partial_norm and dist.get_rank() else norm)
            if rec.agree().should_stop:
                break
        if step == keep_at and not resume:
            kept.update(copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
            kept["recorder"] = rec and rec.state_dict()
    if rec is not None:
        rec.close()
    return {"losses": losses, "run_id": rec and rec.run_id}


def main() -> None:
    """Train as each line of the first file says; write what each training returned into one file per rank."""
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("steptape").addHandler(handler)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    given, results = Path(sys.argv[1]), []
    for line in given.read_text().splitlines():
        warnings.clear()
        results.append({**train(**json.loads(line)), "warnings": [*warnings]})
    given.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
