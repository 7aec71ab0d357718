"""Finds several logs of one training, such as a tracker's and a CSV logger's: they hold the same series.

Takes a run's stream, returns digests of its series; takes the digests of many runs, returns which repeat which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...store.parquet.event_rows import Numbers
from .event_stream import EventStream
from .metric_names import mode_of

#: A series of fewer values, or of fewer distinct ones, may equal another training's by chance.
FEWEST_VALUES: Final = 20
FEWEST_DISTINCT: Final = 10

#: Number of values that usually show that a series has enough distinct ones.
_FIRST: Final = 64

#: Maximum number of metrics of a run that are digested: one in common suffices.
MOST_METRICS: Final = 32


class Knowledge(NamedTuple):
    """How much a log of a training knows, in an order that no path decides.

    Attributes:
        evaluations: Number of evaluations of the objective.
        clocks: Number of its clocks: of the training, and of the wall.
        events: Number of events.
        log_digest: Digest of the log.
    """

    evaluations: int
    clocks: int
    events: int
    log_digest: str


def digested(metrics: Iterable[str]) -> list[str]:
    """Return the metrics whose series are digested: losses and scores.

    Schedules and counters, which different trainings share, are left out: their names tell no direction.
    """
    return sorted(name for name in metrics if mode_of(name) is not None)[:MOST_METRICS]


def stream_digests(stream: EventStream, metrics: Iterable[str]) -> frozenset[str]:
    """Return a digest of each series of a stream, whatever its name: of its steps and its values.

    Values are compared at 32 bits, because TensorBoard stores no more; NaN counts as no value. Evaluations of a name
    and its other values are two series.

    Args:
        stream: The stream.
        metrics: The metrics to digest, from ``digested``.
    """
    is_evaluation = np.zeros(len(stream), np.bool_)
    is_evaluation[stream.rows("evaluate")] = True
    return frozenset(digest for name in metrics for digest in _digests(stream, is_evaluation, stream.numbers(name)))


def repeated_by(series: Sequence[frozenset[str]], weights: Sequence[Knowledge]) -> dict[int, int]:
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


def repeats(name: str, run_id: str) -> str:
    """Return why a run that repeats the series of the named one does not count."""
    return f"it repeats the series of {name} ({run_id})"


def _digests(stream: EventStream, is_evaluation: npt.NDArray[np.bool_], logged: Numbers) -> Iterator[str]:
    is_known = ~np.isnan(logged.values)
    of_evaluations = is_evaluation[logged.rows]
    for own in (of_evaluations & is_known, ~of_evaluations & is_known):
        is_long = np.count_nonzero(own) >= FEWEST_VALUES
        if is_long and (digest := _digest(stream.steps[logged.rows[own]], logged.values[own])):
            yield digest


def _digest(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> str:
    """Return the digest of a series; empty for one of few distinct values."""
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32) + np.float32(0)  # One bit pattern for zero.
    if _distinct(singles[:_FIRST]) < FEWEST_DISTINCT and _distinct(singles) < FEWEST_DISTINCT:
        return ""
    return hashlib.sha256(steps.tobytes() + singles.tobytes()).hexdigest()[:32]


def _distinct(values: npt.NDArray[np.float32]) -> int:
    """Count the distinct values of a series without NaN. ``np.unique`` would load ``numpy.ma``, in 45 ms."""
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1
