"""The range of each part of a rule, whatever values its series have.

Takes a bound rule; returns ranges. What the language defines decides: a count of a window, the tangent of a number, the
deviation of values between 0 and 1. A series without an expression can be anything, unless its name says that it is not
negative. What rests on a name says so. Two readings of one series bound each other: no value of a window of k values
that are not negative is above k times their mean, and so on.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from ..language.bound_rule import BoundRule, Derived
from ..language.name_patterns import MAX_MEMBERS
from ..readings.family import FamilyReading
from ..readings.fold import SeriesFold
from ..readings.ranges import (
    ANY,
    NATURAL,
    TRUTH,
    Range,
    Verdict,
    around,
    between,
    calculated,
    extreme,
    joined,
    negated,
)
from ..readings.reading import Extent, Reading, SeriesKey, SeriesReading, ValueLimits
from ..readings.series_value import SeriesValue
from ..readings.window import AMONG, DEVIATIONS, FEW, MEMBERS, HeldCount, Window, standardized

#: Words of metrics that are not negative, in nearly every loop.
_NOT_NEGATIVE: Final = frozenset({"norm", "gradnorm", "loss", "perplexity", "ppl", "entropy", "rms", "std", "variance"})
_WORD: Final = re.compile(r"[a-z]+")

_UNIT: Final = between(-1, 1)
_FINITE: Final = between(-sys.float_info.max, sys.float_info.max, may_be_nan=False)


class RunLimits(NamedTuple):
    """What is known of a run, whatever its values.

    Attributes:
        most_steps: The most steps that it has.
        ranges: What the policy says that metrics lie between, by name.
    """

    most_steps: float = math.inf
    ranges: Mapping[str, Range] = MappingProxyType({})


class ValueRanges:
    """The ranges of the parts of one rule.

    Args:
        rule: The rule.
        verdict: Returns what a condition can be; it is asked for the parts that are conditions.
        asked: Returns the range of the answer to a question about a controller; None where it is no number.
        limits: What is known of the run.
        is_full: Whether windows are full, for what holds once they are.
    """

    def __init__(
        self,
        rule: BoundRule,
        verdict: Callable[[ast.expr], Verdict],
        asked: Callable[[str, str], Range | None],
        limits: RunLimits,
        *,
        is_full: bool = False,
    ) -> None:
        self._rule = rule
        self._declared = limits.ranges
        self._verdict = verdict
        self._asked = asked
        most_steps = limits.most_steps
        self.steps = between(0, most_steps, is_whole=True, may_be_nan=False)
        if most_steps < math.inf:
            self.steps = self.steps.because(f"the runs given have at most {most_steps:,.0f} steps")
        self.is_full = is_full
        self.in_series = False
        self._found: dict[tuple[object, ...], Range | None] = {}
        self.known: Mapping[SeriesKey, int] = {}

    @property
    def place(self) -> tuple[object, ...]:
        """What a verdict depends on besides the node."""
        return self.in_series, frozenset(self.known.items())

    # --- expressions --------------------------------------------------------------------------------------------

    def of(self, node: ast.expr) -> Range | None:
        """Return the range of a node; None if it may be no number."""
        place = (node, *self.place)
        if place not in self._found:
            self._found[place] = self._range(node)
        return self._found[place]

    def _range(self, node: ast.expr) -> Range | None:
        reference = self._rule.references.get(node)
        if reference is not None:
            return reference.bounds(self)
        match node:
            case ast.Constant(bool(value)):
                return between(value, value, is_whole=True, may_be_nan=False)
            case ast.Constant(int() | float() as value) if abs(value) < 2**53:
                return between(value, value, is_whole=isinstance(value, int), may_be_nan=False)
            case ast.UnaryOp(ast.USub(), operand):
                inner = self.of(operand)
                return None if inner is None else negated(inner)
            case ast.BinOp(left, sign, right):
                return self._calculated(left, sign, right)
            case ast.IfExp():
                return self._chosen(node)
            case ast.Compare() | ast.UnaryOp(ast.Not()) | ast.Call(ast.Name("isfinite")):
                return self._truth(node)
            case ast.BoolOp(_, values) if all(isinstance(each, (ast.Compare, ast.BoolOp)) for each in values):
                return self._truth(node)
            case ast.Call(ast.Name(name)):
                return self._called(name, node)
        return None

    def _truth(self, node: ast.expr) -> Range:
        verdict = self._verdict(node)
        low, high = float(not verdict.may_fail), float(verdict.may_hold)
        return replace(TRUTH, low=low, high=high, sure_low=low, sure_high=high, assumed=verdict.assumed)

    def _chosen(self, node: ast.IfExp) -> Range | None:
        verdict = self._verdict(node.test)
        if not verdict.assumed and not (verdict.may_hold and verdict.may_fail):
            return self.of(node.body if verdict.may_hold else node.orelse)
        parts = [self.of(node.body), self.of(node.orelse)]
        known = [part for part in parts if part is not None]
        return joined(known) if len(known) == len(parts) else None

    def _calculated(self, left: ast.expr, sign: ast.operator, right: ast.expr) -> Range | None:
        one, other = self.of(left), self.of(right)
        if one is None or other is None:
            return None
        found = calculated(sign, one, other)
        if isinstance(sign, ast.Div):
            return self.ratio(left, right) or self._standardized(left, right) or found
        return found

    def _called(self, name: str, node: ast.Call) -> Range | None:
        match node.args:
            case [ast.List(items)] if name in ("min", "max") and not node.keywords:
                parts = [self.of(item) for item in items]
                known = [part for part in parts if part is not None]
                return extreme(name, known) if known and len(known) == len(parts) else None
        arguments = [self.of(argument) for argument in node.args]
        known = [argument for argument in arguments if argument is not None]
        if not known or len(known) < len(arguments) or node.keywords:
            return None
        inner = known[0]
        match name:
            case "tanh" | "cos" | "sign":
                return replace(_UNIT, is_whole=name == "sign", may_be_nan=inner.may_be_nan).because(
                    f"{name} gives -1 to 1"
                )
            case "abs":
                high = max(abs(inner.sure_low), abs(inner.sure_high))
                low = 0.0 if inner.sure_low <= 0 <= inner.sure_high else min(abs(inner.sure_low), abs(inner.sure_high))
                return replace(inner, low=low, high=high, sure_low=low, sure_high=high)
            case "sqrt" | "math_sqrt":
                low, high = math.sqrt(max(inner.sure_low, 0)), math.sqrt(max(inner.sure_high, 0))
                return replace(inner, low=low, high=high, sure_low=low, sure_high=high, is_whole=False)
            case "exp":
                return between(0, math.inf)
            case "finite":
                low, high = max(inner.sure_low, _FINITE.low), min(inner.sure_high, _FINITE.high)
                return replace(inner, low=low, high=high, sure_low=low, sure_high=high, may_be_nan=False)
            case "clamp" if len(known) == 3:
                return self._clamped(*known)
        return None

    def _clamped(self, inner: Range, least: Range, most: Range) -> Range:
        if least.may_be_nan or most.may_be_nan:
            return ANY
        low = min(max(inner.sure_low, least.sure_low), most.sure_high)
        high = max(min(inner.sure_high, most.sure_high), least.sure_low)
        is_whole = inner.is_whole and least.is_whole and most.is_whole
        return between(low, max(high, least.sure_high), is_whole=is_whole)

    # --- what rules read ----------------------------------------------------------------------------------------

    def asked(self, question: str, controller: str) -> Range | None:
        """Return the range of the answer to a question about a controller; None where it is no number."""
        return self._asked(question, controller)

    def series(self, key: SeriesKey) -> Range:
        """Return the range of the values of a series."""
        if key not in self._rule.derived:
            return self._declared.get(key.name, ANY)
        # Its values come from earlier events, at which series were shorter.
        with self._within_series({}):
            found = self.of(self._rule.derived[key].node)
        # A failure adds NaN.
        return ANY if found is None else replace(found, may_be_nan=True)

    @contextmanager
    def _within_series(self, known: Mapping[SeriesKey, int]) -> Iterator[None]:
        outer = self.in_series, self.known
        self.in_series, self.known = True, known
        yield
        self.in_series, self.known = outer

    def streak(self, key: SeriesKey) -> Range:
        """Return the range of the number of newest values of a series in a row that are not 0."""
        derived = self._rule.derived.get(key)
        if not self.series(key).sure_high > 0:
            return between(0, 0, is_whole=True, may_be_nan=False)
        if derived is None:
            return NATURAL
        return longest_streak(self._rule, derived, partial(self._truth_at, derived))

    def _truth_at(self, derived: Derived, values: int) -> Range:
        """Return what a condition in a series can be where the first series in it has had so many values."""
        with self._within_series({derived.driver: values}):
            found, node = self._truth(derived.node), derived.node
            compared = self.of(node.left) if isinstance(node, ast.Compare) else None
        return found if compared is None else found.because(compared.proof)

    def _standardized(self, above: ast.expr, below: ast.expr) -> Range | None:
        """Return the range of the newest value less the mean of its window, in standard deviations of that."""
        std = self._rule.references.get(below)
        match above:
            case ast.BinOp(left, ast.Sub(), right):
                newest, mean = self._rule.references.get(left), self._rule.references.get(right)
                if is_standardized(newest, mean, std) and isinstance(std, Window):
                    return standardized(int(std.length))
        return None

    # --- readings of the same series ----------------------------------------------------------------------------

    def ratio(self, above: ast.expr, below: ast.expr) -> Range | None:
        """Return the range of a quotient of two readings of one series; None where nothing bounds it."""
        found = self.bound(above, below)
        if found is None:
            return None
        key, bound = found
        assumed = self.assumptions(key, needs_sign=True, needs_finite=bound.needs_finite)
        if assumed is None:
            return None
        low = -bound.factor if bound.is_signed else 0.0
        return around(low, bound.factor).because(bound.proof, *assumed)

    def bound(self, above: ast.expr, below: ast.expr) -> tuple[SeriesKey, Bound] | None:
        """Return how often the second of two readings of one series or family the first one is at most, and of what.

        What bounds a multiple of one of several values bounds that of the greatest, too.
        """
        match below:
            case ast.Call(ast.Name("max"), [ast.List(parts)], []):
                return next(filter(None, (self.bound(above, part) for part in parts)), None)
        one, other = self._rule.references.get(above), self._rule.references.get(below)
        if isinstance(one, SeriesReading) and isinstance(other, SeriesReading):
            bound = bound_by(one, other, self)
            return None if bound is None else (one.key, bound)
        if not isinstance(one, FamilyReading) or not isinstance(other, FamilyReading):
            return None
        read = [self._rule.references.get(node.args[0]) for node in (above, below) if isinstance(node, ast.Call)]
        bound = bound_by_members(one, other)
        return None if bound is None or read != [SeriesValue(one.key)] * 2 else (one.key, bound)

    def assumptions(self, key: SeriesKey, *, needs_sign: bool, needs_finite: bool) -> list[str] | None:
        """Return what must be so of a series' values and does not follow; None where it may well not be so."""
        inner, assumed, key = self.series(key), list[str](), self._source(key)
        if needs_sign and inner.sure_low < 0:
            if key.is_derived or not _NOT_NEGATIVE.intersection(_WORD.findall(key.name.casefold())):
                return None
            assumed.append(f"'{key.name}' is never negative")
        if needs_finite and not (inner.sure_high < math.inf and inner.sure_low > -math.inf):
            assumed.append(f"'{key.name}' is finite")
        return assumed

    def _source(self, key: SeriesKey) -> SeriesKey:
        """Return the series of which another has the finite values; any other is its own source."""
        derived = self._rule.derived.get(key)
        match None if derived is None else derived.node:
            case ast.Call(ast.Name("finite"), [inner]):
                reference = self._rule.references.get(inner)
                return reference.key if isinstance(reference, SeriesValue) and not reference.back else key
        return key


