"""The values of a series one by one: the newest, one some values or steps ago, a change, and how many there have been.

Also when they came: the rise since so many steps ago, and the newest value's age.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ..functions.plain_functions import Function
from .call import Call
from .first_events import START, First, PossibleCount
from .generated import attribute, name
from .ranges import NATURAL, Range, calculated
from .reading import (
    Code,
    RunSeries,
    SeriesKey,
    SeriesReading,
    Sightings,
    ValueLimits,
    ValueType,
    held_count,
    value_at,
)

if TYPE_CHECKING:
    from .vectors import Vector


from collections.abc import Callable
from typing import TYPE_CHECKING

from .call import EXTENTS
from .ranges import TRUTH
from .reading import (
    MAX_WINDOW,
    Extent,
    Need,
    SeriesValues,
)

if TYPE_CHECKING:
    from .vectors import Vector


#: The functions that compare with an older value.
OF_OLDER: Final = (
    Function(
        "lag",
        "lag(s, k), lag(s, steps=k)",
        "The value k values ago; lag(s, 0) is the newest. With a unit, the newest one that is at least so old. "
        "Undefined if there is none.",
    ),
    Function(
        "delta",
        "delta(s), delta(s, k), delta(s, steps=k)",
        "The newest value minus the one before it, or minus lag(s, k). Undefined if there is none.",
    ),
)
#: The functions of a series as a whole.
OF_WHOLE: Final = (
    Function(
        "len",
        "len(s), len(values)",
        "The number of values of a series so far (0 or more, never undefined), or the length of a list or text.",
        len,
    ),
    Function(
        "series",
        'series("name"), series("name", kind="log")',
        "A series whose name is not an identifier or is in a param, or that of one kind of event.",
    ),
)


@dataclass(frozen=True, slots=True)
class SeriesValue(SeriesReading):
    """The newest value of a series, or the one ``back`` values ago."""

    key: SeriesKey
    back: int = 0

    examples: ClassVar[tuple[str, ...]] = ("loss", "eval_loss", 'series("loss", kind="step_end")', "lag(loss, 2)")
    is_shown_by_name: ClassVar[bool] = True
    value_type: ClassVar[ValueType] = ValueType.FLOAT

    @classmethod
    def bind(cls, call: Call) -> SeriesValue | SeriesAgo | None:
        """Return the value so many values ago, or with a unit the newest one so old."""
        if call.node.keywords:
            return SeriesAgo.bind(call)
        if len(call.further) != 1:
            call.refuse_arguments()
            return None
        back = call.whole(call.further[0], 0, "window length")
        return None if back is None else cls(call.key, back)

    @property
    def values_read(self) -> int:
        return self.back + 1

    @property
    def is_nan_with_newest(self) -> bool:
        return not self.back

    @property
    def reads_newest(self) -> bool:
        return not self.back

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return value_at(code.names, self.key, self.back)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import Vector, taken

        values = columns.values(self.key).values
        place, is_own = columns.place(kind, self.key)
        return Vector(values, None) if is_own and not self.back else taken(values, place - self.back)

    def bounds(self, limits: ValueLimits) -> Range:
        return limits.series(self.key)

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        return seen.values(self.key, self.back + 1)


@dataclass(frozen=True, slots=True)
class SeriesChange(SeriesReading):
    """The newest value of a series less the one ``back`` values ago."""

    key: SeriesKey
    back: int

    examples: ClassVar[tuple[str, ...]] = ("delta(loss)", "delta(eval_loss, 2)")
    value_type: ClassVar[ValueType] = ValueType.FLOAT
    newest_covered: ClassVar[int] = 1
    is_nan_with_newest: ClassVar[bool] = True

    @classmethod
    def bind(cls, call: Call) -> SeriesChange | SeriesRise | None:
        """Return the change over so many values, or with a unit since so long ago."""
        if call.node.keywords:
            return SeriesRise.bind(call)
        if len(call.further) > 1:
            call.refuse_arguments()
            return None
        back = call.whole(call.further[0], 1, "window length") if call.further else 1
        return None if back is None else cls(call.key, back)

    @property
    def values_read(self) -> int:
        return self.back + 1

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return ast.BinOp(value_at(code.names, self.key, 0), ast.Sub(), value_at(code.names, self.key, self.back))

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import difference, taken

        values, (place, _) = columns.values(self.key).values, columns.place(kind, self.key)
        return difference(taken(values, place), taken(values, place - self.back))

    def bounds(self, limits: ValueLimits) -> Range:
        return calculated(ast.Sub(), limits.series(self.key), limits.series(self.key))

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        return seen.values(self.key, self.back + 1)


@dataclass(frozen=True, slots=True)
class SeriesLength(SeriesReading):
    """The number of values that a series has had."""

    key: SeriesKey

    examples: ClassVar[tuple[str, ...]] = ("len(eval_loss)",)
    value_type: ClassVar[ValueType] = ValueType.WHOLE
    is_count: ClassVar[bool] = True

    @classmethod
    def bind(cls, call: Call) -> SeriesLength:
        if call.further or call.node.keywords:
            call.faults.refuse(call.node, "len takes one argument")
        return cls(call.key)

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        dropped = attribute(name(code.names.series_of(self.key)), "dropped")
        return ast.BinOp(held_count(code.names, self.key), ast.Add(), dropped)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import Vector

        return Vector((columns.place(kind, self.key)[0] + 1).astype("float64"), None)

    def bounds(self, limits: ValueLimits) -> Range:
        return NATURAL

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        return START

    def counted(self, seen: Sightings) -> PossibleCount:
        """Return how the series' values are counted, without a limit."""
        return PossibleCount(lambda number: seen.values(self.key, number), math.inf)


#: The function of a series that also takes a state's name.
AGE: Final = "age"
#: The functions of when the newest value came.
OF_WHEN: Final = (
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
