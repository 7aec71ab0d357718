"""Which parts of a rule explain it: the readings whose values a decision carries."""

from __future__ import annotations

import ast
from typing import Final

from .bound_rule import BoundRule
from .references import ContextValue, ParamValue, SeriesValue

MAX_LEAVES: Final = 64

_CLOSED: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.JoinedStr)


def leaves(rule: BoundRule) -> dict[str, ast.expr]:
    """The readings of a rule in the order of its text, by their text with every run of blanks as one space.

    Each series, param and fact about the run, each call, and each subscript or attribute chain in its full length;
    within a call its arguments too, but nothing within a chain, a comprehension or an f-string. At most ``MAX_LEAVES``.
    """
    found: dict[str, ast.expr] = {}
    waiting: list[ast.AST] = [rule.expression.tree]
    while waiting and len(found) < MAX_LEAVES:
        node = waiting.pop()
        if isinstance(node, _CLOSED):
            continue
        if isinstance(node, (ast.Call, ast.Subscript, ast.Attribute)) or _is_named_value(rule, node):
            assert isinstance(node, ast.expr)
            found.setdefault(rule.expression.segment(node), node)
        waiting.extend(reversed(_inner(node)))
    return found


def _is_named_value(rule: BoundRule, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(rule.references.get(node), (SeriesValue, ParamValue, ContextValue))


def _inner(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return []
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "series":
            return []
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    return list(ast.iter_child_nodes(node))
