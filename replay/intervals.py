"""Bootstrap confidence intervals over runs: resamples whole runs with replacement, with a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

#: Below this many runs an interval would overstate the evidence: the runs themselves are shown instead.
FEWEST_RUNS: Final = 8

RESAMPLES: Final = 2000
COVERAGE: Final = 0.95
SEED: Final = 1

_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over runs and the interval that holds 95 % of its resampled means.

    Attributes:
        mean: Mean over the runs; None without runs.
        low, high: Ends of the interval; None below ``FEWEST_RUNS`` runs.
        runs: Number of runs.
    """

    mean: float | None
    low: float | None
    high: float | None
    runs: int


def interval(values: Sequence[float | None]) -> Interval:
    """Return the mean of the known values with its interval: the percentile bootstrap (Efron, 1979).

    The result is bit-identical for any order of the runs; the order follows from their ids, and thus from their paths.

    >>> interval([0.5, None, 0.25])
    Interval(mean=0.375, low=None, high=None, runs=2)
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return Interval(None, None, None, 0)
    mean = sum(known) / len(known)
    if len(known) < FEWEST_RUNS:
        return Interval(mean, None, None, len(known))
    draws = numbers(SEED)
    count = len(known)
    means = sorted(sum(known[next(draws) % count] for _ in known) / count for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1 - COVERAGE) / 2)
    return Interval(mean, means[outside], means[-outside - 1], count)


def paired_interval(values: Sequence[float | None], others: Sequence[float | None]) -> Interval:
    """Return the interval of the differences, run by run, where both values are known."""
    pairs = zip(values, others, strict=True)
    return interval([None if one is None or other is None else one - other for one, other in pairs])


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
