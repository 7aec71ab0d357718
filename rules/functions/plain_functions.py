"""The functions and methods of rules on plain values, their text, and what a row of the reference says of a function.

Sets are read in sorted order: Python's order of texts in a set differs between processes. Digits, texts and containers
are bounded, so that no rule computes forever. A text is the same in every process, without access to attributes.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import simpleeval  # type: ignore[import-untyped]

from . import reductions
from .operators import in_order
from .undefined import UNAVAILABLE, Undefined

#: Most digits of a whole number in a text, and most digits to which a number is rounded.
MAX_DIGITS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the language.

    Attributes:
        name: Its name in rules.
        signature: Its forms, as the documentation shows them.
        meaning: One sentence for the documentation.
        plain: The function of plain values; None when it takes a series only.
        reduction: The function of a window of a series, oldest value first, and of its ``options``; None when it has no
            window form.
        least: Fewest arguments of the plain form.
        most: Most arguments of the plain form; None for no limit.
        keywords: Argument names that the plain form takes; None for any.
        options: Arguments of the window form after the series and the window: numbers known at load.
        per_step: The function of a window and the steps of its values; None when it has none.
        reads_newest: Whether the window form also takes the newest value of the series.
        is_float: Whether the value of the plain form, if any, is always a float.
        is_whole: Whether the window form gives a whole number; if not, a float.
        iterates: Whether the plain form iterates over its arguments, which a series does not allow.
        is_of_trac: Whether it is there for files of TrAC alone, whose page describes it.
    """

    name: str
    signature: str
    meaning: str
    plain: Callable[..., Any] | None = None
    reduction: Callable[..., float] | None = None
    least: int = 1
    most: int | None = 1
    keywords: frozenset[str] | None = frozenset()
    options: tuple[str, ...] = ()
    per_step: Callable[[Sequence[float], Sequence[float]], float] | None = None
    reads_newest: bool = False
    is_float: bool = False
    is_whole: bool = False
    iterates: bool = False
    is_of_trac: bool = False


def listed(values: Iterable[Any] = ()) -> list[Any]:
    """Return a list of the values."""
    return list(in_order(values))


def tupled(values: Iterable[Any] = ()) -> tuple[Any, ...]:
    """Return a tuple of the values."""
    return tuple(in_order(values))


def as_dict(*values: Any, **items: Any) -> dict[Any, Any]:
    """Return a dictionary, as Python makes one."""
    return dict(*values, **items)


def added(values: Iterable[Any], start: Any = 0) -> Any:
    """Sum left to right: floats as in ``reductions.total``, whole numbers as in Python. The empty sum is ``start``."""
    if isinstance(start, (str, bytes, list, tuple)):
        raise TypeError(f"sum adds numbers, not a {type(start).__name__}")
    result = start
    for value in in_order(values):
        result = result + value
    return result


def quantile(values: Iterable[Any], q: float) -> float:
    """Return the quantile at share ``q``, as of a window."""
    return reductions.quantile(listed(values), q)


def first(values: Iterable[Any]) -> Any:
    """Return the first value, as of a window."""
    return reductions.first(listed(values))


def last(values: Iterable[Any]) -> Any:
    """Return the last value, as of a window."""
    return reductions.last(listed(values))


def counted(values: Iterable[Any]) -> int:
    """Return the number of values, as of a window."""
    return len(listed(values))


def ema(values: Iterable[Any], n: int) -> float:
    """Return the exponential moving average, as of a series."""
    return reductions.ema(listed(values), n)


def zscore(values: Iterable[Any]) -> float:
    """Return the distance of the last value from the mean in standard deviations, as of a window."""
    given = listed(values)
    return reductions.zscore(given, reductions.last(given))


def finite(x: Any) -> float:
    """Return a number that is neither NaN nor infinite.

    Raises:
        Undefined: It is.
    """
    if not math.isfinite(x):
        raise Undefined("not finite")
    return float(x)


def sign(x: Any) -> float:
    """Return 1.0 above zero, -1.0 below, 0.0 at zero; NaN for NaN."""
    return x if x != x else float((x > 0) - (x < 0))


def least(*values: Any) -> Any:
    """Return the least of a collection, or of the arguments."""
    return reductions.least(listed(values[0]) if len(values) == 1 else values)


def greatest(*values: Any) -> Any:
    """Return the greatest of a collection, or of the arguments."""
    return reductions.greatest(listed(values[0]) if len(values) == 1 else values)


def index_of_least(values: Iterable[Any]) -> float:
    """Return the index of the least value, from 0; the first of equal ones; NaN when any is NaN."""
    return _index(listed(values), reductions.least)


