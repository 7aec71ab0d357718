"""Proves that conditions are never true together, such as ``lr > 1e-3 and lr < 1e-4``.

Takes parts of a rule with the answer that each is to have; returns two of them that exclude each other. The parts are
taken apart into comparisons, an ``or`` into its cases. In each case, what one expression is compared with leaves it an
interval, and two expressions an order. An empty one is the proof: an expression has one value at an event.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..language.expressions import links_of
from ..readings.ranges import Range
from .length_conditions import MIRRORED

#: Most cases that are looked at. With more, some parts are left out, which proves less.
_MOST_CASES: Final = 64

#: The orders of two values that each comparison is true of; ``?`` is that of a NaN.
_ORDERS: Final[dict[type[ast.cmpop], frozenset[str]]] = {
    ast.Lt: frozenset("<"),
    ast.LtE: frozenset("<="),
    ast.Gt: frozenset(">"),
    ast.GtE: frozenset(">="),
    ast.Eq: frozenset("="),
    ast.NotEq: frozenset("<>?"),
}
_ANY_ORDER: Final = frozenset("<=>?")


class Link(NamedTuple):
    """One comparison of a chain."""

    left: ast.expr
    sign: type[ast.cmpop]
    right: ast.expr


class Atom(NamedTuple):
    """A part of a condition that is not taken apart further, and the answer that it is to have.

    Attributes:
        node: The part.
        is_true: The answer.
        link: The comparison that it is; None for any other part.
    """

    node: ast.expr
    is_true: bool
    link: Link | None = None


#: Parts with the answers that they are to have together.
Case = tuple[Atom, ...]


class Clash(NamedTuple):
    """Parts of a condition that cannot have their answers at one event.

    Attributes:
        atoms: Two parts, or all that it takes, in the order of the rule.
        assumed: What that rests on.
    """

    atoms: Case
    assumed: frozenset[str]


def cases_of(node: ast.expr, *, is_true: bool) -> list[Case]:
    """Return the ways in which a condition has an answer, each as the answers of its parts."""
    match node:
        case ast.BoolOp(op, values):
            found = [cases_of(value, is_true=is_true) for value in values]
            is_joined = isinstance(op, ast.And) is is_true
            return together(found) if is_joined else _either(found)
        case ast.UnaryOp(ast.Not(), operand):
            return cases_of(operand, is_true=not is_true)
        case ast.IfExp(test, body, otherwise):
            sides = ((True, body), (False, otherwise))
            return _either(
                together([cases_of(test, is_true=is_so), cases_of(part, is_true=is_true)]) for is_so, part in sides
            )
        case ast.Compare():
            links = [_cases_of_link(node, *link, is_true=is_true) for link in links_of(node)]
            return together(links) if is_true else _either(links)
        case ast.Constant(bool(value)):
            return [()] if value is is_true else []
    return [(Atom(node, is_true),)]


def _cases_of_link(node: ast.Compare, left: ast.expr, sign: ast.cmpop, right: ast.expr, *, is_true: bool) -> list[Case]:
    if isinstance(sign, (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List, ast.Set)):
        is_within = isinstance(sign, ast.In) is is_true
        if all(isinstance(each, ast.Constant) for each in right.elts):
            equal: list[list[Case]] = [[(Atom(node, is_within, Link(left, ast.Eq, each)),)] for each in right.elts]
            return _either(equal) if is_within else together(equal)
    if type(sign) not in _ORDERS:
        return [()]
    return [(Atom(node, is_true, Link(left, type(sign), right)),)]


def together(parts: Iterable[list[Case]]) -> list[Case]:
    """Return the ways in which several conditions have their answers, given those of each."""
    found: list[Case] = [()]
    for cases in parts:
        if len(found) * len(cases) <= _MOST_CASES:
            found = [(*one, *other) for one in found for other in cases]
    return found


def _either(parts: Iterable[list[Case]]) -> list[Case]:
    found = [case for cases in parts for case in cases]
    return found if len(found) <= _MOST_CASES else [()]


@dataclass(slots=True)
class _PossibleValues:
    """The possible values of an expression after some comparisons.

    Attributes:
        low, high: The ends of its numbers.
        is_above, is_below: Whether the ends themselves are left out.
        is_whole: Whether it is a whole number, if it is a number.
        may_be_nan: Whether it can be NaN.
        may_be_other: Whether it can be neither a number nor a text.
        texts: The texts that it can be; None for any.
        unequal: The numbers and texts that it is not.
    """

    low: float = -math.inf
    high: float = math.inf
    is_above: bool = False
    is_below: bool = False
    is_whole: bool = False
    may_be_nan: bool = True
    may_be_other: bool = True
    texts: frozenset[str] | None = None
    unequal: set[object] = field(default_factory=set)

    @classmethod
    def of(cls, known: Range | None, classes: Collection[str] | None) -> _PossibleValues:
        """Return what an expression can be at first: what its range says, or one of a state's classes."""
        if classes is not None:
            return cls(math.inf, -math.inf, may_be_nan=False, may_be_other=False, texts=frozenset(classes))
        if known is None:
            return cls()
        ends = known.sure_low, known.sure_high
        return cls(
            *ends, is_whole=known.is_whole, may_be_nan=known.may_be_nan, may_be_other=False, texts=frozenset[str]()
        )

    @property
    def is_none(self) -> bool:
        """Whether nothing is left that it can be."""
        has_text = self.texts is None or bool(self.texts - self.unequal)
        return not (self.may_be_nan or self.may_be_other or has_text or self._has_number())

    def _has_number(self) -> bool:
        low, high, is_above, is_below = self.low, self.high, self.is_above, self.is_below
        if self.is_whole and math.isfinite(low):
            low, is_above = (math.floor(low) + 1, False) if is_above else (math.ceil(low), False)
        if self.is_whole and math.isfinite(high):
            high, is_below = (math.ceil(high) - 1, False) if is_below else (math.floor(high), False)
        return low < high or (low == high and not (is_above or is_below or low in self.unequal))

    def be_number(self, *, may_be_nan: bool) -> None:
        """Leave it numbers alone: it has been compared with one."""
        self.texts, self.may_be_other = frozenset(), False
        self.may_be_nan = self.may_be_nan and may_be_nan

    def be_above(self, end: float, *, is_open: bool) -> None:
        """Leave it what is above a number, or that number as well."""
        self.low, self.is_above = max((self.low, self.is_above), (end, is_open))

    def be_below(self, end: float, *, is_open: bool) -> None:
        """Leave it what is below a number, or that number as well."""
        least, self.is_below = max((-self.high, self.is_below), (-end, is_open))
        self.high = -least

    def be_text(self, text: str) -> None:
        """Leave it one text."""
        self.texts = frozenset({text}) if self.texts is None else self.texts & {text}
        self.low, self.high = math.inf, -math.inf
        self.may_be_nan = self.may_be_other = False


