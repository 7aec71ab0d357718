"""Finds rules that watch a series for spikes but are blind to its NaN.

Evaluates each rule statically, without running it, for a series that is NaN. Takes a policy; yields controllers, each
with a series and the comparison that watches it for values that are too high. The rule of such a controller gives False
when the series is NaN, and no rule of the policy that tests the series for NaN can then be true.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from ..functions.plain_functions import NAN_TO_NAN
from ..language.bound_rule import BoundRule
from ..language.expressions import links_of
from ..policy_file.declarations import Controller
from ..policy_file.policy import Policy
from ..readings.param import ParamValue
from ..readings.reading import Reading, SeriesReading

#: Parts of the names of metrics where lower is better, so that an upper limit guards against spikes and is not a goal.
_BETTER_LOW: Final = ("loss", "norm", "perplexity", "ppl", "error", "entropy")

_FALSE_FOR_NAN: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq)

#: The reach of an expression that does not read the series: a number above the length of any window.
_ABSENT: Final = 1 << 62


class _Value(Enum):
    """A value as far as the static evaluation knows it."""

    TRUE = "true"
    FALSE = "false"
    NAN = "nan"
    UNKNOWN = "unknown"


def unguarded_spikes(policy: Policy) -> Iterator[tuple[Controller, str, int]]:
    """Yield controllers that are blind to the NaN of a series that they watch.

    Yields:
        The controller, the name of the series, and the offset in the rule of the comparison that watches it.
    """
    guarded = {name for controller in policy.controllers for name in _guards(controller.rule.bound)}
    for controller in policy.controllers:
        bound = controller.rule.bound
        # A rule that a param switches off is not blind: no series is called "".
        is_off = verdict_for_nan(bound, "") is False
        for name in dict.fromkeys(key.name for key in bound.series if not key.is_derived):
            watching = next(_spike_conditions(bound, name), None)
            if watching is None or name in guarded or is_off:
                continue
            if verdict_for_nan(bound, name) is False:
                yield controller, name, bound.expression.offset(watching)


def verdict_for_nan(rule: BoundRule, name: str) -> bool | None:
    """Return a rule's answer when the newest value of a series is NaN; None when that alone does not decide it."""
    return {_Value.TRUE: True, _Value.FALSE: False}.get(_Evaluation(rule, name).of(rule.expression.tree))


def _guards(rule: BoundRule) -> Iterator[str]:
    """Yield the series that a rule tests for NaN and whose NaN can make it true."""
    for name in sorted({key.name for key in rule.series}):
        if _asks_for_nan(rule, name) and verdict_for_nan(rule, name) is not False:
            yield name


def _asks_for_nan(rule: BoundRule, name: str) -> bool:
    """Whether a rule tests a series for NaN: ``isfinite(x)`` or ``x != x``."""
    for node in ast.walk(rule.expression.tree):
        match node:
            case ast.Call(ast.Name("isfinite"), arguments) if _reach(rule, name, arguments) < _ABSENT:
                return True
            case ast.Compare(left, [ast.NotEq()], [right]) if {_reach(rule, name, [s]) for s in (left, right)} == {1}:
                return True
    return False


