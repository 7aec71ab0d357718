"""Builds the functions by which rules read windows of a series, and when its values came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..functions.reductions import SUM_IS_PLAIN, older, recent
from ..functions.undefined import Undefined
from ..readings.ago import SeriesAge, SeriesAgo, SeriesRise
from ..readings.reading import Extent, Half
from ..readings.window import Window
from .extremes import SlidingExtreme
from .names import Look
from .series import Series

#: Windows of at least this many values are updated incrementally, with each new value of their series. An update costs
#: 1 us, however long the window is.
LONG: Final = 256 if SUM_IS_PLAIN else 64

#: Reductions that can follow a series value by value.
_EXTREMES: Final = frozenset({"min", "max"})
_FOLLOWED: Final = frozenset({"sum", "mean", "var", "std", "slope", "detrended_std", *_EXTREMES})
_HALVES: Final[dict[Half, Callable[[Sequence[float]], Sequence[float]]]] = {Half.OLDER: older, Half.RECENT: recent}


def is_followed(window: Window) -> bool:
    """Whether a window is long, and its reduction can follow the series."""
    return window.is_plain and window.length >= LONG and window.function.name in _FOLLOWED


def reader(look: Look, series: Series) -> Callable[[], float]:
    """Return a function that reads a window of a series, or when its values came, as of its newest value.

    It raises whatever the reduction raises: ``Undefined`` where there are no values.
    """
    match look:
        case SeriesAgo(_, length, extent):
            return lambda: series.value_before(extent, length)
        case SeriesRise(SeriesAgo(_, length, extent)):
            return lambda: series.values[-1] - series.value_before(extent, length)
        case SeriesAge(_, limit, extent):
            return lambda: series.age(limit, extent)
    return _window_reader(look, series)


def _window_reader(window: Window, series: Series) -> Callable[[], float]:
    if is_followed(window) and window.function.name in _EXTREMES:
        extreme = SlidingExtreme(int(window.length), is_greatest=window.function.name == "max")
        series.followers.append(extreme)
        return extreme.read
    if is_followed(window):
        # Imported here, so that only policies with long sums load numpy.
        from .long_windows import long_reader

        return long_reader(window, series)
    if window.extent is Extent.VALUES and not (window.is_per_step or window.function.reads_newest):
        return _remembered(window, series)
    values, options = _slicer(window, series, series.values), window.options
    if window.is_per_step:
        steps, per_step = _slicer(window, series, series.steps), window.function.per_step
        assert per_step is not None
        return lambda: per_step(values(), steps())
    reduction = window.function.reduction
    assert reduction is not None
    if window.function.reads_newest:
        return lambda: reduction(values(), series.values[-1])
    return lambda: reduction(values(), *options)


def _remembered(window: Window, series: Series) -> Callable[[], float]:
    """Return a function that reduces a window by count once for each value of its series, however many rules ask."""
    values, back, skip, least = series.values, int(window.length), window.skip, window.least or 0
    is_older, is_recent = window.half is Half.OLDER, window.half is Half.RECENT
    reduction, options = window.function.reduction, window.options
    assert reduction is not None
    read_at, result = -1, 0.0

    def remembered() -> float:
        nonlocal read_at, result
        held = len(values)
        if series.dropped + held == read_at:
            return result
        end = held - skip if held > skip else 0
        start = end - back if end > back else 0
        if is_older:
            end = (start + end) // 2
        elif is_recent:
            start = (start + end) // 2
        if end - start < least:
            raise Undefined("fewer values than the window needs")
        result = reduction(values[start:end], *options)
        read_at = series.dropped + held
        return result

    return remembered


def _slicer(window: Window, series: Series, kept: list[float]) -> Callable[[], Sequence[float]]:
    """Return a function that slices the window out of the values of a series, or out of their steps, oldest first."""
    within = _part(window, series, kept)
    half, least = None if window.half is None else _HALVES[window.half], window.least
    if half is None and least is None:
        return within

    def sliced() -> Sequence[float]:
        part = within() if half is None else half(within())
        if least is not None and len(part) < least:
            raise Undefined("fewer values than the window needs")
        return part

    return sliced


def _part(window: Window, series: Series, kept: list[float]) -> Callable[[], Sequence[float]]:
    skip = window.skip
    if window.extent is Extent.VALUES:
        back = int(window.length) + skip
        return lambda: kept[max(0, len(kept) - back) : max(0, len(kept) - skip)]
    extent, length = window.extent, window.length
    return lambda: kept[series.first_within(extent, length) : max(0, len(kept) - skip)]
