"""Finds conditions on ``len`` that no length can meet.

Takes a policy and the greatest length of each series; yields comparisons of a length with a constant that cannot hold.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ..language.bound_rule import BoundRule
from ..policy_file.declarations import Controller, MetricDeclaration
from ..policy_file.policy import Policy
from ..readings.metric import MetricValue
from ..readings.param import ParamValue
from ..readings.reading import Param, SeriesKey
from ..readings.series_value import SeriesLength

NO_LIMIT: Final = math.inf

#: Each comparison as it reads with its sides swapped.
MIRRORED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}


@dataclass(frozen=True, slots=True)
class ImpossibleLength:
    """A condition that cannot hold.

    Attributes:
        controller: The controller whose rule holds the condition.
        offset: Position of the condition in the rule.
        text: The condition.
        reason: Why it cannot hold, as the rest of a sentence.
    """

    controller: Controller
    offset: int
    text: str
    reason: str


def impossible_lengths(policy: Policy, longest: Callable[[SeriesKey], float]) -> Iterator[ImpossibleLength]:
    """Yield the conditions on a length that cannot hold.

    Args:
        policy: The policy.
        longest: How many values a series can have at most; ``NO_LIMIT`` when unknown.
    """
    metrics = {declaration.name: declaration for declaration in policy.metrics}
    for controller in policy.controllers:
        lengths = _Lengths(controller.rule.bound, metrics, longest)
        for node in ast.walk(controller.rule.bound.expression.tree):
            if isinstance(node, ast.Compare):
                for text, offset, reason in lengths.impossible(node):
                    yield ImpossibleLength(controller, offset, text, reason)


class _Lengths:
    """The lengths and constants in one rule that are known without running it."""

    def __init__(
        self,
        rule: BoundRule,
        metrics: Mapping[str, MetricDeclaration],
        longest: Callable[[SeriesKey], float],
    ) -> None:
        self._rule = rule
        self._metrics = metrics
        self._longest = longest

    def impossible(self, node: ast.Compare) -> Iterator[tuple[str, int, str]]:
        """Yield text, offset and reason of each link of a comparison that cannot hold."""
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            if type(operator) not in MIRRORED:
                continue
            length, relation, limit = left, type(operator), constant_in(self._rule, self._metrics, right)
            if limit is None:
                length, relation, limit = right, MIRRORED[type(operator)], constant_in(self._rule, self._metrics, left)
            known = self._longest_of(length)
            if limit is None or known is None or least_length(relation, limit, known[0]) is not None:
                continue
            expression = self._rule.expression
            text = expression.text[expression.offset(left) : expression.end(right)]
            yield " ".join(text.split()), expression.offset(left), known[1]

    def _longest_of(self, node: ast.expr) -> tuple[float, str] | None:
        """Return the greatest length that a node can give, and why; None when it is not a known kind of length."""
        reference = self._rule.references.get(node)
        if isinstance(reference, SeriesLength):
            longest = self._longest(reference.key)
            reason = "a length is 0 or more"
            if longest != NO_LIMIT:
                reason = f"in the given runs '{reference.key.name}' has at most {longest:,} values"
            return longest, reason
        is_length = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
        chain = path_in(self._rule, node.args[0]) if is_length and isinstance(node, ast.Call) and node.args else None
        if chain is None or chain[0] not in self._metrics or not all(isinstance(key, str) for key in chain[1]):
            return None
        metric, keys = self._metrics[chain[0]], chain[1]
        size = int(metric.arguments.get("window_size", -1))
        if metric.class_name != "HistoryBasedMetric" or len(keys) != 2 or size < 0:
            return NO_LIMIT, "a length is 0 or more"
        return size, f"the window_size of '{metric.name}' is {size}"


def path_in(rule: BoundRule, node: ast.expr) -> tuple[str, list[str | int | None]] | None:
    """Return the controller metric at the root of a chain of subscripts and dots, and the chain's keys and indices.

    None for any other node, and None in the chain for a key that is not a literal.
    """
    keys: list[str | int | None] = []
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        keys.append(node.attr if isinstance(node, ast.Attribute) else _literal_key(node.slice))
        node = node.value
    reference = rule.references.get(node)
    return (reference.name, keys[::-1]) if isinstance(reference, MetricValue) else None


def _literal_key(node: ast.expr) -> str | int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        key = _literal_key(node.operand)
        return -key if isinstance(key, int) else None
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else None


def constant_in(
    rule: BoundRule,
    metrics: Mapping[str, MetricDeclaration],
    node: ast.expr,
    params: Mapping[str, Param] = MappingProxyType({}),
) -> float | None:
    """Return the number that a node always gives; None when there is none, or from 2**53 on.

    Args:
        rule: The rule.
        metrics: The controller metrics by name.
        node: A node of the rule.
        params: Values in place of those with which the rule was bound.
    """
    reference = rule.references.get(node)
    value: object = None
    if isinstance(reference, ParamValue):
        value = params.get(node.id, reference.value) if isinstance(node, ast.Name) else reference.value
    elif isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = constant_in(rule, metrics, node.operand, params)
        value = None if operand is None else -operand
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = (constant_in(rule, metrics, side, params) for side in (node.left, node.right))
        if left is not None and right is not None:
            value = left + right if isinstance(node.op, ast.Add) else left - right
    elif (path := path_in(rule, node)) is not None and path[1] == ["window_size"] and path[0] in metrics:
        value = metrics[path[0]].arguments.get("window_size")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 2**53 else None


def least_length(relation: type[ast.cmpop], limit: float, longest: float) -> int | None:
    """Return the least whole number from 0 to ``longest`` that satisfies a comparison with the limit; None for none.

    >>> least_length(ast.Gt, 9, 10), least_length(ast.Gt, 10, 10), least_length(ast.NotEq, 0, 5)
    (10, None, 1)
    """
    if relation is ast.Gt:
        least = max(0, math.floor(limit) + 1)
    elif relation is ast.GtE:
        least = max(0, math.ceil(limit))
    elif relation is ast.Eq:
        least = int(limit) if limit >= 0 and limit == int(limit) else -1
    elif relation is ast.NotEq:
        least = int(limit == 0)
    else:
        least = 0 if limit > 0 or (limit == 0 and relation is ast.LtE) else -1
    return least if 0 <= least <= longest else None
