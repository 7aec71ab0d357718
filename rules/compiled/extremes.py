"""The least and the greatest of a window that slides, at a cost that does not grow with its length."""

from __future__ import annotations

from collections import deque
from typing import Final

from ..language.undefined import Undefined

_NAN: Final = float("nan")


class SlidingExtreme:
    """The smallest of the last so many values, the older of two equal ones, or the greatest.

    It holds the values that can still become the smallest: each is smaller than those after it would allow, so they
    stand in ascending order, and each value comes and goes once.

    Args:
        length: Of the window, in values.
        is_greatest: Whether the greatest is wanted, which is the smallest of the negated values.
    """

    __slots__ = ("_candidates", "_count", "_last_nan", "_length", "_sign")

    def __init__(self, length: int, *, is_greatest: bool) -> None:
        self._length = length
        self._sign = -1.0 if is_greatest else 1.0
        self._count = 0
        self._last_nan = -length
        self._candidates: deque[tuple[int, float]] = deque()

    def append(self, value: float) -> None:
        """Take the next value."""
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
        """The extreme of the window; NaN when any of its values is.

        Raises:
            Undefined: There is no value yet.
        """
        if not self._count:
            raise Undefined("no values")
        if self._last_nan >= self._count - self._length:
            return _NAN
        return self._candidates[0][1] * self._sign
