"""Finds conditions on ``len`` that no length can meet, and keys that the value of a metric never has.

Takes a policy and the greatest length of each series; yields comparisons of a length with a constant that cannot hold.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import suggestion
from ..language.bound_rule import BoundRule
from ..language.expressions import links_of
from ..language.rule_parts import keys_read, path_in
from ..policy_file.declarations import Controller, MetricDeclaration, RuleFile
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


def impossible_lengths(policy: RuleFile, longest: Callable[[SeriesKey], float]) -> Iterator[ImpossibleLength]:
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
        for left, operator, right in links_of(node):
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


#: Keys of evaluations that are no metric of theirs.
_PLACES: Final = frozenset({"steps", "epoch"})


class UnknownKey(NamedTuple):
    """A key that the value of a metric never has.

    Attributes:
        controller: The controller that reads it.
        offset: The place in its rule.
        what: What is wrong, and how to mend it.
    """

    controller: Controller
    offset: int
    what: str


def unknown_keys(policy: RuleFile) -> Iterator[UnknownKey]:
    """Yield the keys that rules read of metrics whose keys are fixed, and that are none of these."""
    known: dict[str, frozenset[str] | None] = {}
    for declaration in policy.metrics:
        keys = declaration.metric_class.keys
        others = known.get(declaration.name, frozenset())
        known[declaration.name] = None if keys is None or others is None else keys | others
    for controller in policy.controllers:
        for read in keys_read(controller.rule.bound):
            keys = known.get(read.metric)
            if keys is not None and read.path[0] not in keys:
                fix = suggestion(read.path[0], keys)
                yield UnknownKey(controller, read.offset, f"'{read.metric}' has no key '{read.path[0]}'. {fix}")


def evaluations_read(policy: RuleFile) -> set[str]:
    """Return the metrics of evaluations that rules read by keys of controller metrics."""
    classes = {declaration.name: declaration.class_name for declaration in policy.metrics}
    found: set[str] = set()
    for controller in policy.controllers if classes else ():
        for read in keys_read(controller.rule.bound):
            match classes.get(read.metric, ""), *read.path:
                case ("HistoryBasedMetric", "metrics", name) | ("EvalMetrics", name):
                    found.add(name)
    return found - _PLACES
