"""A function over the last values of a series, such as ``mean(loss, 10)``: by count, steps, epochs, time or samples."""

from __future__ import annotations

import ast
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from ..errors import suggestion
from ..functions import plain_functions as plain
from ..functions import reductions
from ..functions.plain_functions import NAN_TO_NAN, Function
from ..functions.reductions import SUM_IS_PLAIN, older, recent
from ..functions.undefined import Undefined
from ..habits import WINDOW_ARGUMENTS, WINDOW_LENGTHS
from .call import EXTENTS, WINDOW_KEYWORDS, Call, number
from .first_events import START, First, Never, PossibleCount
from .generated import call, name
from .ranges import ANY, Range, around, between, rounded
from .reading import (
    MAX_WINDOW,
    Code,
    Extent,
    Half,
    Names,
    Need,
    RunSeries,
    SeriesKey,
    SeriesReading,
    SeriesValues,
    Sightings,
    ValueLimits,
    ValueType,
    held_count,
    value_at,
)

if TYPE_CHECKING:
    from .vectors import Vector

#: Functions that lie between the smallest and the greatest value of a window; the first ones are one of them.
MEMBERS: Final = frozenset({"min", "max", "first", "last"})
AMONG: Final = frozenset({"mean", "median", "quantile"})
DEVIATIONS: Final = frozenset({"std", "detrended_std"})
#: Functions that need two values.
_OF_TWO: Final = frozenset({"slope", "detrended_std", "rate", "zscore"})
#: From here on deviations of a window are added in another order.
FEW: Final = 64


#: Windows of at least this many values are updated incrementally, with each new value of their series. An update costs
#: 1 us, however long the window is.
LONG: Final = 256 if SUM_IS_PLAIN else 64
#: Where Python's own sum cannot be used, windows of up to this many values are summed in one expression and not in a
#: loop: 0.23 us against 0.34 us for ten values on Python 3.12.
_UNROLLED: Final = 16
#: Reductions that can follow a series value by value.
_EXTREMES: Final = frozenset({"min", "max"})
_FOLLOWED: Final = frozenset({"sum", "mean", "var", "std", "slope", "detrended_std", *_EXTREMES})
_HALVES: Final[dict[Half, Callable[[Sequence[float]], Sequence[float]]]] = {Half.OLDER: older, Half.RECENT: recent}
#: Functions that compare or add their arguments when these are expressions: there only a keyword asks for a window.
TAKE_NUMBERS: Final = frozenset({"min", "max", "sum"})
#: The window of ``rate`` without one.
_NEWEST_TWO: Final = ast.Constant(2)
_NAN: Final = float("nan")


def _reduction(
    name: str,
    meaning: str,
    window_form: Callable[[Sequence[float]], float],
    plain_form: Callable[..., Any] | None = None,
    *,
    is_float: bool = True,
    is_whole: bool = False,
) -> Function:
    """Return a function of a window, or of a list of values."""
    signature = f"{name}(s, n), {name}(values)"
    listed = plain_form or (lambda values: window_form(plain.listed(values)))
    return Function(name, signature, meaning, listed, window_form, is_float=is_float, is_whole=is_whole, iterates=True)


