"""Finds several logs of one training, such as a tracker's and a CSV logger's: they hold the same series.

Takes a run's stream, returns digests of its series; takes the digests of many runs, returns which repeat which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from .event_stream import EventStream
from .metric_names import mode_of

#: A series of fewer values, or of fewer distinct ones, may equal another training's by chance.
FEWEST_VALUES: Final = 20
FEWEST_DISTINCT: Final = 10

#: Maximum number of series of a run that are digested: one in common suffices.
MOST_SERIES: Final = 32


def series_digests(stream: EventStream) -> frozenset[str]:
    """Return a digest of each series of losses and scores, whatever its name: of its steps and its values.

    Schedules and counters, which different trainings share, are left out: their names tell no direction. Values are
    compared at 32 bits, because TensorBoard stores no more; NaN counts as no value. Evaluations of a name and its other
    values are two series.
    """
    return frozenset(_digests(stream))


def repeated_by(series: Sequence[frozenset[str]], weights: Sequence[tuple[object, ...]]) -> dict[int, int]:
    """Return for each run that repeats another's series the run that counts for both, by index.

    Args:
        series: The digests of each run. Runs with one in common hold the same training.
        weights: How much each run knows. The one of a training that knows most counts.
    """
    chosen: dict[str, int] = {}
    repeats: dict[int, int] = {}
    for index in sorted(range(len(series)), key=weights.__getitem__, reverse=True):
        same = {chosen[digest] for digest in series[index] if digest in chosen}
        first = max(same, key=weights.__getitem__, default=index)
        if first != index:
            repeats[index] = first
        for digest in series[index]:
            chosen.setdefault(digest, first)
    return repeats


def _digests(stream: EventStream) -> Iterator[str]:
    steps = np.array(stream.steps, np.int64)
    is_evaluation = np.array([kind == "evaluate" for kind in stream.kinds], np.bool_)
    for name in islice((name for name in stream.facts.metrics if mode_of(name) is not None), MOST_SERIES):
        values = np.array(stream.values(name), np.float64)  # A missing value becomes NaN.
        for of_kind in (is_evaluation, ~is_evaluation):
            at = of_kind & ~np.isnan(values)
            if np.count_nonzero(at) >= FEWEST_VALUES and (digest := _digest(steps[at], values[at])):
                yield digest


def _digest(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> str:
    """Return the digest of a series; empty for one of few distinct values."""
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32) + np.float32(0)  # One bit pattern for zero.
    if len(np.unique(singles)) < FEWEST_DISTINCT:
        return ""
    return hashlib.sha256(steps.tobytes() + singles.tobytes()).hexdigest()[:32]
