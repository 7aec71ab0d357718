"""The table of functions that rules may call; LANGUAGE.md prints it, and a test compares the two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from . import folds, reductions
from . import plain_functions as plain
from .text import rendered

#: The function of a condition that is asked of each rank.
ANY_RANK: Final = "any_rank"


#: The function of a series that also takes a controller's name.
STREAK: Final = "streak"
#: The function of a controller that has a ``clear``.
RAISED: Final = "raised"
#: The function of a run's declared length.
MILESTONE: Final = "milestone"
#: The function of a series that also takes a state's name.
AGE: Final = "age"


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


def _reduction(
    name: str,
    meaning: str,
    plain_form: Callable[..., Any],
    window_form: Callable[[Sequence[float]], float],
    *,
    is_float: bool = True,
    is_whole: bool = False,
) -> Function:
    """Return a function of a window, or of a list of values."""
    signature = f"{name}(s, n), {name}(values)"
    return Function(
        name, signature, meaning, plain_form, window_form, is_float=is_float, is_whole=is_whole, iterates=True
    )


_OF_WINDOWS: Final = (
    _reduction(
        "mean",
        "The arithmetic mean of the last n values of a series, or of the values of a list.",
        plain.mean,
        reductions.mean,
    ),
    Function(
        "sum",
        "sum(s, n), sum(values), sum(values, start)",
        "The sum, added left to right, oldest first.",
        plain.added,
        reductions.total,
        most=2,
        keywords=frozenset({"start"}),
        iterates=True,
    ),
    Function(
        "min",
        "min(s, n), min(values), min(a, b, ...)",
        "The smallest value; NaN if any is NaN.",
        plain.least,
        reductions.least,
        most=None,
        iterates=True,
    ),
    Function(
        "max",
        "max(s, n), max(values), max(a, b, ...)",
        "The greatest value; NaN if any is NaN.",
        plain.greatest,
        reductions.greatest,
        most=None,
        iterates=True,
    ),
    _reduction("std", "The standard deviation around the mean; its divisor is n (ddof 0).", plain.std, reductions.std),
    _reduction("var", "The variance around the mean; its divisor is n (ddof 0).", plain.var, reductions.var),
    _reduction(
        "median",
        "The middle value, or the midpoint of the two middle values.",
        plain.median,
        reductions.median,
        is_float=False,
    ),
    Function(
        "quantile",
        "quantile(s, n, q), quantile(values, q)",
        "The value below which the share q (0 to 1) of the values lies, interpolated between neighbours.",
        plain.quantile,
        reductions.quantile,
        least=2,
        most=2,
        keywords=frozenset({"q"}),
        options=("q",),
        iterates=True,
    ),
    _reduction(
        "mad", "The median distance of the values from their median.", plain.mad, reductions.mad, is_float=False
    ),
    Function(
        "zscore",
        "zscore(s, n), zscore(values)",
        "The newest value less the mean of the window, in its standard deviations; undefined where that is 0.",
        plain.zscore,
        reductions.zscore,
        reads_newest=True,
        is_float=True,
        iterates=True,
    ),
    Function(
        "slope",
        'slope(s, n), slope(s, n, per="step"), slope(values)',
        "The least-squares slope per value, over positions 0 to n-1, or per step; undefined for fewer than two values.",
        plain.slope,
        reductions.slope,
        per_step=reductions.slope_per_step,
        is_float=True,
        iterates=True,
    ),
    Function(
        "rate",
        "rate(s), rate(s, n)",
        "The newest value less the one before it, or less the oldest of the window, per step between them.",
        per_step=reductions.rate,
        is_float=True,
    ),
    _reduction(
        "detrended_std",
        "The standard deviation (ddof 0) around the least-squares line; undefined for fewer than two values.",
        plain.detrended_std,
        reductions.detrended_std,
    ),
    _reduction(
        "count",
        "The number of values; 0 if there are none.",
        plain.counted,
        reductions.count,
        is_float=False,
        is_whole=True,
    ),
    _reduction("first", "The oldest value.", plain.first, reductions.first, is_float=False),
    _reduction("last", "The newest value.", plain.last, reductions.last, is_float=False),
    _reduction(
        "argmin",
        "How many values ago the smallest came (0 is the newest); for a list, its index. The oldest of equal values.",
        plain.index_of_least,
        reductions.age_of_least,
        is_float=False,
        is_whole=True,
    ),
    _reduction(
        "argmax",
        "Like argmin, for the greatest value.",
        plain.index_of_greatest,
        reductions.age_of_greatest,
        is_float=False,
        is_whole=True,
    ),
)

_OF_SERIES: Final = (
    Function(
        "ema",
        "ema(s, n), ema(values, n)",
        "The exponential moving average from the first value on: e + 2/(n+1) * (value - e). Skips non-finite values.",
        plain.ema,
        folds.ema,
        least=2,
        most=2,
        keywords=frozenset({"n"}),
        iterates=True,
    ),
    Function(
        "peak",
        "peak(s), peak(values)",
        "The greatest value so far, of any age. Skips non-finite values.",
        plain.peak,
        folds.peak,
        iterates=True,
    ),
    Function(
        "trough",
        "trough(s), trough(values)",
        "The smallest value so far, of any age. Skips non-finite values.",
        plain.trough,
        reduction=folds.trough,
        iterates=True,
    ),
    Function("initial", "initial(s)", "The first finite value of all."),
    Function(
        STREAK,
        'streak(condition), streak("c")',
        "At how many values in a row, up to the newest, the condition has been true, or the rule of controller c.",
    ),
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

_OF_DECISIONS: Final = (
    Function("fired", 'fired("c")', "Whether controller c has made a decision at any earlier event."),
    Function(
        "times_fired",
        'times_fired("c")',
        "The number of earlier events and triggers at which controller c made a decision.",
    ),
    Function(
        "steps_since",
        'steps_since("c")',
        "Steps since the newest decision of controller c. Undefined if there is none.",
    ),
    Function(
        "holding",
        'holding("c")',
        "Whether the rule of controller c was true at its last evaluation at an earlier event.",
    ),
    Function(
        RAISED,
        'raised("c")',
        "Whether controller c, which has a `clear`, is raised as of earlier events.",
    ),
    Function(
        "fired_now", 'fired_now("c")', "Whether controller c, above in the file, has made a decision at this event."
    ),
    Function(
        "true_now", 'true_now("c")', "Whether the rule of controller c, above in the file, is true at this event."
    ),
)

_OF_STATES: Final = (
    Function("changed", 'changed("state")', "Whether the state has taken another class at this event."),
    Function("previous", 'previous("state")', "The class before the newest change. Undefined before the second class."),
)

_OF_LENGTH: Final = (
    Function(
        MILESTONE,
        'milestone(every=0.05), milestone(at=[0.25, 0.5], of="tokens")',
        "Whether this event reaches another share of the run's declared length, see [Milestones](#milestones).",
    ),
)

_OF_RANKS: Final = (
    Function(
        ANY_RANK,
        "any_rank(condition)",
        "Whether the condition is true on any rank, where each series is its newest value on that rank.",
    ),
    Function("max_rank", "max_rank(s)", "The greatest of the newest values on all ranks; NaN if any is NaN."),
    Function("min_rank", "min_rank(s)", "The smallest of the newest values on all ranks; NaN if any is NaN."),
    Function("spread", "spread(s)", "max_rank(s) minus min_rank(s)."),
)

_OF_VALUES: Final = (
    Function("abs", "abs(x)", "The absolute value.", abs),
    Function("clamp", "clamp(x, low, high)", "x limited to the bounds; NaN stays NaN.", plain.clamped, least=3, most=3),
    Function("finite", "finite(x)", "x; undefined where it is NaN or infinite.", plain.finite, is_float=True),
    Function(
        "sign", "sign(x)", "1.0 above zero, -1.0 below it, 0.0 at zero; NaN stays NaN.", plain.sign, is_float=True
    ),
    Function("isnan", "isnan(x)", "Whether x is NaN.", math.isnan),
    Function("isfinite", "isfinite(x)", "Whether x is neither NaN nor infinite.", math.isfinite),
    Function(
        "round",
        "round(x), round(x, digits)",
        "x rounded to the nearest, halves to even, as in Python.",
        plain.rounded,
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
    Function("math_sqrt", "math_sqrt(x)", "The same as sqrt.", math.sqrt, is_float=True),
    Function(
        "int",
        "int(x), int(text, base)",
        "A whole number from a number (towards zero) or a text.",
        plain.whole,
        least=0,
        most=2,
        keywords=frozenset({"base"}),
    ),
    Function("float", "float(x)", "A float from a number or a text.", float, least=0, is_float=True),
    Function("str", "str(x)", "The value as text; sets in sorted order.", rendered),
    Function(
        "list", "list(values)", "A list of the values; a set in sorted order.", plain.listed, least=0, iterates=True
    ),
    Function(
        "tuple", "tuple(values)", "A tuple of the values; a set in sorted order.", plain.tupled, least=0, iterates=True
    ),
    Function(
        "dict",
        "dict(mapping), dict(key=value)",
        "A dictionary from a mapping, from pairs or from keywords.",
        plain.as_dict,
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

#: Every function by name, in the order of the documentation.
FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType(
    {
        function.name: function
        for function in (*_OF_WINDOWS, *_OF_SERIES, *_OF_DECISIONS, *_OF_STATES, *_OF_LENGTH, *_OF_RANKS, *_OF_VALUES)
    }
)

#: Functions whose argument is a controller's name.
DECISION_FUNCTIONS: Final = frozenset(function.name for function in _OF_DECISIONS)

#: Functions that read what a controller above in the file has done at the same event.
OF_NOW: Final = frozenset({"fired_now", "true_now"})

#: Functions of the newest change of a state.
STATE_FUNCTIONS: Final = frozenset({"changed", "previous"})

#: Functions of controllers that give True or False.
TRUE_OF_CONTROLLERS: Final = frozenset({"fired", "holding", RAISED, *OF_NOW})

#: Functions that read the newest values of all ranks.
RANK_FUNCTIONS: Final = frozenset(function.name for function in _OF_RANKS)