def is_standardized(newest: Reading | None, mean: Reading | None, std: Reading | None) -> bool:
    """Whether a mean and a deviation are of one short window that ends with the newest value."""
    if not isinstance(mean, Window) or not isinstance(std, Window) or newest != SeriesValue(mean.key):
        return False
    names = (mean.function.name, std.function.name)
    is_same = (mean.key, mean.length, mean.extent) == (std.key, std.length, std.extent)
    is_plain = mean.extent is Extent.VALUES and not (mean.skip or std.skip or mean.half or std.half)
    return names == ("mean", "std") and is_same and is_plain and mean.length < FEW


_WITHIN: Final = MEMBERS | AMONG


@dataclass(frozen=True, slots=True)
class Bound:
    """At most so many times another reading.

    Attributes:
        factor: How many times, in exact arithmetic.
        proof: Why.
        is_signed: Whether its negative is bounded as well; if not, it is not negative where the values are not.
        needs_sign: Whether it holds only for values that are not negative.
        needs_finite: Whether it holds only for a newest value that is finite.
        is_exact: Whether rounding cannot pass it.
    """

    factor: float
    proof: str
    is_signed: bool = False
    needs_sign: bool = True
    needs_finite: bool = False
    is_exact: bool = False


def bound_by(upper: SeriesReading, lower: SeriesReading, limits: ValueLimits) -> Bound | None:
    """Return how often the second reading the first one is at most; None where nothing bounds it.

    Args:
        upper: The reading that is bounded.
        lower: The reading that bounds it.
        limits: What is known of the series.
    """
    if upper.key != lower.key:
        return None
    if (
        isinstance(upper, Window)
        and upper.function.name == "min"
        and (name := _function_within(lower, upper)) in _WITHIN
    ):
        what = "the smallest value of a window is not above the others"
        return Bound(1.0, what, needs_sign=False, is_exact=name in MEMBERS)
    if isinstance(upper, SeriesFold) and upper.function == "trough" and isinstance(lower, SeriesValue):
        is_within = lower.back >= upper.skip
        what = "a trough is the smallest value so far"
        return Bound(1.0, what, needs_sign=False, needs_finite=True, is_exact=True) if is_within else None
    if isinstance(lower, SeriesFold):
        return _by_fold(upper, lower)
    if not isinstance(lower, Window):
        return None
    name = _function_within(upper, lower)
    if name is None:
        return None
    window = upper if isinstance(upper, Window) else lower
    count = lower.held(limits)
    match lower.function.name:
        case "mean":
            return _by_mean(name, HeldCount(max(count.least, window.held(limits).least), count.most))
        case "max" if name in _WITHIN:
            what = "the greatest value of a window is not below the others"
            return Bound(1.0, what, needs_sign=False, is_exact=name in MEMBERS)
        case "sum" if name in MEMBERS:
            return Bound(1.0, "no value is above the sum of values that are not negative")
    return None


