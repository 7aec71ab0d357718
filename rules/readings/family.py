"""A function over the members of a family of series, such as ``any(series("grad_norm/*") > 100)``.

The functions take pairs of a member's name and a value, in order of names, without the members at which an
expression is undefined.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

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


from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ..functions import reductions
from ..functions.undefined import Undefined

#: The values at the members of a family.
Answers = Iterable[tuple[str, Any]]


def _any(answers: Answers) -> bool:
    is_empty = True
    for _, value in answers:
        if value:
            return True
        is_empty = False
    return _unless(is_empty, False)


def _all(answers: Answers) -> bool:
    is_empty = True
    for _, value in answers:
        if not value:
            return False
        is_empty = False
    return _unless(is_empty, True)


def _unless(is_empty: bool, verdict: bool) -> bool:
    if is_empty:
        raise Undefined("no member has a value")
    return verdict


def _count(answers: Answers) -> int:
    return sum(value is not False for _, value in answers)


def _numbers(answers: Answers) -> Iterator[tuple[str, float]]:
    for member, value in answers:
        if not isinstance(value, (int, float)):
            raise TypeError(f"a function of a family takes numbers, this gave a {type(value).__name__}")
        yield member, float(value)


def _reduced(reduction: Callable[..., float]) -> Callable[..., float]:
    def of_members(answers: Answers, *options: float) -> float:
        return float(reduction([value for _, value in _numbers(answers)], *options))

    return of_members


def _argmax(answers: Answers) -> str:
    return _name_of(answers, reductions.greatest)


def _argmin(answers: Answers) -> str:
    return _name_of(answers, reductions.least)


def _name_of(answers: Answers, reduction: Callable[[list[float]], float]) -> str:
    """Return the first member with the value that a reduction chooses: the first NaN, if there is one."""
    pairs = list(_numbers(answers))
    chosen = reduction([value for _, value in pairs])
    return next(name for name, value in pairs if value == chosen or (value != value and chosen != chosen))


#: The functions by name.
OF_FAMILIES: Final[Mapping[str, Callable[..., object]]] = MappingProxyType(
    {
        "any": _any,
        "all": _all,
        "count": _count,
        "min": _reduced(reductions.least),
        "max": _reduced(reductions.greatest),
        "mean": _reduced(reductions.mean),
        "sum": _reduced(reductions.total),
        "median": _reduced(reductions.median),
        "quantile": _reduced(reductions.quantile),
        "argmin": _argmin,
        "argmax": _argmax,
    }
)

#: Those that give True or False.
TRUE_OF_FAMILIES: Final = frozenset({"any", "all"})
#: Those that give the name of a member.
NAMES_OF_FAMILIES: Final = frozenset({"argmin", "argmax"})

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
        return START
