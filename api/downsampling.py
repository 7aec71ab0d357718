"""Downsampling: a long series in, a short one with the same extremes out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from ..store.reading.bucket_extremes import ends_and_extremes

#: What one bucket keeps as long as every value is finite: its first, last, smallest and largest.
_KEPT_IF_FINITE: Final = 4


def kept_indices(values: Sequence[float], points: int) -> Sequence[int]:
    """Which values to keep of a series that is to be drawn with so many points.

    The series is cut into buckets of equal count. Each keeps its first and last value, its smallest and largest finite
    one, and of NaN, infinity and negative infinity the first each. So no spike or divergence drops out of a picture.

    Args:
        values: The series, oldest first.
        points: How many to keep at most; where that is less than 7, up to 7 may be kept.

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
        # Non-finite values take places of their own: make do with fewer buckets, in proportion.
        buckets = max(1, min(buckets - 1, buckets * points // len(kept)))
    return kept


def _kept(values: Sequence[float], buckets: int) -> Iterator[int]:
    bounds = [len(values) * i // buckets for i in range(buckets + 1)]
    for start, end in itertools.pairwise(bounds):
        yield from sorted(_kept_of_bucket(values[start:end], start))


def _kept_of_bucket(bucket: Sequence[float], start: int) -> set[int]:
    kept = {start, start + len(bucket) - 1}
    # A finite sum has finite terms only, which spares most buckets a look at each value. An overflow does no harm.
    if math.isfinite(sum(bucket)):
        return kept | {start + bucket.index(min(bucket)), start + bucket.index(max(bucket))}
    finite = [value for value in bucket if math.isfinite(value)]
    if finite:
        kept |= {start + bucket.index(min(finite)), start + bucket.index(max(finite))}
    kept |= {start + bucket.index(infinity) for infinity in (math.inf, -math.inf) if infinity in bucket}
    nan = next((i for i, value in enumerate(bucket) if math.isnan(value)), None)
    return kept if nan is None else kept | {start + nan}
