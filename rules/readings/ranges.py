"""Ranges of numbers, and how arithmetic on floats moves their ends.

Rounding is monotone: the ends of a sum, a product or a quotient are those of the ends, in the same floats. Only what
adds up a window rounds otherwise. Its range has two pairs of ends: exact ones, and those that no rounding passes.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

#: How much of a number the rounding of a window may add, far more than it does.
_ROUNDING: Final = 1e-9
#: Sums of whole numbers up to here are exact.
_MAX_EXACT: Final = 2**53
_LONGEST: Final = 100_000

_ORDER: Final[dict[type[ast.cmpop], Callable[[float, float], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True, slots=True)
class Range:
    """What a value can be, where it is a number.

    Attributes:
        low, high: The least and the greatest number, in exact arithmetic.
        sure_low, sure_high: The same for numbers that rounding has moved.
        is_whole: Whether it is a whole number or a truth.
        may_be_nan: Whether it can be NaN.
        proof: Why it is bounded, for a reader of the rule; empty if the expression shows it.
        assumed: What it rests on, each as the end of a sentence that begins with "if".
    """

    low: float
    high: float
    sure_low: float
    sure_high: float
    is_whole: bool = False
    may_be_nan: bool = True
    proof: str = ""
    assumed: frozenset[str] = frozenset()

    @property
    def is_any(self) -> bool:
        """Whether nothing is known of it."""
        return self.sure_low == -math.inf and self.sure_high == math.inf

    @property
    def is_surely_finite(self) -> bool:
        """Whether it is neither NaN nor infinite."""
        return not self.may_be_nan and -math.inf < self.sure_low and self.sure_high < math.inf

    def because(self, proof: str, *assumed: str) -> Range:
        """Return it with a proof."""
        return replace(self, proof=proof, assumed=self.assumed | set(assumed))


def between(low: float, high: float, *, is_whole: bool = False, may_be_nan: bool = True) -> Range:
    """Return the range of numbers that are not rounded."""
    return Range(low, high, low, high, is_whole, may_be_nan)


def around(low: float, high: float, sure_low: float | None = None, sure_high: float | None = None) -> Range:
    """Return the range of numbers that a window has rounded."""
    least = low - abs(low) * _ROUNDING if sure_low is None else sure_low
    most = high + abs(high) * _ROUNDING if sure_high is None else sure_high
    return Range(low, high, least, most)


ANY: Final = between(-math.inf, math.inf)
NATURAL: Final = between(0, math.inf, is_whole=True, may_be_nan=False)
TRUTH: Final = between(0, 1, is_whole=True, may_be_nan=False)


def rounded(inner: Range, low: float, high: float) -> Range:
    """Return the range of a mean or a sum over values of a range; whole numbers are added exactly."""
    size = max(abs(inner.sure_low), abs(inner.sure_high))
    is_exact = inner.is_whole and size * _LONGEST < _MAX_EXACT
    found = between(low, high) if is_exact else around(low, high)
    return replace(found, proof=inner.proof, assumed=inner.assumed)


def joined(parts: Iterable[Range]) -> Range:
    """Return the range of what is one of several values."""
    every = list(parts)
    return _from(
        every,
        (min(part.sure_low for part in every), max(part.sure_high for part in every)),
        is_whole=all(part.is_whole for part in every),
        may_be_nan=any(part.may_be_nan for part in every),
    )


def extreme(name: str, parts: Sequence[Range]) -> Range:
    """Return the range of the greatest or the smallest of a list of values, which is NaN where one of them is."""
    choose = max if name == "max" else min
    return _from(
        parts,
        (choose(part.sure_low for part in parts), choose(part.sure_high for part in parts)),
        is_whole=all(part.is_whole for part in parts),
        may_be_nan=any(part.may_be_nan for part in parts),
    )


def negated(inner: Range) -> Range:
    """Return the range of a negative."""
    return replace(inner, low=-inner.high, high=-inner.low, sure_low=-inner.sure_high, sure_high=-inner.sure_low)


def calculated(sign: ast.operator, left: Range, right: Range) -> Range:
    """Return the range of a sum, a difference, a product or a quotient; any other is unknown."""
    pairs = list(product((left.sure_low, left.sure_high), (right.sure_low, right.sure_high)))
    is_whole = left.is_whole and right.is_whole
    match sign:
        case ast.Add():
            ends = [_added(left.sure_low, right.sure_low), _added(left.sure_high, right.sure_high)]
        case ast.Sub():
            return calculated(ast.Add(), left, negated(right))
        case ast.Mult():
            ends = [_times(one, other) for one, other in pairs]
        case ast.Div() if right.sure_low > 0 or right.sure_high < 0:
            ends, is_whole = [_over(one, other) for one, other in pairs], False
        case ast.Div() if left.sure_low >= 0 and right.sure_low >= 0:
            # A quotient by zero fails, and gives nothing.
            ends, is_whole = [0.0, math.inf], False
        case _:
            return ANY
    is_by_zero = isinstance(sign, ast.Div) and right.sure_low <= 0 <= right.sure_high
    is_safe = left.is_surely_finite and right.is_surely_finite and not is_by_zero
    return _from([left, right], (min(ends), max(ends)), is_whole=is_whole, may_be_nan=not is_safe)


def _from(parts: Iterable[Range], ends: tuple[float, float], *, is_whole: bool, may_be_nan: bool) -> Range:
    proofs = list(dict.fromkeys(part.proof for part in parts if part.proof))
    found = between(*ends, is_whole=is_whole, may_be_nan=may_be_nan)
    return replace(found, proof=" and ".join(proofs), assumed=_assumed(parts))


def _added(one: float, other: float) -> float:
    return one if math.isinf(one) else one + other


def _times(one: float, other: float) -> float:
    return 0.0 if not one or not other else one * other


def _over(one: float, other: float) -> float:
    if math.isinf(other):
        return math.copysign(math.inf, one * other) if math.isinf(one) else 0.0
    return one / other


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a condition can be, where it is defined.

    Attributes:
        may_hold: Whether it can be true.
        may_fail: Whether it can be false.
        holds_by_rounding: Whether it can be true only because of rounding.
        assumed: What that rests on, each as the end of a sentence that begins with "if".
    """

    may_hold: bool = True
    may_fail: bool = True
    holds_by_rounding: bool = False
    assumed: frozenset[str] = frozenset()

    @property
    def reversed(self) -> Verdict:
        """What the negation of the condition can be."""
        return Verdict(self.may_fail, self.may_hold, assumed=self.assumed)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return what conditions can be together."""
    every = list(verdicts)
    never = [each for each in every if not each.may_hold]
    if never:
        return min(never, key=lambda each: len(each.assumed))
    is_open = any(each.may_fail for each in every)
    return OPEN if is_open else Verdict(may_fail=False, assumed=_assumed(every))


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return what one of some conditions can be."""
    return all_of(each.reversed for each in verdicts).reversed


