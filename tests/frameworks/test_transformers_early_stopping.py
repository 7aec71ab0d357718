"""The shipped rules stop where the early stopping of Hugging Face's Trainer does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

from early_stoppings import curves, decided
from transformers.trainer_callback import EarlyStoppingCallback, TrainerControl, TrainerState

from steptape import load_policy


class _Arguments:
    """What the callback reads of the arguments of a Trainer."""

    metric_for_best_model, greater_is_better = "loss", False


def stop_of(callback: EarlyStoppingCallback, values: Sequence[float]) -> int | None:
    """Return the evaluation, from 1, at which the callback stops; the Trainer keeps the best metric."""
    state, control = TrainerState(), TrainerControl()
    for number, value in enumerate(values, 1):
        callback.on_evaluate(_Arguments(), state, control, {"eval_loss": value})
        if control.should_training_stop:
            return number
        if state.best_metric is None or value < state.best_metric:
            state.best_metric = value
    return None


@pytest.mark.parametrize("patience", [1, 2, 3, 5])
def test_early_stopping_stops_where_the_callback_does(patience: int) -> None:
    """Hundreds of random curves, NaN included."""
    policy = load_policy("early_stopping", params={"patience": patience})

    for values in curves(100, seed=patience):
        known = [4.0, *values]
        expected = stop_of(EarlyStoppingCallback(early_stopping_patience=patience), known)
        assert decided(policy, known, "no_improvement")[:1] == [each for each in [expected] if each]


@pytest.mark.parametrize(("patience", "threshold"), [(1, 0.0), (3, 0.0), (1, 0.25), (3, 0.25)])
def test_the_baseline_stops_where_the_callback_does(patience: int, threshold: float) -> None:
    """With its threshold, too: small gains lower the best, and never add up."""
    policy = load_policy("hf_early_stopping", params={"patience": patience, "threshold": threshold})

    for values in curves(100, seed=patience):
        known = [4.0, *values]
        callback = EarlyStoppingCallback(early_stopping_patience=patience, early_stopping_threshold=threshold)
        stops = decided(policy, known, "no_better")
        assert stops[:1] == [each for each in [stop_of(callback, known)] if each]
