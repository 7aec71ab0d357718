"""Infers the types of values from the text of a rule alone, so that generated code can be plain."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from ..readings.param import ParamValue
from ..readings.reading import Param, ValueType
from ..readings.table import FUNCTIONS
from .bound_rule import BoundRule

_FLOAT_KEEPING: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_GIVE_TRUTH: Final = frozenset({"isnan", "isfinite", "any", "all"})
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
