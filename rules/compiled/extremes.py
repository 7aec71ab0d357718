"""Tracks the minimum or maximum of a sliding window, at a cost per value that does not grow with its length."""

from __future__ import annotations

from collections import deque
from typing import Final

from ..functions.undefined import Undefined

_NAN: Final = float("nan")


class SlidingExtreme:
    """The minimum of the last ``length`` values, the older of two equal ones; or their maximum.

    A monotonic queue holds the values that can still become the minimum, in ascending order. Each value enters and
    leaves it once.

    Args:
        length: The window's length, in values.
        is_greatest: Whether to track the maximum, as the minimum of the negated values.
    """

    __slots__ = ("_candidates", "_count", "_last_nan", "_length", "_sign")

    def __init__(self, length: int, *, is_greatest: bool) -> None:
        self._length = length
        self._sign = -1.0 if is_greatest else 1.0
        self._count = 0
        self._last_nan = -length
        self._candidates: deque[tuple[int, float]] = deque()

    def append(self, value: float) -> None:
        """Append the next value."""
        candidates, key = self._candidates, value * self._sign
        if key != key:
            self._last_nan = self._count
        else:
            while candidates and candidates[-1][1] > key:
                candidates.pop()
            candidates.append((self._count, key))
        self._count += 1
        while candidates and candidates[0][0] < self._count - self._length:
            candidates.popleft()

    def read(self) -> float:
        """Return the extreme of the window; NaN when any of its values is NaN.

        Raises:
            Undefined: There is no value yet.
        """
        if not self._count:
            raise Undefined("no values")
        if self._last_nan >= self._count - self._length:
            return _NAN
        return self._candidates[0][1] * self._sign
