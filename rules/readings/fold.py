"""A number that is folded over a whole series: a moving average, a peak, a trough, the first value, a streak."""

from __future__ import annotations

import ast
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from ..functions import plain_functions as plain
from ..functions import reductions
from ..functions.plain_functions import Function
from ..functions.reductions import EMA, Fold, make_fold
from .call import EXTENTS, Call
from .first_events import First
from .generated import attribute, call, name
from .ranges import ANY, Range
from .reading import Code, RunSeries, SeriesKey, SeriesReading, SeriesValues, Sightings, ValueLimits, ValueType

if TYPE_CHECKING:
    from .vectors import Vector


#: The function of a series that also takes a controller's name.
STREAK: Final = "streak"
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
    Function("initial", "initial(s)", "The first finite value of all."),
    Function(
        STREAK,
        'streak(condition), streak("c")',
        "At how many values in a row, up to the newest, the condition has been true, or the rule of controller c.",
    ),
)


@dataclass(frozen=True, slots=True)
class SeriesFold(SeriesReading):
    """A number that is folded over a series from its first value on, without the ``skip`` newest ones."""

    function: str
    key: SeriesKey
    length: int
    skip: int = 0

    examples: ClassVar[tuple[str, ...]] = (
        "ema(loss, 3)",
        "ema(loss, 1, skip=1)",
        "peak(loss)",
        "trough(eval_loss)",
        "initial(loss)",
        "streak(loss > 1)",
    )
    values_read: ClassVar[int] = 1
    newest_covered: ClassVar[int] = 2

    @classmethod
    def bind(cls, call: Call) -> SeriesFold | None:
        """Return a fold of a series from its first value on."""
        length, skip = length_of(call, frozenset({"skip"})), call.keywords.get("skip")
        if length is None:
            return None
        skipped = 0 if skip is None else call.whole(skip, 0, "skip")
        return None if skipped is None else cls(call.function.name, call.key, length, skipped)

    @property
    def value_type(self) -> ValueType:
        """A whole number for a streak, else a float."""
        return ValueType.WHOLE if self.function == STREAK else ValueType.FLOAT

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(attribute(name(code.names.reader_of(self, "a")), "read"))

    def reader(self, series: SeriesValues) -> Fold:
        fold = make_fold(self.function, self.length, self.skip)
        series.followers.append(fold)
        return fold

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import spread

        numbers, defined = columns.folded(self.function, self.key, self.length, self.skip)
        place, is_own = columns.place(kind, self.key)
        return spread(numbers, defined, place, is_own=is_own)

    def bounds(self, limits: ValueLimits) -> Range:
        """Return the range of the finite values of the series, or of the lengths of a streak."""
        if self.function == STREAK:
            return limits.streak(self.key)
        if self.function != EMA:
            return replace(limits.series(self.key), may_be_nan=False)
        # A step towards a value does not pass it, however it is rounded.
        return replace(limits.series(self.key), is_whole=False, may_be_nan=False) if self.length > 1 else ANY

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the series has a value that is not skipped."""
        return seen.values(self.key, 1 + self.skip)


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
