"""Parses what rules read of controller metrics to readings that columns can compute.

Takes a node of a rule; returns a reading. A list of a ``HistoryBasedMetric`` is a window of a column. Of any other
metric a chain of keys is read, at each event that the metric takes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...rules.language.bound_rule import BoundRule
from ...rules.language.rule_parts import path_in
from ...rules.policy_file.declarations import MetricDeclaration
from ...rules.readings.table import FUNCTIONS

#: Reductions whose form for a list equals that for a window, but for the sum of an empty list, which is 0.
_OF_LISTS: Final = frozenset(
    {"sum", "min", "max", "mean", "std", "var", "median", "slope", "detrended_std", "count", "first", "last", "mad"}
)
#: The lists of the training loss.
_OF_LOSS: Final = frozenset({"loss", "steps", "epoch"})

#: A constant slice of a list: its bounds, as Python reads them.
Cut = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class ListReading:
    """A number that is computed from a list of a ``HistoryBasedMetric``.

    Attributes:
        window: ``training_loss`` or ``metrics``; empty for the size itself.
        key: The list.
        size: The longest that it gets; a negative size has no limit.
        cuts: The slices that are taken of it, in order.
        operation: ``len``, ``item``, ``window_size``, or the name of a reduction.
        index: The index of an item.
        options: Further arguments of a reduction.
    """

    window: str
    key: str
    size: int
    cuts: tuple[Cut, ...] = ()
    operation: str = "len"
    index: int = 0
    options: tuple[float, ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether it is always a float; if not, it may be a whole number."""
        is_whole = self.operation in ("len", "window_size", "count", "sum") or self.key in ("steps", "epoch")
        return not is_whole


@dataclass(frozen=True, slots=True, eq=False)
class MetricPaths:
    """A controller metric, and every chain of keys that rules read of it.

    Attributes:
        declaration: The metric, or one of another name with the same class and arguments.
        paths: The chains of keys, in order of appearance.
    """

    declaration: MetricDeclaration
    paths: dict[tuple[str | int, ...], None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ValueReading:
    """A value of a controller metric that is a number or a truth value.

    Attributes:
        metric: The metric.
        path: The chain of keys.
        is_truth: Whether it is to be True or False.
    """

    metric: MetricPaths
    path: tuple[str | int, ...]
    is_truth: bool


#: What columns can compute of a controller metric.
MetricReading = ListReading | ValueReading


class MetricReadings:
    """Makes the readings of the rules of one policy."""

    def __init__(self) -> None:
        self._metrics: dict[tuple[object, ...], MetricPaths] = {}

    def of(
        self, node: ast.expr, rule: BoundRule, metrics: Mapping[str, MetricDeclaration], *, is_truth: bool
    ) -> MetricReading | None:
        """Return the reading that a node is; None if it is none.

        Args:
            node: The node.
            rule: Its rule.
            metrics: The metrics of the policy by name, without those that share a name.
            is_truth: Whether a truth value is wanted.
        """
        found = _of_list(node, rule, metrics)
        if found is not None:
            return None if is_truth else found
        path = path_in(rule, node)
        if path is None or path[0] not in metrics or not path[1] or None in path[1]:
            return None
        declared, keys = metrics[path[0]], tuple(key for key in path[1] if key is not None)
        if _list_of(node, rule, metrics) is not None:
            return None
        key = (declared.class_name, *sorted(declared.arguments.items()))
        metric = self._metrics.setdefault(key, MetricPaths(declared))
        metric.paths[keys] = None
        return ValueReading(metric, keys, is_truth)


def is_list(node: ast.expr, rule: BoundRule, metrics: Mapping[str, MetricDeclaration]) -> bool:
    """Whether a node is a list of a ``HistoryBasedMetric``, or a slice of one."""
    return _list_of(node, rule, metrics) is not None


def _of_list(node: ast.expr, rule: BoundRule, metrics: Mapping[str, MetricDeclaration]) -> ListReading | None:
    """Return what a node computes from a list."""
    match node:
        case ast.Call(ast.Name(name), [argument, *more], []) if name in FUNCTIONS and node not in rule.references:
            found = _list_of(argument, rule, metrics)
            if found is None:
                return None
            if name == "len" and not more:
                return found
            if name in _OF_LISTS and not more:
                return _with(found, name)
            share = _number(more[0]) if len(more) == 1 else None
            return None if name != "quantile" or share is None else _with(found, name, options=(share,))
        case ast.Subscript(value, place) if not isinstance(place, ast.Slice):
            found, index = _list_of(value, rule, metrics), _whole(place)
            return None if found is None or index is None else _with(found, "item", index=index)
    path = path_in(rule, node)
    if path is not None and path[1] == ["window_size"] and _is_history(metrics.get(path[0])):
        size = int(metrics[path[0]].arguments["window_size"])
        return ListReading("", "", size, operation="window_size")
    return None


def _with(found: ListReading, operation: str, index: int = 0, options: tuple[float, ...] = ()) -> ListReading:
    return ListReading(found.window, found.key, found.size, found.cuts, operation, index, options)


def _list_of(node: ast.expr, rule: BoundRule, metrics: Mapping[str, MetricDeclaration]) -> ListReading | None:
    """Return the length of the list that a node is; None if it is none."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        found, cut = _list_of(node.value, rule, metrics), _cut(node.slice)
        if found is None or cut is None:
            return None
        return ListReading(found.window, found.key, found.size, (*found.cuts, cut))
    path = path_in(rule, node)
    if path is None or not _is_history(metrics.get(path[0])):
        return None
    match path[1]:
        case ["metrics", str(key)]:
            return ListReading("metrics", key, int(metrics[path[0]].arguments["window_size"]))
        case ["training_loss", str(key)] if key in _OF_LOSS:
            return ListReading("training_loss", key, int(metrics[path[0]].arguments["window_size"]))
    return None


def _is_history(metric: MetricDeclaration | None) -> bool:
    # steptape's own classes cannot be replaced.
    return metric is not None and metric.class_name == "HistoryBasedMetric"


def _cut(node: ast.Slice) -> Cut | None:
    bounds = [None if bound is None else _whole(bound) for bound in (node.lower, node.upper)]
    is_known = all(
        (bound is None) == (given is None) for bound, given in zip(bounds, (node.lower, node.upper), strict=True)
    )
    return (bounds[0], bounds[1]) if is_known and node.step is None else None


def _whole(node: ast.expr) -> int | None:
    value = _number(node)
    return value if isinstance(value, int) else None


def _number(node: ast.expr) -> float | None:
    """Return the number that a node writes out, with its sign; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _number(node.operand)
        return None if operand is None else -operand
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
