"""Functions of a family of series, over the values that an expression has at its members.

Each takes pairs of a member's name and a value, in order of names, without the members at which it is undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from . import reductions
from .undefined import Undefined

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
    for name, value in answers:
        if not isinstance(value, (int, float)):
            raise TypeError(f"a function of a family takes numbers, this gave a {type(value).__name__}")
        yield name, float(value)


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
