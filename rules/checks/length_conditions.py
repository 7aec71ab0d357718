"""Finds conditions on ``len`` that no length can meet.

Takes a policy and the greatest length of each series; yields comparisons of a length with a constant that cannot hold.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ..language.bound_rule import BoundRule
from ..language.references import MetricValue, ParamValue, SeriesKey, SeriesLength
from ..policy_file.declarations import Controller, MetricDeclaration
from ..policy_file.policy import Policy

NO_LIMIT: Final = math.inf

#: Each comparison as it reads with its sides swapped.
_MIRRORED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
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
            if type(operator) not in _MIRRORED:
                continue
            length, relation, limit = left, type(operator), self._constant(right)
            if limit is None:
                length, relation, limit = right, _MIRRORED[type(operator)], self._constant(left)
            known = self._longest_of(length)
            if limit is None or known is None or _can_hold(relation, limit, known[0]):
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
        chain = self._metric_chain(node.args[0]) if is_length and isinstance(node, ast.Call) and node.args else None
        if chain is None:
            return None
        metric, keys = chain
        size = int(metric.arguments.get("window_size", -1))
        if metric.class_name != "HistoryBasedMetric" or len(keys) != 2 or size < 0:
            return NO_LIMIT, "a length is 0 or more"
        return size, f"the window_size of '{metric.name}' is {size}"

    def _metric_chain(self, node: ast.expr) -> tuple[MetricDeclaration, list[str]] | None:
        """Return the controller metric at the root of a chain of subscripts and dots, and the chain's keys.

        None for any other node.
        """
        keys: list[str] = []
        while isinstance(node, (ast.Subscript, ast.Attribute)):
            if isinstance(node, ast.Attribute):
                keys.append(node.attr)
            elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                keys.append(node.slice.value)
            else:
                return None
            node = node.value
        reference = self._rule.references.get(node)
        if not isinstance(reference, MetricValue) or reference.name not in self._metrics:
            return None
        return self._metrics[reference.name], keys[::-1]

    def _constant(self, node: ast.expr) -> float | None:
        """Return the number that a node always gives; None when there is none, or from 2**53 on."""
        reference = self._rule.references.get(node)
        value: object = None
        if isinstance(reference, ParamValue):
            value = reference.value
        elif isinstance(node, ast.Constant):
            value = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self._constant(node.operand)
            value = None if operand is None else -operand
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            left, right = self._constant(node.left), self._constant(node.right)
            if left is not None and right is not None:
                value = left + right if isinstance(node.op, ast.Add) else left - right
        elif (chain := self._metric_chain(node)) is not None and chain[1] == ["window_size"]:
            value = chain[0].arguments.get("window_size")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return value if abs(value) < 2**53 else None


def _can_hold(relation: type[ast.cmpop], limit: float, longest: float) -> bool:
    """Whether some whole number from 0 to ``longest`` satisfies the comparison with the limit."""
    if relation is ast.Gt:
        return longest > limit
    if relation is ast.GtE:
        return longest >= limit
    if relation is ast.Lt:
        return limit > 0
    if relation is ast.LtE:
        return limit >= 0
    if relation is ast.Eq:
        return 0 <= limit <= longest and limit == int(limit)
    return not longest == limit == 0
