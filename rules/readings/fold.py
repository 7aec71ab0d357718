"""A number that is folded over a whole series: a moving average, a peak, a trough, the first value, a streak."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..functions.folds import EMA, Fold, make_fold
from ..functions.table import STREAK
from .first_events import First
from .generated import attribute, call, name
from .ranges import ANY, Range
from .reading import Code, Need, RunSeries, SeriesKey, SeriesReading, SeriesValues, Sightings, ValueLimits, ValueType

if TYPE_CHECKING:
    from .vectors import Vector


@dataclass(frozen=True, slots=True)
class SeriesFold(SeriesReading):
    """A number that is folded over a series from its first value on, without the ``skip`` newest ones."""

    function: str
    key: SeriesKey
    length: int
    skip: int = 0

    @property
    def value_type(self) -> ValueType:
        """A whole number for a streak, else a float."""
        return ValueType.WHOLE if self.function == STREAK else ValueType.FLOAT

    @property
    def values_read(self) -> int:
        return 1

    @property
    def need(self) -> Need:
        """Nothing more than the newest value: the fold follows the series."""
        return Need()

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(attribute(name(code.names.reader_of(self, "a")), "read"))

    def reader(self, series: SeriesValues) -> Fold:
        fold = make_fold(self.function, self.length, self.skip)
        series.followers.append(fold)
        return fold

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import spread

        numbers, defined = columns.folded(self.function, self.key, self.length, self.skip)
        place, is_own = columns.place(kind, self.key)
        return spread(numbers, defined, place, is_own=is_own)

    def bounds(self, limits: ValueLimits) -> Range:
        """Return the range of the finite values of the series, or of the lengths of a streak."""
        if self.function == STREAK:
            return limits.streak(self.key)
        if self.function != EMA:
            return replace(limits.series(self.key), may_be_nan=False)
        # A step towards a value does not pass it, however it is rounded.
        return replace(limits.series(self.key), is_whole=False, may_be_nan=False) if self.length > 1 else ANY

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the series has a value that is not skipped."""
        return seen.values(self.key, 1 + self.skip)