def bound_by_members(upper: FamilyReading, lower: FamilyReading) -> Bound | None:
    """Return the same for two functions of the newest values of a family."""
    if upper.key != lower.key or (upper.function, lower.function) != ("max", "mean"):
        return None
    return Bound(MAX_MEMBERS, f"no value of {MAX_MEMBERS:,} members is above {MAX_MEMBERS:,} times their mean")


def _function_within(reading: SeriesReading, window: Window) -> str | None:
    """Return the function of the same values as a window; ``last`` for one of its values; None for another reading."""
    if isinstance(reading, SeriesValue):
        is_within = window.extent is Extent.VALUES and window.half is None
        return "last" if is_within and window.skip <= reading.back < window.skip + window.length else None
    if not isinstance(reading, Window) or reading.is_per_step:
        return None
    is_same = (reading.length, reading.extent, reading.skip, reading.half) == (
        window.length,
        window.extent,
        window.skip,
        window.half,
    )
    return reading.function.name if is_same else None


def _by_mean(name: str, held: HeldCount) -> Bound | None:
    least, most = max(held.least, 2 if name == "slope" else 1), max(held.most, 1)
    if name == "slope":
        return Bound(6 / (least + 1), f"slope / mean is at most 6 / ({least} + 1) for {least} values", is_signed=True)
    if name == "median":
        return Bound(2.0, "half of the values are not below the median")
    if not math.isfinite(most):
        return None
    if name in MEMBERS:
        return Bound(most, f"no value of {most:g} is above {most:g} times their mean")
    if name in DEVIATIONS:
        return Bound(
            math.sqrt(most - 1), f"the deviation of {most:g} values is at most sqrt({most:g} - 1) times their mean"
        )
    return None


