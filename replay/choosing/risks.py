"""The risk that a certificate bounds: what a variant loses on a run, and what the losses of several runs prove.

A risk is a share of runs whose regret is above a limit, or a mean regret with a cap. Tests and bounds take counts of
broken runs or means of a capped loss, and return probabilities. Numbers below the smallest float are 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...rules.readings.vectors import Floats, Ints, Truths
from ...store.errors import TelemetryError
from ..intervals import binomial_tails
from ..runs.metric_names import Mode
from ..runs.objective import NEAR_ZERO
from ..sweeps.totals import NO_STEP, Outcomes, SweptRun

_RISK: Final = re.compile(
    r"(?P<mean>mean\s+)?(?P<deployable>deployable[_ ])?regret(?:\s*>\s*(?P<over>[^\s%]+)\s*(?P<percent>%?))?",
    re.IGNORECASE,
)


_FORMS: Final = "Write 'regret > 1%', 'deployable_regret > 2%', or 'mean regret' with a cap"


#: Halvings of the unit interval after which a float no longer changes.
_HALVINGS: Final = 60


#: The most families for which the need of more is computed.
MOST_FAMILIES: Final = 100_000


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


def p_values_of_counts(broken: Ints, runs: int, at_most: float) -> Floats:
    """Return the p-value of "more than ``at_most`` of all runs are broken" for each count: the exact binomial tail.

    Args:
        broken: Number of broken runs of each variant. Shape (variants,).
        runs: Number of independent runs.
        at_most: The limit, a share of runs.

    >>> p_values_of_counts(np.array([0, 1]), 2, 0.5).round(6).tolist()
    [0.25, 0.75]
    """
    return np.asarray(binomial_tails(runs, at_most)[broken])


def p_values_of_means(means: Floats, runs: int, at_most: float) -> Floats:
    """Return the p-value of "the mean loss exceeds ``at_most``" for each mean: the bound of Hoeffding and Bentkus.

    The lesser of Hoeffding's bound in its tight form and of Bentkus' (Bates et al., 2021, "Distribution-free,
    risk-controlling prediction sets"). Both hold for any distribution of losses within 0 and 1.

    Args:
        means: Mean loss of each variant, from 0 to 1. Shape (variants,).
        runs: Number of independent runs.
        at_most: The limit, from 0 to 1.
    """
    if not runs or at_most >= 1:
        return np.ones(len(means))
    low = np.minimum(means, at_most)
    with np.errstate(all="ignore"):
        hit = np.where(low > 0, low * np.log(low / at_most), 0.0)
        missed = np.where(low < 1, (1 - low) * np.log((1 - low) / (1 - at_most)), 0.0)
    hoeffding = np.exp(-runs * (hit + missed))
    # A sum that is whole but for its rounding is not rounded up.
    sums = np.minimum(np.ceil(runs * means - 1e-9), runs).astype(np.int64)
    bentkus = math.e * binomial_tails(runs, at_most)[np.maximum(sums, 0)]
    return np.asarray(np.minimum(np.minimum(hoeffding, bentkus), 1.0))


def upper_bound_of_count(broken: int, runs: int, error: float) -> float:
    """Return the upper confidence bound of a share of broken runs (Clopper and Pearson, 1934).

    Args:
        broken, runs: Number of broken runs, and of all.
        error: Probability that the true share is above the bound.

    >>> round(upper_bound_of_count(0, 22, 0.1), 4)
    0.0994
    """
    if broken >= runs:
        return 1.0
    return _greatest(lambda risk: float(binomial_tails(runs, risk)[broken]) > error)


def upper_bound_of_mean(mean: float, runs: int, error: float) -> float:
    """Return the upper confidence bound of a mean loss within 0 and 1, by Hoeffding and Bentkus."""
    means = np.array([mean])
    return _greatest(lambda risk: float(p_values_of_means(means, runs, risk)[0]) > error, mean)


def fewest_runs(at_most: float, error: float) -> int:
    """Return the least number of runs with which a limit can be certified: all of them kept it.

    >>> fewest_runs(0.1, 0.1)
    22
    """
    runs = max(1, math.floor(math.log(error) / math.log1p(-at_most)))
    while (1 - at_most) ** runs > error:
        runs += 1
    return runs


def runs_needed(mean: float, at_most: float, error: float, *, is_share: bool = True) -> int | None:
    """Return about how many runs it takes to certify a limit, if more runs are like those seen; None if none would do.

    Args:
        mean: Share of broken runs, or mean loss, as seen so far.
        at_most: The limit.
        error: Probability of a wrong certificate.
        is_share: Whether it is a share of runs.
    """

    def suffices(runs: int) -> bool:
        if is_share:
            return bool(binomial_tails(runs, at_most)[math.ceil(mean * runs - 1e-9)] <= error)
        return bool(p_values_of_means(np.array([mean]), runs, at_most)[0] <= error)

    if mean >= at_most:
        return None
    low, high = 0, 1
    while not suffices(high):
        low, high = high, 2 * high
        if high > MOST_FAMILIES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _greatest(holds: Callable[[float], bool], low: float = 0.0) -> float:
    """Return the greatest number from ``low`` to 1 for which a condition holds that fails from some number on."""
    high = 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high
