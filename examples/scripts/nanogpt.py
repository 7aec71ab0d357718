"""Trains a tiny language model on the code of ``os``, in a loop of nanoGPT's shape.

The lines with ``rec`` and ``control`` are new. Usage: python nanogpt.py [POLICY], alone or by torchrun.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from steptape import Recorder

max_iters, eval_interval, eval_iters, gradient_accumulation_steps, batch_size, block_size = 60, 20, 4, 2, 8, 32
learning_rate, warmup_iters, grad_clip, ckpt_path = 3e-3, 10, 1.0, "ckpt.pt"
config = {"max_iters": max_iters, "learning_rate": learning_rate, "batch_size": batch_size, "grad_clip": grad_clip}
rules = sys.argv[1] if len(sys.argv) > 1 else "loss_spike"
ddp = "RANK" in os.environ
if ddp:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ddp else 0
master_process = rank == 0
torch.manual_seed(1337 + rank)
with open(os.__file__, "rb") as file:
    data = torch.tensor(list(file.read()))
parts = {"train": data[: len(data) * 9 // 10], "val": data[len(data) * 9 // 10 :]}
model = raw_model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)


def batch_loss(part: str) -> torch.Tensor:
    """Return the loss of a random batch."""
    starts = torch.randint(len(parts[part]) - block_size - 1, (batch_size,))
    rows = torch.stack([parts[part][start : start + block_size + 1] for start in starts])
    predict = model if part == "train" else raw_model
    return nn.functional.cross_entropy(predict(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


iter_num, checkpoint = 0, torch.load(ckpt_path) if os.path.exists(ckpt_path) else {}
if checkpoint:
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
rec = Recorder("runs", config=config, rules=rules, total_steps=max_iters + 1, resume=checkpoint.get("steptape"))
if ddp:
    model = DistributedDataParallel(model)
while True:
    lr = learning_rate * min(1.0, (iter_num + 1) / warmup_iters)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0 and master_process:
        with torch.no_grad():
            losses = {f"{part}/loss": sum(batch_loss(part) for _ in range(eval_iters)) / eval_iters for part in parts}
        rec.evaluate(losses)
        checkpoint = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        checkpoint["steptape"] = rec.state_dict()
        torch.save(checkpoint, ckpt_path)
        rec.save(ckpt_path)
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        loss = batch_loss("train") / gradient_accumulation_steps
        loss.backward()
    if grad_clip != 0.0:
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master_process:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.17g}", flush=True)
    iter_num += 1
    rec.step(loss=loss.detach() * gradient_accumulation_steps, lr=lr, grad_norm=grad_norm if grad_clip else None)
    control = rec.agree()
    if control.should_save and master_process:
        torch.save(raw_model.state_dict(), "ordered.pt")
        rec.save("ordered.pt")
    if iter_num > max_iters or control.should_stop:
        break
rec.close()
if ddp:
    dist.destroy_process_group()