def index_of_greatest(values: Iterable[Any]) -> float:
    """Return the index of the greatest value, from 0; the first of equal ones; NaN when any is NaN."""
    return _index(listed(values), reductions.greatest)


def _index(values: list[Any], reduction: Any) -> float:
    found = reduction(values)
    return float("nan") if found != found else values.index(found)


def clamped(x: Any, low: Any, high: Any) -> Any:
    """Return the value within bounds; NaN stays NaN.

    Raises:
        ValueError: The lower bound is above the upper one.
    """
    if low > high:
        raise ValueError(f"clamp from {low} to {high}: the lower bound comes first")
    return low if x < low else min(x, high)


def whole(*values: Any, **options: Any) -> int:
    """Convert as Python's ``int`` does, with the digits of a text bounded.

    Python bounds them in most bases, but not in those that are powers of two.
    """
    if values and isinstance(values[0], (str, bytes)) and len(values[0]) > MAX_DIGITS:
        raise ValueError(f"a whole number of more than {MAX_DIGITS:,} digits")
    return int(*values, **options)


def rounded(value: Any, ndigits: Any = None) -> Any:
    """Round as Python does, with the digits bounded.

    Python would compute ten to any power that a negative number of digits asks for.
    """
    if isinstance(ndigits, int) and abs(ndigits) > MAX_DIGITS:
        raise ValueError(f"rounding to more than {MAX_DIGITS:,} digits")
    return round(value, ndigits)


#: Most values that one rendered container may hold, nested ones included, and most characters of its texts.
MAX_RENDERED_VALUES: Final = 10_000
MAX_RENDERED_LENGTH: Final = simpleeval.MAX_STRING_LENGTH
#: Largest width and precision of a format specification.
MAX_WIDTH: Final = 1_000

_SPECIFICATION: Final = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?0?(\d{0,9})[_,]?(?:\.(\d{1,9}))?[a-zA-Z%]?", re.DOTALL)
_PLAIN: Final = (str, int, float, bool, type(None), complex, bytes)


def rendered(value: Any) -> str:
    """Return a value as ``str`` shows it; sets in sorted order, dictionary views as lists.

    Raises:
        Undefined: The value is a metric that is not available.
        IterableTooLong: A container has more than ``MAX_RENDERED_VALUES`` values, or too long texts in it.
    """
    if isinstance(value, _PLAIN) or value is UNAVAILABLE:
        return str(value)
    budget = iter(range(MAX_RENDERED_VALUES))
    return _shown(value, budget)


