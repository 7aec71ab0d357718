"""Finds rules that compare a series with a multiple of itself, which is the wrong limit where the series is negative.

Twice -3 lies below -3, so that ``loss > 2 * mean(loss, 50)`` is true of any steady negative loss. Takes a rule; yields
the series and the multiples. A rule that asks for the sign of what it multiplies, as in ``usual > 0``, is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ...rules.language.bound_rule import BoundRule
from ...rules.language.expressions import links_of
from ...rules.readings.reading import Param, SeriesKey, SeriesReading

#: Functions whose value lies among the values of their series. A deviation of negative values is not negative.
_LEVELS: Final = frozenset(
    {"mean", "median", "quantile", "min", "max", "first", "last", "ema", "peak", "trough", "initial"}
)
_ORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Multiple(NamedTuple):
    """A multiple of a series that a rule compares with the series.

    Attributes:
        key: The series.
        node: The product.
        factor, level: Its parts.
    """

    key: SeriesKey
    node: ast.expr
    factor: ast.expr
    level: ast.expr


def multiples_in(bound: BoundRule, params: Mapping[str, Param]) -> Iterator[Multiple]:
    """Yield the multiples of a series that a rule, with these params, compares with the series itself."""
    links = [
        link
        for node in ast.walk(bound.expression.tree)
        if isinstance(node, ast.Compare)
        for link in links_of(node)
        if isinstance(link[1], _ORDERS)
    ]
    signed = {
        bound.references.get(part)
        for left, _, right in links
        if _is_zero(left) or _is_zero(right)
        for part in (left, right)
    }
    for left, _, right in links:
        for product, other in ((left, right), (right, left)):
            found = _multiple(bound, product, params)
            if found and found.key.name in _names(bound, other) and bound.references[found.level] not in signed:
                yield found


def _multiple(bound: BoundRule, node: ast.expr, params: Mapping[str, Param]) -> Multiple | None:
    """Return the multiple that a node is; None for anything else."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return None
    sides = [(node.right, node.left)] + [(node.left, node.right)] * isinstance(node.op, ast.Mult)
    for factor, level in sides:
        reading = bound.references.get(level)
        if isinstance(reading, SeriesReading) and _is_level(reading) and _is_factor(factor, params):
            return Multiple(reading.key, node, factor, level)
    return None


def _is_level(reading: SeriesReading) -> bool:
    function = getattr(reading, "function", None)
    name = function if isinstance(function, str) else getattr(function, "name", "")
    return not reading.key.is_derived and (reading.is_shown_by_name or name in _LEVELS)


def _is_factor(node: ast.expr, params: Mapping[str, Param]) -> bool:
    """Whether a node is a number above 0 other than 1, or a param that is one."""
    value = (
        params.get(node.id) if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
    )
    return isinstance(value, (int, float)) and value > 0 and value != 1


def _names(bound: BoundRule, node: ast.AST) -> set[str]:
    readings = (bound.references.get(part) for part in ast.walk(node))
    return {each.key.name for each in readings if isinstance(each, SeriesReading)}


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
