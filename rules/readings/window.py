"""A function over the last values of a series, such as ``mean(loss, 10)``: by count, steps, epochs, time or samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ..functions.table import Function
from .first_events import START, First, Never, PossibleCount
from .ranges import ANY, Range, around, between, rounded
from .reading import Extent, Half, Limits, Need, SeriesKey, SeriesReading, Sightings, ValueType

#: Functions that lie between the smallest and the greatest value of a window; the first ones are one of them.
MEMBERS: Final = frozenset({"min", "max", "first", "last"})
AMONG: Final = frozenset({"mean", "median", "quantile"})
DEVIATIONS: Final = frozenset({"std", "detrended_std"})
#: Functions that need two values.
_OF_TWO: Final = frozenset({"slope", "detrended_std", "rate", "zscore"})
#: From here on deviations of a window are added in another order.
FEW: Final = 64


class HeldCount(NamedTuple):
    """How many values a window holds where its function is defined."""

    least: int
    most: float


@dataclass(frozen=True, slots=True)
class Window(SeriesReading):
    """A reduction over the last values of a series.

    Attributes:
        function: The reduction.
        key: The series.
        length: How far it goes back.
        extent: The unit of the length.
        skip: How many of the newest values are left out, the current one first.
        half: The half of what remains that is read; None for all of it.
        options: Further arguments of the reduction.
        least: With fewer values than this it is undefined; None to take what there is.
        is_per_step: Whether the reduction reads the steps of the values, too.
    """

    function: Function
    key: SeriesKey
    length: float
    extent: Extent = Extent.VALUES
    skip: int = 0
    half: Half | None = None
    options: tuple[float, ...] = ()
    least: int | None = None
    is_per_step: bool = False

    @property
    def keep(self) -> int:
        """Values that the series must keep for it, as far as their number is known."""
        return int(self.length) + self.skip if self.extent is Extent.VALUES else 1 + self.skip

    @property
    def values_read(self) -> int:
        return self.keep

    @property
    def reads_newest(self) -> bool:
        return self.extent is Extent.VALUES and self.length == 1 and not self.skip

    @property
    def steps_back(self) -> float:
        return self.length if self.extent is Extent.STEPS else 0

    @property
    def takes_less(self) -> bool:
        return True

    @property
    def need(self) -> Need:
        """As many values, and those of its length; for a function of steps also the step of each."""
        reach: dict[Extent, float] = {} if self.extent is Extent.VALUES else {self.extent: self.length}
        if self.is_per_step:
            reach.setdefault(Extent.STEPS, 0)
        return Need(self.keep, reach)

    @property
    def unit(self) -> Extent:
        return self.extent

    @property
    def is_plain(self) -> bool:
        """Whether it is just the last ``length`` values, without options."""
        is_bare = not self.skip and self.half is None and not self.options and self.least is None
        return is_bare and self.extent is Extent.VALUES and not (self.is_per_step or self.function.reads_newest)

    @property
    def value_type(self) -> ValueType:
        """A whole number for a count, else a float."""
        return ValueType.WHOLE if self.function.is_whole else ValueType.FLOAT

    @property
    def is_count(self) -> bool:
        """Whether it counts values."""
        return self.function.name == "count"

    # --- bounds -------------------------------------------------------------------------------------------------

    def held(self, limits: Limits, *, is_full: bool | None = None) -> HeldCount:
        """Return how many values it holds where it is defined.

        Args:
            limits: What is known of its series.
            is_full: Whether it counts only once it is full, if it is one by count; by default as the limits say.
        """
        two = 2 if self.function.name in _OF_TWO else 1
        if self.extent is not Extent.VALUES:
            return HeldCount(max(two, self.least or 0), math.inf)
        if is_full is None:
            is_full = limits.is_full or limits.in_series
        length, known = int(self.length), limits.known.get(self.key, 0)
        has = length if is_full and self.least is None else min(length, max(known - self.skip, 0))
        most, least = self._half_of(length), self._half_of(has)
        return HeldCount(min(max(two, self.least or 0, least), most), most)

    def _half_of(self, length: int) -> int:
        if self.half is None:
            return length
        return length // 2 if self.half is Half.OLDER else length - length // 2

    def bounds(self, limits: Limits) -> Range:
        """Return the range of the function over values of its series' range."""
        name, inner = self.function.name, limits.series(self.key)
        if name == "count":
            return self._count_bounds(limits)
        if name == "zscore":
            is_newest_within = not self.skip and self.half is None and self.extent is Extent.VALUES
            return standardized(int(self.length)) if is_newest_within and self.length < FEW else ANY
        if name in ("argmin", "argmax"):
            most = max(self.held(limits).most - 1, 0)
            found = between(0, most, is_whole=True)
            return found.because(f"the oldest of its values is {most:g} ago") if most < math.inf else found
        if name in MEMBERS:
            return inner
        return _amid(inner, name) if name in AMONG else self._spread(limits, inner)

    def _count_bounds(self, limits: Limits) -> Range:
        held = self.held(limits, is_full=limits.in_series)
        least = 0 if self.least is None and not limits.in_series else held.least
        found = between(least, held.most, is_whole=True, may_be_nan=False)
        return found.because(f"the window holds at most {held.most:g} values") if held.most < math.inf else found

    def _spread(self, limits: Limits, inner: Range) -> Range:
        """Return the range of what measures the differences within the window, or their sum."""
        name, width, held = self.function.name, inner.high - inner.low, self.held(limits)
        low = 0.0
        if name == "sum":
            low, high = (end * held.most if end else 0.0 for end in (min(0.0, inner.low), max(0.0, inner.high)))
            return replace(rounded(inner, low, high), is_whole=inner.is_whole)
        if not math.isfinite(width):
            return ANY if name in ("slope", "rate") else between(0, math.inf)
        if name in DEVIATIONS:
            high = width / 2
        elif name == "var":
            high = width * width / 4
        elif name == "mad":
            high = width
        elif name == "slope" and not self.is_per_step:
            high = _steepest(max(held.least, 2)) * width
            low = -high
        else:
            return ANY
        slack = 1e-9 * (1 + width) * max(abs(inner.low), abs(inner.high))
        found = around(low, high, low - slack if low else 0.0, high + slack)
        proof = f"{name} of values from {inner.low:g} to {inner.high:g} is at most {high:.3g}"
        return replace(found, assumed=inner.assumed).because(proof)

    # --- first --------------------------------------------------------------------------------------------------

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when it has what its function needs: two values for a slope, twice that for its older half."""
        if self.is_count:
            return START
        least = max(2 if self.function.name in _OF_TWO else 1, self.least or 0)
        if self.half is not None:
            least = 2 * least - (self.half is Half.RECENT)
        if self.extent is Extent.VALUES:
            if self.length < least:
                return Never(f"a window too short for {self.function.name}")
            if seen.takes_whole_windows and self.least is None:
                least = int(self.length)
        return seen.values(self.key, least + self.skip)

    def counted(self, seen: Sightings) -> PossibleCount | None:
        """Return how it counts values, if it does."""
        if not self.is_count:
            return None
        longest = self.length if self.extent is Extent.VALUES else math.inf
        return PossibleCount(lambda number: seen.values(self.key, number + self.skip if number else 0), longest)


def standardized(length: int) -> Range:
    """Return the range of the newest of so many values less their mean, in standard deviations."""
    most, sure = math.sqrt(length - 1), math.sqrt(length) * (1 + 1e-9)
    proof = f"the newest of {length} values is at most sqrt({length} - 1) deviations from their mean"
    return around(-most, most, -sure, sure).because(proof)


def _steepest(least: int) -> float:
    """Return the greatest slope of at least so many values that lie between 0 and 1."""
    return 6 * (least * least // 4) / (least * (least * least - 1))


def _amid(inner: Range, name: str) -> Range:
    """Return the range of a mean, a median or a quantile of a window."""
    found = replace(rounded(inner, inner.low, inner.high), is_whole=False)
    if name != "quantile" or inner.is_whole:
        return found
    # It adds a part of a difference, which may round up.
    size = max(abs(inner.low), abs(inner.high))
    return replace(found, sure_high=inner.high + 1e-9 * size)
