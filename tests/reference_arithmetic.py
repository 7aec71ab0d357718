"""The arithmetic of the rule language a second time, as the pages of the language have it: values in, a number out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any


class Undefined(Exception):
    """A value that is not known: no failure, and no result."""


def total(values: Sequence[float]) -> float:
    """Add from left to right, from 0.0 on."""
    result = 0.0
    for value in values:
        result += value
    return result


def mean(values: Sequence[float]) -> float:
    """Return the sum divided by the number of values."""
    if not values:
        raise Undefined
    return total(values) / len(values)


def var(values: Sequence[float]) -> float:
    """Return the mean square of the distances from the mean."""
    middle = mean(values)
    return total([(value - middle) * (value - middle) for value in values]) / len(values)


def std(values: Sequence[float]) -> float:
    """Return the root of the variance."""
    return math.sqrt(var(values))


def smallest(values: Sequence[Any]) -> Any:
    """Return the smallest; NaN if any is NaN."""
    if not values:
        raise Undefined
    return math.nan if any(value != value for value in values) else min(values)


def greatest(values: Sequence[Any]) -> Any:
    """Return the greatest; NaN if any is NaN."""
    if not values:
        raise Undefined
    return math.nan if any(value != value for value in values) else max(values)


def quantile(values: Sequence[float], share: float) -> float:
    """Interpolate at the position ``share * (n - 1)`` of the sorted values."""
    if not values:
        raise Undefined
    if any(value != value for value in values):
        return math.nan
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    if position == low:
        return float(ordered[low])
    apart = 0.0 if ordered[low] == ordered[low + 1] else ordered[low + 1] - ordered[low]
    return ordered[low] + (position - low) * apart


def median(values: Sequence[float]) -> float:
    """Return the quantile at a half."""
    return quantile(values, 0.5)


def mad(values: Sequence[float]) -> float:
    """Return the median distance from the median."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def line(values: Sequence[float]) -> tuple[float, float]:
    """Return slope and mean of a least-squares line over the positions from 0."""
    count = len(values)
    if count < 2:
        raise Undefined
    middle = mean(values)
    above = total([(place - (count - 1) / 2) * (value - middle) for place, value in enumerate(values)])
    return above / (count * (count * count - 1) / 12), middle


def slope(values: Sequence[float]) -> float:
    """Return the least-squares slope per value."""
    return line(values)[0]


def slope_over(places: Sequence[float], values: Sequence[float]) -> float:
    """Return the least-squares slope over places of any distance."""
    if len(values) < 2:
        raise Undefined
    center, middle = mean(places), mean(values)
    across = total([(place - center) * (place - center) for place in places])
    if across == 0:
        raise Undefined
    return total([(x - center) * (y - middle) for x, y in zip(places, values, strict=True)]) / across


def detrended_std(values: Sequence[float]) -> float:
    """Return the deviation around the least-squares line."""
    rise, middle = line(values)
    center = (len(values) - 1) / 2
    rests = [value - (middle + rise * (place - center)) for place, value in enumerate(values)]
    return math.sqrt(total([rest * rest for rest in rests]) / len(rests))


def zscore(newest: float, values: Sequence[float]) -> float:
    """Return how many deviations the newest value is above the mean."""
    deviation = std(values)
    if deviation == 0:
        raise Undefined
    return (newest - mean(values)) / deviation


def ema(values: Sequence[float], length: int) -> float:
    """Return the exponential moving average of the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        raise Undefined
    average = float(finite[0])
    for value in finite[1:]:
        average += 2 / (length + 1) * (value - average)
    return average


def peak(values: Sequence[float]) -> float:
    """Return the greatest finite value."""
    return float(greatest([value for value in values if math.isfinite(value)]))


def trough(values: Sequence[float]) -> float:
    """Return the smallest finite value."""
    return float(smallest([value for value in values if math.isfinite(value)]))


def first(values: Sequence[Any]) -> Any:
    """Return the oldest value."""
    if not values:
        raise Undefined
    return values[0]


def last(values: Sequence[Any]) -> Any:
    """Return the newest value."""
    if not values:
        raise Undefined
    return values[-1]


def place_of(values: Sequence[float], best: Callable[[Sequence[float]], float]) -> float:
    """Return the index of the oldest of the best values; NaN if any is NaN."""
    found = best(values)
    return math.nan if found != found else list(values).index(found)


def how_long_ago(values: Sequence[float], best: Callable[[Sequence[float]], float]) -> float:
    """Return how many values ago the best one came."""
    return len(values) - 1 - place_of(values, best)


def unknown() -> Any:
    """Be undefined."""
    raise Undefined


def power(base: Any, exponent: Any) -> Any:
    """Return the power, of a base and an exponent within their limits."""
    if max(abs(base), abs(exponent)) > 4_000_000:
        raise ValueError(base)
    return base**exponent


def _sign(value: float) -> float:
    return math.nan if value != value else float((value > 0) - (value < 0))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else unknown()


def _clamp(value: float, low: float, high: float) -> float:
    return value if value != value else max(low, min(value, high))


#: Functions of a window or a list.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": mean, "sum": lambda values: total(values) if values else unknown(), "min": smallest, "max": greatest,
    "std": std, "var": var, "median": median, "quantile": quantile, "mad": mad, "slope": slope,
    "detrended_std": detrended_std, "count": len, "first": first, "last": last,
    "argmin": lambda values: how_long_ago(values, smallest), "argmax": lambda values: how_long_ago(values, greatest),
}  # fmt: skip
#: Functions that read a series from its first value on.
FROM_FIRST: dict[str, Callable[..., Any]] = {"ema": ema, "peak": peak, "trough": trough}
#: Functions of plain values.
PLAIN: dict[str, Callable[..., Any]] = {
    "abs": abs, "clamp": _clamp, "finite": _finite, "sign": _sign, "isfinite": math.isfinite,
    "round": round, "sqrt": math.sqrt, "exp": math.exp, "cos": math.cos, "tanh": math.tanh, "log": math.log,
    "math_trunc": math.trunc, "math_floor": math.floor, "math_ceil": math.ceil, "math_sqrt": math.sqrt, "int": int,
    "float": float, "str": str, "list": list, "tuple": tuple, "dict": dict, "set": set, "any": any, "all": all,
    "sorted": sorted, "len": len,
    **{name: REDUCTIONS[name] for name in REDUCTIONS.keys() - {"sum", "min", "max", "argmin", "argmax"}},
    "sum": lambda values, start=0.0: start + total(values),
    "min": lambda *given: smallest(given if len(given) > 1 else list(given[0])),
    "max": lambda *given: greatest(given if len(given) > 1 else list(given[0])),
    "argmin": lambda values: place_of(values, smallest), "argmax": lambda values: place_of(values, greatest),
    "zscore": lambda values: zscore(last(values), values), **FROM_FIRST,
}  # fmt: skip
