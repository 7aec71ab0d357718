"""Computes regret: how much worse the best value up to a stop is than the best of the whole run."""

from __future__ import annotations

from typing import Final

from .objective import Objective

#: Magnitudes below this are too near zero to divide a regret by.
NEAR_ZERO: Final = 1e-12

#: Runs with fewer evaluations are left out of means of regret: with one evaluation, no stop after it costs anything.
FEWEST_EVALUATIONS: Final = 5


def regret_of(objective: Objective, reached: float | None, reference: float | None) -> float | None:
    """Compute how much worse a value is than the reference: negative where it is better, None where one is missing."""
    return None if reached is None or reference is None else objective.loss_of(reached, reference)


def relative(regret: float | None, scale: float | None) -> float | None:
    """Divide a regret by the magnitude of its reference; None where that is too near zero to divide by."""
    return None if regret is None or scale is None or abs(scale) < NEAR_ZERO else regret / abs(scale)
