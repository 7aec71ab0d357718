"""A small training with PyTorch that rules steer: its learning rate, its batches and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from steptape import Recorder

#: The guard halves the rate for 6 updates, twice, and then for good.
GUARD = """
controllers:
  - name: guard
    triggers: [on_step_end]
    rule: loss > 3
    cooldown: 4
    escalate:
      stages:
        - {operations: ["lr.scale(0.5, over=6)"], times: 2}
        - {operations: ["lr.reduce(0.5)"]}
      cycle: true
"""

#: Besides, batches with exploding gradients are left out.
SKIP = "  - {name: skip, triggers: [on_pre_optimizer_step], rule: gradients > 10, operations: [batch.skip()]}\n"


def rollback(call: str = "rollback.to(last)") -> str:
    """Return a controller that rolls back from a loss above 100."""
    return f'  - {{name: back, triggers: [on_step_end], rule: loss > 100, operations: ["{call}"]}}\n'


#: PyTorch's commonest schedulers, and how a loop makes each.
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10)),
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5),
    "MultiStepLR": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 20], 0.3),
    "ExponentialLR": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95),
    "CosineAnnealingLR": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.2, 0.02], total_steps=60),
    "ReduceLROnPlateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3),
}


class Training:
    """A linear model under SGD, with two parameter groups and a scheduler.

    Args:
        scheduler: Of ``SCHEDULERS``.
        losses: The loss of each step that is not 1, as rules see it.
        gradients: The norm of each step that is not 1, as rules see it.

    Attributes:
        rates: The rates with which each update trained. Shape (updates, groups).
    """

    def __init__(
        self,
        scheduler: str = "CosineAnnealingLR",
        losses: Mapping[int, float] | None = None,
        gradients: Mapping[int, float] | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 1)
        groups = [{"params": [self.model.weight], "lr": 0.1}, {"params": [self.model.bias], "lr": 0.01}]
        self.optimizer = torch.optim.SGD(groups, momentum=0.9)
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.losses, self.gradients = dict(losses or {}), dict(gradients or {})
        self.rates: list[list[float]] = []
        self.optimizer.register_step_post_hook(lambda *_: self.rates.append(self.shown_rates()))

    def shown_rates(self) -> list[float]:
        """Return the rates of the parameter groups now."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def update(self, step: int) -> None:
        """Make an update on the batch of a step, and move the scheduler on."""
        batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        loss = ((self.model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        plateau = isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        self.scheduler.step(*([1.0] if plateau else []))

    def step(self, rec: Recorder) -> None:
        """Train one step as the recorder's flags say."""
        step = rec.progress.updates + 1
        rec.event("pre_optimizer_step", gradients=self.gradients.get(step, 1.0))
        is_skipped = rec.control.should_skip
        if not is_skipped:
            self.update(step)
        loss = self.losses.get(step, 1.0)
        rec.step(loss=loss, applied=not is_skipped, sample_ids=[10 * step, 10 * step + 1])

    def save(self, rec: Recorder, path: Path) -> None:
        """Save a checkpoint."""
        parts = (self.model, self.optimizer, self.scheduler)
        torch.save({"parts": [part.state_dict() for part in parts], "recorder": rec.state_dict()}, path)
        rec.save(path)

    def load(self, path: Path | str) -> Any:
        """Load a checkpoint, and return the recorder's state in it."""
        kept = torch.load(path)
        for part, state in zip((self.model, self.optimizer, self.scheduler), kept["parts"], strict=True):
            part.load_state_dict(state)
        return kept["recorder"]

    def run(self, rec: Recorder, until: int, saves: Sequence[int] = (), folder: Path | None = None) -> None:
        """Train until a step, with checkpoints after some."""
        while rec.progress.updates < until:
            self.step(rec)
            if rec.progress.updates in saves and folder is not None:
                self.save(rec, folder / f"{rec.progress.updates}.pt")
