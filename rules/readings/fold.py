"""A number that is folded over a whole series: a moving average, a peak, a trough, the first value, a streak."""

from __future__ import annotations

import ast
import math
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from ...store.metric_words import Mode, mode_of
from ..functions import plain_functions as plain
from ..functions import reductions
from ..functions.plain_functions import Function
from ..functions.reductions import EMA, IMPROVED, IMPROVED_UP, IMPROVEMENTS, Fold, make_fold
from .call import EXTENTS, Call, number
from .first_events import First
from .generated import attribute, call, name
from .ranges import ANY, TRUTH, Range
from .reading import Code, RunSeries, SeriesKey, SeriesReading, SeriesValues, Sightings, ValueLimits, ValueType

if TYPE_CHECKING:
    from .vectors import Vector


#: The function of a series that also takes a controller's name.
STREAK: Final = "streak"
#: Functions whose value improves as the metric does, and the name of no value.
_OF_ONE_METRIC: Final = frozenset({"finite", "mean", "median", "min", "max", "ema", "lag"})
_NONE: Final = "undefined"

#: The functions that fold a whole series.
FUNCTIONS: Final = (
    Function(
        "ema",
        "ema(s, n), ema(values, n)",
        "The exponential moving average from the first value on: e + 2/(n+1) * (value - e). Skips non-finite values.",
        plain.ema,
        reductions.ema,
        least=2,
        most=2,
        keywords=frozenset({"n"}),
        iterates=True,
    ),
    Function(
        "peak",
        "peak(s), peak(values)",
        "The greatest value so far, of any age. Skips non-finite values.",
        lambda values: reductions.peak(plain.listed(values)),
        reductions.peak,
        iterates=True,
    ),
    Function(
        "trough",
        "trough(s), trough(values)",
        "The smallest value so far, of any age. Skips non-finite values.",
        lambda values: reductions.trough(plain.listed(values)),
        reduction=reductions.trough,
        iterates=True,
    ),
    Function(
        "initial",
        "initial(s)",
        "The first finite value of all. `initial(median(s, 20))` is a fixed baseline: the median of the first 20 "
        "values, for good.",
    ),
    Function(
        IMPROVED,
        "improved(s, by=0)",
        "Whether the newest value is better than the last improvement by more than `by`; the first finite one is"
        " one, and a value that is not finite is none."
        " Greater is better where the name of the metric says so, as `accuracy` does, also of its `mean`;"
        " `improved(-s)` says so for another one.",
    ),
    Function(
        STREAK,
        'streak(condition), streak("c")',
        "At how many values in a row, up to the newest, the condition has been true, or rule c.",
    ),
)


@dataclass(frozen=True, slots=True)
class SeriesFold(SeriesReading):
    """A number that is folded over a series from its first value on, without the ``skip`` newest ones."""

    function: str
    key: SeriesKey
    amount: float
    skip: int = 0

    examples: ClassVar[tuple[str, ...]] = (
        "ema(loss, 3)",
        "ema(loss, 1, skip=1)",
        "peak(loss)",
        "trough(eval_loss)",
        "initial(loss)",
        "improved(eval_loss, by=0.01)",
        "streak(loss > 1)",
    )
    values_read: ClassVar[int] = 1
    newest_covered: ClassVar[int] = 2

    @classmethod
    def bind(cls, call: Call) -> SeriesFold | None:
        """Return a fold of a series from its first value on."""
        skip = call.keywords.get("skip")
        amount = _margin_of(call) if call.function.name == IMPROVED else length_of(call, frozenset({"skip"}))
        if amount is None:
            return None
        skipped = 0 if skip is None else call.whole(skip, 0, "skip")
        is_up = call.function.name == IMPROVED and _mode_of(call.node.args[0]) is Mode.MAX
        function = IMPROVED_UP if is_up else call.function.name
        return None if skipped is None else cls(function, call.key, amount, skipped)

    @property
    def value_type(self) -> ValueType:
        """A truth for an improvement, a whole number for a streak, else a float."""
        if self.function in IMPROVEMENTS:
            return ValueType.TRUTH
        return ValueType.WHOLE if self.function == STREAK else ValueType.FLOAT

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(attribute(name(code.names.reader_of(self, "a")), "read"))

    def reader(self, series: SeriesValues) -> Fold:
        fold = make_fold(self.function, self.amount, self.skip)
        series.followers.append(fold)
        return fold

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import spread

        numbers, defined = columns.folded(self.function, self.key, self.amount, self.skip)
        place, is_own = columns.place(kind, self.key)
        vector = spread(numbers, defined, place, is_own=is_own)
        return vector._replace(values=vector.values == 1) if self.function in IMPROVEMENTS else vector

    def bounds(self, limits: ValueLimits) -> Range:
        """Return the range of the finite values of the series, or of the lengths of a streak."""
        if self.function in IMPROVEMENTS:
            return TRUTH
        if self.function == STREAK:
            return limits.streak(self.key)
        if self.function != EMA:
            return replace(limits.series(self.key), may_be_nan=False)
        # A step towards a value does not pass it, however it is rounded.
        return replace(limits.series(self.key), is_whole=False, may_be_nan=False) if self.amount > 1 else ANY

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the series has a value that is not skipped."""
        return seen.values(self.key, 1 + self.skip)


def _mode_of(node: ast.expr) -> Mode | None:
    """Return the direction in which a metric improves, also where some of its values are left out or smoothed."""
    match node:
        case ast.Name(metric) | ast.Call(ast.Name("series"), [ast.Constant(str(metric))]):
            return mode_of(metric)
        case ast.Call(ast.Name(function), [first, *_]) if function in _OF_ONE_METRIC:
            return _mode_of(first)
        case ast.IfExp():
            chosen = [each for each in (node.body, node.orelse) if not isinstance(each, ast.Name) or each.id != _NONE]
            modes = set(map(_mode_of, chosen))
            return modes.pop() if len(modes) == 1 else None
    return None


def _margin_of(call: Call) -> float | None:
    """Return the margin of an improvement; refuse other arguments."""
    if call.further or not call.keywords.keys() <= {"by", "skip"}:
        call.refuse_arguments()
        return None
    node = call.keywords.get("by")
    margin = 0 if node is None else number(node, call.scope)
    if node is not None and (margin is None or not 0 <= margin < math.inf):
        call.faults.refuse(node, "not a margin", "It is a finite number from 0, or a param that is one.")
        return None
    return margin


def is_over_window(call: Call) -> bool:
    """Whether a call of a fold names a window, over which it begins anew."""
    return call.function.reduction is not None and len(call.keywords.keys() & EXTENTS.keys()) == 1


def length_of(call: Call, known: Set[str]) -> int | None:
    """Return the length of an average, and 1 for any other fold; refuse arguments besides it that are not known."""
    is_average, lengths = call.function.name == EMA, call.further
    lengths += [node for name, node in call.keywords.items() if name == "n"]
    if not known >= call.keywords.keys() - {"n"} or len(lengths) != is_average:
        call.refuse_arguments("A window is given by last=, steps= or the like. " if call.function.reduction else "")
        return None
    return call.whole(lengths[0], 1, "window length") if is_average else 1
