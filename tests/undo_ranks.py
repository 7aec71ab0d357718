"""Trainings on several ranks that go back to a restore point, with DDP or FSDP2 on gloo. torchrun runs this file."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from probed_models import ResidualModel
from probed_ranks import wrapped

from steptape import Ranks, Recorder


def shards(model: torch.nn.Module, optimizer: Any) -> list[list[float]]:
    """Return what this rank holds: its weights and moments."""
    states = [state for each in model.parameters() for state in (each, *optimizer.state[each].values())]
    local = [state.to_local() if hasattr(state, "to_local") else state for state in states]
    return [each.detach().double().flatten().tolist() for each in local]


def train(
    store: str, how: str, until: int, high: Sequence[int], agree_every: int = 1, without: Sequence[int] = ()
) -> dict[str, Any]:
    """Train on this rank, and return what happened.

    Args:
        store: As for ``Recorder``.
        how: As for ``probed_ranks.wrapped``.
        until: The last step.
        high: The steps whose loss rank 0's rules see as 1,000.
        agree_every: Updates between two agreements.
        without: The steps at which rank 1 has no room for a point.
    """
    torch.manual_seed(0)
    model = wrapped(ResidualModel(), how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    kept: dict[int, Any] = {}
    rules, ranks = ["undo.to(before=2) if loss > 100"], Ranks(agree_timeout_s=60.0)
    with Recorder(store, rules=rules, quiet=True, ranks=ranks) as rec:
        rec.restore_points(model, optimizer, every=4)
        points = rec._operate().handlers.points
        assert points is not None
        take = points.take

        def taken(step: int) -> int:
            if step in without and dist.get_rank() == 1:
                raise MemoryError("no room")
            return take(step)

        points.take = taken  # type: ignore[method-assign]
        for step in range(1, until + 1):
            torch.manual_seed(10 * step + dist.get_rank())
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            kept[step] = shards(model, optimizer)
            rec.step(loss=1000.0 if step in high and dist.get_rank() == 0 else loss.item())
            if step % agree_every == 0:
                rec.agree()
    dist.barrier()
    now = shards(model, optimizer)
    equal = [step for step, state in kept.items() if state == now]
    return {"run": rec.run_id, "equal": equal, "weights": now[0] if how == "ddp" else []}


def main() -> None:
    """Train as the lines of the given file say, and write what happened on this rank beside it."""
    given = Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    results = [train(**json.loads(line)) for line in given.read_text().splitlines()]
    given.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
