"""Writes out what the author of a rule probably meant, for expressions that Python allows and a rule does not.

Takes an expression and the node that is refused; returns a sentence, or nothing where none is better than the default.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from .. import habits
from ..errors import suggestion
from ..functions.table import FUNCTIONS
from .bound_rule import NameScope
from .constants import constant
from .expressions import Expression

_DECIMAL_COMMA: Final = re.compile(r"\d,\d")


def of_part(expression: Expression, node: ast.expr) -> str:
    """Return what to write for a series with a dot, or with an index from the end; empty for anything else."""
    if isinstance(node, ast.Attribute) and node.attr not in FUNCTIONS:
        return f'Write series("{expression.segment(node)}") to read the metric of that name.'
    back = constant(node.slice, NameScope(), ()) if isinstance(node, ast.Subscript) else None
    if not isinstance(node, ast.Subscript) or not isinstance(back, int) or back >= 0:
        return ""
    series = expression.segment(node.value)
    if back == -1:
        return f"Write {series} for the newest value."
    return f"Write lag({series}, {-back - 1}), or delta({series}) for the newest change."


def of_module_call(expression: Expression, node: ast.Call, name: str) -> str:
    """Return what to write for a call such as ``np.mean(loss, 50)``, whose function is called ``name``."""
    function = name if name in FUNCTIONS else habits.FUNCTIONS.get(name, "")
    if function in FUNCTIONS:
        return f"Write {function}({', '.join(map(expression.segment, node.args))})."
    return suggestion(name, FUNCTIONS, habits.FUNCTIONS)


def of_verdict(expression: Expression) -> str:
    """Return how to make a condition of an expression that gives no truth value."""
    if isinstance(expression.tree, ast.Tuple) and _DECIMAL_COMMA.search(expression.text):
        return "A decimal number takes a point, as in 2.5."
    return "Compare it, as in loss > 3.0."


def of_state(node: ast.Call, scope: NameScope) -> str:
    """Return what to write for a question about a state that is named without quotes; empty for anything else."""
    asked, function = node.args[0] if node.args else None, node.func
    if isinstance(asked, ast.Name) and asked.id in scope.states and isinstance(function, ast.Name):
        return f'Write {function.id}("{asked.id}") for the state.'
    return ""
