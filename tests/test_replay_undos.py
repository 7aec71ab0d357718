"""A backtest of rules that order undos says where they would first have acted in runs that kept no restore points."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from steptape import Recorder, load_policy, open_run
from steptape.replay.runs.replaying import replay
from steptape.store.run import Run


def recorded(store: Path, losses: list[float], rules: str | None = None) -> Run:
    """Record a run of these losses."""
    with Recorder(store, rules=rules, quiet=True) as rec:
        for loss in losses:
            rec.step(loss=loss)
    return open_run(rec.folder)


def firings(run: Run) -> list[tuple[int, str]]:
    """Return step and validity of the decisions of ``recover``."""
    return [(one.outcome.step, str(one.validity)) for one in replay(load_policy("recover"), run).decisions]


def test_a_loss_that_rises_above_its_level_is_undone_in_a_replay(tmp_path: Path) -> None:
    """What follows the undo is unknown."""
    run = recorded(tmp_path, [2.0 + 0.01 * (step % 5) for step in range(130)] + [5.0] * 3)

    assert firings(run)[0] == (132, "censored")


def test_before_the_first_point_there_is_no_level(tmp_path: Path) -> None:
    """The loss of a training that begins falls fast."""
    run = recorded(tmp_path, [2.0] * 40 + [5.0] * 5)

    assert firings(run) == []


@pytest.mark.parametrize("has_points", [True, False])
def test_a_loop_that_keeps_points_is_replayed_with_its_own(tmp_path: Path, has_points: bool) -> None:
    """A point every 5 updates gives a level at step 20, and one every 50 does not."""
    with Recorder(tmp_path, quiet=True) as rec:
        if has_points:
            model = torch.nn.Linear(2, 2)
            rec.restore_points(model, torch.optim.SGD(model.parameters(), lr=0.1), every=5)
        for loss in [2.0] * 30 + [5.0] * 3:
            rec.step(loss=loss)

    assert [step for step, _ in firings(open_run(rec.folder))] == [32] * has_points
