"""The training of ``steered_loops`` on several ranks, with DDP on gloo. torchrun runs this file."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from steered_loops import Training
from torch.nn.parallel import DistributedDataParallel

from steptape import Ranks, Recorder


class RankTraining(Training):
    """The part of one rank. Its rules see the losses of rank 0 only, and rank 0 alone records checkpoints.

    Args:
        losses, gradients: As for ``Training``.
        agrees_before: Whether ranks agree before an update, too.

    Attributes:
        updated: The steps whose update this rank has made.
    """

    def __init__(
        self, losses: Mapping[int, float], gradients: Mapping[int, float], *, agrees_before: bool = True
    ) -> None:
        super().__init__(losses=losses, gradients=gradients)
        self.parallel = DistributedDataParallel(self.model)
        self.agrees_before, self.updated = agrees_before, list[int]()

    def update(self, step: int) -> None:
        """Make an update on this rank's part of the batch, and move the scheduler on."""
        batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        loss = ((self.parallel(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.updated.append(step)

    def step(self, rec: Recorder) -> None:
        """Train one step as the recorder's flags say."""
        step = rec.progress.updates + 1
        rec.event("pre_optimizer_step", gradients=self.gradients.get(step, 1.0))
        if self.agrees_before:
            rec.agree()
        is_skipped = rec.control.should_skip
        if not is_skipped:
            self.update(step)
        ids = [100 * step + dist.get_rank()]
        rec.step(loss=self.losses.get(step, 1.0), applied=not is_skipped, sample_ids=ids)
        rec.agree()

    def save(self, rec: Recorder, path: Path) -> None:
        """Save a checkpoint on rank 0."""
        if dist.get_rank() == 0:
            super().save(rec, path)
        dist.barrier()


def train(
    store: str,
    rules: str,
    until: int,
    losses: Mapping[str, float],
    gradients: Mapping[str, float],
    saves: Sequence[int] = (),
    resume: str = "",
    fails: Sequence[int] = (),
    lacks: Sequence[int] = (),
    agrees_before: bool = True,
) -> dict[str, Any]:
    """Train on this rank, and return what happened.

    Args:
        store, rules: As for ``Recorder``.
        until: The last step.
        losses, gradients: By step, as for ``Training``. Rank 1 sees none of them.
        saves: The steps with a checkpoint.
        resume: A checkpoint to resume from.
        fails: The ranks that cannot load a checkpoint in a rollback.
        lacks: The ranks whose loop can carry out nothing.
        agrees_before: As for ``RankTraining``.
    """
    sees = dist.get_rank() == 0
    own = [{int(step): value for step, value in given.items() if sees} for given in (losses, gradients)]
    training, error = RankTraining(*own, agrees_before=agrees_before), ""

    def load(request: Any) -> Any:
        if dist.get_rank() in fails:
            raise OSError("no such file")
        training.losses = {step: value for step, value in training.losses.items() if value < 100}
        return training.load(request.save.path)

    state = training.load(resume) if resume else None
    with Recorder(store, rules=rules, resume=state, quiet=True, ranks=Ranks(agree_timeout_s=60.0)) as rec:
        if dist.get_rank() not in lacks:
            rec.learning_rate(training.optimizer, training.scheduler)
            rec.handle("batch.skip")
            rec.handle("rollback.to", load)
        try:
            training.run(rec, until, saves, Path(store))
        except Exception as raised:
            error = str(raised)
    done = {"rates": training.rates, "updated": training.updated, "error": error}
    return {**done, "weights": training.model.weight[0].tolist(), "run": rec.run_id}


def main() -> None:
    """Train as the lines of the given file say, and write what happened on this rank beside it."""
    given = Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    results = [train(**json.loads(line)) for line in given.read_text().splitlines()]
    given.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
