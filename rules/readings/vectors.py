"""The value of a reading at each row of a run, undefined values included.

This module imports numpy: only the column answers of readings load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]


class Vector(NamedTuple):
    """The value of a term at each row.

    Attributes:
        values: One per row, or one for all rows: floats or truth values. Arbitrary where undefined.
        defined: Whether each is defined; None if all are.
    """

    values: Any
    defined: Truths | None


def both(parts: Iterable[Truths | None]) -> Truths | None:
    """Return where all of them are defined; None means everywhere."""
    result: Any = None
    for part in parts:
        if part is not None:
            result = part if result is None else result & part
    return result  # type: ignore[no-any-return]


def taken(values: npt.NDArray[Any], place: Ints) -> Vector:
    """Return the values at those indices, undefined where an index is negative."""
    known = place >= 0
    if not len(values):
        return Vector(np.zeros(len(place), values.dtype), known)
    return Vector(values[np.maximum(place, 0)], None if known.all() else known)


def difference(newest: Vector, older: Vector) -> Vector:
    """Return the one less the other, defined where both are."""
    return Vector(newest.values - older.values, both([newest.defined, older.defined]))


def spread(numbers: Floats, defined: Truths | None, place: Ints, *, is_own: bool) -> Vector:
    """Return at each row what is known at each value of a series.

    Args:
        numbers, defined: At each value.
        place: For each row the index of the newest value; -1 before the first.
        is_own: Whether each row has a value of its own.
    """
    if is_own:
        return Vector(numbers, defined)
    found = taken(numbers, place)
    return found if defined is None else Vector(found.values, both([found.defined, taken(defined, place).values]))


def nowhere(rows: int) -> Vector:
    """Return a vector that is undefined at each row."""
    return Vector(np.zeros(rows), np.zeros(rows, np.bool_))
