"""From the values of a window to one number, in one documented order of operations.

Every sum here runs left to right, oldest value first, in plain float additions that start at 0.0. Python's own ``sum``
compensates from 3.12 on, and numpy and DuckDB add pairwise: all of them differ in the last bits, and a decision must
not depend on who computed it. A window with a NaN in it gives NaN, whatever the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .errors import Undefined

_NAN = float("nan")


def total(values: Sequence[float]) -> float:
    """The sum, left to right.

    Raises:
        Undefined: For no values.
    """
    if not values:
        raise Undefined("no values")
    result = 0.0
    for value in values:
        result += value
    return result


def mean(values: Sequence[float]) -> float:
    """The sum divided by the number of values.

    Raises:
        Undefined: For no values.

    >>> mean([1.0, 2.0, 4.5])
    2.5
    """
    if not values:
        raise Undefined("no values")
    result = 0.0
    for value in values:
        result += value
    return result / len(values)


def std(values: Sequence[float]) -> float:
    """The standard deviation of the values themselves (ddof 0), in two passes: the mean, then the squared distances.

    Raises:
        Undefined: For no values.

    >>> std([1.0, 3.0])
    1.0
    """
    middle = mean(values)
    squares = 0.0
    for value in values:
        distance = value - middle
        squares += distance * distance
    return math.sqrt(squares / len(values))


def slope(values: Sequence[float]) -> float:
    """The least-squares slope over the positions 0 to n-1, in metric units per value.

    The sum of ``(position - (n-1)/2) * (value - mean)``, divided by ``n * (n*n - 1) / 12``.

    Raises:
        Undefined: For fewer than two values.

    >>> slope([1.0, 3.0, 5.0])
    2.0
    """
    count = len(values)
    if count < 2:
        raise Undefined("a slope needs two values")
    middle = mean(values)
    position = -(count - 1) / 2
    products = 0.0
    for value in values:
        products += position * (value - middle)
        position += 1.0
    return products / (count * (count * count - 1) / 12)


def least(values: Sequence[float]) -> float:
    """The smallest value; the older of two equal ones (-0.0 equals 0.0); NaN when any value is NaN.

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
    """The greatest value; the older of two equal ones (-0.0 equals 0.0); NaN when any value is NaN.

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
