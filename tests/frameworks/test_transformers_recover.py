"""A training of Hugging Face's Trainer that a NaN has hit heals by the rules of ``recover``, without another line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

import torch
from transformers import TrainerCallback

from frameworks.tiny_trainer import runs_of, tiny_data, tiny_trainer
from steptape import verify
from steptape.integrations.transformers import SteptapeCallback


class Hit(TrainerCallback):
    """Sets a weight to NaN after an update, once."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """The update of the next step is over, and its number is not counted yet."""
        if state.global_step + 1 == self.step:
            with torch.no_grad():
                next(model.parameters())[0, 0] = math.nan


def trained(folder: Path, hit: int | None) -> tuple[float, Any]:
    """Train 80 updates under ``recover``, and return the loss over the data and the run."""
    callback = SteptapeCallback(folder / "runs", rules="recover", quiet=True)
    changes: dict[str, Any] = {"num_train_epochs": 8, "save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-2}
    trainer = tiny_trainer(folder, [] if hit is None else [Hit(hit)], **changes)
    callback.attach(trainer)
    with callback.training():
        trainer.train()
    data = torch.stack([row["input_ids"] for row in tiny_data()])
    with torch.no_grad():
        loss = trainer.model.eval()(input_ids=data, labels=data).loss.item()
    return loss, runs_of(folder)[-1]


def test_a_weight_that_becomes_nan_is_undone_and_the_training_goes_on(tmp_path: Path) -> None:
    """All 80 updates are made, and the loss is almost that of the training without the fault."""
    plain, healthy = trained(tmp_path / "plain", None)
    healed, run = trained(tmp_path / "hit", 65)
    receipts = [event for event in run.events() if event.kind == "operation_applied" and "point_step" in event.attrs]

    assert not [event for event in healthy.events() if event.kind == "decision"]
    assert [(event.step, event.attrs["point_step"]) for event in receipts] == [(66, 50)]
    assert healed < 1.3 * plain
    assert (run.info.last.steps, run.status, verify(run).identical) == (80, "completed", True)
