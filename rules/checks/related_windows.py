"""Bounds of one reading of a series by another of the same series: the newest value by the mean, the slope by the mean.

Takes two readings; returns how many times the second the first is at most. The values of a window of k values that are
not negative sum up to k times their mean, so that none is above that, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ..readings.family import FamilyReading
from ..readings.fold import SeriesFold
from ..readings.reading import Extent, SeriesReading, ValueLimits
from ..readings.series_value import SeriesValue
from ..readings.window import AMONG, DEVIATIONS, MEMBERS, HeldCount, Window

_WITHIN: Final = MEMBERS | AMONG


@dataclass(frozen=True, slots=True)
class Bound:
    """At most so many times another reading.

    Attributes:
        factor: How many times, in exact arithmetic.
        proof: Why.
        is_signed: Whether its negative is bounded as well; if not, it is not negative where the values are not.
        needs_sign: Whether it holds only for values that are not negative.
        needs_finite: Whether it holds only for a newest value that is finite.
        is_exact: Whether rounding cannot pass it.
    """

    factor: float
    proof: str
    is_signed: bool = False
    needs_sign: bool = True
    needs_finite: bool = False
    is_exact: bool = False


def bound_by(upper: SeriesReading, lower: SeriesReading, limits: ValueLimits) -> Bound | None:
    """Return how often the second reading the first one is at most; None where nothing bounds it.

    Args:
        upper: The reading that is bounded.
        lower: The reading that bounds it.
        limits: What is known of the series.
    """
    if upper.key != lower.key:
        return None
    if (
        isinstance(upper, Window)
        and upper.function.name == "min"
        and (name := _function_within(lower, upper)) in _WITHIN
    ):
        what = "the smallest value of a window is not above the others"
        return Bound(1.0, what, needs_sign=False, is_exact=name in MEMBERS)
    if isinstance(upper, SeriesFold) and upper.function == "trough" and isinstance(lower, SeriesValue):
        is_within = lower.back >= upper.skip
        what = "a trough is the smallest value so far"
        return Bound(1.0, what, needs_sign=False, needs_finite=True, is_exact=True) if is_within else None
    if isinstance(lower, SeriesFold):
        return _by_fold(upper, lower)
    if not isinstance(lower, Window):
        return None
    name = _function_within(upper, lower)
    if name is None:
        return None
    window = upper if isinstance(upper, Window) else lower
    count = lower.held(limits)
    match lower.function.name:
        case "mean":
            return _by_mean(name, HeldCount(max(count.least, window.held(limits).least), count.most))
        case "max" if name in _WITHIN:
            what = "the greatest value of a window is not below the others"
            return Bound(1.0, what, needs_sign=False, is_exact=name in MEMBERS)
        case "sum" if name in MEMBERS:
            return Bound(1.0, "no value is above the sum of values that are not negative")
    return None


def bound_by_members(upper: FamilyReading, lower: FamilyReading, members: int) -> Bound | None:
    """Return the same for two functions of the newest values of a family, which has at most so many members."""
    if upper.key != lower.key or (upper.function, lower.function) != ("max", "mean"):
        return None
    return Bound(members, f"no value of {members:,} members is above {members:,} times their mean")


def _function_within(reading: SeriesReading, window: Window) -> str | None:
    """Return the function of the same values as a window; ``last`` for one of its values; None for another reading."""
    if isinstance(reading, SeriesValue):
        is_within = window.extent is Extent.VALUES and window.half is None
        return "last" if is_within and window.skip <= reading.back < window.skip + window.length else None
    if not isinstance(reading, Window) or reading.is_per_step:
        return None
    is_same = (reading.length, reading.extent, reading.skip, reading.half) == (
        window.length,
        window.extent,
        window.skip,
        window.half,
    )
    return reading.function.name if is_same else None


def _by_mean(name: str, held: HeldCount) -> Bound | None:
    least, most = max(held.least, 2 if name == "slope" else 1), max(held.most, 1)
    if name == "slope":
        return Bound(6 / (least + 1), f"slope / mean is at most 6 / ({least} + 1) for {least} values", is_signed=True)
    if name == "median":
        return Bound(2.0, "half of the values are not below the median")
    if not math.isfinite(most):
        return None
    if name in MEMBERS:
        return Bound(most, f"no value of {most:g} is above {most:g} times their mean")
    if name in DEVIATIONS:
        return Bound(
            math.sqrt(most - 1), f"the deviation of {most:g} values is at most sqrt({most:g} - 1) times their mean"
        )
    return None


def _by_fold(upper: SeriesReading, lower: SeriesFold) -> Bound | None:
    if not isinstance(upper, SeriesValue) or upper.back < lower.skip:
        return None
    if lower.function == "peak":
        return Bound(1.0, "a peak is the greatest value so far", needs_sign=False, needs_finite=True, is_exact=True)
    if lower.function == "ema" and upper.back == lower.skip:
        factor = (lower.length + 1) / 2
        return Bound(factor, f"the newest value is at least 2 / ({lower.length} + 1) of the average", needs_finite=True)
    return None
