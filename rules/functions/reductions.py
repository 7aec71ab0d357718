"""Reduces the values of a window to one number, in one documented order of operations.

Every sum here runs left to right, oldest value first, in plain float additions that start at 0.0. Python's own ``sum``
compensates from 3.12 on, and numpy and DuckDB add pairwise. All of them differ in the last bits, and a decision must
not depend on which one computed it. A window that holds NaN gives NaN under every reduction but ``count``, ``first``
and ``last``, which look at no values or at one.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from .undefined import Undefined

_NAN = float("nan")

#: Whether Python's own sum adds floats plainly, left to right: it does before 3.12, and is faster than a loop.
SUM_IS_PLAIN: Final = sys.version_info < (3, 12)

if SUM_IS_PLAIN:

    def added(values: Sequence[float]) -> float:
        """Return the sum, left to right, from 0.0 on; 0.0 for no values."""
        return sum(values, 0.0)

else:

    def added(values: Sequence[float]) -> float:
        """Return the sum, left to right, from 0.0 on; 0.0 for no values."""
        result = 0.0
        for value in values:
            result += value
        return result


def total(values: Sequence[float]) -> float:
    """Return the sum, left to right.

    Raises:
        Undefined: For no values.
    """
    if not values:
        raise Undefined("no values")
    return added(values)


def mean(values: Sequence[float]) -> float:
    """Return the sum divided by the number of values.

    Raises:
        Undefined: For no values.

    >>> mean([1.0, 2.0, 4.5])
    2.5
    """
    if not values:
        raise Undefined("no values")
    return added(values) / len(values)


def var(values: Sequence[float]) -> float:
    """Return the variance of the values themselves (ddof 0), in two passes: the mean, then the squared distances.

    Raises:
        Undefined: For no values.

    >>> var([1.0, 5.0])
    4.0
    """
    middle = mean(values)
    squares = 0.0
    for value in values:
        distance = value - middle
        squares += distance * distance
    return squares / len(values)


def std(values: Sequence[float]) -> float:
    """Return the square root of the variance.

    Raises:
        Undefined: For no values.

    >>> std([1.0, 3.0])
    1.0
    """
    return math.sqrt(var(values))


def slope(values: Sequence[float]) -> float:
    """Return the least-squares slope over the positions 0 to n-1, in metric units per value.

    The sum of ``(position - (n-1)/2) * (value - mean)``, divided by ``n * (n*n - 1) / 12``.

    Raises:
        Undefined: For fewer than two values.

    >>> slope([1.0, 3.0, 5.0])
    2.0
    """
    return _line(values)[1]


def detrended_std(values: Sequence[float]) -> float:
    """Return the standard deviation (ddof 0) around the least-squares line through the values.

    It is the root of the mean square of the residuals ``(value - mean) - slope * (position - (n-1)/2)``.

    Raises:
        Undefined: For fewer than two values.

    >>> detrended_std([1.0, 2.0, 3.0])
    0.0
    """
    middle, rise = _line(values)
    position = -(len(values) - 1) / 2
    squares = 0.0
    for value in values:
        distance = (value - middle) - rise * position
        squares += distance * distance
        position += 1.0
    return math.sqrt(squares / len(values))


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and slope of the least-squares line."""
    count = len(values)
    if count < 2:
        raise Undefined("a slope needs two values")
    middle = mean(values)
    position = -(count - 1) / 2
    products = 0.0
    for value in values:
        products += position * (value - middle)
        position += 1.0
    return middle, products / (count * (count * count - 1) / 12)


def least(values: Sequence[float]) -> float:
    """Return the smallest value; the older of two equal ones (-0.0 equals 0.0); NaN when any value is NaN.

    Raises:
        Undefined: For no values.
    """
    if not values:
        raise Undefined("no values")
    result = values[0]
    for value in values:
        if value != value:
            return _NAN
        if value < result:
            result = value
    return result


def greatest(values: Sequence[float]) -> float:
    """Return the greatest value; the older of two equal ones (-0.0 equals 0.0); NaN when any value is NaN.

    Raises:
        Undefined: For no values.
    """
    if not values:
        raise Undefined("no values")
    result = values[0]
    for value in values:
        if value != value:
            return _NAN
        if value > result:
            result = value
    return result


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, interpolated linearly between its two neighbours.

    Its position in sorted order is ``share * (n - 1)``. Its value is ``low + part * (high - low)``, from the neighbour
    below; of two equal neighbours their value. It is NaN between -inf and a greater value.

    Args:
        values: The window, oldest first.
        share: From 0.0, the least value, to 1.0, the greatest.

    Raises:
        Undefined: For no values.
        ValueError: For a share outside of 0 to 1.

    >>> quantile([4.0, 1.0, 3.0], 0.25)
    2.0
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a quantile is taken at a share from 0 to 1, not at {share}")
    if not values:
        raise Undefined("no values")
    for value in values:
        if value != value:
            return _NAN
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    part = place - below
    if part == 0:
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    return low + part * (0.0 if low == high else high - low)  # inf minus inf would be NaN.


def median(values: Sequence[float]) -> float:
    """Return the value in the middle, or halfway between the two in the middle.

    Raises:
        Undefined: For no values.

    >>> median([3.0, 1.0, 2.0, 10.0])
    2.5
    """
    return quantile(values, 0.5)


def mad(values: Sequence[float]) -> float:
    """Return the median distance from the median.

    Raises:
        Undefined: For no values.

    >>> mad([1.0, 2.0, 3.0, 10.0])
    1.0
    """
    middle = median(values)
    return median([abs(value - middle) for value in values])


