"""Bootstrap confidence intervals over runs: resamples whole families of runs with replacement, with a fixed seed.

Runs of one family are not independent of each other. Resampled one by one, they would make intervals too narrow.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

#: Below this many families an interval would overstate the evidence: the runs themselves are shown instead.
FEWEST_FAMILIES: Final = 8

RESAMPLES: Final = 2000
COVERAGE: Final = 0.95
SEED: Final = 1

#: Share of the values that a trimmed mean leaves out at each end.
TRIMMED: Final = 0.1

_MASK: Final = (1 << 64) - 1


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


def _resampled_means(clusters: Sequence[tuple[float, int]]) -> Iterator[float]:
    """Yield the mean over the runs of each resample, from the sum and the number of runs of each family."""
    draws = numbers(SEED)
    for _ in range(RESAMPLES):
        drawn = [clusters[next(draws) % len(clusters)] for _ in clusters]
        yield sum(total for total, _ in drawn) / sum(runs for _, runs in drawn)


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


def numbers(seed: int) -> Iterator[int]:
    """Yield pseudo-random 64-bit integers, the same on every platform: SplitMix64 (Steele et al., 2014).

    >>> next(numbers(0)) == 0xE220A8397B1DCDAF
    True
    """
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        yield mixed ^ (mixed >> 31)
