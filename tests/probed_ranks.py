"""Watched trainings on several ranks, with DDP or FSDP2 on gloo. torchrun runs this file."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from probed_models import ResidualModel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from steptape import Recorder

STEPS = 5


def wrapped(model: ResidualModel, how: str) -> nn.Module:
    """Return the model as ranks train it: ``ddp``, ``fsdp``, or ``fsdp`` over a part of a mesh, ``hybrid``."""
    if how == "ddp":
        return DistributedDataParallel(model)
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard")) if how == "hybrid" else None
    mesh = mesh or init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole(tensor: Any) -> torch.Tensor:
    """Return all of a tensor. Collective."""
    return torch.as_tensor((tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().double())


def norm_of(tensors: list[Any]) -> float:
    """Return the L2 norm of some tensors together. Collective."""
    return math.sqrt(sum(float(whole(tensor).square().sum()) for tensor in tensors))


def train(store: str, how: str) -> dict[str, Any]:
    """Train, and return the run and what the norms are as this rank computes them from whole tensors."""
    torch.manual_seed(0)
    inner = ResidualModel()
    model = wrapped(inner, how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    norms: list[dict[str, float]] = []
    with Recorder(store, strict=True) as rec:
        rec.watch(model, optimizer, every=2, level="debug", check_every=4, budget=1e-9 if how != "ddp" else None)
        for step in range(STEPS):
            with torch.no_grad():  # After it, the root module of FSDP2 holds whole parameters until the backward pass.
                model.eval()(torch.zeros(1, 8))
            model.train()
            optimizer.zero_grad()
            seed = 10 * step + dist.get_rank()
            model(torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            before = norm_of(gradients)
            nn.utils.clip_grad_norm_([*model.parameters()], 0.1)
            main = [inner.get_parameter(f"blocks.1.{name}.weight") for name in ("up", "down")]
            norms.append(
                {
                    "Gradients/norm": before,
                    "Gradients/norm_used": norm_of(gradients),
                    "Parameters/norm": norm_of([*model.parameters()]),
                    "gradients/blocks.1.up.weight/mean": float(whole(main[0].grad).mean()),
                }
            )
            optimizer.step()
            norms[-1]["Weights/block_1/norm"] = norm_of(main)
            rec.step()
    return {"run_id": rec.run_id, "norms": norms}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    given, rank = Path(sys.argv[1]), dist.get_rank()
    done = [train(**json.loads(line)) for line in given.read_text().splitlines()]
    given.with_suffix(f".{rank}").write_text(json.dumps(done))
    dist.destroy_process_group()
