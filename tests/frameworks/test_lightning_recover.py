"""A training by Lightning that a NaN has hit heals by the rules of ``recover``, without another line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed; 'make frameworks' runs this")

import torch
from lightning.pytorch.callbacks import Callback

from frameworks.tiny_lightning import loader, tiny_module, tiny_trainer
from steptape import open_store, verify
from steptape.integrations.lightning import SteptapeCallback

pytestmark = pytest.mark.filterwarnings("default")


class Hit(Callback):
    """Sets a weight to NaN before a batch, once."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The batch of the 71st update sees it."""
        if trainer.global_step == 70:
            with torch.no_grad():
                pl_module.layer[0].weight[0, 0] = math.nan


def test_a_weight_that_becomes_nan_is_undone_and_the_training_goes_on(tmp_path: Path) -> None:
    """The weights are finite at the end, and all epochs are trained."""
    callback = SteptapeCallback(tmp_path / "runs", rules="recover", quiet=True)
    module = tiny_module(dropout=0.0)
    tiny_trainer(tmp_path, [Hit(), callback], max_epochs=7).fit(module, loader())
    (run,) = open_store(tmp_path / "runs")
    receipts = [event for event in run.events() if event.kind == "operation_applied" and "point_step" in event.attrs]

    assert [(event.step, event.attrs["point_step"]) for event in receipts] == [(71, 50)]
    assert all(bool(weight.isfinite().all()) for weight in module.parameters())
    assert (run.status, verify(run).identical) == ("completed", True)
