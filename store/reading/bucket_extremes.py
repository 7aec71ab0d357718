"""Downsamples a series: finds the first, last, lowest and highest value of each bucket, all buckets at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ends_and_extremes(values: Sequence[float], stretches: int) -> list[int] | None:
    """Return the indices of the first, last, first lowest and first highest value of each bucket of equal count.

    Args:
        values: The series; at least as long as the number of buckets.
        stretches: The number of buckets.

    Returns:
        Distinct indices in ascending order; None where a value is NaN or infinite.

    >>> ends_and_extremes([5.0, 1.0, 9.0, 2.0, 3.0, 3.0], 2)
    [0, 1, 2, 3, 4, 5]
    """
    series = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        return None
    bounds = np.arange(stretches + 1) * len(series) // stretches
    starts, counts = bounds[:-1], np.diff(bounds)
    places = [starts, bounds[1:] - 1]
    for extreme in (np.minimum, np.maximum):
        found = np.flatnonzero(series == np.repeat(extreme.reduceat(series, starts), counts))
        places.append(found[np.searchsorted(found, starts)])
    kept: list[int] = np.unique(np.concatenate(places)).tolist()
    return kept
