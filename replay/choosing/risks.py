"""Parses a stated risk, such as ``regret > 1%``, and turns the outcomes of variants on a run into losses.

A loss is 1 for a broken run and 0 for a kept one, or a capped regret as a share of its cap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...store.errors import TelemetryError
from ..columns.stream import Floats, Truths
from ..runs.metric_names import Mode
from ..runs.objective import NEAR_ZERO
from ..sweeps.outcomes import NO_STEP, Outcomes, SweptRun

_RISK: Final = re.compile(
    r"(?P<mean>mean\s+)?(?P<deployable>deployable[_ ])?regret(?:\s*>\s*(?P<over>[^\s%]+)\s*(?P<percent>%?))?",
    re.IGNORECASE,
)
_FORMS: Final = "Write 'regret > 1%', 'deployable_regret > 2%', or 'mean regret' with a cap"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number as a user wrote it.

    Attributes:
        value: The number; 0.01 for ``1%``.
        is_percent: Whether it has a percent sign.
    """

    value: float
    is_percent: bool

    def __str__(self) -> str:
        return f"{100 * self.value:.10g}%" if self.is_percent else f"{self.value:.10g}"


def amount_of(text: str, what: str) -> Amount:
    """Parse a number with or without a percent sign.

    Raises:
        TelemetryError: It is not a finite number of at least 0.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise TelemetryError(f"{what} must be a number of at least 0, such as 1% or 0.01", got=text)
    is_percent = text.strip().endswith("%")
    return Amount(value / 100 if is_percent else value, is_percent)


@dataclass(frozen=True, slots=True)
class Risk:
    """The cost that a rule may have, in a share of runs or on average.

    Attributes:
        is_deployable: Whether it is the regret of what can be deployed, which is an evaluation with a checkpoint.
        over: A run is broken if its regret exceeds this; None for a mean.
        cap: The most regret that a run counts with in a mean; None for a share of runs.
        at_most: The limit: a share of runs, or a mean regret.
        is_relative: Whether regret is relative to the run's best value, and not in the metric's own units.
    """

    is_deployable: bool
    over: float | None
    cap: float | None
    at_most: float
    is_relative: bool

    @property
    def limit(self) -> float:
        """The limit of the mean loss, from 0 to 1."""
        return self.at_most if self.cap is None else self.at_most / self.cap

    @property
    def is_share(self) -> bool:
        """Whether it is a share of runs."""
        return self.over is not None

    def regrets(self, outcomes: Outcomes) -> Floats:
        """Return the regret of each variant, in the risk's unit; NaN where it is unknown or not defined."""
        name = "deployable_regret" if self.is_deployable else "regret"
        absolute: Floats = getattr(outcomes, name)
        if not self.is_relative:
            return absolute
        # A best value of zero has no relative regret, unless nothing is lost.
        return np.where(absolute == 0, 0.0, getattr(outcomes, f"relative_{name}"))

    def loss_of(self, regrets: Floats) -> Floats:
        """Return the loss of each known regret, from 0 to 1; 1 for NaN."""
        if self.over is not None:
            return np.where(regrets <= self.over, 0.0, 1.0)
        return np.where(np.isnan(regrets), 1.0, np.clip(regrets / (self.cap or 1.0), 0.0, 1.0))

    def __str__(self) -> str:
        regret = "deployable regret" if self.is_deployable else "regret"
        if self.over is not None:
            return f"{regret} > {self.shown(self.over)}"
        return f"mean {regret}, each at most {self.shown(self.cap or 0.0)}"

    def shown(self, regret: float) -> str:
        """Format a regret: in percent if it is relative."""
        return f"{100 * regret:.10g}%" if self.is_relative else f"{regret:.10g}"


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
    regrets = risk.regrets(outcomes)
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


def risk_of(text: str, at_most: str, cap: str | None = None) -> Risk:
    """Parse a risk with its limit.

    Args:
        text: ``regret > 1%``, ``deployable_regret > 2%``, ``mean regret``. With a percent sign regret is relative to
            the run's best value, without one it is in the metric's units.
        at_most: The limit: a share of runs, or a mean regret.
        cap: For a mean, the most regret that a run counts with.

    Raises:
        TelemetryError: One of them is malformed, or they do not fit together.
    """
    found = _RISK.fullmatch(text.strip())
    if found is None or bool(found["mean"]) == (found["over"] is not None):
        raise TelemetryError("this is not a risk", got=text, fix=_FORMS)
    limit, is_deployable = amount_of(at_most, "--at-most"), found["deployable"] is not None
    if found["over"] is not None:
        if cap is not None:
            raise TelemetryError("only a mean regret has a cap", got=cap, fix="Leave out --cap")
        if not 0 < limit.value < 1:
            raise TelemetryError("a share of runs is above 0 and below 100%", got=at_most)
        over = amount_of(f"{found['over']}{found['percent']}", "the regret of a broken run")
        return Risk(is_deployable, over.value, None, limit.value, over.is_percent)
    if cap is None:
        fix = "Give the most regret that a run counts with, such as --cap 10%"
        raise TelemetryError("a mean regret has no bound without a cap", fix=fix)
    top = amount_of(cap, "--cap")
    if top.is_percent != limit.is_percent:
        fix = "Write both in percent of a run's best value, or both in the metric's units"
        raise TelemetryError("--cap and --at-most differ in their unit", got=f"{cap}, {at_most}", fix=fix)
    if not 0 < limit.value < top.value:
        raise TelemetryError("the limit of a mean regret is above 0 and below its cap", got=f"{at_most}, {cap}")
    return Risk(is_deployable, None, top.value, limit.value, top.is_percent)


def savings(outcomes: Outcomes, steps: int) -> Floats:
    """Return the share of a run's steps that each variant saves; 0 where it cannot fire, or where it is unknown."""
    shares = outcomes.steps_saved / max(steps, 1)
    return np.where(outcomes.could_fire & ~np.isnan(shares), shares, 0.0)