class Conjunctions:
    """The possible values of the parts of one rule at one event.

    Args:
        range_of: Returns the range of a part; None if it may be no number.
        classes_of: Returns the classes that a state can take, by the part that reads it; None for any other part.
    """

    def __init__(
        self,
        range_of: Callable[[ast.expr], Range | None],
        classes_of: Callable[[ast.expr], Collection[str] | None],
    ) -> None:
        self._range_of = range_of
        self.classes_of = classes_of
        self._keys: dict[ast.expr, str] = {}

    def clash(self, cases: Sequence[Case]) -> Clash | None:
        """Return the parts that exclude each other in the first of some cases, if there are such in each of them."""
        if not all(map(self._excludes, cases)) or not cases:
            return None
        assumed = frozenset[str]().union(*(self._assumed(case) for case in cases))
        return Clash(self._fewest(cases[0]), assumed)

    def _fewest(self, case: Case) -> Case:
        """Return two parts of a case that exclude each other; all of it where it takes more."""
        pairs = ((one, other) for index, other in enumerate(case) for one in case[:index])
        return next(filter(self._excludes, pairs), case)

    def _excludes(self, case: Case) -> bool:
        """Whether the parts of a case cannot have their answers together."""
        values: dict[str, _PossibleValues] = {}
        orders: dict[tuple[str, str], frozenset[str]] = {}
        answers: dict[str, bool] = {}
        for atom in case:
            if atom.link is None:
                if answers.setdefault(self._key(atom.node), atom.is_true) is not atom.is_true:
                    return True
                if not self._test(atom, values):
                    return True
            elif not self._order(atom.link, orders, is_true=atom.is_true) or not self._bound(
                atom.link, values, is_true=atom.is_true
            ):
                return True
        return False

    def _assumed(self, case: Case) -> frozenset[str]:
        sides = (side for atom in case if atom.link is not None for side in (atom.link.left, atom.link.right))
        ranges = map(self._range_of, sides)
        return frozenset[str]().union(*(each.assumed for each in ranges if each is not None))

    def _order(self, link: Link, orders: dict[tuple[str, str], frozenset[str]], *, is_true: bool) -> bool:
        """Take from two numbers the orders that a comparison rules out; return whether any is left."""
        if self._range_of(link.left) is None or self._range_of(link.right) is None:
            return True
        pair, sign = (self._key(link.left), self._key(link.right)), link.sign
        if pair[0] > pair[1]:
            pair, sign = (pair[1], pair[0]), MIRRORED[sign]
        allowed = _ORDERS[sign] if is_true else _ANY_ORDER - _ORDERS[sign]
        orders[pair] = allowed & orders.get(pair, frozenset("=?") if pair[0] == pair[1] else _ANY_ORDER)
        return bool(orders[pair])

    def _test(self, atom: Atom, values: dict[str, _PossibleValues]) -> bool:
        """Take from an expression what ``isfinite`` rules out; return whether anything is left."""
        match atom.node:
            case ast.Call(ast.Name("isfinite"), [side]) if atom.is_true:
                known = self._values(side, values)
                known.be_number(may_be_nan=False)
                known.be_above(-math.inf, is_open=True)
                known.be_below(math.inf, is_open=True)
                return not known.is_none
        return True

    def _values(self, side: ast.expr, values: dict[str, _PossibleValues]) -> _PossibleValues:
        return values.setdefault(self._key(side), _PossibleValues.of(self._range_of(side), self.classes_of(side)))

    def _bound(self, link: Link, values: dict[str, _PossibleValues], *, is_true: bool) -> bool:
        """Bound both sides of a comparison by each other; return whether anything is left that they can be."""
        for side, sign, other in ((link.left, link.sign, link.right), (link.right, MIRRORED[link.sign], link.left)):
            if isinstance(side, ast.Constant):
                continue
            known = self._values(side, values)
            self._compare(known, sign, other, is_true=is_true)
            if known.is_none:
                return False
        return True

    def _compare(self, known: _PossibleValues, sign: type[ast.cmpop], other: ast.expr, *, is_true: bool) -> None:
        """Take from an expression what a comparison with another one rules out."""
        is_equality = sign in (ast.Eq, ast.NotEq)
        is_equal = is_equality and (sign is ast.Eq) is is_true
        if isinstance(other, ast.Constant) and isinstance(other.value, str):
            if is_equal:
                known.be_text(other.value)
            elif is_equality:
                known.unequal.add(other.value)
            return
        limit = self._range_of(other)
        if limit is None:
            return
        if is_equal:
            known.be_number(may_be_nan=False)
            known.be_above(limit.sure_low, is_open=False)
            known.be_below(limit.sure_high, is_open=False)
        elif is_equality:
            if limit.sure_low == limit.sure_high and not limit.may_be_nan:
                known.unequal.add(limit.sure_low)
        else:
            known.be_number(may_be_nan=not is_true)
            is_open = (sign in (ast.Gt, ast.Lt)) is is_true
            if not is_true and limit.may_be_nan:
                return
            if (sign in (ast.Gt, ast.GtE)) is is_true:
                known.be_above(limit.sure_low, is_open=is_open)
            else:
                known.be_below(limit.sure_high, is_open=is_open)

    def _key(self, node: ast.expr) -> str:
        if node not in self._keys:
            self._keys[node] = ast.dump(node)
        return self._keys[node]
