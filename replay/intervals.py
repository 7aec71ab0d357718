"""Bootstrap confidence intervals over runs: resamples whole families of runs with replacement, with a fixed seed.

Runs of one family are not independent of each other. Resampled one by one, they would make intervals too narrow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from ..rules.readings.vectors import Floats

#: Below this many families an interval would overstate the evidence: the runs themselves are shown instead.
FEWEST_FAMILIES: Final = 8

RESAMPLES: Final = 2000
COVERAGE: Final = 0.95
SEED: Final = 1

#: Share of the values that a trimmed mean leaves out at each end.
TRIMMED: Final = 0.1

#: The constants of SplitMix64, which gives the same numbers on every platform.
_STRIDE: Final = 0x9E3779B97F4A7C15
_FIRST_FACTOR: Final = 0xBF58476D1CE4E5B9
_SECOND_FACTOR: Final = 0x94D049BB133111EB

#: Draws held in memory together: 2 MiB of each array.
_DRAWN_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over runs and the interval that holds 95 % of its resampled means.

    Attributes:
        mean: Mean over the runs; None without runs.
        low, high: Ends of the interval; None below ``FEWEST_FAMILIES`` families.
        runs: Number of runs.
        families: Number of their families.
    """

    mean: float | None
    low: float | None
    high: float | None
    runs: int
    families: int


def interval(values: Sequence[float | None], families: Sequence[Hashable]) -> Interval:
    """Return the mean of the known values with its interval: the percentile bootstrap (Efron, 1979) over clusters.

    Each resample draws as many families as there are, and its mean is that of all their runs. The result is
    bit-identical for any order of the runs, which follows from their ids, and thus from their paths.

    Args:
        values: A value for each run; None where it is unknown.
        families: The family of each run.

    >>> interval([0.5, None, 0.25], ["a", "a", "b"])
    Interval(mean=0.375, low=None, high=None, runs=2, families=2)
    """
    by_family: dict[Hashable, list[float]] = {}
    for value, family in zip(values, families, strict=True):
        if value is not None:
            by_family.setdefault(family, []).append(value)
    clusters = sorted(map(sorted, by_family.values()))
    known = sorted(chain.from_iterable(clusters))
    if not known:
        return Interval(None, None, None, 0, 0)
    mean, count = sum(known) / len(known), len(clusters)
    if count < FEWEST_FAMILIES:
        return Interval(mean, None, None, len(known), count)
    means = sorted(_resampled_means([(sum(cluster), len(cluster)) for cluster in clusters]))
    outside = round(RESAMPLES * (1 - COVERAGE) / 2)
    return Interval(mean, means[outside], means[-outside - 1], len(known), count)


def _resampled_means(clusters: Sequence[tuple[float, int]]) -> list[float]:
    """Return the mean over the runs of each resample, from the sum and the number of runs of each family.

    Sums are taken from left to right, one draw after the other: any other order changes the last bits.
    """
    count = len(clusters)
    totals = np.array([total for total, _ in clusters])
    runs = np.array([number for _, number in clusters])
    means: list[float] = []
    at_once = max(1, _DRAWN_AT_ONCE // count)
    for first in range(0, RESAMPLES, at_once):
        last = min(first + at_once, RESAMPLES)
        drawn = (_numbers(SEED, first * count, last * count) % np.uint64(count)).astype(np.intp).reshape(-1, count)
        means += (np.cumsum(totals[drawn], axis=1)[:, -1] / runs[drawn].sum(axis=1)).tolist()
    return means


def _numbers(seed: int, first: int, last: int) -> npt.NDArray[np.uint64]:
    """Return the pseudo-random numbers of a seed between two places: SplitMix64 (Steele et al., 2014)."""
    places = np.arange(first + 1, last + 1, dtype=np.uint64)
    state = places * np.uint64(_STRIDE) + np.uint64(seed)
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST_FACTOR)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND_FACTOR)
    return mixed ^ (mixed >> np.uint64(31))


def paired_interval(
    values: Sequence[float | None], others: Sequence[float | None], families: Sequence[Hashable]
) -> Interval:
    """Return the interval of the differences, run by run, where both values are known."""
    pairs = zip(values, others, strict=True)
    return interval([None if one is None or other is None else one - other for one, other in pairs], families)


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest tenth of the values, each rounded down to whole values.

    >>> trimmed_mean([0.0] * 9 + [100.0])
    0.0
    """
    cut = int(TRIMMED * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


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
