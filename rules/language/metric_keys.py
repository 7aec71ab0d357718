"""Finds the keys of controller metrics that an expression reads, such as ``training_loss.loss`` of a history."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ..readings.metric import MetricValue
from .bound_rule import BoundRule


class KeyRead(NamedTuple):
    """A key that an expression reads.

    Attributes:
        metric: The name of the controller metric.
        path: The key, after the keys that lead to it.
        offset: Its place in the text.
    """

    metric: str
    path: tuple[str, ...]
    offset: int


def keys_read(rule: BoundRule) -> Iterator[KeyRead]:
    """Yield the keys that are read by attribute or by literal item, each with the longest path."""
    nodes = [*ast.walk(rule.expression.tree)]
    methods = {node.func for node in nodes if isinstance(node, ast.Call)}
    reads = [node for node in nodes if isinstance(node, (ast.Attribute, ast.Subscript)) and node not in methods]
    paths = {node: path for node in reads if (path := _path(node, rule))}
    inner = {node.value for node in paths}
    for node, path in paths.items():
        if node not in inner:
            yield KeyRead(path[0], path[1:], rule.expression.offset(node))


def _path(node: ast.expr, rule: BoundRule) -> tuple[str, ...]:
    """Return the metric and the keys that a node reads; empty when it reads something else."""
    reference = rule.references.get(node)
    if isinstance(reference, MetricValue):
        return (reference.name,)
    if isinstance(node, ast.Attribute):
        before, key = _path(node.value, rule), node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        before, key = _path(node.value, rule), node.slice.value
    else:
        return ()
    return (*before, key) if before else ()