def either_of(one: Verdict, other: Verdict) -> Verdict:
    """Return what one of two conditions can be, whichever it is."""
    return Verdict(one.may_hold or other.may_hold, one.may_fail or other.may_fail, assumed=_assumed([one, other]))


def _assumed(parts: Iterable[Verdict | Range]) -> frozenset[str]:
    return frozenset[str]().union(*(part.assumed for part in parts))


OPEN: Final = Verdict()
NEVER: Final = Verdict(may_hold=False)
ALWAYS: Final = Verdict(may_fail=False)


def compared(left: Range, relation: ast.cmpop, right: Range) -> Verdict:
    """Return what a comparison can be. A comparison with NaN is false, but for ``!=``."""
    return replace(_compared(left, relation, right), assumed=_assumed([left, right]))


def _compared(left: Range, relation: ast.cmpop, right: Range) -> Verdict:
    may_be_nan = left.may_be_nan or right.may_be_nan
    if isinstance(relation, (ast.Gt, ast.GtE)):
        flipped: ast.cmpop = ast.Lt() if isinstance(relation, ast.Gt) else ast.LtE()
        return _compared(right, flipped, left)
    if isinstance(relation, (ast.Lt, ast.LtE)):
        holds = _ORDER[type(relation)]
        may_hold = holds(left.sure_low, right.sure_high)
        may_fail = may_be_nan or not holds(left.sure_high, right.sure_low)
        return Verdict(may_hold, may_fail, may_hold and not holds(left.low, right.high))
    is_equal = _may_be_equal(left, right)
    is_same = not may_be_nan and left.sure_low == left.sure_high == right.sure_low == right.sure_high
    if isinstance(relation, ast.Eq):
        return Verdict(is_equal, not is_same)
    return Verdict(not is_same, is_equal) if isinstance(relation, ast.NotEq) else OPEN


def _may_be_equal(left: Range, right: Range) -> bool:
    low, high = max(left.sure_low, right.sure_low), min(left.sure_high, right.sure_high)
    is_between = (left.is_whole or right.is_whole) and math.isfinite(low) and low == high and low != math.floor(low)
    return low <= high and not is_between
