"""What a name means within a rule alone: a param of the policy, and a variable of a comprehension."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .first_events import START, First, of_constant
from .ranges import Range, between
from .reading import (
    MAX_EXACT,
    AnyTerm,
    Code,
    NotColumnar,
    Param,
    Reading,
    RunSeries,
    Sightings,
    TermMaker,
    ValueLimits,
    ValueType,
)

if TYPE_CHECKING:
    from .vectors import Vector


@dataclass(frozen=True, slots=True)
class ParamValue(Reading):
    """A param, which is a constant of the policy."""

    name: str
    value: Param

    examples: ClassVar[tuple[str, ...]] = ("limit", "is_on")
    is_constant: ClassVar[bool] = True
    is_shown_by_name: ClassVar[bool] = True
    is_standing: ClassVar[bool] = True

    @property
    def value_type(self) -> ValueType:
        return ValueType.of(self.value)

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return ast.Constant(self.value)

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        return terms.of_param(self.name, self.value)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("each variant has its own")

    def bounds(self, limits: ValueLimits) -> Range | None:
        """Return the one number that it is, if it is one that a float holds."""
        value = self.value
        if isinstance(value, str) or not abs(value) < MAX_EXACT:
            return None
        return between(value, value, is_whole=isinstance(value, int), may_be_nan=value != value)

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start, unless it is a truth other than the one wanted."""
        value = seen.param(self.name, self.value)
        return of_constant(value, wanted) if isinstance(value, bool) and wanted is not None else START


@dataclass(frozen=True, slots=True)
class Variable(Reading):
    """A comprehension's own variable, under a unique name."""

    name: str

    examples: ClassVar[tuple[str, ...]] = ("any([value > 1 for value in [1, limit]])",)
    is_of_event_alone: ClassVar[bool] = True
    value_type: ClassVar[ValueType] = ValueType.UNKNOWN
    is_standing: ClassVar[bool] = True

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        assert isinstance(node, ast.Name)
        return ast.Name(self.name, node.ctx)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns run no comprehensions")

    def bounds(self, limits: ValueLimits) -> None:
        """Return None: it may be no number."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        return START
