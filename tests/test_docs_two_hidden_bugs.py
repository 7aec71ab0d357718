"""The two mistakes of *Two bugs that metrics hide* are caught, and loops without them are not accused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

from steptape import Recorder, open_run, verify


def clip(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Scale gradients down to a norm, with a second pass over the parameters."""
    norm = sum(float(each.grad.norm()) ** 2 for each in parameters if each.grad is not None) ** 0.5
    for each in parameters:
        if each.grad is not None:
            each.grad.mul_(min(1.0, most / (norm + 1e-6)))


def fired(folder: Path) -> set[str]:
    """Return the controllers that decided in a run whose replay agrees with it."""
    run = open_run(folder)
    assert verify(run).identical
    return {str(event.attrs["controller"]) for event in run.events() if event.kind == "decision"}


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("is_generator", [False, True])
def test_a_clip_that_does_nothing_is_caught(is_generator: bool, every: int, tmp_path: Path) -> None:
    """A generator of parameters is exhausted before it scales; a list is not."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder(tmp_path, rules="nano_train") as rec:
        rec.watch(model, optimizer, clip_norm=0.1, every=every, budget=None)
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).square().mean() + 1
            loss.backward()
            clip(model.parameters() if is_generator else [*model.parameters()], 0.1)
            optimizer.step()
            rec.step(loss=loss)

    assert ("clip_without_effect" in fired(rec.folder)) == is_generator


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_warm_up_that_begins_at_full_rate_is_caught(is_late: bool, every: int, tmp_path: Path) -> None:
    """A scheduler that is made after the first update leaves that one at the full rate."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, rules="nano_train") as rec:
        rec.watch(model, optimizer, every=every, budget=None)
        for step in range(1, 41):
            if not (is_late and step == 1):
                optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (step - is_late) / 20)
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).square().mean() + 1
            loss.backward()
            optimizer.step()
            rec.step(loss=loss)

    assert ("lr_discontinuity" in fired(rec.folder)) == is_late
