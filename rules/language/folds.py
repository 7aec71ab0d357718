"""Folds over a whole series that hold one number, without a window: moving average and peak.

Each fold takes the values of a series in order, oldest first, and holds one number. It skips values that are not
finite: one of them would spoil the number for the rest of the run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Final

from .undefined import Undefined


class Fold(ABC):
    """One number over one series.

    Args:
        skip: How many of the newest values are left out.

    Attributes:
        number: The number; None before the first finite value.
    """

    __slots__ = ("_skip", "_skipped", "number")

    def __init__(self, skip: int = 0) -> None:
        self.number: float | None = None
        self._skip = skip
        self._skipped: deque[float] = deque()

    def append(self, value: float) -> None:
        """Take the next value of the series."""
        if self._skip:
            self._skipped.append(value)
            if len(self._skipped) <= self._skip:
                return
            value = self._skipped.popleft()
        if math.isfinite(value):
            self.number = value if self.number is None else self.following(self.number, value)

    @abstractmethod
    def following(self, number: float, value: float) -> float:
        """Return the number after one more value."""

    def read(self) -> float:
        """Return the number.

        Raises:
            Undefined: The series has had no finite value yet.
        """
        if self.number is None:
            raise Undefined("no values")
        return self.number


class Ema(Fold):
    """The exponential moving average ``e + 2 / (n + 1) * (value - e)``, which starts at the first value.

    Args:
        length: The n of the formula: roughly the number of values that it averages over.
        skip: How many of the newest values are left out.
    """

    __slots__ = ("_weight",)

    def __init__(self, length: int, skip: int = 0) -> None:
        super().__init__(skip)
        self._weight = 2 / (length + 1)

    def following(self, number: float, value: float) -> float:
        """Return the average, moved towards the value."""
        return number + self._weight * (value - number)


class Peak(Fold):
    """The greatest value so far."""

    __slots__ = ()

    def following(self, number: float, value: float) -> float:
        """Return the greater of the two."""
        return max(number, value)


EMA: Final = "ema"
PEAK: Final = "peak"


def make_fold(name: str, length: int, skip: int = 0) -> Fold:
    """Return the fold of that name; ``length`` is the n of an average, and a peak ignores it."""
    return Ema(length, skip) if name == EMA else Peak(skip)


def ema(values: Iterable[float], length: int) -> float:
    """Return the exponential moving average of the values.

    Raises:
        Undefined: No value is finite.
        ValueError: The length is below 1.

    >>> ema([1.0, 2.0], 3)
    1.5
    """
    if length < 1:
        raise ValueError(f"an average is over at least one value, not {length}")
    return _folded(Ema(length), values)


def peak(values: Iterable[float]) -> float:
    """Return the greatest finite value.

    Raises:
        Undefined: No value is finite.
    """
    return _folded(Peak(), values)


def _folded(fold: Fold, values: Iterable[float]) -> float:
    for value in values:
        fold.append(value)
    return fold.read()
