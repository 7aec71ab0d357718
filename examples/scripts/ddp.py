"""A plain DDP loop, recorded and steered: torchrun --nproc-per-node=2 ddp.py [POLICY]; python ddp.py starts two."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel

from steptape import Recorder

if "RANK" not in os.environ:
    sys.exit(torchrun(["--standalone", "--nproc-per-node=2", *sys.argv]))

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
target = torch.randn(16, 1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.Generator().manual_seed(1 + rank)
policy = sys.argv[1] if len(sys.argv) > 1 else None

with Recorder("runs", name="ddp", rules=policy, total_steps=200) as rec:  # On every rank, after the process group.
    for step in range(1, 201):
        batch = torch.randn(64, 16, generator=data)
        loss = (model(batch) - batch @ target).pow(2).mean()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rec.step(loss=loss.detach(), grad_norm=grad_norm)  # Each rank records its own values.
        control = rec.agree()  # All ranks call it at the same place, and get the same answer.
        if (control.should_save or step % 100 == 0) and rank == 0:
            torch.save({"model": model.module.state_dict(), "recorder": rec.state_dict()}, f"step-{step}.pt")
            rec.save(f"step-{step}.pt")
        if control.should_stop:
            break
dist.destroy_process_group()
