"""Reads the shares and the unit that a call of ``milestone`` asks for, when the policy loads."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import Final

from ..errors import suggestion
from ..functions.milestones import MAX_SHARES, exact, multiples
from ..habits import MILESTONE_ARGUMENTS, MILESTONE_UNITS
from .bound_rule import NameScope
from .references import Extent, Milestone
from .window_arguments import Refuse

_EVERY: Final = "every"
_AT: Final = "at"
_OF: Final = "of"

_UNITS: Final = (Extent.STEPS, Extent.EPOCHS, Extent.SAMPLES, Extent.TOKENS)

_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
#: Numbers with longer numerators or denominators are not calculated with: no share needs them.
_MAX_BITS: Final = 200


def milestone_of(node: ast.Call, scope: NameScope, variables: Collection[str], refuse: Refuse) -> Milestone | None:
    """Return what a call of ``milestone`` asks for; None when it is refused.

    Args:
        node: The call.
        scope: The names of its policy.
        variables: Names of comprehension variables around the call, which hide params.
        refuse: Records a fault.
    """
    if not scope.owner:
        what = "milestones count the events of triggers such as on_step_end"
        refuse(node, what, "Write progress >= 0.5, or ask in a controller with such a trigger.")
        return None
    keywords = {keyword.arg or "": keyword.value for keyword in node.keywords}
    unknown = set(keywords) - {_EVERY, _AT, _OF}
    if unknown:
        strange = min(unknown)
        refuse(
            node, f"milestone does not take '{strange}'", suggestion(strange, (_EVERY, _AT, _OF), MILESTONE_ARGUMENTS)
        )
        return None
    if node.args or len(keywords.keys() & {_EVERY, _AT}) != 1:
        refuse(
            node, "milestone takes one of every= and at=", "Write milestone(every=0.05) or milestone(at=[0.25, 0.5])."
        )
        return None
    extent = _unit(keywords[_OF], refuse) if _OF in keywords else Extent.STEPS
    reader = _ShareReader(scope, variables, refuse)
    shares = reader.every(keywords[_EVERY]) if _EVERY in keywords else reader.listed(keywords[_AT])
    return None if extent is None or shares is None else Milestone(shares, extent, scope.owner)


def _unit(node: ast.expr, refuse: Refuse) -> Extent | None:
    word = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
    if word in _UNITS:
        return Extent(word)
    fix = f"Write of={_listed(_UNITS)}."
    if word is not None:
        fix = suggestion(word, _UNITS, MILESTONE_UNITS)
    refuse(node, "not a unit of a run's length", fix)
    return None


def _listed(words: Collection[str]) -> str:
    *others, last = (f'"{word}"' for word in words)
    return f"{', '.join(others)} or {last}"


class _ShareReader:
    """Reads shares that are known when a policy loads."""

    def __init__(self, scope: NameScope, variables: Collection[str], refuse: Refuse) -> None:
        self._scope = scope
        self._variables = variables
        self._refuse = refuse

    def every(self, node: ast.expr) -> tuple[Fraction, ...] | None:
        """Return a share and its multiples; None when it is refused."""
        share = self._share(node)
        if share is not None and share * MAX_SHARES < 1:
            self._refuse(node, f"more than {MAX_SHARES:,} milestones", f"The smallest share is {1 / MAX_SHARES}.")
            return None
        return None if share is None else multiples(share)

    def listed(self, node: ast.expr) -> tuple[Fraction, ...] | None:
        """Return one share, or those of a list, ascending; None when one is refused."""
        nodes = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
        if not 1 <= len(nodes) <= MAX_SHARES:
            self._refuse(node, "names no share of the run", "Write milestone(at=[0.25, 0.5]).")
            return None
        shares = [self._share(each) for each in nodes]
        known = [share for share in shares if share is not None]
        return tuple(sorted(set(known))) if len(known) == len(shares) else None

    def _share(self, node: ast.expr) -> Fraction | None:
        value = self._number(node)
        if value is not None and 0 < value <= 1:
            return value
        fix = "It is a number above 0 and at most 1, a param that is one, or + - * / on those."
        if value is not None and 1 < value <= 100:
            fix = f"It is above 0 and at most 1. Write {float(value / 100):g} for {float(value):g} percent."
        elif value is not None and value > 1:
            fix = f"It is above 0 and at most 1. For a step write step == {float(value):g}."
        self._refuse(node, "not a share of the run, known when the policy loads", fix)
        return None

    def _number(self, node: ast.expr) -> Fraction | None:
        """Return the number that a node always gives, exactly; None for anything else."""
        match node:
            case ast.Constant(value):
                return _exact(value)
            case ast.Name(name):
                is_hidden = name in self._variables or name in self._scope.metrics
                return None if is_hidden else _exact(self._scope.params.get(name))
            case ast.UnaryOp(ast.USub(), operand):
                number = self._number(operand)
                return None if number is None else -number
            case ast.BinOp(left, sign, right) if type(sign) in _ARITHMETIC:
                one, other = self._number(left), self._number(right)
                if one is None or other is None or (isinstance(sign, ast.Div) and not other):
                    return None
                result = _ARITHMETIC[type(sign)](one, other)
                return (
                    None if max(result.numerator.bit_length(), result.denominator.bit_length()) > _MAX_BITS else result
                )
        return None


def _exact(value: object) -> Fraction | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= 10**12:
        return None
    return exact(value)
