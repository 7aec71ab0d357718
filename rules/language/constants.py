"""Evaluates arithmetic that is known when a policy loads, such as window lengths."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Final

from .bound_rule import NameScope
from .references import Param

#: Operands beyond this are not folded: no length is so large.
_LIMIT: Final = 10**12
_FOLDABLE: Final = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def constant(node: ast.expr, scope: NameScope, variables: Collection[str]) -> Param | None:
    """Return the value of a number, a param, or arithmetic on whole ones of them; None for anything else.

    Args:
        variables: Names of comprehension variables around the node, which hide params.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name):
        hidden = node.id in variables or node.id in scope.metrics
        return None if hidden else scope.params.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = constant(node.operand, scope, variables)
        return -operand if isinstance(operand, (int, float)) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, _FOLDABLE):
        left, right = (constant(side, scope, variables) for side in (node.left, node.right))
        return _folded(node.op, left, right)
    return None


def _folded(operator: ast.operator, left: Param | None, right: Param | None) -> int | None:
    if not isinstance(left, int) or not isinstance(right, int) or max(abs(left), abs(right)) > _LIMIT:
        return None
    if isinstance(operator, (ast.FloorDiv, ast.Mod)):
        if right == 0:
            return None
        return left // right if isinstance(operator, ast.FloorDiv) else left % right
    if isinstance(operator, ast.Mult):
        return left * right
    return left + right if isinstance(operator, ast.Add) else left - right
