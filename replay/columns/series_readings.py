"""Computes what rules read of series, at all events of a kind in one run.

Takes a reference to a series; returns a vector. What changes only with the values of the series is computed at each of
them. Windows by steps, epochs, seconds, samples or tokens end at the event, and are slices of the values.
"""

from __future__ import annotations

import numpy as np

from ...rules.readings.ago import SeriesAge, SeriesAgo, SeriesRise
from ...rules.readings.fold import SeriesFold
from ...rules.readings.reading import MAX_WINDOW, Extent, Half, SeriesKey, SeriesReading
from ...rules.readings.series_value import SeriesChange, SeriesLength, SeriesValue
from ...rules.readings.window import Window
from .features import WindowSums, folded, windowed
from .positions import positions, positions_of_values
from .slices import reduced
from .stream import Floats, Ints, Stream, Truths, Values
from .vectors import Vector, both, taken


class SeriesReadings:
    """The values of one run's series, as rules read them.

    Args:
        stream: The run.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rows: dict[str, Ints] = {}
        self._places: dict[tuple[str, SeriesKey], tuple[Ints, bool]] = {}
        self._series: dict[SeriesKey, Values] = {}
        self._sums: dict[SeriesKey, WindowSums] = {}
        self._positions: dict[Extent, Floats] = {}
        self._at: dict[tuple[SeriesKey, Extent], Floats] = {}

    def rows(self, kind: str) -> Ints:
        """Return the indices of the events at which a trigger asks."""
        if kind not in self._rows:
            self._rows[kind] = self._stream.rows(kind)
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
            self._series[key] = self._stream.series(key)
        return self._series[key]

    def is_full(self, kind: str, window: Window) -> Truths:
        """Return whether a window of a number of values holds them all, at each row of a kind."""
        return self._place(kind, window.key)[0] + 1 >= window.keep

    def has_value(self, kind: str, key: SeriesKey) -> Truths:
        """Return whether a series has had a value at each row of a kind."""
        return self._place(kind, key)[0] >= 0

    def is_new(self, kind: str, key: SeriesKey) -> Truths:
        """Return whether a series has had a value since the row before."""
        return np.diff(self._place(kind, key)[0], prepend=-1) > 0

    def read(self, kind: str, reference: SeriesReading) -> Vector:
        """Return what a rule reads of a series at each row of a kind.

        Raises:
            NotColumnar: The run counts samples or tokens backwards.
        """
        match reference:
            case Window() if not _ends_at_values(reference):
                return self._sliced(kind, reference)
            case SeriesAgo():
                return self._ago(kind, reference)
            case SeriesRise():
                return self._rise(kind, reference)
            case SeriesAge():
                return self._age(kind, reference)
        return self._of_values(kind, reference)

    def _of_values(self, kind: str, reference: SeriesReading) -> Vector:
        """Return what changes only with the values of the series."""
        series = self.values(reference.key)
        place, is_own = self._place(kind, reference.key)
        match reference:
            case SeriesLength():
                return Vector((place + 1).astype(np.float64), None)
            case SeriesValue(_, back):
                return Vector(series.values, None) if is_own and not back else taken(series.values, place - back)
            case SeriesChange(_, back):
                return _less(taken(series.values, place), taken(series.values, place - back))
        numbers, defined = self._at_each_value(reference)
        if isinstance(reference, Window) and reference.function.name == "count":
            # The count of an empty window is 0, never undefined.
            counted = numbers if defined is None else np.where(defined, numbers, 0.0)
            return Vector(taken(counted, place).values * (place >= 0), None)
        if is_own:
            return Vector(numbers, defined)
        found = taken(numbers, place)
        return found if defined is None else Vector(found.values, both([found.defined, taken(defined, place).values]))

    def _at_each_value(self, reference: SeriesReading) -> tuple[Floats, Truths | None]:
        """Return a window or a fold at each value of the series, and where it is defined."""
        if isinstance(reference, SeriesFold):
            return folded(reference, self.values(reference.key).values)
        assert isinstance(reference, Window)
        return windowed(reference, self._sums_of(reference.key))

    def _rise(self, kind: str, reference: SeriesRise) -> Vector:
        place, _ = self._place(kind, reference.key)
        return _less(taken(self.values(reference.key).values, place), self._ago(kind, reference.before))

    def _sums_of(self, key: SeriesKey) -> WindowSums:
        if key not in self._sums:
            self._sums[key] = WindowSums(self.values(key).values)
        return self._sums[key]

    def _place(self, kind: str, series: SeriesKey) -> tuple[Ints, bool]:
        """Return for each row the index of the newest value (-1 before the first), and whether each row has its own."""
        key = (kind, series)
        if key not in self._places:
            at, rows = self.values(series).at, self.rows(kind)
            self._places[key] = np.searchsorted(at, rows, side="right") - 1, np.array_equal(at, rows)
        return self._places[key]

    def _sliced(self, kind: str, window: Window) -> Vector:
        """Return a window that ends at the event, or whose reduction reads more than its values."""
        key, known = window.key, None
        place, _ = self._place(kind, key)
        counts = place + 1
        ends = np.maximum(counts - window.skip, 0)
        if window.extent is Extent.VALUES:
            begins = np.maximum(counts - int(window.length) - window.skip, 0)
        else:
            begins = np.maximum(self._first_within(kind, key, window.extent, window.length), counts - MAX_WINDOW)
            # Without epochs, any number of them holds all values.
            known = None if window.extent is Extent.EPOCHS else ~np.isnan(self._reached(kind, window.extent))
        begins = np.minimum(begins, ends)
        if window.half is not None:
            middle = begins + (ends - begins) // 2
            begins, ends = (begins, middle) if window.half is Half.OLDER else (middle, ends)
        numbers, defined = reduced(
            window.function,
            self._sums_of(key),
            begins,
            ends,
            options=window.options,
            least=window.least or 0,
            steps=self._at_values(key, Extent.STEPS) if window.is_per_step else None,
            newest=place if window.function.reads_newest else None,
        )
        return Vector(numbers, both([defined, known]))

    def _ago(self, kind: str, reference: SeriesAgo) -> Vector:
        place, _ = self._place(kind, reference.key)
        first = self._first_within(kind, reference.key, reference.extent, reference.length)
        is_held = (first > 0) & (first >= place + 1 - MAX_WINDOW)
        return taken(self.values(reference.key).values, np.where(is_held, first - 1, -1))

    def _age(self, kind: str, reference: SeriesAge) -> Vector:
        place, _ = self._place(kind, reference.key)
        newest = taken(self._at_values(reference.key, reference.extent), place)
        reached = self._reached(kind, reference.extent)
        ages, known = reached - np.where(place >= 0, newest.values, 0.0), ~np.isnan(reached)
        if reference.limit is None:
            return Vector(ages, both([newest.defined, known]))
        return Vector(ages >= reference.limit, known)

    def _first_within(self, kind: str, key: SeriesKey, extent: Extent, length: float) -> Ints:
        """Return for each row the index of the first value within a length of it; 0 where the position is unknown."""
        place, _ = self._place(kind, key)
        reached = self._reached(kind, extent)
        first = np.searchsorted(self._at_values(key, extent), np.nan_to_num(reached, nan=-np.inf) - length, "right")
        return np.where(np.isnan(reached), 0, np.minimum(first, place + 1))

    def _reached(self, kind: str, extent: Extent) -> Floats:
        return self.positions(extent)[self.rows(kind)]

    def _at_values(self, key: SeriesKey, extent: Extent) -> Floats:
        if (key, extent) not in self._at:
            self._at[key, extent] = positions_of_values(self.values(key).at, self.positions(extent), extent)
        return self._at[key, extent]

    def positions(self, extent: Extent) -> Floats:
        """Return how far the run has come at each event; NaN where that is unknown."""
        if extent not in self._positions:
            self._positions[extent] = positions(self._stream, extent)
        return self._positions[extent]


def _less(newest: Vector, older: Vector) -> Vector:
    return Vector(newest.values - older.values, both([newest.defined, older.defined]))


def _ends_at_values(window: Window) -> bool:
    """Whether the values of a window change only with those of its series, and its reduction reads nothing else."""
    is_by_values = window.extent is Extent.VALUES and window.least is None
    return is_by_values and not (window.is_per_step or window.function.reads_newest)
