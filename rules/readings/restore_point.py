"""The value that a series had at the newest restore point of the training, as in ``at_point(median(loss, 20))``."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from ..functions.plain_functions import Function
from ..functions.undefined import Undefined
from .call import Call
from .first_events import First
from .generated import attribute, call, name
from .ranges import Range
from .reading import (
    AnyTerm,
    Code,
    NotColumnar,
    RunSeries,
    SeriesKey,
    SeriesReading,
    SeriesValues,
    Sightings,
    TermMaker,
    ValueLimits,
    ValueType,
)

if TYPE_CHECKING:
    from .vectors import Vector

_WHY: Final = "it reads the restore points of the run"

#: The functions of restore points.
FUNCTIONS: Final = (
    Function(
        "at_point",
        "at_point(s)",
        "The value at the newest restore point: the level to which `undo.to` returns. Undefined before the first one, "
        "and after a resume before the next one.",
    ),
)


@dataclass(frozen=True, slots=True)
class ValueAtPoint(SeriesReading):
    """The value that a series had at the newest restore point."""

    key: SeriesKey

    examples: ClassVar[tuple[str, ...]] = ("at_point(loss)",)
    value_type: ClassVar[ValueType] = ValueType.FLOAT
    values_read: ClassVar[int] = 1

    @classmethod
    def bind(cls, call: Call) -> ValueAtPoint | None:
        """Return the value of a series at the newest restore point."""
        if call.further or call.node.keywords:
            call.refuse_arguments()
            return None
        return cls(call.key)

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(attribute(name(code.names.reader_of(self, "a")), "read"))

    def reader(self, series: SeriesValues) -> KeptAtPoints:
        kept = KeptAtPoints(series)
        series.followers.append(kept)
        return kept

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        raise NotColumnar(_WHY)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar(_WHY)

    def bounds(self, limits: ValueLimits) -> Range:
        return replace(limits.series(self.key), may_be_nan=True)

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        return seen.values(self.key, 1)


class KeptAtPoints:
    """The values of a series at the restore points to which the training can return.

    A point is of the moment after the newest value: it comes once the rules have judged the update.
    """

    def __init__(self, series: SeriesValues) -> None:
        self._series = series
        self._newest: float | None = None
        self._kept: dict[int, float | None] = {}

    def append(self, value: float) -> None:
        """Take the next value of the series."""
        self._keep()
        self._newest = value

    def read(self) -> float:
        """Return the value at the newest point.

        Raises:
            Undefined: There is no point, or the series had no value there.
        """
        self._keep()
        points = self._series.points
        value = self._kept[points[-1]] if points else None
        if value is None:
            raise Undefined("no restore point with a value")
        return value

    def _keep(self) -> None:
        points = self._series.points
        if points and points[-1] not in self._kept:
            self._kept[points[-1]] = self._newest
            self._kept = {step: self._kept[step] for step in points if step in self._kept}
