"""Reduces long windows with numpy, in the exact order of additions that ``reductions`` defines.

A sliding sum that adds the newest value and subtracts the oldest rounds differently. Instead there is one sum for each
window that has begun and not ended, and each new value is added to all of them in one vectorised addition. So every sum
runs left to right, oldest first. Deviations and slopes use ``numpy.add.accumulate``, which adds left to right too
(``numpy.sum`` does not).

This module is loaded when a policy has such a window; rules without one run without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from ..functions.undefined import Undefined
from .reading import SeriesValues

#: Beyond this, sums of finite values could overflow, and numpy would warn.
_HUGE: Final = 1e290

_Floats = npt.NDArray[np.float64]


class PartialSums:
    """The sum of the last ``length`` values.

    Args:
        length: The window's length, in values.
    """

    def __init__(self, length: int) -> None:
        self._sums = np.zeros(length)
        self._length = length
        self._next = 0
        self._count = 0
        self._quiet_until = -1

    def append(self, value: float) -> None:
        """Add a value to every window that contains it; the oldest window ends, and a new one begins."""
        sums = self._sums
        sums[self._next] = 0.0
        if not -_HUGE < value < _HUGE:
            self._quiet_until = self._count + self._length
        if self._count <= self._quiet_until:
            with np.errstate(all="ignore"):
                np.add(sums, value, sums)
        else:
            np.add(sums, value, sums)
        self._count += 1
        self._next = self._count % self._length

    def total(self) -> float:
        """Return the sum of the window.

        Raises:
            Undefined: There is no value yet.
        """
        if not self._count:
            raise Undefined("no values")
        return self._sums.item(self._next if self._count >= self._length else 0)

    def mean(self) -> float:
        """Return the mean of the window.

        Raises:
            Undefined: There is no value yet.
        """
        return self.total() / min(self._count, self._length)


class RecentValues:
    """The last ``length`` values as an array, with their reductions.

    Args:
        length: The window's length, in values.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._buffer = np.empty(2 * length)
        self._end = 0
        self._sums = PartialSums(length)
        self._positions = _positions(length)

    def append(self, value: float) -> None:
        """Append the next value."""
        if self._end == len(self._buffer):
            self._buffer[: self._length] = self._buffer[self._length :]
            self._end = self._length
        self._buffer[self._end] = value
        self._end += 1
        self._sums.append(value)

    def _values(self) -> _Floats:
        return self._buffer[max(0, self._end - self._length) : self._end]

    def var(self) -> float:
        """Return the variance of the window.

        Raises:
            Undefined: There is no value yet.
        """
        with np.errstate(all="ignore"):
            distances = self._values() - self._sums.mean()
            return _total(distances * distances) / len(distances)

    def std(self) -> float:
        """Return the standard deviation of the window.

        Raises:
            Undefined: There is no value yet.
        """
        return math.sqrt(self.var())

    def slope(self) -> float:
        """Return the slope of the window.

        Raises:
            Undefined: There are fewer than two values.
        """
        return self._line()[2]

    def detrended_std(self) -> float:
        """Return the standard deviation of the window around its least-squares line.

        Raises:
            Undefined: There are fewer than two values.
        """
        distances, positions, rise = self._line()
        with np.errstate(all="ignore"):
            residuals = distances - rise * positions
            return math.sqrt(_total(residuals * residuals) / len(residuals))

    def _line(self) -> tuple[_Floats, _Floats, float]:
        values = self._values()
        count = len(values)
        if count < 2:
            raise Undefined("a slope needs two values")
        positions = self._positions if count == self._length else _positions(count)
        with np.errstate(all="ignore"):
            distances: _Floats = values - self._sums.mean()
            return distances, positions, _total(positions * distances) / (count * (count * count - 1) / 12)


def _positions(count: int) -> _Floats:
    """Return the positions of ``count`` values, centred on 0."""
    return np.arange(count, dtype=np.float64) - (count - 1) / 2


def _total(values: _Floats) -> float:
    """Sum left to right, starting at 0.0; the start only matters where all values are -0.0."""
    return float(np.add.accumulate(values)[-1]) + 0.0


_OF_SUMS: Final[dict[str, Callable[[PartialSums], float]]] = {"sum": PartialSums.total, "mean": PartialSums.mean}
_OF_VALUES: Final[dict[str, Callable[[RecentValues], float]]] = {
    "var": RecentValues.var,
    "std": RecentValues.std,
    "slope": RecentValues.slope,
    "detrended_std": RecentValues.detrended_std,
}


def long_reader(name: str, length: int, series: SeriesValues) -> Callable[[], float]:
    """Return a function that reads the last values of a series; its state follows the series from now on.

    Args:
        name: The reduction.
        length: The window's length, in values.
        series: The series.
    """
    if name in _OF_SUMS:
        sums = PartialSums(length)
        series.followers.append(sums)
        return _OF_SUMS[name].__get__(sums)  # type: ignore[no-any-return]
    values = RecentValues(length)
    series.followers.append(values)
    return _OF_VALUES[name].__get__(values)  # type: ignore[no-any-return]
