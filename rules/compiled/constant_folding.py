"""Evaluates parts of generated code that read constants and params only, once, when the code is made."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

#: How the generated names of functions and guards begin, which give the same for the same arguments.
_PURE: Final = ("f_", "op_")


def folded(node: ast.expr, variables: Mapping[str, Any]) -> ast.expr:
    """Return a constant in place of a call or an operation whose operands are constants; any other node unchanged.

    What fails is left as it is, so that it fails when the rule is evaluated. So is what gives no number.

    Args:
        node: A node of generated code, whose parts are folded.
        variables: The functions and guards, by generated name.
    """
    if not _is_constant_operation(node):
        return node
    try:
        value = eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<constant>", "eval"), dict(variables))
    except Exception:  # A rule may fail in any way.
        return node
    return ast.Constant(value) if type(value) in (int, float, bool) else node


def _is_constant_operation(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left, _, right):
            return _is_constant(left) and _is_constant(right)
        case ast.UnaryOp(_, operand):
            return _is_constant(operand)
        case ast.Call(ast.Name(name), arguments, []):
            return name.startswith(_PURE) and all(map(_is_constant, arguments))
    return False


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(_is_constant, node.elts))
    return isinstance(node, ast.Constant)