#: The functions of windows.
FUNCTIONS: Final = (
    _reduction(
        "mean",
        "The arithmetic mean of the last n values of a series, or of the values of a list.",
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
    _reduction("std", "The standard deviation around the mean; its divisor is n (ddof 0).", reductions.std),
    _reduction("var", "The variance around the mean; its divisor is n (ddof 0).", reductions.var),
    _reduction(
        "median",
        "The middle value, or the midpoint of the two middle values.",
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
    _reduction("mad", "The median distance of the values from their median.", reductions.mad, is_float=False),
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
        lambda values: reductions.slope(plain.listed(values)),
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
        reductions.detrended_std,
    ),
    _reduction(
        "count",
        "The number of values; 0 if there are none.",
        reductions.count,
        plain.counted,
        is_float=False,
        is_whole=True,
    ),
    _reduction("first", "The oldest value.", reductions.first, plain.first, is_float=False),
    _reduction("last", "The newest value.", reductions.last, plain.last, is_float=False),
    _reduction(
        "argmin",
        "How many values ago the smallest came (0 is the newest); for a list, its index. The oldest of equal values.",
        reductions.age_of_least,
        plain.index_of_least,
        is_float=False,
        is_whole=True,
    ),
    _reduction(
        "argmax",
        "Like argmin, for the greatest value.",
        reductions.age_of_greatest,
        plain.index_of_greatest,
        is_float=False,
        is_whole=True,
    ),
)


class HeldCount(NamedTuple):
    """How many values a window holds where its function is defined."""

    least: int
    most: float


@dataclass(frozen=True, slots=True)
class Window(SeriesReading):
    """A reduction over the last values of a series.

    Attributes:
        function: The reduction.
        key: The series.
        length: How far it goes back.
        extent: The unit of the length.
        skip: How many of the newest values are left out, the current one first.
        half: The half of what remains that is read; None for all of it.
        options: Further arguments of the reduction.
        least: With fewer values than this it is undefined; None to take what there is.
        is_per_step: Whether the reduction reads the steps of the values, too.
    """

    function: Function
    key: SeriesKey
    length: float
    extent: Extent = Extent.VALUES
    skip: int = 0
    half: Half | None = None
    options: tuple[float, ...] = ()
    least: int | None = None
    is_per_step: bool = False

    examples: ClassVar[tuple[str, ...]] = (
        "mean(loss, 3)",
        "max(loss, 70)",
        "sum(loss, 3, skip=1)",
        "count(loss, 3, skip=1)",
        "quantile(loss, 3, 0.3)",
        'slope(loss, 4, per="step")',
        'std(loss, 4, half="recent")',
        "min(eval_loss, steps=6, min=2)",
        "median(loss, epochs=0.25)",
        "var(loss, seconds=2.5)",
        "last(loss, samples=6)",
        "mad(loss, tokens=9)",
        "sum(loss > 1, last=3)",
        "mean(abs(delta(loss)), 2)",
    )
    is_shared: ClassVar[bool] = True
    takes_less: ClassVar[bool] = True

    @classmethod
    def bind(cls, call: Call) -> Window | None:
        """Return the window of a reduction."""
        keywords, positional = call.keywords, call.further
        if "last" in keywords and not _takes_last(call):
            parts = [call.node.args[0], keywords.pop("last"), *positional]
            words = [*map(call.faults.segment, parts), *(f"{k}={call.faults.segment(v)}" for k, v in keywords.items())]
            what = (
                "a plain number is the window's length here; 'last' is for what sum, min and max would add or compare"
            )
            call.faults.refuse(call.node, what, f"Write {call.function.name}({', '.join(words)}).")
            return None
        extents = [name for name in EXTENTS if name in keywords]
        if not extents and positional:
            extents, keywords["last"], positional = ["last"], positional[0], positional[1:]
        elif not extents and call.function.name == "rate":
            extents, keywords["last"] = ["last"], _NEWEST_TWO
        options = call.function.options
        keywords.update(zip((name for name in options if name not in keywords), positional, strict=False))
        known = {*WINDOW_KEYWORDS, *options}
        given = len(call.further) + len(call.node.keywords)
        taken = len(keywords) - (_NEWEST_TWO in keywords.values())
        if len(extents) != 1 or taken != given or not known.issuperset(keywords):
            _refuse_window(call, set(keywords) - known)
            return None
        shares = [_share(call, keywords.get(name), name) for name in options]
        known_shares = tuple(share for share in shares if share is not None)
        return window_of(call, keywords, known_shares) if len(known_shares) == len(shares) else None

    @property
    def values_read(self) -> int:
        return int(self.length) + self.skip if self.extent is Extent.VALUES else 1 + self.skip

    @property
    def newest_covered(self) -> int:
        if self.extent is not Extent.VALUES:
            return 2
        return self.values_read - (int(self.length) // 2 if self.half is Half.RECENT else 0)

    @property
    def is_nan_with_newest(self) -> bool:
        has_newest = not self.skip and self.half is not Half.OLDER
        return has_newest and self.function.name in (*NAN_TO_NAN, "last")

    @property
    def reads_newest(self) -> bool:
        return self.extent is Extent.VALUES and self.length == 1 and not self.skip

    @property
    def steps_back(self) -> float:
        return self.length if self.extent is Extent.STEPS else 0

    @property
    def waits_until_full(self) -> bool:
        return self.extent is Extent.VALUES and self.least is None

    @property
    def need(self) -> Need:
        """As many values, and those of its length; for a function of steps also the step of each."""
        reach: dict[Extent, float] = {} if self.extent is Extent.VALUES else {self.extent: self.length}
        if self.is_per_step:
            reach.setdefault(Extent.STEPS, 0)
        return Need(self.values_read, reach)

    @property
    def unit(self) -> Extent:
        return self.extent

    @property
    def value_type(self) -> ValueType:
        """A whole number for a count, else a float."""
        return ValueType.WHOLE if self.function.is_whole else ValueType.FLOAT

    @property
    def is_count(self) -> bool:
        return self.function.name == "count"

    # --- live ---------------------------------------------------------------------------------------------------

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return code.once(self, _read(self, code))

    def reader(self, series: SeriesValues) -> Callable[[], float]:
        """Return a function that reads it as of the newest value of its series."""
        if _is_followed(self) and self.function.name in _EXTREMES:
            extreme = SlidingExtreme(int(self.length), is_greatest=self.function.name == "max")
            series.followers.append(extreme)
            return extreme.read
        if _is_followed(self):
            # Imported here, so that only policies with long sums load numpy.
            from .long_windows import long_reader

            return long_reader(self.function.name, int(self.length), series)
        if self.extent is Extent.VALUES and not (self.is_per_step or self.function.reads_newest):
            return _remembered(self, series)
        values, options = _slicer(self, series, series.values), self.options
        if self.is_per_step:
            steps, per_step = _slicer(self, series, series.steps), self.function.per_step
            assert per_step is not None
            return lambda: per_step(values(), steps())
        reduction = self.function.reduction
        assert reduction is not None
        if self.function.reads_newest:
            return lambda: reduction(values(), series.values[-1])
        return lambda: reduction(values(), *options)

    # --- column -------------------------------------------------------------------------------------------------

    def column(self, columns: RunSeries, kind: str) -> Vector:
        """Return what changes only with the values of its series at each of them; another window ends at the event."""
        import numpy as np

        from .vectors import Vector, spread, taken

        if not self.waits_until_full or self.is_per_step or self.function.reads_newest:
            return _sliced(self, columns, kind)
        place, is_own = columns.place(kind, self.key)
        function, length = self.function, int(self.length)
        numbers, defined = columns.windowed(self.key, function, length, self.skip, self.half, self.options)
        if self.is_count:
            # The count of an empty window is 0, never undefined.
            counted = numbers if defined is None else np.where(defined, numbers, 0.0)
            return Vector(taken(counted, place).values * (place >= 0), None)
        return spread(numbers, defined, place, is_own=is_own)

    # --- bounds -------------------------------------------------------------------------------------------------

    def held(self, limits: ValueLimits, *, is_full: bool | None = None) -> HeldCount:
        """Return how many values it holds where it is defined.

        Args:
            limits: What is known of its series.
            is_full: Whether it counts only once it is full, if it is one by count; by default as the limits say.
        """
        two = 2 if self.function.name in _OF_TWO else 1
        if self.extent is not Extent.VALUES:
            return HeldCount(max(two, self.least or 0), math.inf)
        if is_full is None:
            is_full = limits.is_full or limits.in_series
        length, known = int(self.length), limits.known.get(self.key, 0)
        has = length if is_full and self.least is None else min(length, max(known - self.skip, 0))
        most, least = values_of(self, length), values_of(self, has)
        return HeldCount(min(max(two, self.least or 0, least), most), most)

    def bounds(self, limits: ValueLimits) -> Range:
        """Return the range of the function over values of its series' range."""
        name, inner = self.function.name, limits.series(self.key)
        if name == "count":
            return _count_bounds(self, limits)
        if name == "zscore":
            is_newest_within = not self.skip and self.half is None and self.extent is Extent.VALUES
            return standardized(int(self.length)) if is_newest_within and self.length < FEW else ANY
        if name in ("argmin", "argmax"):
            most = max(self.held(limits).most - 1, 0)
            found = between(0, most, is_whole=True)
            return found.because(f"the oldest of its values is {most:g} ago") if most < math.inf else found
        if name in MEMBERS:
            return inner
        return _amid(inner, name) if name in AMONG else _differences(self, limits, inner)

    # --- first --------------------------------------------------------------------------------------------------

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when it has what its function needs: two values for a slope, twice that for its older half."""
        if self.is_count:
            return START
        least = max(2 if self.function.name in _OF_TWO else 1, self.least or 0)
        if self.half is not None:
            least = 2 * least - (self.half is Half.RECENT)
        if self.extent is Extent.VALUES:
            if self.length < least:
                return Never(f"a window too short for {self.function.name}")
            if seen.takes_whole_windows and self.least is None:
                least = int(self.length)
        return seen.values(self.key, least + self.skip)

    def counted(self, seen: Sightings) -> PossibleCount | None:
        """Return how it counts values, if it does."""
        if not self.is_count:
            return None
        longest = self.length if self.extent is Extent.VALUES else math.inf
        return PossibleCount(lambda number: seen.values(self.key, number + self.skip if number else 0), longest)


def window_of(call: Call, keywords: Mapping[str, ast.expr], options: tuple[float, ...]) -> Window | None:
    """Return the window that keyword arguments describe. One of them is its length."""
    name = next(name for name in EXTENTS if name in keywords)
    length = call.length(keywords[name], EXTENTS[name])
    skip = call.whole(keywords["skip"], 0, "skip") if "skip" in keywords else 0
    least = call.whole(keywords["min"], 1, "number of values") if "min" in keywords else None
    half = _half(call, keywords["half"]) if "half" in keywords else None
    is_per_step = _is_per_step(call, keywords.get("per"))
    refused = [half is None and "half" in keywords, least is None and "min" in keywords]
    if length is None or skip is None or is_per_step is None or any(refused):
        return None
    return Window(call.function, call.key, length, EXTENTS[name], skip, half, options, least, is_per_step)


def _is_per_step(call: Call, unit: ast.expr | None) -> bool | None:
    """Return whether the function reads the steps of values; None when that is refused."""
    if unit is None:
        return call.function.reduction is None
    if call.function.per_step is None:
        call.faults.refuse(call.node, f"{call.function.name} of a series does not take 'per'", "slope does.")
    elif not isinstance(unit, ast.Constant) or unit.value != "step":
        call.faults.refuse(unit, "not a unit of a slope", 'Write per="step", or nothing for the slope per value.')
    else:
        return True
    return None


def _half(call: Call, node: ast.expr) -> Half | None:
    if isinstance(node, ast.Constant) and node.value in tuple(Half):
        return Half(node.value)
    call.faults.refuse(node, "not a half of a window", 'Write half="older" or half="recent".')
    return None


def _takes_last(call: Call) -> bool:
    """Whether a plain number would be no window: the function compares or adds what is no series by its name."""
    return call.function.name in TAKE_NUMBERS and call.key.is_derived and not isinstance(call.node.args[0], ast.Name)


def _share(call: Call, node: ast.expr | None, name: str) -> float | None:
    """Return an option of the function, from 0 to 1."""
    value = None if node is None else number(node, call.scope)
    if value is not None and 0 <= value <= 1:
        return float(value)
    share = value / 100 if value is not None and 1 < value <= 100 else 0.9
    what = f"'{name}' must be a number from 0 to 1, known when the rule file loads"
    call.faults.refuse(call.node if node is None else node, what, f"Write {name}={share}.")
    return None


def _refuse_window(call: Call, unknown: set[str]) -> None:
    function, segment = call.function, call.faults.segment
    name, more = segment(call.node.args[0]), "".join(f", {option}=0.9" for option in function.options)
    if unknown:
        strange = min(unknown)
        fix = suggestion(strange, {*WINDOW_KEYWORDS, *function.options}, WINDOW_ARGUMENTS)
        if strange in WINDOW_LENGTHS:
            length = next(segment(word.value) for word in call.node.keywords if word.arg == strange)
            fix = f"Write {function.name}({name}, {length}{more})."
        call.faults.refuse(call.node, f"{function.name} of a series does not take '{strange}'", fix)
        return
    fix = f"Write {function.name}({name}, 10{more}) for the last ten values."
    call.faults.refuse(call.node, f"{function.name} of a series takes the series and the number of values", fix)


def _read(window: Window, code: Code) -> ast.expr:
    length, is_whole = int(window.length), code.wants_full_windows
    if not _is_plain(window) or length >= LONG:
        value = call(name(code.names.reader_of(window)))
    elif window.function.name in ("sum", "mean") and (SUM_IS_PLAIN or length <= _UNROLLED):
        return _added(window, code.names, call(name("not_full")) if is_whole else _reduced(window, code.names))
    else:
        value = _reduced(window, code.names)
    if is_whole and window.waits_until_full:
        return _where_full(window, code.names, value, call(name("not_full")))
    return value


def _where_full(window: Window, names: Names, value: ast.expr, otherwise: ast.expr) -> ast.expr:
    is_full = ast.Compare(held_count(names, window.key), [ast.GtE()], [ast.Constant(window.values_read)])
    return ast.IfExp(is_full, value, otherwise)


def _last(window: Window, names: Names) -> ast.expr:
    newest = ast.Slice(ast.Constant(-int(window.length)))
    return ast.Subscript(name(names.values_of(window.key)), newest, ast.Load())


def _reduced(window: Window, names: Names) -> ast.expr:
    return call(name(f"w_{window.function.name}"), _last(window, names))


def _added(window: Window, names: Names, otherwise: ast.expr) -> ast.expr:
    """Return ``0.0 + s[-3] + s[-2] + s[-1]``, left to right, oldest first, where the window is full."""
    length = int(window.length)
    total: ast.expr = ast.Constant(0.0)
    if SUM_IS_PLAIN:
        total = call(name("sum"), _last(window, names), total)
    else:
        for back in range(length - 1, -1, -1):
            total = ast.BinOp(total, ast.Add(), value_at(names, window.key, back))
    if window.function.name == "mean":
        total = ast.BinOp(total, ast.Div(), ast.Constant(float(length)))
    return _where_full(window, names, total, otherwise)


def _is_plain(window: Window) -> bool:
    """Whether it is just the last ``length`` values, without options."""
    is_bare = not window.skip and window.half is None and not window.options and window.least is None
    return is_bare and window.extent is Extent.VALUES and not (window.is_per_step or window.function.reads_newest)


def _is_followed(window: Window) -> bool:
    """Whether it is long, and its reduction can follow the series."""
    return _is_plain(window) and window.length >= LONG and window.function.name in _FOLLOWED


def _remembered(window: Window, series: SeriesValues) -> Callable[[], float]:
    """Return a function that reduces it by count once for each value of its series, however many rules ask."""
    values, back, skip, least = series.values, int(window.length), window.skip, window.least or 0
    is_older, is_recent = window.half is Half.OLDER, window.half is Half.RECENT
    reduction, options = window.function.reduction, window.options
    assert reduction is not None
    read_at, result = -1, 0.0

    def remembered() -> float:
        nonlocal read_at, result
        held = len(values)
        if series.dropped + held == read_at:
            return result
        end = held - skip if held > skip else 0
        start = end - back if end > back else 0
        if is_older:
            end = (start + end) // 2
        elif is_recent:
            start = (start + end) // 2
        if end - start < least:
            raise Undefined("fewer values than the window needs")
        result = reduction(values[start:end], *options)
        read_at = series.dropped + held
        return result

    return remembered


def _slicer(window: Window, series: SeriesValues, kept: list[float]) -> Callable[[], Sequence[float]]:
    """Return a function that slices it out of the values of a series, or out of their steps, oldest first."""
    within = _part(window, series, kept)
    half, least = None if window.half is None else _HALVES[window.half], window.least
    if half is None and least is None:
        return within

    def sliced() -> Sequence[float]:
        part = within() if half is None else half(within())
        if least is not None and len(part) < least:
            raise Undefined("fewer values than the window needs")
        return part

    return sliced


def _part(window: Window, series: SeriesValues, kept: list[float]) -> Callable[[], Sequence[float]]:
    skip = window.skip
    if window.extent is Extent.VALUES:
        back = int(window.length) + skip
        return lambda: kept[max(0, len(kept) - back) : max(0, len(kept) - skip)]
    extent, length = window.extent, window.length
    return lambda: kept[series.first_within(extent, length) : max(0, len(kept) - skip)]


def _sliced(window: Window, columns: RunSeries, kind: str) -> Vector:
    """Return a window that ends at the event, or whose reduction reads more than its values."""
    import numpy as np

    from .vectors import Vector, both

    key, known = window.key, None
    place, _ = columns.place(kind, key)
    counts = place + 1
    ends = np.maximum(counts - window.skip, 0)
    if window.extent is Extent.VALUES:
        begins = np.maximum(counts - int(window.length) - window.skip, 0)
    else:
        begins = np.maximum(columns.first_within(kind, key, window.extent, window.length), counts - MAX_WINDOW)
        known = ~np.isnan(columns.positions(window.extent)[columns.rows(kind)])
    begins = np.minimum(begins, ends)
    if window.half is not None:
        middle = begins + (ends - begins) // 2
        begins, ends = (begins, middle) if window.half is Half.OLDER else (middle, ends)
    numbers, defined = columns.sliced(
        key,
        window.function,
        begins,
        ends,
        options=window.options,
        least=window.least or 0,
        is_per_step=window.is_per_step,
        newest=place if window.function.reads_newest else None,
    )
    return Vector(numbers, both([defined, known]))


class SlidingExtreme:
    """The minimum of the last ``length`` values, the older of two equal ones; or their maximum.

    A monotonic queue holds the values that can still become the minimum, in ascending order. Each value enters and
    leaves it once.

    Args:
        length: The window's length, in values.
        is_greatest: Whether to track the maximum, as the minimum of the negated values.
    """

    __slots__ = ("_candidates", "_count", "_last_nan", "_length", "_sign")

    def __init__(self, length: int, *, is_greatest: bool) -> None:
        self._length = length
        self._sign = -1.0 if is_greatest else 1.0
        self._count = 0
        self._last_nan = -length
        self._candidates: deque[tuple[int, float]] = deque()

    def append(self, value: float) -> None:
        """Append the next value."""
        candidates, key = self._candidates, value * self._sign
        if key != key:
            self._last_nan = self._count
        else:
            while candidates and candidates[-1][1] > key:
                candidates.pop()
            candidates.append((self._count, key))
        self._count += 1
        while candidates and candidates[0][0] < self._count - self._length:
            candidates.popleft()

    def read(self) -> float:
        """Return the extreme of the window; NaN when any of its values is NaN.

        Raises:
            Undefined: There is no value yet.
        """
        if not self._count:
            raise Undefined("no values")
        if self._last_nan >= self._count - self._length:
            return _NAN
        return self._candidates[0][1] * self._sign


def values_of(window: Window, length: int) -> int:
    """Return how many of so many values a window reads: all, or those of its half."""
    if window.half is None:
        return length
    return length // 2 if window.half is Half.OLDER else length - length // 2


def _count_bounds(window: Window, limits: ValueLimits) -> Range:
    held = window.held(limits, is_full=limits.in_series)
    least = 0 if window.least is None and not limits.in_series else held.least
    found = between(least, held.most, is_whole=True, may_be_nan=False)
    return found.because(f"the window holds at most {held.most:g} values") if held.most < math.inf else found


def _differences(window: Window, limits: ValueLimits, inner: Range) -> Range:
    """Return the range of what measures the differences within the window, or their sum."""
    name, width, held = window.function.name, inner.high - inner.low, window.held(limits)
    low = 0.0
    if name == "sum":
        low, high = (end * held.most if end else 0.0 for end in (min(0.0, inner.low), max(0.0, inner.high)))
        return replace(rounded(inner, low, high), is_whole=inner.is_whole)
    if not math.isfinite(width):
        return ANY if name in ("slope", "rate") else between(0, math.inf)
    if name in DEVIATIONS:
        high = width / 2
    elif name == "var":
        high = width * width / 4
    elif name == "mad":
        high = width
    elif name == "slope" and not window.is_per_step:
        high = _steepest(max(held.least, 2)) * width
        low = -high
    else:
        return ANY
    slack = 1e-9 * (1 + width) * max(abs(inner.low), abs(inner.high))
    found = around(low, high, low - slack if low else 0.0, high + slack)
    proof = f"{name} of values from {inner.low:g} to {inner.high:g} is at most {high:.3g}"
    return replace(found, assumed=inner.assumed).because(proof)


def standardized(length: int) -> Range:
    """Return the range of the newest of so many values less their mean, in standard deviations."""
    most, sure = math.sqrt(length - 1), math.sqrt(length) * (1 + 1e-9)
    proof = f"the newest of {length} values is at most sqrt({length} - 1) deviations from their mean"
    return around(-most, most, -sure, sure).because(proof)


def _steepest(least: int) -> float:
    """Return the greatest slope of at least so many values that lie between 0 and 1."""
    return 6 * (least * least // 4) / (least * (least * least - 1))


def _amid(inner: Range, name: str) -> Range:
    """Return the range of a mean, a median or a quantile of a window."""
    found = replace(rounded(inner, inner.low, inner.high), is_whole=False)
    if name != "quantile" or inner.is_whole:
        return found
    # It adds a part of a difference, which may round up.
    size = max(abs(inner.low), abs(inner.high))
    return replace(found, sure_high=inner.high + 1e-9 * size)
