"""Sums floats exactly, many sums at once: the order in which values are added changes no bit.

Takes arrays of values as they come, returns their sums. The method is a superaccumulator (Kulisch, 1971): each value is
split into integers, one for each 32 bits of the exponent's range, and integers below 2**53 add up exactly in floats.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..columns.stream import Floats, Ints

_BITS: Final = 32


class ExactSums:
    """Sums of known values.

    Args:
        size: Number of sums.

    Attributes:
        counts: Number of values that each sum has. Shape (size,).
    """

    def __init__(self, size: int) -> None:
        self.counts: Ints = np.zeros(size, np.int64)
        self._parts: dict[int, Floats] = {}
        self._infinite: Floats = np.zeros(size)

    def add(self, values: Floats) -> None:
        """Add values, shape (size, n): each row to its own sum. NaN is no value.

        A sum holds at most 2**21 values.
        """
        known = ~np.isnan(values)
        self.counts += known.sum(axis=1)
        is_infinite = np.isinf(values)
        if is_infinite.any():
            with np.errstate(invalid="ignore"):
                self._infinite += np.where(is_infinite, values, 0.0).sum(axis=1)
        rest = np.where(known & ~is_infinite, values, 0.0)
        while (largest := float(np.abs(rest).max(initial=0.0))) > 0.0:
            place = (math.frexp(largest)[1] - 1) // _BITS
            part = np.trunc(np.ldexp(rest, -_BITS * place))
            rest -= np.ldexp(part, _BITS * place)
            if place not in self._parts:
                self._parts[place] = np.zeros(len(self.counts))
            self._parts[place] += part.sum(axis=1)

    def sums(self) -> Floats:
        """Return the sums, rounded once; NaN without a value, and where both infinities were added. Shape (size,)."""
        totals = np.zeros(len(self.counts))
        if self._parts:
            with np.errstate(over="ignore"):
                parts = [np.ldexp(part, _BITS * place) for place, part in sorted(self._parts.items())]
            totals = np.array([_rounded(row) for row in np.stack(parts, axis=1).tolist()])
        totals = np.where(self._infinite == 0.0, totals, self._infinite)
        return np.where(self.counts > 0, totals, np.nan)

    def means(self) -> Floats:
        """Return the means; NaN without a value. Shape (size,)."""
        return self.sums() / np.maximum(self.counts, 1)


def _rounded(parts: list[float]) -> float:
    try:
        return math.fsum(parts)
    except OverflowError:
        return sum(parts)
