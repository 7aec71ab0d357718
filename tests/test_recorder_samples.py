"""Options select which sample and token losses a recorder keeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steptape import Recorder, Samples, TelemetryError, open_run


def rows(rec: Recorder, *columns: str) -> list[tuple[Any, ...]]:
    """Return columns of the run's samples."""
    return [tuple(row[column] for column in columns) for row in open_run(rec.folder).samples().to_pylist()]


def test_samples_of_every_nth_step_alone_may_be_kept(tmp_path: Path) -> None:
    """The steps themselves are all recorded."""
    with Recorder(tmp_path, samples=Samples(every=3)) as rec:
        for step in range(1, 8):
            rec.step(loss=float(step), samples=[1.0 * step, 2.0])

    assert rows(rec, "step", "loss") == [(3, 3.0), (3, 2.0), (6, 6.0), (6, 2.0)]
    assert open_run(rec.folder).series("loss")["step"].to_pylist() == list(range(1, 8))


@pytest.mark.parametrize("ids", [[10, 11, 12, 13], ["a", "ß", "c", "d"], None], ids=["integers", "text", "none"])
def test_the_highest_of_a_batch_alone_may_be_kept(tmp_path: Path, ids: Any) -> None:
    """They keep ids, tokens and positions in the batch; NaN is above all numbers."""
    with Recorder(tmp_path, samples=Samples(top=2)) as rec:
        for _ in range(3):
            rec.step(samples=[1.0, 4.0, math.nan, 2.0], sample_ids=ids, sample_tokens=[5, 6, 7, 8])

    first = rows(rec, "position", "sample_id", "tokens")[:2]

    assert first == [(1, None if ids is None else str(ids[1]), 6), (2, None if ids is None else str(ids[2]), 7)]
    assert len(rows(rec, "loss")) == 6


@pytest.mark.parametrize(
    "token_losses",
    [
        [[0.5, 1.5], [8.0, 9.0, 10.0], [3.0]],
        torch.tensor([[0.5, 1.5, 0.0], [8.0, 9.0, 10.0], [3.0, 0.0, 0.0]]),
        np.array([[0.5, 1.5, 0.0], [8.0, 9.0, 10.0], [3.0, 0.0, 0.0]]),
    ],
    ids=["lists", "tensor", "array"],
)
def test_token_losses_are_kept_of_samples_above_a_threshold(tmp_path: Path, token_losses: Any) -> None:
    """Each sample has its own number of tokens."""
    with Recorder(tmp_path, samples=Samples(tokens_over=2.0)) as rec:
        rec.step(samples=[1.0, 9.0, 3.0], sample_tokens=[2, 3, 1], token_losses=token_losses)

    assert rows(rec, "loss", "token_losses") == [(1.0, None), (9.0, [8.0, 9.0, 10.0]), (3.0, [3.0])]


def test_token_losses_without_a_threshold_are_kept_of_all(tmp_path: Path) -> None:
    """They follow their samples if only the highest are kept."""
    with Recorder(tmp_path, samples=Samples(top=1)) as rec:
        rec.step(samples=[1.0, 9.0, 3.0], token_losses=[[1.0], [8.0, 10.0], []])

    assert rows(rec, "position", "token_losses") == [(1, [8.0, 10.0])]


@pytest.mark.parametrize(
    "odd",
    [
        {"samples": [1.0, 2.0], "token_losses": [[1.0]]},
        {"samples": [1.0], "token_losses": [["x"]]},
        {"samples": [1.0], "sample_tokens": [1, 2]},
        {"samples": [1.0], "sample_ids": [1.5]},
        {"samples": "text"},
        {"samples": 3.0},
    ],
    ids=str,
)
def test_samples_that_do_not_fit_cost_a_warning_and_not_the_step(
    tmp_path: Path, odd: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The warning appears once."""
    with Recorder(tmp_path) as rec:
        for _ in range(4):
            rec.step(loss=1.0, **odd)

    assert open_run(rec.folder).series("loss")["step"].to_pylist() == [1, 2, 3, 4]
    assert rows(rec, "loss") == []
    assert caplog.text.count("sample losses were not recorded") == 1


@pytest.mark.parametrize("odd", [{"every": 0}, {"top": -1}, {"every": "x"}], ids=str)
def test_a_choice_that_is_none_is_refused(tmp_path: Path, odd: dict[str, Any]) -> None:
    """The error comes before anything is written."""
    with pytest.raises(TelemetryError, match=rf"Samples\.{next(iter(odd))} must be a whole number"):
        Recorder(tmp_path / "runs", samples=Samples(**odd))

    assert not (tmp_path / "runs").exists()
