"""Trains a tiny language model on the code of ``os``, in a loop of nanoGPT's shape; ``rec`` and ``control`` are new."""

import os
import sys

import torch
from torch import nn

from steptape import Recorder

max_iters, eval_interval, eval_iters, gradient_accumulation_steps, batch_size, block_size = 60, 20, 4, 2, 8, 32
learning_rate, warmup_iters, grad_clip, ckpt_path = 3e-3, 10, 1.0, "ckpt.pt"
config = {"max_iters": max_iters, "learning_rate": learning_rate, "batch_size": batch_size, "grad_clip": grad_clip}
rules = sys.argv[1] if len(sys.argv) > 1 else "loss_spike"
torch.manual_seed(1337)
with open(os.__file__, "rb") as file:
    data = torch.tensor(list(file.read()))
parts = {"train": data[: len(data) * 9 // 10], "val": data[len(data) * 9 // 10 :]}
model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)


def batch_loss(part: str) -> torch.Tensor:
    """Return the loss of a random batch."""
    starts = torch.randint(len(parts[part]) - block_size - 1, (batch_size,))
    rows = torch.stack([parts[part][start : start + block_size + 1] for start in starts])
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


iter_num, checkpoint = 0, torch.load(ckpt_path) if os.path.exists(ckpt_path) else {}
if checkpoint:
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
rec = Recorder("runs", config=config, rules=rules, total_steps=max_iters + 1, resume=checkpoint.get("steptape"))
while True:
    lr = learning_rate * min(1.0, (iter_num + 1) / warmup_iters)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0:
        with torch.no_grad():
            losses = {f"{part}/loss": sum(batch_loss(part) for _ in range(eval_iters)) / eval_iters for part in parts}
        rec.evaluate(losses)
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        checkpoint["steptape"] = rec.state_dict()
        torch.save(checkpoint, ckpt_path)
        rec.save(ckpt_path)
    for _ in range(gradient_accumulation_steps):
        loss = batch_loss("train") / gradient_accumulation_steps
        loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.17g}", flush=True)
    iter_num += 1
    control = rec.step(loss=loss.detach() * gradient_accumulation_steps, lr=lr, grad_norm=grad_norm)
    if iter_num > max_iters or control.should_stop:
        break
rec.close()
