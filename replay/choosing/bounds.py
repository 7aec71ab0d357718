"""Computes p-values and bounds of a risk from finitely many independent runs, without assumptions on the risk.

Takes counts of broken runs or means of a capped loss; returns probabilities. Numbers below the smallest float are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from ..columns.stream import Floats, Ints

#: Halvings of the unit interval after which a float no longer changes.
_HALVINGS: Final = 60

#: The most families for which the need of more is computed.
MOST_FAMILIES: Final = 100_000


def binomial_tails(runs: int, risk: float) -> Floats:
    """Return the probability of at most k broken runs for k from 0 to all. Shape (runs + 1,).

    The terms are added in logarithms, so that small tails stay exact.

    Args:
        runs: Number of independent runs, at least 0.
        risk: Probability that a run is broken, from 0 to 1.

    >>> binomial_tails(2, 0.5).round(6).tolist()
    [0.25, 0.75, 1.0]
    """
    counts = range(runs + 1)
    if risk <= 0 or risk >= 1:
        return np.array([1.0 if risk <= 0 or count == runs else 0.0 for count in counts])
    broken, kept, whole = math.log(risk), math.log1p(-risk), math.lgamma(runs + 1)
    ways = [whole - math.lgamma(count + 1) - math.lgamma(runs - count + 1) for count in counts]
    logs = np.array(ways) + np.arange(runs + 1) * broken + np.arange(runs, -1, -1) * kept
    tails: Floats = np.minimum(np.exp(np.logaddexp.accumulate(logs)), 1.0)
    tails[-1] = 1.0
    return tails


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
