"""A loop with Accelerate heals by the rules of ``recover`` and one line, which takes what Accelerate has prepared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed; 'make frameworks' runs this")

import torch

from frameworks.tiny_accelerate import new_accelerator, parts
from steptape import Recorder, open_run, verify


def test_a_weight_that_becomes_nan_is_undone_and_the_training_goes_on(tmp_path: Path) -> None:
    """Updates are accumulated over two batches, and the optimizer is in Accelerate's wrapper."""
    accelerator = new_accelerator(gradient_accumulation_steps=2)
    model, optimizer, data = accelerator.prepare(*parts())
    with Recorder(tmp_path, rules="recover", quiet=True) as rec:
        rec.restore_points(model, optimizer)
        for _ in range(8):
            for (batch,) in data:
                with accelerator.accumulate(model):
                    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if not accelerator.sync_gradients:
                    continue
                rec.step(loss=loss)
                if rec.progress.updates == 65:
                    with torch.no_grad():
                        next(model.parameters())[0, 0] = math.nan
    run = open_run(rec.folder)
    receipts = [event for event in run.events() if event.kind == "operation_applied" and "point_step" in event.attrs]

    assert [(event.step, event.attrs["point_step"]) for event in receipts] == [(66, 50)]
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())
    assert (run.info.last.steps, verify(run).identical) == (80, True)