def _by_fold(upper: SeriesReading, lower: SeriesFold) -> Bound | None:
    if not isinstance(upper, SeriesValue) or upper.back < lower.skip:
        return None
    if lower.function == "peak":
        return Bound(1.0, "a peak is the greatest value so far", needs_sign=False, needs_finite=True, is_exact=True)
    if lower.function == "ema" and upper.back == lower.skip:
        factor = (lower.amount + 1) / 2
        return Bound(
            factor, f"the newest value is at least 2 / ({lower.amount:.0f} + 1) of the average", needs_finite=True
        )
    return None


def longest_streak(rule: BoundRule, derived: Derived, truth_at: Callable[[int], Range]) -> Range:
    """Return the range of a streak.

    Args:
        rule: The rule that reads it.
        derived: The condition.
        truth_at: Returns what the condition can be, as 0 or 1, where its first series has had at least so many values.
    """
    windows = [each for each in _windows(rule, ast.walk(derived.node)) if each.key == derived.driver]
    most = max((window.values_read for window in windows if window.extent is Extent.VALUES), default=0)
    if not most or truth_at(most).sure_high > 0:
        return NATURAL
    least = 1
    while least < most:
        middle = (least + most) // 2
        least, most = (middle + 1, most) if truth_at(middle).sure_high > 0 else (least, middle)
    always = [each for each in _windows(rule, _always_evaluated(derived.node)) if each in windows]
    first = max((_needed(each) for each in always if each.extent is Extent.VALUES), default=1)
    truth, longest = truth_at(least), max(least - first, 0)
    found = between(0, longest, is_whole=True, may_be_nan=False)
    return found.because(f"{truth.proof}, which leaves a streak of at most {longest} before", *truth.assumed)


def _windows(rule: BoundRule, nodes: Iterator[ast.AST]) -> Iterator[Window]:
    found = (rule.references.get(node) for node in nodes)
    return (each for each in found if isinstance(each, Window))


def _needed(window: Window) -> int:
    """Return how many values a series has at least where a window in another series is defined."""
    return window.values_read if window.least is None else window.least + window.skip


def _always_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression without which it has no value."""
    yield node
    match node:
        case ast.BoolOp(_, values):
            parts: list[ast.AST] = [values[0]]
        case ast.IfExp(test):
            parts = [test]
        case ast.Compare(left, _, comparators):
            parts = [left, comparators[0]]
        case _:
            parts = list(ast.iter_child_nodes(node))
    for part in parts:
        yield from _always_evaluated(part)