def zscore(values: Sequence[float], newest: float) -> float:
    """Return how many standard deviations of a window a value is above its mean.

    Raises:
        Undefined: For no values, and where all are equal.

    >>> zscore([1.0, 3.0], 4.0)
    2.0
    """
    deviation = std(values)
    if deviation == 0:
        raise Undefined("the values do not differ")
    return (newest - mean(values)) / deviation


def rate(values: Sequence[float], steps: Sequence[float]) -> float:
    """Return the newest value less the oldest, per step between them.

    Raises:
        Undefined: No step lies between them.

    >>> rate([1.0, 5.0], [10, 20])
    0.4
    """
    if len(values) < 2 or steps[-1] == steps[0]:
        raise Undefined("a rate needs two steps")
    return (values[-1] - values[0]) / (steps[-1] - steps[0])


def slope_per_step(values: Sequence[float], steps: Sequence[float]) -> float:
    """Return the least-squares slope over the steps of the values.

    The sum of ``(step - mean step) * (value - mean)``, divided by the sum of ``(step - mean step) ** 2``.

    Raises:
        Undefined: No step lies between the values.

    >>> slope_per_step([1.0, 3.0, 7.0], [10, 20, 40])
    0.2
    """
    if len(values) < 2 or steps[-1] == steps[0]:
        raise Undefined("a slope needs two steps")
    middle, centre = mean(values), mean(steps)
    products = squares = 0.0
    for value, step in zip(values, steps, strict=True):
        distance = step - centre
        products += distance * (value - middle)
        squares += distance * distance
    return products / squares


def count(values: Sequence[float]) -> int:
    """Return the number of values; 0 for none."""
    return len(values)


def first(values: Sequence[float]) -> float:
    """Return the oldest value.

    Raises:
        Undefined: For no values.
    """
    if not values:
        raise Undefined("no values")
    return values[0]


def last(values: Sequence[float]) -> float:
    """Return the newest value.

    Raises:
        Undefined: For no values.
    """
    if not values:
        raise Undefined("no values")
    return values[-1]


def age_of_least(values: Sequence[float]) -> float:
    """Return how many values ago the smallest came, the oldest of equal ones; 0 for the newest, NaN when any is NaN.

    Raises:
        Undefined: For no values.

    >>> age_of_least([2.0, 1.0, 1.0, 3.0])
    2
    """
    smallest = least(values)
    return _NAN if smallest != smallest else len(values) - 1 - values.index(smallest)


def age_of_greatest(values: Sequence[float]) -> float:
    """Return how many values ago the greatest came, the oldest of equal ones; 0 for the newest, NaN when any is NaN.

    Raises:
        Undefined: For no values.
    """
    biggest = greatest(values)
    return _NAN if biggest != biggest else len(values) - 1 - values.index(biggest)


def older(values: Sequence[float]) -> Sequence[float]:
    """Return the older half of a window; of an odd number of values, the smaller half."""
    return values[: len(values) // 2]


def recent(values: Sequence[float]) -> Sequence[float]:
    """Return the newer half of a window; of an odd number of values, the greater half."""
    return values[len(values) // 2 :]


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
        self.number = self.with_value(value)

    def with_value(self, value: float) -> float | None:
        """Return the number after one more value that is not skipped; as it was where that is not finite."""
        if not math.isfinite(value):
            return self.number
        return self.starting(value) if self.number is None else self.following(self.number, value)

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


class Improved(Fold):
    """Whether the newest value is better than the last improvement by more than a margin, as early stopping counts.

    The first finite value is an improvement. A value that improves by less leaves the best as it was, so that many
    small steps add up to one improvement. A value that is not finite is none. This is how Keras, Lightning and the
    Trainer of Hugging Face count with ``min_delta``, ``min_delta`` and ``early_stopping_threshold``.

    Args:
        by: The margin.
        skip: How many of the newest values are left out.
        is_up: Whether greater is better.
    """

    __slots__ = ("_best", "_by", "_sign")

    def __init__(self, by: float, skip: int = 0, *, is_up: bool = False) -> None:
        super().__init__(skip)
        self._by = by
        self._sign = -1 if is_up else 1
        self._best = math.inf

    def with_value(self, value: float) -> float:
        """Return 1 for an improvement, else 0."""
        return self.following(0, value) if math.isfinite(value) else 0

    def following(self, number: float, value: float) -> float:  # noqa: ARG002 - as all folds take it
        """Return 1 for an improvement, else 0."""
        signed = self._sign * value
        if signed >= self._best - self._by:
            return 0
        self._best = signed
        return 1

    def read(self) -> bool:
        """Return whether the newest value is an improvement.

        Raises:
            Undefined: The series has had no value yet.
        """
        return super().read() == 1


EMA: Final = "ema"
IMPROVED: Final = "improved"
#: The same fold where greater is better, as the name of the series says.
IMPROVED_UP: Final = "improved_up"
IMPROVEMENTS: Final = frozenset({IMPROVED, IMPROVED_UP})
_FOLDS: Final[Mapping[str, type[Fold]]] = MappingProxyType(
    {"peak": Peak, "trough": Trough, "initial": Initial, "streak": Streak}
)
#: The functions that fold a whole series.
FOLDS: Final = frozenset({EMA, IMPROVED, *_FOLDS})


def make_fold(name: str, amount: float, skip: int = 0) -> Fold:
    """Return the fold of that name; ``amount`` is the n of an average or the margin of an improvement."""
    if name == EMA:
        return Ema(int(amount), skip)
    return Improved(amount, skip, is_up=name == IMPROVED_UP) if name in IMPROVEMENTS else _FOLDS[name](skip)


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
