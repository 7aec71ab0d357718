"""The newest values of a series: one of them, a change, and how many there have been."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ..functions.plain_functions import Function
from .ago import SeriesAgo, SeriesRise
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
        "A series whose name is not an identifier, or that of one kind of event. Arguments are literals.",
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
