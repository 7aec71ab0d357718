"""The range of each part of a rule, whatever values its series have.

Takes a bound rule; returns ranges. What the language defines decides: a count of a window, the tangent of a number, the
deviation of values between 0 and 1. A series without an expression can be anything, unless its name says that it is not
negative. What rests on a name says so.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from ..language import references as ref
from ..language.bound_rule import BoundRule, Derived
from .longest_streaks import longest_streak
from .ranges import ANY, NATURAL, Range, Verdict, around, between, calculated, extreme, joined, negated, rounded
from .related_windows import Bound, HeldCount, bound_by, bound_by_members, held_by

#: Words of metrics that are not negative, in nearly every loop.
_NOT_NEGATIVE: Final = frozenset({"norm", "gradnorm", "loss", "perplexity", "ppl", "entropy", "rms", "std", "variance"})
_WORD: Final = re.compile(r"[a-z]+")

_UNIT: Final = between(-1, 1)
_TRUTH: Final = between(0, 1, is_whole=True, may_be_nan=False)
_FINITE: Final = between(-sys.float_info.max, sys.float_info.max, may_be_nan=False)
#: The ranges of functions of a family, but for those that can be any number; None for a name.
_OF_FAMILIES: Final = {"any": _TRUTH, "all": _TRUTH, "count": NATURAL, "argmin": None, "argmax": None}
#: Facts about the run that are never negative.
_COUNTING_FACTS: Final = frozenset({"step", "max_steps", "world_size", "updates_applied", "updates_skipped"})
#: Functions that lie between the smallest and the greatest value of a window; the first ones are one of them.
_MEMBERS: Final = frozenset({"min", "max", "first", "last"})
_AMONG: Final = frozenset({"mean", "median", "quantile"})
_DEVIATIONS: Final = frozenset({"std", "detrended_std"})
#: From here on deviations of a window are added in another order.
_FEW: Final = 64


class RunLimits(NamedTuple):
    """What is known of a run, whatever its values.

    Attributes:
        members: Returns how many members a family has at most, by its pattern.
        most_steps: The most steps that it has.
        ranges: What the policy says that metrics lie between, by name.
    """

    members: Callable[[str], int]
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
        asked: Callable[[ref.PastDecisions], Range | None],
        limits: RunLimits,
        *,
        is_full: bool = False,
    ) -> None:
        self._rule = rule
        self._members, self._declared = limits.members, limits.ranges
        self._verdict = verdict
        self._asked = asked
        most_steps = limits.most_steps
        self._steps = between(0, most_steps, is_whole=True, may_be_nan=False)
        if most_steps < math.inf:
            self._steps = self._steps.because(f"the runs given have at most {most_steps:,.0f} steps")
        self._is_full = is_full
        self._in_series = False
        self._found: dict[tuple[object, ...], Range | None] = {}
        self.known: Mapping[ref.SeriesKey, int] = {}

    @property
    def place(self) -> tuple[object, ...]:
        """What a verdict depends on besides the node."""
        return self._in_series, frozenset(self.known.items())

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
            return self._referred(reference)
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
            case ast.Compare() | ast.UnaryOp(ast.Not()) | ast.Call(ast.Name("isnan" | "isfinite")):
                return self._truth(node)
            case ast.BoolOp(_, values) if all(isinstance(each, (ast.Compare, ast.BoolOp)) for each in values):
                return self._truth(node)
            case ast.Call(ast.Name(name)):
                return self._called(name, node)
        return None

    def _truth(self, node: ast.expr) -> Range:
        verdict = self._verdict(node)
        low, high = float(not verdict.may_fail), float(verdict.may_hold)
        return replace(_TRUTH, low=low, high=high, sure_low=low, sure_high=high, assumed=verdict.assumed)

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

    def _referred(self, reference: ref.Reference) -> Range | None:
        match reference:
            case ref.ParamValue(bool() | int() | float() as value) if abs(value) < 2**53:
                return between(value, value, is_whole=isinstance(value, int), may_be_nan=value != value)
            case ref.SeriesLength():
                return NATURAL
            case ref.SeriesAge(limit=None):
                return self._steps
            case ref.SeriesAge() | ref.Milestone():
                return _TRUTH
            case ref.ContextValue("step"):
                return self._steps
            case ref.ContextValue(name) if name in _COUNTING_FACTS:
                return NATURAL
            case ref.ContextValue():
                return ANY
            case ref.PastDecisions():
                return self._asked(reference)
            case ref.FamilyReading(function):
                return _OF_FAMILIES.get(function, ANY)
        return self._read(reference) if isinstance(reference, ref.SeriesReference) else None

    def _read(self, reference: ref.SeriesReference) -> Range:
        match reference:
            case ref.Window():
                return self._window(reference)
            case ref.SeriesValue(key) | ref.SeriesAgo(key):
                return self.series(key)
            case ref.SeriesFold("streak", key):
                return self._streak(key)
            case ref.SeriesFold("ema", key, length) if length > 1:
                # A step towards a value does not pass it, however it is rounded.
                return replace(self.series(key), is_whole=False, may_be_nan=False)
            case ref.SeriesFold(function, key) if function != "ema":
                return replace(self.series(key), may_be_nan=False)
            case ref.SeriesChange(key) | ref.SeriesRise(ref.SeriesAgo(key)):
                return calculated(ast.Sub(), self.series(key), self.series(key))
        return ANY

    def series(self, key: ref.SeriesKey) -> Range:
        """Return the range of the values of a series."""
        if key not in self._rule.derived:
            return self._declared.get(key.name, ANY)
        # Its values come from earlier events, at which series were shorter.
        outer = self._in_series, self.known
        self._in_series, self.known = True, {}
        found = self.of(self._rule.derived[key].node)
        self._in_series, self.known = outer
        # A failure adds NaN.
        return ANY if found is None else replace(found, may_be_nan=True)

    def _streak(self, key: ref.SeriesKey) -> Range:
        derived = self._rule.derived.get(key)
        if not self.series(key).sure_high > 0:
            return between(0, 0, is_whole=True, may_be_nan=False)
        if derived is None:
            return NATURAL
        return longest_streak(self._rule, derived, partial(self._truth_at, derived))

    def _truth_at(self, derived: Derived, values: int) -> Range:
        """Return what a condition in a series can be where the first series in it has had so many values."""
        outer = self._in_series, self.known
        self._in_series, self.known = True, {derived.driver: values}
        found, node = self._truth(derived.node), derived.node
        compared = self.of(node.left) if isinstance(node, ast.Compare) else None
        self._in_series, self.known = outer
        return found if compared is None else found.because(compared.proof)

    def held(self, window: ref.Window) -> HeldCount:
        """Return how many values a window holds where it is defined."""
        is_full = self._is_full or (self._in_series and window.least is None)
        return held_by(window, is_full=is_full, known=self.known.get(window.key, 0))

    def _window(self, window: ref.Window) -> Range:
        name, inner = window.function.name, self.series(window.key)
        if name == "count":
            held = held_by(window, is_full=self._in_series and window.least is None)
            least = 0 if window.least is None and not self._in_series else held.least
            found = between(least, held.most, is_whole=True, may_be_nan=False)
            return found.because(f"the window holds at most {held.most:g} values") if held.most < math.inf else found
        if name == "zscore":
            return self._zscore(window)
        if name in ("argmin", "argmax"):
            most = max(self.held(window).most - 1, 0)
            found = between(0, most, is_whole=True)
            return found.because(f"the oldest of its values is {most:g} ago") if most < math.inf else found
        if name in _MEMBERS:
            return inner
        if name in _AMONG:
            return _amid(inner, name)
        return self._spread(window, inner)

    def _spread(self, window: ref.Window, inner: Range) -> Range:
        """Return the range of what measures the differences within a window, or their sum."""
        name, width, most = window.function.name, inner.high - inner.low, self.held(window).most
        low = 0.0
        if name == "sum":
            low, high = (end * most if end else 0.0 for end in (min(0.0, inner.low), max(0.0, inner.high)))
            return replace(rounded(inner, low, high), is_whole=inner.is_whole)
        if not math.isfinite(width):
            return ANY if name in ("slope", "rate") else between(0, math.inf)
        if name in _DEVIATIONS:
            high = width / 2
        elif name == "var":
            high = width * width / 4
        elif name == "mad":
            high = width
        elif name == "slope" and not window.is_per_step:
            high = _steepest(max(self.held(window).least, 2)) * width
            low = -high
        else:
            return ANY
        slack = 1e-9 * (1 + width) * max(abs(inner.low), abs(inner.high))
        found = around(low, high, low - slack if low else 0.0, high + slack)
        proof = f"{name} of values from {inner.low:g} to {inner.high:g} is at most {high:.3g}"
        return replace(found, assumed=inner.assumed).because(proof)

    def _zscore(self, window: ref.Window) -> Range:
        is_newest_within = not window.skip and window.half is None and window.extent is ref.Extent.VALUES
        if not is_newest_within or window.length >= _FEW:
            return ANY
        return _standard(int(window.length))

    def _standardized(self, above: ast.expr, below: ast.expr) -> Range | None:
        """Return the range of the newest value less the mean of its window, in standard deviations of that."""
        std = self._rule.references.get(below)
        match above:
            case ast.BinOp(left, ast.Sub(), right):
                newest, mean = self._rule.references.get(left), self._rule.references.get(right)
                if is_standardized(newest, mean, std) and isinstance(std, ref.Window):
                    return _standard(int(std.length))
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

    def bound(self, above: ast.expr, below: ast.expr) -> tuple[ref.SeriesKey, Bound] | None:
        """Return how often the second of two readings of one series or family the first one is at most, and of what.

        What bounds a multiple of one of several values bounds that of the greatest, too.
        """
        match below:
            case ast.Call(ast.Name("max"), [ast.List(parts)], []):
                return next(filter(None, (self.bound(above, part) for part in parts)), None)
        one, other = self._rule.references.get(above), self._rule.references.get(below)
        if isinstance(one, ref.SeriesReference) and isinstance(other, ref.SeriesReference):
            bound = bound_by(one, other, self.held)
            return None if bound is None else (one.key, bound)
        if not isinstance(one, ref.FamilyReading) or not isinstance(other, ref.FamilyReading):
            return None
        read = [self._rule.references.get(node.args[0]) for node in (above, below) if isinstance(node, ast.Call)]
        bound = bound_by_members(one, other, self._members(one.key.name))
        return None if bound is None or read != [ref.SeriesValue(one.key)] * 2 else (one.key, bound)

    def assumptions(self, key: ref.SeriesKey, *, needs_sign: bool, needs_finite: bool) -> list[str] | None:
        """Return what must be so of a series' values and does not follow; None where it may well not be so."""
        inner, assumed, key = self.series(key), list[str](), self._source(key)
        if needs_sign and inner.sure_low < 0:
            if key.is_derived or not _NOT_NEGATIVE.intersection(_WORD.findall(key.name.casefold())):
                return None
            assumed.append(f"'{key.name}' is never negative")
        if needs_finite and not (inner.sure_high < math.inf and inner.sure_low > -math.inf):
            assumed.append(f"'{key.name}' is finite")
        return assumed

    def _source(self, key: ref.SeriesKey) -> ref.SeriesKey:
        """Return the series of which another has the finite values; any other is its own source."""
        derived = self._rule.derived.get(key)
        match None if derived is None else derived.node:
            case ast.Call(ast.Name("finite"), [inner]):
                reference = self._rule.references.get(inner)
                return reference.key if isinstance(reference, ref.SeriesValue) and not reference.back else key
        return key


def is_standardized(newest: ref.Reference | None, mean: ref.Reference | None, std: ref.Reference | None) -> bool:
    """Whether a mean and a deviation are of one short window that ends with the newest value."""
    if not isinstance(mean, ref.Window) or not isinstance(std, ref.Window) or newest != ref.SeriesValue(mean.key):
        return False
    names = (mean.function.name, std.function.name)
    is_same = (mean.key, mean.length, mean.extent) == (std.key, std.length, std.extent)
    is_plain = mean.extent is ref.Extent.VALUES and not (mean.skip or std.skip or mean.half or std.half)
    return names == ("mean", "std") and is_same and is_plain and mean.length < _FEW


def _standard(length: int) -> Range:
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
