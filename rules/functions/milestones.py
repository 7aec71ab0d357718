"""Shares of a run's length, and the positions at which a run reaches them, in exact arithmetic.

Takes shares and a length; returns whole positions, such as the update at which a quarter of all updates is finished.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

#: The most shares of one call.
MAX_SHARES: Final = 10_000


def exact(number: float | str | Fraction) -> Fraction:
    """Return a number as the decimal as which it is written.

    >>> exact(0.07), exact("1/3")
    (Fraction(7, 100), Fraction(1, 3))
    """
    return Fraction(str(number))


def position_of(share: Fraction, length: float) -> int:
    """Return the first whole position at which a share of a length is reached.

    >>> position_of(Fraction(7, 100), 100), position_of(Fraction(1, 4), 10)
    (7, 3)
    """
    return math.ceil(share * Fraction(length))


def multiples(share: Fraction) -> tuple[Fraction, ...]:
    """Return a share and its multiples, up to the whole.

    >>> multiples(Fraction(2, 5))
    (Fraction(2, 5), Fraction(4, 5))
    """
    return tuple(share * times for times in range(1, math.floor(1 / share) + 1))
