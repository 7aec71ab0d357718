"""What the parts of a bound rule are: the readings that explain it, keys of controller metrics, and types of values.

The text of a rule alone decides: a decision records its readings, and code of known types can be plain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ..readings.metric import MetricValue
from ..readings.param import ParamValue
from ..readings.reading import Param, ValueType
from ..readings.table import FUNCTIONS, RANK_FUNCTIONS
from .bound_rule import BoundRule
from .expressions import COMPREHENSIONS

MAX_LEAVES: Final = 64

_CLOSED: Final = (*COMPREHENSIONS, ast.JoinedStr)


def leaves(rule: BoundRule) -> dict[str, ast.expr]:
    """Return the readings of a rule in text order, by their text with every run of blanks as one space.

    The readings are each defined name, series, state, param and fact about the run, each call, and each subscript or
    attribute chain in its full length. Arguments of a call are included, and what a defined name stands for, but
    nothing within a chain, a comprehension, an f-string or a function of a family. At most ``MAX_LEAVES`` are returned.
    """
    found: dict[str, ast.expr] = {}
    waiting: list[ast.AST] = [rule.expression.tree]
    while waiting and len(found) < MAX_LEAVES:
        node = waiting.pop()
        if isinstance(node, _CLOSED):
            continue
        if isinstance(node, ast.expr) and (
            isinstance(node, (ast.Call, ast.Subscript, ast.Attribute)) or _is_named_value(rule, node)
        ):
            found.setdefault(rule.expression.segment(node), node)
        waiting.extend(reversed(_inner(rule, node)))
    return found


def _is_named_value(rule: BoundRule, node: ast.AST) -> bool:
    reference = rule.references.get(node)
    is_value = reference is not None and reference.is_shown_by_name
    return node in rule.expression.defined or (isinstance(node, ast.Name) and is_value)


def _inner(rule: BoundRule, node: ast.AST) -> list[ast.AST]:
    reference = rule.references.get(node)
    if isinstance(node, (ast.Subscript, ast.Attribute)) or (reference is not None and reference.is_closed):
        return []
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and (node.func.id == "series" or node.func.id in RANK_FUNCTIONS):
            return []
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    return list(ast.iter_child_nodes(node))


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
    paths = {node: path for node in reads if (path := _named_path(node, rule))}
    inner = {node.value for node in paths}
    for node, path in paths.items():
        if node not in inner:
            yield KeyRead(path[0], path[1:], rule.expression.offset(node))


def _named_path(node: ast.expr, rule: BoundRule) -> tuple[str, ...]:
    """Return the metric and the keys that a node reads; empty when it reads something else."""
    name, keys = path_in(rule, node) or ("", [])
    named = tuple(key for key in keys if isinstance(key, str))
    return (name, *named) if name and len(named) == len(keys) else ()


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


_FLOAT_KEEPING: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_GIVE_TRUTH: Final = frozenset({"isfinite", "any", "all"})
#: One value of each type that a value may have.
_EXAMPLES: Final[Mapping[ValueType, tuple[Param, ...]]] = {
    ValueType.FLOAT: (0.5,),
    ValueType.WHOLE: (1,),
    ValueType.NUMBER: (0.5,),
    ValueType.TRUTH: (True,),
    ValueType.TEXT: ("text",),
    ValueType.UNKNOWN: (0.5, 1, True, "text"),
}


def gives_float(node: ast.expr, rule: BoundRule) -> bool:
    """Whether the node's value, if it has one, is always a float."""
    reference = rule.references.get(node)
    if reference is not None:
        return reference.value_type is ValueType.FLOAT
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and FUNCTIONS[node.func.id].is_float
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.USub, ast.UAdd)) and gives_float(node.operand, rule)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _FLOAT_KEEPING) and (gives_float(node.left, rule) or gives_float(node.right, rule))
    return False


def needs_no_guard(node: ast.BinOp, rule: BoundRule) -> bool:
    """Whether the operands alone show that the result cannot grow out of bounds."""
    if isinstance(node.op, (ast.Add, ast.Mult)):
        return gives_float(node.left, rule) or gives_float(node.right, rule)
    return isinstance(node.op, ast.Mod) and gives_float(node.left, rule)


def gives_truth(node: ast.expr, rule: BoundRule) -> bool:
    """Whether the node's value, if it has one, is always True or False."""
    reference = rule.references.get(node)
    if reference is not None:
        return reference.value_type is ValueType.TRUTH and not reference.is_constant
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    if isinstance(node, ast.BoolOp):
        return all(gives_truth(value, rule) for value in node.values)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _GIVE_TRUTH
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def example_values(node: ast.expr, rule: BoundRule) -> tuple[Param, ...]:
    """Return one value of each type that the node may have, as far as the text shows."""
    reference = rule.references.get(node)
    if isinstance(reference, ParamValue):
        return (reference.value,)
    if reference is not None:
        return _EXAMPLES[reference.value_type]
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        return _EXAMPLES[ValueType.TEXT]
    if gives_truth(node, rule):
        return _EXAMPLES[ValueType.TRUTH]
    return _EXAMPLES[ValueType.FLOAT if gives_float(node, rule) else ValueType.UNKNOWN]
