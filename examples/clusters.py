"""Trains a small classifier in plain numpy on synthetic clusters and records it: a training loop without torch.

The clusters overlap and a dozen training labels are wrong on purpose. The model therefore overfits, and the sample
losses show which labels are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..recorder.recorder import Recorder
from ..store.plan import Plan
from .settings import Settings

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

NAME: Final = "clusters"
MISLABELLED: Final = 12
CLASSES: Final = 10
DIMENSIONS: Final = 16
TRAINING: Final = 1200
HELD_OUT: Final = 450


@dataclass(frozen=True, slots=True)
class Clusters:
    """Points around one centre per class.

    Attributes:
        inputs, labels: For training. Shapes (n, DIMENSIONS) and (n,).
        eval_inputs, eval_labels: Held out, with correct labels.
        mislabelled: Indices of the training samples whose label is wrong.
    """

    inputs: Floats
    labels: Integers
    eval_inputs: Floats
    eval_labels: Integers
    mislabelled: tuple[int, ...]


class Network:
    """A network with one hidden layer (ReLU) and softmax cross-entropy, and its momentum."""

    def __init__(self, hidden: int, random: np.random.Generator) -> None:
        self.parameters: dict[str, Floats] = {
            "w1": random.normal(0, (2 / DIMENSIONS) ** 0.5, (DIMENSIONS, hidden)),
            "b1": np.zeros(hidden),
            "w2": random.normal(0, (1 / hidden) ** 0.5, (hidden, CLASSES)),
            "b2": np.zeros(CLASSES),
        }
        self._velocities = {name: np.zeros_like(value) for name, value in self.parameters.items()}

    def losses(self, inputs: Floats, labels: Integers) -> tuple[Floats, Floats, Floats]:
        """Return the loss of each sample, the class probabilities, and the hidden activations."""
        p = self.parameters
        hidden = np.maximum(inputs @ p["w1"] + p["b1"], 0)
        logits = hidden @ p["w2"] + p["b2"]
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        return -np.log(chances[np.arange(len(labels)), labels] + 1e-12), chances, hidden

    def update(self, inputs: Floats, labels: Integers, settings: Settings) -> tuple[Floats, float]:
        """Take one step of SGD with momentum; return the loss of each sample and the norm of the gradient."""
        losses, chances, hidden = self.losses(inputs, labels)
        error = chances.copy()
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        behind = (error @ self.parameters["w2"].T) * (hidden > 0)
        gradients = {
            "w1": inputs.T @ behind,
            "b1": behind.sum(axis=0),
            "w2": hidden.T @ error,
            "b2": error.sum(axis=0),
        }
        for name, gradient in gradients.items():
            self._velocities[name] = settings.momentum * self._velocities[name] + gradient
            self.parameters[name] -= settings.lr * self._velocities[name]
        return losses, float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))


def load_data(seed: int = 0) -> Clusters:
    """Draw the clusters, hold a part out, and replace some training labels by wrong ones."""
    random = np.random.default_rng(seed)
    centres = random.normal(0, 1, (CLASSES, DIMENSIONS))
    labels = random.integers(0, CLASSES, TRAINING + HELD_OUT)
    inputs = centres[labels] + random.normal(0, 0.9, (len(labels), DIMENSIONS))
    train_labels = labels[:TRAINING].copy()
    wrong = random.permutation(TRAINING)[:MISLABELLED]
    train_labels[wrong] = (train_labels[wrong] + 1 + np.arange(MISLABELLED) % (CLASSES - 1)) % CLASSES
    mislabelled = tuple(sorted(wrong.tolist()))
    return Clusters(inputs[:TRAINING], train_labels, inputs[TRAINING:], labels[TRAINING:], mislabelled)


def train(
    store: str | Path,
    settings: Settings,
    *,
    name: str = "clusters",
    rules: str | Path | None = None,
    on_step: Callable[[int], object] | None = None,
) -> Path:
    """Train once and record it. Rules, if given, can ask it to evaluate, checkpoint and stop.

    Args:
        on_step: Called with the number of finished steps, for a progress bar.

    Returns:
        The run's folder.
    """
    random = np.random.default_rng(settings.seed)
    data = load_data()
    model = Network(settings.hidden, random)
    steps_per_epoch = TRAINING // settings.batch_size

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
                order = random.permutation(TRAINING)
            start = (step - 1) % steps_per_epoch * settings.batch_size
            batch = order[start : start + settings.batch_size]

            losses, grad_norm = model.update(data.inputs[batch], data.labels[batch], settings)

            control = rec.step(loss=losses.mean(), grad_norm=grad_norm, samples=losses, sample_ids=batch)
            if step % settings.eval_every == 0 or control.should_evaluate:
                rec.evaluate(evaluate(model, data))
            if control.should_save or (settings.save_every and step % settings.save_every == 0):
                path = checkpoints / f"step-{step}.npz"
                np.savez(path, **model.parameters)  # type: ignore[arg-type]  # The stub takes the names for options.
                rec.save(path)
            if on_step is not None:
                on_step(step)
            if control.should_stop:
                break
            if step % steps_per_epoch == 0:
                rec.epoch_end()
    return rec.folder


def evaluate(model: Network, data: Clusters) -> dict[str, float]:
    """Return mean loss and accuracy on the held-out points."""
    losses, chances, _ = model.losses(data.eval_inputs, data.eval_labels)
    return {
        "eval_loss": float(losses.mean()),
        "eval_accuracy": float((chances.argmax(axis=1) == data.eval_labels).mean()),
    }
