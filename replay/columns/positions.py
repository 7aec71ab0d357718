"""Computes how far a run has come at each of its events, in steps, epochs, seconds, samples or tokens.

Takes a stream; returns one position for each event, as the clock of the event engine knows it there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...rules.readings.reading import Extent
from .stream import Floats, Stream
from .terms import NotColumnar

#: The metrics that count samples or tokens: the number so far, and that of one update.
COUNTED_BY: Final = {
    Extent.SAMPLES: ("samples_seen", "batch_size"),
    Extent.TOKENS: ("tokens_seen", "num_tokens"),
}

_NS_PER_S: Final = 1e9
#: The position of a value that came before the run said how far it had come.
_BEFORE_ALL: Final = -1.0
#: The units that are counted from zero, so that a declared constant has a position.
_FROM_ZERO: Final = frozenset({Extent.STEPS, Extent.SECONDS})


def positions(stream: Stream, extent: Extent) -> Floats:
    """Return the position at each event; NaN where the run has not given one. Shape (n,), ascending.

    Raises:
        NotColumnar: The run counts samples or tokens backwards, or its count is NaN.
    """
    match extent:
        case Extent.STEPS:
            steps = np.where(stream.is_loop, np.maximum(stream.steps, 0), 0)
            return np.maximum.accumulate(steps).astype(np.float64)
        case Extent.SECONDS:
            return stream.clock_ns / _NS_PER_S
        case Extent.EPOCHS:
            epochs = np.where(stream.has_epoch, stream.epochs, stream.whole("epoch"))
            reached = np.maximum.accumulate(np.where(stream.is_loop & (epochs >= 0), epochs, -np.inf))
            return np.where(reached >= 0, reached, np.nan)
    total, part = COUNTED_BY[extent]
    added = _newest(stream, part, "step_end", is_summed=True)
    reported = _newest(stream, total)
    counted = np.where(np.isnan(reported), added, reported)
    if (np.diff(counted[~np.isnan(counted)]) < 0).any():
        raise NotColumnar(f"the run counts {extent} backwards")
    return counted


def positions_of_values(at: np.ndarray[tuple[int], np.dtype[np.int64]], reached: Floats, extent: Extent) -> Floats:
    """Return the positions at which values came; -1 for those that came before the run gave a position.

    Args:
        at: The events that brought the values, ascending; -1 for a declared constant.
        reached: The position at each event.
        extent: The unit.
    """
    start = 0.0 if extent in _FROM_ZERO else _BEFORE_ALL
    found = np.where(at >= 0, reached[np.maximum(at, 0)], start) if len(reached) else np.full(len(at), start)
    return np.where(np.isnan(found), _BEFORE_ALL, found)


def _newest(stream: Stream, metric: str, kind: str | None = None, *, is_summed: bool = False) -> Floats:
    """Return the newest value of a metric at each event, or the sum so far; NaN before the first."""
    result = np.full(len(stream), np.nan)
    found = stream.metrics.get(metric)
    if found is None:
        return result
    own = (stream.is_loop if kind is None else stream.is_any((kind,)))[found.at]
    at, values = found.at[own], found.values[own]
    if np.isnan(values).any():
        raise NotColumnar(f"'{metric}' is NaN")
    place = np.searchsorted(at, np.arange(len(stream)), side="right") - 1
    known = place >= 0
    result[known] = (np.cumsum(values) if is_summed else values)[place[known]]
    return result
