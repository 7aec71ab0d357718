"""What each variant of a rule file loses and saves on a run, by the risk that judges its stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...rules.readings.vectors import Floats, Truths
from ..runs.metric_names import Mode
from ..runs.objective import NEAR_ZERO
from ..runs.risk import Risk
from ..sweeps.totals import NO_STEP, Outcomes, SweptRun


class PossibleValues(NamedTuple):
    """The least and the greatest value that a metric can have, as far as the policy's ``ranges`` say."""

    least: float | None = None
    greatest: float | None = None


_UNKNOWN: Final = PossibleValues()


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """The losses of all variants on one run; each array has shape (variants,).

    Attributes:
        values: From 0 to 1.
        is_unknown: Whether the loss is 1 because the record bounds no regret.
        could_fire: Whether the variant could fire.
    """

    values: Floats
    is_unknown: Truths
    could_fire: Truths


def losses_on(
    risk: Risk, run: SweptRun, possible: PossibleValues = _UNKNOWN, *, ended_by_rules: bool = False
) -> Losses:
    """Return what each variant would have lost on a run.

    A variant that decides nothing, or could not fire, loses nothing: the run is the same with it and without it. Its
    loss is unknown only in a run that its own rules ended: the variant would have replaced them.
    A stop in a run that might have continued counts by the upper bound of its regret, where the metric's range has one.

    Args:
        risk: The risk.
        run: The run, with an objective.
        possible: The possible values of its objective.
        ended_by_rules: Whether the run's own rules stopped it.
    """
    outcomes = run.outcomes
    is_stopped = outcomes.stop_step != NO_STEP
    is_unaltered = ~outcomes.could_fire | ((outcomes.decisions == 0) & ~is_stopped)
    regrets = _regrets(risk, outcomes)
    bounded = _upper_bounds(risk, run, possible)
    regrets = np.where(outcomes.is_right_censored & is_stopped, bounded, regrets)
    regrets = np.where(is_stopped, bounded, np.nan) if ended_by_rules else np.where(is_unaltered, 0.0, regrets)
    return Losses(risk.loss_of(regrets), np.isnan(regrets), outcomes.could_fire)


def _upper_bounds(risk: Risk, run: SweptRun, possible: PossibleValues) -> Floats:
    """Return the most that each stop can have lost, if the best value can be as good as the metric's range allows.

    NaN where the range does not say it.
    """
    unknown = np.full(len(run.outcomes.stop_step), np.nan)
    if run.objective is None or risk.is_deployable:
        return unknown
    is_min = run.objective.mode is Mode.MIN
    utmost = possible.least if is_min else possible.greatest
    if utmost is None:
        return unknown
    reached = run.best + run.outcomes.regret * (1 if is_min else -1)
    most = reached - utmost if is_min else utmost - reached
    if not risk.is_relative:
        return most
    if utmost < NEAR_ZERO or not run.best > 0:
        return unknown
    return np.maximum(most / utmost, run.outcomes.relative_regret)


def savings(outcomes: Outcomes, steps: int) -> Floats:
    """Return the share of a run's steps that each variant saves; 0 where it cannot fire, or where it is unknown."""
    shares = outcomes.steps_saved / max(steps, 1)
    return np.where(outcomes.could_fire & ~np.isnan(shares), shares, 0.0)


def _regrets(risk: Risk, outcomes: Outcomes) -> Floats:
    """Return the regret of each variant, in the risk's unit; NaN where it is unknown or not defined."""
    name = "deployable_regret" if risk.is_deployable else "regret"
    found: Floats = getattr(outcomes, f"relative_{name}" if risk.is_relative else name)
    return found
