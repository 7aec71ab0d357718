"""Builds the function that reads a window of a series for a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..language.reductions import SUM_IS_PLAIN, older, recent
from ..language.references import Extent, Half, Window
from .extremes import SlidingExtreme
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


def window_reader(window: Window, series: Series) -> Callable[[], float]:
    """Return a function that reads a window of a series as of its newest value.

    It raises whatever the reduction raises: ``Undefined`` where there are no values.
    """
    if is_followed(window) and window.function.name in _EXTREMES:
        extreme = SlidingExtreme(int(window.length), is_greatest=window.function.name == "max")
        series.followers.append(extreme)
        return extreme.read
    if is_followed(window):
        # Imported here, so that only policies with long sums load numpy.
        from .long_windows import long_reader

        return long_reader(window, series)
    reduction = window.function.reduction
    assert reduction is not None
    values, options = _slicer(window, series), window.options
    if window.half is None:
        return lambda: reduction(values(), *options)
    half = _HALVES[window.half]
    return lambda: reduction(half(values()), *options)


def _slicer(window: Window, series: Series) -> Callable[[], list[float]]:
    """Return a function that slices the values of a window, oldest first."""
    values, skip = series.values, window.skip
    if window.extent is Extent.VALUES:
        back = int(window.length) + skip
        return lambda: values[max(0, len(values) - back) : max(0, len(values) - skip)]
    extent, length = window.extent, window.length
    return lambda: values[series.first_within(extent, length) : max(0, len(values) - skip)]
