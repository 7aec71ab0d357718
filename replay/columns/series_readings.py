"""The series of one run as columns, at the rows where rules ask, and how far the run has come at each event.

Takes a run's columns; answers what readings ask of them. What changes only with the values of a series is computed at
each of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...rules.functions.plain_functions import Function
from ...rules.functions.reductions import make_fold
from ...rules.readings.reading import Extent, Half, NotColumnar, SeriesKey, SeriesReading
from ...rules.readings.vectors import Floats, Ints, Truths
from .stream import Stream, Values
from .window_values import WindowSums, folded, reduced, windowed


class SeriesReadings:
    """The values of one run's series, as rules read them.

    Args:
        stream: The run.

    Attributes:
        stream: As given.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._rows: dict[str, Ints] = {}
        self._places: dict[tuple[str, SeriesKey], tuple[Ints, bool]] = {}
        self._series: dict[SeriesKey, Values] = {}
        self._sums: dict[SeriesKey, WindowSums] = {}
        self._positions: dict[Extent, Floats] = {}
        self._at: dict[tuple[SeriesKey, Extent], Floats] = {}

    def rows(self, kind: str) -> Ints:
        """Return the indices of the events at which a trigger asks."""
        if kind not in self._rows:
            self._rows[kind] = self.stream.rows(kind)
        return self._rows[kind]

    def add_rows(self, kind: str, rows: Ints) -> None:
        """Let rules ask at those events, under the name of a kind that no event has."""
        self._rows[kind] = rows

    def add_values(self, key: SeriesKey, values: Values) -> None:
        """Add the values of a series of an expression."""
        self._series[key] = values

    def values(self, key: SeriesKey) -> Values:
        """Return the values of a series."""
        if key not in self._series:
            self._series[key] = self.stream.series(key)
        return self._series[key]

    def is_full(self, kind: str, window: SeriesReading) -> Truths:
        """Return whether a window of a number of values holds them all, at each row of a kind."""
        return self.place(kind, window.key)[0] + 1 >= (window.values_read or 0)

    def has_value(self, kind: str, key: SeriesKey) -> Truths:
        """Return whether a series has had a value at each row of a kind."""
        return self.place(kind, key)[0] >= 0

    def is_new(self, kind: str, key: SeriesKey) -> Truths:
        """Return whether a series has had a value since the row before."""
        return np.diff(self.place(kind, key)[0], prepend=-1) > 0

    def folded(self, function: str, key: SeriesKey, amount: float, skip: int) -> tuple[Floats, Truths]:
        """Return a fold after each value of a series, and where it is defined."""
        return folded(make_fold(function, amount, skip), self.values(key).values)

    def windowed(
        self, key: SeriesKey, function: Function, length: int, skip: int, half: Half | None, options: tuple[float, ...]
    ) -> tuple[Floats, Truths | None]:
        """Return a window by count at each value of its series, and where it is defined."""
        return windowed(self._sums_of(key), function, length, skip, half, options)

    def _sums_of(self, key: SeriesKey) -> WindowSums:
        if key not in self._sums:
            self._sums[key] = WindowSums(self.values(key).values)
        return self._sums[key]

    def place(self, kind: str, series: SeriesKey) -> tuple[Ints, bool]:
        """Return for each row the index of the newest value (-1 before the first), and whether each row has its own."""
        key = (kind, series)
        if key not in self._places:
            at, rows = self.values(series).at, self.rows(kind)
            self._places[key] = np.searchsorted(at, rows, side="right") - 1, np.array_equal(at, rows)
        return self._places[key]

    def sliced(
        self,
        key: SeriesKey,
        function: Function,
        begins: Ints,
        ends: Ints,
        *,
        options: tuple[float, ...],
        least: int,
        is_per_step: bool,
        newest: Ints | None,
    ) -> tuple[Floats, Truths]:
        """Return a function of each slice of a series, and where it is defined; see ``RunSeries.sliced``."""
        steps = self.value_positions(key, Extent.STEPS) if is_per_step else None
        sums = self._sums_of(key)
        return reduced(function, sums, begins, ends, options=options, least=least, steps=steps, newest=newest)

    def first_within(self, kind: str, key: SeriesKey, extent: Extent, length: float) -> Ints:
        """Return for each row the index of the first value within a length of it; 0 where the position is unknown."""
        place, _ = self.place(kind, key)
        reached = self.positions(extent)[self.rows(kind)]
        first = np.searchsorted(
            self.value_positions(key, extent), np.nan_to_num(reached, nan=-np.inf) - length, "right"
        )
        return np.where(np.isnan(reached), 0, np.minimum(first, place + 1))

    def value_positions(self, key: SeriesKey, extent: Extent) -> Floats:
        """Return how far the run had come at each value of a series."""
        if (key, extent) not in self._at:
            self._at[key, extent] = positions_of_values(self.values(key).at, self.positions(extent), extent)
        return self._at[key, extent]

    def positions(self, extent: Extent) -> Floats:
        """Return how far the run has come at each event; NaN where that is unknown."""
        if extent not in self._positions:
            self._positions[extent] = positions(self.stream, extent)
        return self._positions[extent]


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
