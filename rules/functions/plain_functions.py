"""Implements the functions of rules on plain values, where Python's own functions would not do.

Sets are read in sorted order: Python's order of texts in a set differs between processes. Digits are bounded, so that
no rule computes forever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from . import folds, reductions
from .operators import in_order
from .undefined import Undefined

#: Most digits of a whole number in a text, and most digits to which a number is rounded.
MAX_DIGITS: Final = 2_000


def listed(values: Iterable[Any] = ()) -> list[Any]:
    """Return a list of the values."""
    return list(in_order(values))


def tupled(values: Iterable[Any] = ()) -> tuple[Any, ...]:
    """Return a tuple of the values."""
    return tuple(in_order(values))


def as_dict(*values: Any, **items: Any) -> dict[Any, Any]:
    """Return a dictionary, as Python makes one."""
    return dict(*values, **items)


def added(values: Iterable[Any], start: Any = 0) -> Any:
    """Sum left to right: floats as in ``reductions.total``, whole numbers as in Python. The empty sum is ``start``."""
    if isinstance(start, (str, bytes, list, tuple)):
        raise TypeError(f"sum adds numbers, not a {type(start).__name__}")
    result = start
    for value in in_order(values):
        result = result + value
    return result


def mean(values: Iterable[Any]) -> float:
    """Return the mean, as of a window."""
    return reductions.mean(listed(values))


def std(values: Iterable[Any]) -> float:
    """Return the standard deviation, as of a window."""
    return reductions.std(listed(values))


def var(values: Iterable[Any]) -> float:
    """Return the variance, as of a window."""
    return reductions.var(listed(values))


def slope(values: Iterable[Any]) -> float:
    """Return the slope, as of a window."""
    return reductions.slope(listed(values))


def detrended_std(values: Iterable[Any]) -> float:
    """Return the detrended standard deviation, as of a window."""
    return reductions.detrended_std(listed(values))


def median(values: Iterable[Any]) -> float:
    """Return the median, as of a window."""
    return reductions.median(listed(values))


def quantile(values: Iterable[Any], q: float) -> float:
    """Return the quantile at share ``q``, as of a window."""
    return reductions.quantile(listed(values), q)


def first(values: Iterable[Any]) -> Any:
    """Return the first value, as of a window."""
    return reductions.first(listed(values))


def last(values: Iterable[Any]) -> Any:
    """Return the last value, as of a window."""
    return reductions.last(listed(values))


def counted(values: Iterable[Any]) -> int:
    """Return the number of values, as of a window."""
    return len(listed(values))


def ema(values: Iterable[Any], n: int) -> float:
    """Return the exponential moving average, as of a series."""
    return folds.ema(listed(values), n)


def peak(values: Iterable[Any]) -> float:
    """Return the peak, as of a series."""
    return folds.peak(listed(values))


def trough(values: Iterable[Any]) -> float:
    """Return the trough, as of a series."""
    return folds.trough(listed(values))


def mad(values: Iterable[Any]) -> float:
    """Return the median distance from the median, as of a window."""
    return reductions.mad(listed(values))


def zscore(values: Iterable[Any]) -> float:
    """Return the distance of the last value from the mean in standard deviations, as of a window."""
    given = listed(values)
    return reductions.zscore(given, reductions.last(given))


def finite(x: Any) -> float:
    """Return a number that is neither NaN nor infinite.

    Raises:
        Undefined: It is.
    """
    if not math.isfinite(x):
        raise Undefined("not finite")
    return float(x)


def sign(x: Any) -> float:
    """Return 1.0 above zero, -1.0 below, 0.0 at zero; NaN for NaN."""
    return x if x != x else float((x > 0) - (x < 0))


def least(*values: Any) -> Any:
    """Return the least of a collection, or of the arguments."""
    return reductions.least(listed(values[0]) if len(values) == 1 else values)


def greatest(*values: Any) -> Any:
    """Return the greatest of a collection, or of the arguments."""
    return reductions.greatest(listed(values[0]) if len(values) == 1 else values)


def index_of_least(values: Iterable[Any]) -> float:
    """Return the index of the least value, from 0; the first of equal ones; NaN when any is NaN."""
    return _index(listed(values), reductions.least)


def index_of_greatest(values: Iterable[Any]) -> float:
    """Return the index of the greatest value, from 0; the first of equal ones; NaN when any is NaN."""
    return _index(listed(values), reductions.greatest)


def _index(values: list[Any], reduction: Any) -> float:
    found = reduction(values)
    return float("nan") if found != found else values.index(found)


def clamped(x: Any, low: Any, high: Any) -> Any:
    """Return the value within bounds; NaN stays NaN.

    Raises:
        ValueError: The lower bound is above the upper one.
    """
    if low > high:
        raise ValueError(f"clamp from {low} to {high}: the lower bound comes first")
    return low if x < low else min(x, high)


def whole(*values: Any, **options: Any) -> int:
    """Convert as Python's ``int`` does, with the digits of a text bounded.

    Python bounds them in most bases, but not in those that are powers of two.
    """
    if values and isinstance(values[0], (str, bytes)) and len(values[0]) > MAX_DIGITS:
        raise ValueError(f"a whole number of more than {MAX_DIGITS:,} digits")
    return int(*values, **options)


def rounded(value: Any, ndigits: Any = None) -> Any:
    """Round as Python does, with the digits bounded.

    Python would compute ten to any power that a negative number of digits asks for.
    """
    if isinstance(ndigits, int) and abs(ndigits) > MAX_DIGITS:
        raise ValueError(f"rounding to more than {MAX_DIGITS:,} digits")
    return round(value, ndigits)
