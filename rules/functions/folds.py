"""Folds over a whole series that hold one number, without a window, such as a moving average and a peak.

Each fold takes the values of a series in order, oldest first, and holds one number. It skips values that are not
finite: one of them would spoil the number for the rest of the run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
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
            self.number = self.starting(value) if self.number is None else self.following(self.number, value)

    def starting(self, value: float) -> float:
        """Return the number after the first value."""
        return value

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


class Trough(Fold):
    """The smallest value so far."""

    __slots__ = ()

    def following(self, number: float, value: float) -> float:
        """Return the smaller of the two."""
        return min(number, value)


class Initial(Fold):
    """The first value."""

    __slots__ = ()

    def following(self, number: float, value: float) -> float:  # noqa: ARG002 - as all folds take it
        """Return the first of the two."""
        return number


class Streak(Fold):
    """How many of the newest values in a row are not 0."""

    __slots__ = ()

    def starting(self, value: float) -> float:
        """Return 1 or 0."""
        return 1 if value else 0

    def following(self, number: float, value: float) -> float:
        """Return one more, or 0."""
        return number + 1 if value else 0


EMA: Final = "ema"
_FOLDS: Final[Mapping[str, type[Fold]]] = MappingProxyType(
    {"peak": Peak, "trough": Trough, "initial": Initial, "streak": Streak}
)
#: The functions that fold a whole series.
FOLDS: Final = frozenset({EMA, *_FOLDS})


def make_fold(name: str, length: int, skip: int = 0) -> Fold:
    """Return the fold of that name; ``length`` is the n of an average, and the others ignore it."""
    return Ema(length, skip) if name == EMA else _FOLDS[name](skip)


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


def trough(values: Iterable[float]) -> float:
    """Return the smallest finite value.

    Raises:
        Undefined: No value is finite.
    """
    return _folded(Trough(), values)


def _folded(fold: Fold, values: Iterable[float]) -> float:
    for value in values:
        fold.append(value)
    return fold.read()
