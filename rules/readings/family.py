"""A function over the members of a family of series, such as ``any(series("grad_norm/*") > 100)``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ..functions.family_functions import NAMES_OF_FAMILIES, TRUE_OF_FAMILIES
from .first_events import START, First
from .generated import EVENT, MEMBER_NAME, call, name
from .ranges import ANY, NATURAL, TRUTH, Range
from .reading import (
    AnyTerm,
    Code,
    NotColumnar,
    Reading,
    RunSeries,
    SeriesKey,
    Sightings,
    TermMaker,
    ValueLimits,
    ValueType,
)

if TYPE_CHECKING:
    from .vectors import Vector

_COUNT: Final = "count"


@dataclass(frozen=True, slots=True)
class FamilyReading(Reading):
    """A function of an expression that is evaluated for each member of a family.

    Attributes:
        function: Its name.
        key: The series of a member.
        text: The expression, blanks folded.
        options: Further arguments of the function.
    """

    function: str
    key: SeriesKey
    text: str
    options: tuple[float, ...] = ()

    examples: ClassVar[tuple[str, ...]] = (
        'any(series("g/*") > 1)',
        'count(series("g/*") > 1)',
        'max(series("g/*"))',
        'argmax(series("g/*"))',
        'quantile(series("g/*"), 0.5)',
    )
    is_closed: ClassVar[bool] = True

    @property
    def driver(self) -> SeriesKey:
        """The family as a whole."""
        return self.key.whole

    @property
    def value_type(self) -> ValueType:
        """A text for the name of a member; a truth is not told from what the expression gives."""
        if self.function in NAMES_OF_FAMILIES:
            return ValueType.TEXT
        if self.function in TRUE_OF_FAMILIES:
            return ValueType.UNKNOWN
        return ValueType.WHOLE if self.function == _COUNT else ValueType.NUMBER

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        assert isinstance(node, ast.Call)
        return call(name(code.of_members(self, node.args[0])), name(EVENT))

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        raise NotColumnar(f"it calls {text} (a family of series)")

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns hold no families")

    def bounds(self, limits: ValueLimits) -> Range | None:
        """Return the range of a truth or a count; of another number nothing is known."""
        if self.function in NAMES_OF_FAMILIES:
            return None
        if self.function in TRUE_OF_FAMILIES:
            return TRUTH
        return NATURAL if self.function == _COUNT else ANY

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when a member has its first value; a count is 0 before."""
        return START if self.function == _COUNT else seen.values(self.key, 1)


@dataclass(frozen=True, slots=True)
class MemberName(Reading):
    """The name of the member that a controller is of."""

    examples: ClassVar[tuple[str, ...]] = ("member",)
    is_of_event_alone: ClassVar[bool] = True
    value_type: ClassVar[ValueType] = ValueType.TEXT

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return name(MEMBER_NAME)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns hold no members")

    def bounds(self, limits: ValueLimits) -> None:
        """Return None: it is no number."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start."""
        return START
