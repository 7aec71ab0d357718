"""When the values of a series came: the value of so many steps ago, the rise since then, and the newest one's age."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ..functions.plain_functions import Function
from .call import EXTENTS, Call
from .first_events import START, First
from .generated import call, name
from .ranges import TRUTH, Range, calculated
from .reading import (
    MAX_WINDOW,
    Code,
    Extent,
    Need,
    RunSeries,
    SeriesKey,
    SeriesReading,
    SeriesValues,
    Sightings,
    ValueLimits,
    ValueType,
)

if TYPE_CHECKING:
    from .vectors import Vector


#: The function of a series that also takes a state's name.
AGE: Final = "age"
#: The functions of when the newest value came.
FUNCTIONS: Final = (
    Function(
        AGE,
        'age(s), age("state")',
        "How many steps ago the newest value came, or the state changed. Undefined before the first.",
    ),
    Function(
        "absent",
        "absent(s, steps=n)",
        "Whether the newest value came at least n steps ago; before the first value, whether the run is so long.",
    ),
)


@dataclass(frozen=True, slots=True)
class SeriesAgo(SeriesReading):
    """The newest value of a series that is at least ``length`` old.

    Attributes:
        key: The series.
        length: How far back it looks.
        extent: The unit of the length; not values.
    """

    key: SeriesKey
    length: float
    extent: Extent

    examples: ClassVar[tuple[str, ...]] = ("lag(loss, steps=2)", "lag(loss, epochs=0.2)")
    value_type: ClassVar[ValueType] = ValueType.FLOAT

    @classmethod
    def bind(cls, call: Call) -> SeriesAgo | None:
        """Return the value that one keyword asks for, such as ``steps=100``."""
        (word, length), *more = call.keywords.items()
        extent = EXTENTS.get(word, Extent.VALUES)
        if extent is Extent.VALUES or more or call.further:
            call.refuse_arguments()
            return None
        found = call.length(length, extent)
        return None if found is None else cls(call.key, found, extent)

    @property
    def unit(self) -> Extent:
        return self.extent

    @property
    def steps_back(self) -> float:
        return self.length if self.extent is Extent.STEPS else 0

    @property
    def need(self) -> Need:
        return Need(reach={self.extent: self.length})

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(name(code.names.reader_of(self)))

    def reader(self, series: SeriesValues) -> Callable[[], float]:
        length, extent = self.length, self.extent
        return lambda: series.value_before(extent, length)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        import numpy as np

        from .vectors import taken

        place, _ = columns.place(kind, self.key)
        first = columns.first_within(kind, self.key, self.extent, self.length)
        is_held = (first > 0) & (first >= place + 1 - MAX_WINDOW)
        return taken(columns.values(self.key).values, np.where(is_held, first - 1, -1))

    def bounds(self, limits: ValueLimits) -> Range:
        return limits.series(self.key)

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the series has its first value: how long a step takes is not known."""
        return seen.values(self.key, 1)


@dataclass(frozen=True, slots=True)
class SeriesRise(SeriesReading):
    """The newest value of a series less the newest one that is at least ``before.length`` old."""

    before: SeriesAgo

    examples: ClassVar[tuple[str, ...]] = ("delta(loss, steps=2)", "delta(eval_loss, seconds=1.5)")
    value_type: ClassVar[ValueType] = ValueType.FLOAT

    @classmethod
    def bind(cls, call: Call) -> SeriesRise | None:
        before = SeriesAgo.bind(call)
        return None if before is None else cls(before)

    @property
    def key(self) -> SeriesKey:  # type: ignore[override]
        """The series."""
        return self.before.key

    @property
    def unit(self) -> Extent:
        return self.before.extent

    def of_series(self, key: SeriesKey) -> SeriesRise:
        return SeriesRise(self.before.of_series(key))

    @property
    def steps_back(self) -> float:
        return self.before.steps_back

    @property
    def need(self) -> Need:
        return self.before.need

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(name(code.names.reader_of(self)))

    def reader(self, series: SeriesValues) -> Callable[[], float]:
        length, extent = self.before.length, self.before.extent
        return lambda: series.values[-1] - series.value_before(extent, length)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import difference, taken

        newest = taken(columns.values(self.key).values, columns.place(kind, self.key)[0])
        return difference(newest, self.before.column(columns, kind))

    def bounds(self, limits: ValueLimits) -> Range:
        return calculated(ast.Sub(), limits.series(self.key), limits.series(self.key))

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the older value may be there."""
        return self.before.first(seen, wanted)


@dataclass(frozen=True, slots=True)
class SeriesAge(SeriesReading):
    """How long ago the newest value of a series came, in steps; or whether that is at least ``limit`` ago.

    Attributes:
        key: The series.
        limit: The length of time to compare with; None for the age itself.
        extent: The unit of the limit.
    """

    key: SeriesKey
    limit: float | None = None
    extent: Extent = Extent.STEPS

    examples: ClassVar[tuple[str, ...]] = ("age(eval_loss)", "absent(eval_loss, steps=2)")
    reads_newest: ClassVar[bool] = True

    @classmethod
    def bind(cls, call: Call) -> SeriesAge | None:
        """Return the age of the newest value, or whether it is absent for a length."""
        has_limit = call.function.name != AGE
        if has_limit and call.node.keywords:
            limit = SeriesAgo.bind(call)
            return None if limit is None else cls(call.key, limit.length, limit.extent)
        if has_limit or call.further or call.node.keywords:
            call.refuse_arguments()
            return None
        return cls(call.key)

    @property
    def value_type(self) -> ValueType:
        """A truth with a limit, else a whole number of steps."""
        return ValueType.WHOLE if self.limit is None else ValueType.TRUTH

    @property
    def unit(self) -> Extent:
        return self.extent

    @property
    def steps_back(self) -> float:
        return self.limit if self.limit is not None and self.extent is Extent.STEPS else 0

    @property
    def need(self) -> Need:
        return Need(reach={self.extent: 0})

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(name(code.names.reader_of(self)))

    def reader(self, series: SeriesValues) -> Callable[[], float]:
        limit, extent = self.limit, self.extent
        return lambda: series.age(limit, extent)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        import numpy as np

        from .vectors import Vector, both, taken

        place, _ = columns.place(kind, self.key)
        newest = taken(columns.value_positions(self.key, self.extent), place)
        reached = columns.positions(self.extent)[columns.rows(kind)]
        ages, known = reached - np.where(place >= 0, newest.values, 0.0), ~np.isnan(reached)
        if self.limit is None:
            return Vector(ages, both([newest.defined, known]))
        return Vector(ages >= self.limit, known)

    def bounds(self, limits: ValueLimits) -> Range:
        """Return the range of a number of steps, or of a truth."""
        return limits.steps if self.limit is None else TRUTH

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the series has its first value; before, only a limit has an answer."""
        return seen.values(self.key, 1) if self.limit is None else START