def _shown(value: Any, budget: Iterator[int]) -> str:
    if next(budget, None) is None:
        raise simpleeval.IterableTooLong(f"a container of more than {MAX_RENDERED_VALUES:,} values as text")
    if isinstance(value, (str, bytes)):
        # Long texts also use up the budget of values, so that many of them together exceed it.
        for _ in islice(budget, len(value) * MAX_RENDERED_VALUES // MAX_RENDERED_LENGTH):
            pass
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_shown(key, budget)}: {_shown(item, budget)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(_shown(item, budget) for item in sorted(value)) + "}" if value else "set()"
    if isinstance(value, tuple):
        return "(" + ", ".join(_shown(item, budget) for item in value) + (",)" if len(value) == 1 else ")")
    if not isinstance(value, _PLAIN):
        return "[" + ", ".join(_shown(item, budget) for item in value) + "]"
    return repr(value)


def formatted(value: Any, specification: str) -> str:
    """Format a number, text or truth value by a specification of bounded width.

    Raises:
        ValueError: The specification is malformed or too wide.
        TypeError: The value is a container.
    """
    check_specification(specification)
    if not specification:
        return rendered(value)
    if value is not UNAVAILABLE and not isinstance(value, _PLAIN):
        raise TypeError(f"a {type(value).__name__} takes no format")
    return format(value, specification)


@functools.lru_cache(maxsize=1_024)
def check_specification(specification: str) -> None:
    """Refuse a format specification that is malformed, or whose width or precision is above ``MAX_WIDTH``.

    Raises:
        ValueError: The specification is refused.
    """
    match = _SPECIFICATION.fullmatch(specification)
    if match is None:
        raise ValueError(f"not a format specification: {specification!r}")
    if any(int(number or 0) > MAX_WIDTH for number in match.groups()):
        raise ValueError(f"format width above {MAX_WIDTH:,}")


def joined(*parts: str) -> str:
    """Join the parts of an f-string into one text, at most as long as simpleeval allows."""
    if sum(len(part) for part in parts) > simpleeval.MAX_STRING_LENGTH:
        raise simpleeval.IterableTooLong("an f-string gives too long a text")
    return "".join(parts)


_MAPPINGS: Final = (dict, MappingProxyType)

#: The methods, each with the types that have it.
METHODS: Final[Mapping[str, tuple[type, ...]]] = MappingProxyType(
    {
        "get": _MAPPINGS,
        "keys": _MAPPINGS,
        "values": _MAPPINGS,
        "items": _MAPPINGS,
        "count": (list, tuple, str),
        "index": (list, tuple, str),
        "startswith": (str,),
        "endswith": (str,),
        "lower": (str,),
        "upper": (str,),
    }
)


def call_method(target: Any, name: str, *arguments: Any) -> Any:
    """Call a read-only method of a plain value.

    Raises:
        Undefined: The target is a metric that is not available.
        TypeError: The target has no such method.
    """
    if target is UNAVAILABLE:
        raise Undefined("metric not available")
    if not isinstance(target, METHODS[name]):
        raise TypeError(f"a {type(target).__name__} has no method '{name}'")
    return getattr(target, name)(*arguments)


#: Functions that give NaN when an argument, or a value of the window, is NaN. (``ema`` and ``peak`` skip it.)
NAN_TO_NAN: Final = frozenset(
    {
        *("abs", "sqrt", "math_sqrt", "exp", "log", "float", "mean", "sum", "min", "max", "std", "var", "slope"),
        *("detrended_std", "median", "quantile", "argmin", "argmax", "mad", "zscore", "rate", "sign", "cos", "tanh"),
    }
)

#: The functions that read nothing of a run.
OF_VALUES: Final = (
    Function("abs", "abs(x)", "The absolute value.", abs),
    Function("clamp", "clamp(x, low, high)", "x limited to the bounds; NaN stays NaN.", clamped, least=3, most=3),
    Function("finite", "finite(x)", "x; undefined where it is NaN or infinite.", finite, is_float=True),
    Function("sign", "sign(x)", "1.0 above zero, -1.0 below it, 0.0 at zero; NaN stays NaN.", sign, is_float=True),
    Function("isfinite", "isfinite(x)", "Whether x is neither NaN nor infinite.", math.isfinite),
    Function(
        "round",
        "round(x), round(x, digits)",
        "x rounded to the nearest, halves to even, as in Python.",
        rounded,
        most=2,
        keywords=frozenset({"ndigits"}),
    ),
    Function("sqrt", "sqrt(x)", "The square root; an error below zero.", math.sqrt, is_float=True),
    Function("exp", "exp(x)", "e to the power of x; an error if the result is too great.", math.exp, is_float=True),
    Function("cos", "cos(x)", "The cosine, of radians.", math.cos, is_float=True),
    Function("tanh", "tanh(x)", "The hyperbolic tangent.", math.tanh, is_float=True),
    Function("log", "log(x)", "The natural logarithm; an error at zero and below.", math.log, is_float=True),
    Function("math_trunc", "math_trunc(x)", "The whole part, towards zero.", math.trunc),
    Function("math_floor", "math_floor(x)", "The greatest whole number not above x.", math.floor),
    Function("math_ceil", "math_ceil(x)", "The least whole number not below x.", math.ceil),
    Function("math_sqrt", "math_sqrt(x)", "The same as sqrt.", math.sqrt, is_float=True, is_of_trac=True),
    Function(
        "int",
        "int(x), int(text, base)",
        "A whole number from a number (towards zero) or a text.",
        whole,
        least=0,
        most=2,
        keywords=frozenset({"base"}),
    ),
    Function("float", "float(x)", "A float from a number or a text.", float, least=0, is_float=True),
    Function("str", "str(x)", "The value as text; sets in sorted order.", rendered),
    Function("list", "list(values)", "A list of the values; a set in sorted order.", listed, least=0, iterates=True),
    Function("tuple", "tuple(values)", "A tuple of the values; a set in sorted order.", tupled, least=0, iterates=True),
    Function(
        "dict",
        "dict(mapping), dict(key=value)",
        "A dictionary from a mapping, from pairs or from keywords.",
        as_dict,
        least=0,
        keywords=None,
        iterates=True,
    ),
    Function("set", "set(values)", "The distinct values.", set, least=0, iterates=True),
    Function("any", "any(values)", "Whether at least one value is true.", any, iterates=True),
    Function("all", "all(values)", "Whether every value is true.", all, iterates=True),
    Function(
        "sorted",
        "sorted(values), sorted(values, reverse=True)",
        "A list of the values in ascending order.",
        sorted,
        keywords=frozenset({"reverse"}),
        iterates=True,
    ),
)
