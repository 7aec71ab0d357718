"""A training with mixed precision and accumulated gradients that leaves out batches, on one rank or several.

torchrun runs this file: it trains as each line of its input says.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from steptape import Recorder
from steptape.integrations.torch import watch_steps

MICRO_BATCHES = 3

#: By trigger: a rule over what the loop records there. The steps that it finds are the caller's.
RULES = """
controllers:
  - {name: guard, triggers: [on_step_end], rule: step == 2, operations: ["lr.scale(0.5, over=8)"]}
  - {name: micro, triggers: [on_substep_end], rule: micro_loss > 100, operations: [batch.skip()]}
  - {name: whole, triggers: [on_pre_optimizer_step], rule: grad_norm > 1000, operations: [batch.skip()]}
"""


def train(
    store: str,
    rules: str,
    bad: tuple[int, int] = (0, 0),
    exploding: int = 0,
    overflow: int = 0,
    has_scaler: bool = True,
    unscales: bool = True,
    fused: bool = False,
) -> dict[str, Any]:
    """Train 10 updates, and return what happened.

    Args:
        store, rules: As for ``Recorder``.
        bad: Step and micro-batch with a loss that is large.
        exploding: The step whose norm is large as rules see it.
        overflow: The step whose gradients are infinite.
        has_scaler: Whether a gradient scaler takes part.
        unscales: Whether it unscales the gradients before the update.
        fused: Whether the optimizer is fused, so that it skips an overflow itself.
    """
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 1)
    is_job = dist.is_initialized()
    model: torch.nn.Module = DistributedDataParallel(linear) if is_job else linear
    rank = dist.get_rank() if is_job else 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", enabled=has_scaler, init_scale=16.0, growth_interval=1000)
    weights, scales = [], []
    with Recorder(store, rules=rules, quiet=True) as rec, watch_steps(rec, optimizer):
        rec.learning_rate(optimizer)
        rec.handle("batch.skip")
        for step in range(1, 11):
            optimizer.zero_grad()
            for micro in range(1, MICRO_BATCHES + 1):
                batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + 10 * micro + rank))
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean() / MICRO_BATCHES
                torch.autograd.backward(scaler.scale(loss * (float("inf") if step == overflow else 1.0)))
                is_bad = rank == 0 and (step, micro) == tuple(bad)
                rec.event("substep_end", micro_step=micro, micro_loss=1e3 if is_bad else loss)
                rec.agree()
            if unscales:
                scaler.unscale_(optimizer)
            rec.event("pre_optimizer_step", grad_norm=1e6 if step == exploding and rank == 0 else 1.0)
            if not rec.agree().should_skip:
                scaler.step(optimizer)
            if unscales or not rec.control.should_skip:
                scaler.update()
            rec.step(loss=loss, micro_step=MICRO_BATCHES, sample_ids=[100 * step + 10 * rank + i for i in range(3)])
            weights.append(linear.weight.detach().clone()[0].tolist())
            scales.append(scaler.get_scale())
    return {"run": rec.run_id, "weights": weights, "scales": scales}


def main() -> None:
    """Train as the lines of the given file say, and write what happened on this rank beside it."""
    given = Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    results = [train(**json.loads(line)) for line in given.read_text().splitlines()]
    given.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
