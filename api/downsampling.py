"""Downsamples a long series to a few points that keep its extremes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from ..store.reading.plot_data import ends_and_extremes

#: Values that a bucket keeps if all are finite: its first, last, smallest and largest.
_KEPT_IF_FINITE: Final = 4


def kept_indices(values: Sequence[float], points: int) -> Sequence[int]:
    """Choose the values of a series to keep when it is drawn with a limited number of points.

    The series is cut into buckets of equal count. Each bucket keeps its first and last value, its smallest and largest
    finite value, and the first NaN, infinity and negative infinity. So no spike or divergence drops out of a picture.

    Args:
        values: The series, oldest first.
        points: Maximum number of values to keep. If it is below 7, up to 7 values may be kept.

    Returns:
        Indices in ascending order: all of them when there are no more than ``points``.

    >>> kept_indices([5.0, 1.0, 2.0, 9.0, 3.0, 4.0], 4)
    [0, 1, 3, 5]

    """
    if len(values) <= points:
        return range(len(values))
    buckets = max(1, points // _KEPT_IF_FINITE)
    if (kept_if_finite := ends_and_extremes(values, buckets)) is not None:
        return kept_if_finite
    values = [float(value) for value in values]
    while len(kept := list(_kept(values, buckets))) > points and buckets > 1:
        # Non-finite values take extra places: use proportionally fewer buckets.
        buckets = max(1, min(buckets - 1, buckets * points // len(kept)))
    return kept


def _kept(values: Sequence[float], buckets: int) -> Iterator[int]:
    bounds = [len(values) * i // buckets for i in range(buckets + 1)]
    for start, end in itertools.pairwise(bounds):
        yield from sorted(_kept_of_bucket(values[start:end], start))


def _kept_of_bucket(bucket: Sequence[float], start: int) -> set[int]:
    kept = {start, start + len(bucket) - 1}
    # A finite sum has only finite terms, which saves most buckets a check of each value. An overflow does no harm.
    if math.isfinite(sum(bucket)):
        return kept | {start + bucket.index(min(bucket)), start + bucket.index(max(bucket))}
    finite = [value for value in bucket if math.isfinite(value)]
    if finite:
        kept |= {start + bucket.index(min(finite)), start + bucket.index(max(finite))}
    kept |= {start + bucket.index(infinity) for infinity in (math.inf, -math.inf) if infinity in bucket}
    nan = next((i for i, value in enumerate(bucket) if math.isnan(value)), None)
    return kept if nan is None else kept | {start + nan}
