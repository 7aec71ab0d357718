"""Finds the readings of a rule: the parts that explain it, whose values a decision records."""

from __future__ import annotations

import ast
from typing import Final

from ..readings.table import RANK_FUNCTIONS
from .bound_rule import BoundRule

MAX_LEAVES: Final = 64

_CLOSED: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.JoinedStr)


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
