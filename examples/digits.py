"""Trains a small torch classifier on scikit-learn's handwritten digits and records it, with six lines of steptape.

A dozen training labels are wrong on purpose, so that the sample losses have something to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from ..recorder.recorder import Recorder
from ..store.plan import Plan
from .settings import Settings

NAME: Final = "digits"
MISLABELLED: Final = 12
HELD_OUT: Final = 450


@dataclass(frozen=True, slots=True)
class Data:
    """Handwritten digits, 8 by 8 pixels, scaled to 0..1.

    Attributes:
        inputs, labels: For training. Shapes (n, 64) and (n,).
        eval_inputs, eval_labels: Held out, with correct labels.
        mislabelled: Indices of the training samples whose label is wrong.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    eval_inputs: torch.Tensor
    eval_labels: torch.Tensor
    mislabelled: tuple[int, ...]


def load_data(seed: int = 0) -> Data:
    """Load the digits, hold a part out, and replace some training labels by wrong ones."""
    digits = load_digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(digits.target), generator=generator)
    inputs = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    train_labels = labels[HELD_OUT:].clone()
    wrong = torch.randperm(len(train_labels), generator=generator)[:MISLABELLED]
    train_labels[wrong] = (train_labels[wrong] + 1 + torch.arange(MISLABELLED) % 9) % 10
    mislabelled = tuple(sorted(wrong.tolist()))
    return Data(inputs[HELD_OUT:], train_labels, inputs[:HELD_OUT], labels[:HELD_OUT], mislabelled)


def train(
    store: str | Path,
    settings: Settings,
    *,
    name: str = "digits",
    rules: str | Path | None = None,
    on_step: Callable[[int], object] | None = None,
) -> Path:
    """Train once and record it. Rules, if given, can ask it to evaluate, checkpoint and stop.

    Args:
        on_step: Called with the number of finished steps, for a progress bar.

    Returns:
        The run's folder.
    """
    torch.manual_seed(settings.seed)
    data = load_data()
    model = nn.Sequential(nn.Linear(64, settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    steps_per_epoch = len(data.inputs) // settings.batch_size

    with Recorder(
        store,
        name=name,
        config=settings,
        rules=rules,
        total_steps=settings.steps,
        plan=Plan(steps_per_epoch=steps_per_epoch),
        quiet=True,
    ) as rec:
        checkpoints = rec.folder / "checkpoints"
        checkpoints.mkdir()
        for step in range(1, settings.steps + 1):
            if (step - 1) % steps_per_epoch == 0:
                rec.epoch_begin()
                order = torch.randperm(len(data.inputs))
            start = (step - 1) % steps_per_epoch * settings.batch_size
            batch = order[start : start + settings.batch_size]

            losses = functional.cross_entropy(model(data.inputs[batch]), data.labels[batch], reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()  # type: ignore[no-untyped-call]
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            optimizer.step()

            control = rec.step(loss=losses.mean(), grad_norm=grad_norm, samples=losses, sample_ids=batch)
            if step % settings.eval_every == 0 or control.should_evaluate:
                rec.evaluate(evaluate(model, data))
            if control.should_save or (settings.save_every and step % settings.save_every == 0):
                path = checkpoints / f"step-{step}.pt"
                torch.save(model.state_dict(), path)
                rec.save(path)
            if on_step is not None:
                on_step(step)
            if control.should_stop:
                break
            if step % steps_per_epoch == 0:
                rec.epoch_end()
    return rec.folder


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> dict[str, float]:
    """Return mean loss and accuracy on the held-out digits."""
    logits = model(data.eval_inputs)
    return {
        "eval_loss": functional.cross_entropy(logits, data.eval_labels).item(),
        "eval_accuracy": (logits.argmax(1) == data.eval_labels).float().mean().item(),
    }