def _spike_conditions(rule: BoundRule, name: str) -> Iterator[ast.Compare]:
    """Yield comparisons that hold when the newest values of a series are above older ones or above a limit."""
    for node in ast.walk(rule.expression.tree):
        if not isinstance(node, ast.Compare):
            continue
        for left, operator, right in links_of(node):
            if not isinstance(operator, (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
                continue
            higher, lower = (left, right) if isinstance(operator, (ast.Gt, ast.GtE)) else (right, left)
            newest, oldest = _reach(rule, name, [higher]), _reach(rule, name, [lower])
            is_limit = oldest == _ABSENT and any(part in name.casefold() for part in _BETTER_LOW)
            if newest < oldest and (oldest < _ABSENT or is_limit):
                yield node


def _reach(rule: BoundRule, name: str, nodes: Iterable[ast.expr]) -> int:
    """Return how many values the shortest read of a series covers: 1 for the newest alone, ``_ABSENT`` for no read."""
    reach = _ABSENT
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop()
        reference = rule.references.get(node)
        if isinstance(reference, SeriesReading) and reference.key.name == name:
            reach = min(reach, reference.newest_covered or _ABSENT)
        elif reference is None:
            waiting.extend(ast.iter_child_nodes(node))
    return reach


class _Evaluation:
    """Evaluates a rule as far as it is known when one series is NaN."""

    def __init__(self, rule: BoundRule, name: str) -> None:
        self._rule = rule
        self._name = name

    def of(self, node: ast.expr) -> _Value:
        """Return what is known of a node's value."""
        read = self._read(self._rule.references.get(node))
        if read is not None:
            return read
        match node:
            case ast.Constant(constant):
                return _known(constant)
            case ast.UnaryOp(ast.Not(), operand):
                return _negated(self.of(operand))
            case ast.UnaryOp(_, operand):
                return _Value.NAN if self.of(operand) is _Value.NAN else _Value.UNKNOWN
            case ast.BinOp(left, _, right):
                return _Value.NAN if _Value.NAN in (self.of(left), self.of(right)) else _Value.UNKNOWN
            case ast.BoolOp(operator, values):
                return self._combined([self.of(value) for value in values], isinstance(operator, ast.And))
            case ast.Compare():
                return self._compared(node)
            case ast.IfExp(test, body, orelse):
                return self._chosen(self.of(test), self.of(body), self.of(orelse))
            case ast.Call(ast.Name(called), arguments):
                return self._called(called, arguments)
        return _Value.UNKNOWN

    def _read(self, reading: Reading | None) -> _Value | None:
        """Return what is known of a reading's value; None if the node's syntax has to be evaluated instead."""
        if isinstance(reading, ParamValue):
            return _known(reading.value)
        if isinstance(reading, SeriesReading) and reading.key.name == self._name:
            return _Value.NAN if reading.is_nan_with_newest else _Value.UNKNOWN
        return None

    def _combined(self, values: list[_Value], is_and: bool) -> _Value:
        """Combine operands of ``and`` or ``or``, where NaN counts as true."""
        decisive, other = (_Value.FALSE, _Value.TRUE) if is_and else (_Value.TRUE, _Value.FALSE)
        truths = [_Value.TRUE if value is _Value.NAN else value for value in values]
        if decisive in truths:
            return decisive
        return other if all(truth is other for truth in truths) else _Value.UNKNOWN

    def _compared(self, node: ast.Compare) -> _Value:
        """Evaluate a comparison chain: it is false as soon as one of its links is."""
        operands = [self.of(operand) for operand in (node.left, *node.comparators)]
        links = [
            _link(left, operator, right)
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False)
        ]
        return self._combined(links, True)

    def _chosen(self, test: _Value, body: _Value, orelse: _Value) -> _Value:
        if test is _Value.UNKNOWN:
            return body if body is orelse else _Value.UNKNOWN
        return orelse if test is _Value.FALSE else body

    def _called(self, function: str, arguments: list[ast.expr]) -> _Value:
        flat = [item for argument in arguments for item in _items(argument)]
        if not any(self.of(item) is _Value.NAN for item in flat):
            return _Value.UNKNOWN
        if function == "isfinite":
            return _Value.FALSE
        return _Value.NAN if function in NAN_TO_NAN else _Value.UNKNOWN


def _items(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]


def _link(left: _Value, operator: ast.cmpop, right: _Value) -> _Value:
    if _Value.NAN not in (left, right):
        return _Value.UNKNOWN
    if isinstance(operator, ast.NotEq):
        return _Value.TRUE
    return _Value.FALSE if isinstance(operator, _FALSE_FOR_NAN) else _Value.UNKNOWN


def _known(value: object) -> _Value:
    if isinstance(value, bool):
        return _Value.TRUE if value else _Value.FALSE
    return _Value.NAN if isinstance(value, float) and math.isnan(value) else _Value.UNKNOWN


def _negated(value: _Value) -> _Value:
    return {_Value.TRUE: _Value.FALSE, _Value.FALSE: _Value.TRUE, _Value.NAN: _Value.FALSE}.get(value, value)
