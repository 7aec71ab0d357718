"""Numbers that are carried from one value of a series to the next, over the whole run: no window bounds them.

Each fold takes the values of a series in order, oldest first, and holds one number. Values that are not finite are
passed over: one of them would otherwise spoil the number for the rest of the run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from .undefined import Undefined


class Fold(ABC):
    """One number of one series.

    Attributes:
        number: The number; None before the first finite value.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number: float | None = None

    def append(self, value: float) -> None:
        """Take the next value of the series."""
        if math.isfinite(value):
            self.number = value if self.number is None else self.following(self.number, value)

    @abstractmethod
    def following(self, number: float, value: float) -> float:
        """The number after one more value."""

    def read(self) -> float:
        """The number.

        Raises:
            Undefined: The series has had no finite value yet.
        """
        if self.number is None:
            raise Undefined("no values")
        return self.number


class Ema(Fold):
    """The exponential moving average ``e + 2 / (n + 1) * (value - e)``, which begins with the first value.

    Args:
        length: How many values it averages over, roughly: the n of the formula.
    """

    __slots__ = ("_weight",)

    def __init__(self, length: int) -> None:
        super().__init__()
        self._weight = 2 / (length + 1)

    def following(self, number: float, value: float) -> float:
        """The average, moved towards the value."""
        return number + self._weight * (value - number)


class Peak(Fold):
    """The greatest value so far."""

    __slots__ = ()

    def following(self, number: float, value: float) -> float:
        """The greater of the two."""
        return max(number, value)


EMA: Final = "ema"
PEAK: Final = "peak"


def make_fold(name: str, length: int) -> Fold:
    """The fold of that name; the length is that of an average and means nothing to a peak."""
    return Ema(length) if name == EMA else Peak()


def ema(values: Iterable[float], length: int) -> float:
    """The exponential moving average after those values.

    Raises:
        Undefined: None of them is finite.
        ValueError: The length is below 1.

    >>> ema([1.0, 2.0], 3)
    1.5
    """
    if length < 1:
        raise ValueError(f"an average is over at least one value, not {length}")
    return _folded(Ema(length), values)


def peak(values: Iterable[float]) -> float:
    """The greatest of those values that are finite.

    Raises:
        Undefined: None of them is.
    """
    return _folded(Peak(), values)


def _folded(fold: Fold, values: Iterable[float]) -> float:
    for value in values:
        fold.append(value)
    return fold.read()
