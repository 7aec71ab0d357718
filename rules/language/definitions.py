"""Puts the expressions of ``define:`` in place of their names.

Takes an expression and the definitions; the expression then holds copies of the defined trees. So whatever reads a rule
reads what its names mean, as if that stood there in parentheses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any, Final

from ..errors import ExpressionError, Fault
from .expressions import MAX_EXPRESSION_DEPTH, Expression

#: The most nodes of an expression whose names have been replaced.
MAX_NODES: Final = 20_000


def in_order(definitions: Mapping[str, Expression]) -> list[str]:
    """Return the names of definitions, each after those that it reads.

    Raises:
        graphlib.CycleError: Some read each other in a circle, which is its second argument.
    """
    read = {name: {free.id for free in _free_names(each.tree)} for name, each in definitions.items()}
    return list(TopologicalSorter({name: sorted(names & read.keys()) for name, names in read.items()}).static_order())


def expand(expression: Expression, definitions: Mapping[str, Expression | None]) -> None:
    """Put the trees of definitions, which are expanded themselves, in place of their names.

    Args:
        expression: It changes.
        definitions: Expressions by name; None for one that was refused.

    Raises:
        ExpressionError: The result is too large or nested too deep. Without a fault, if a definition was refused.
    """
    names = [name for name in _free_names(expression.tree) if name.id in definitions]
    if not names:
        return
    meant = {name.id: definition for name in names if (definition := definitions[name.id]) is not None}
    if len(meant) < len({name.id for name in names}):
        raise ExpressionError([])
    sizes = {name: sum(1 for _ in ast.walk(definition.tree)) for name, definition in meant.items()}
    if sum(sizes[name.id] for name in names) > MAX_NODES:
        raise ExpressionError([Fault(0, f"more than {MAX_NODES:,} parts, with what its names mean")])
    expression.tree = _Replacement({name: expression.graft(name, meant[name.id], name.id) for name in names}).visit(
        expression.tree
    )
    if _depth(expression.tree) > MAX_EXPRESSION_DEPTH:
        raise ExpressionError([Fault(0, f"deeper than {MAX_EXPRESSION_DEPTH} levels, with what its names mean")])


def _free_names(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Yield the names that a tree reads, apart from its own variables and the functions that it calls."""
    if isinstance(node, ast.Name):
        if node.id not in hidden:
            yield node
    elif isinstance(node, ast.Call):
        called = () if isinstance(node.func, ast.Name) else (node.func,)
        for part in (*called, *node.args, *node.keywords):
            yield from _free_names(part, hidden)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        for generator in node.generators:
            yield from _free_names(generator.iter, hidden)
            hidden |= {each.id for each in ast.walk(generator.target) if isinstance(each, ast.Name)}
            for condition in generator.ifs:
                yield from _free_names(condition, hidden)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            yield from _free_names(part, hidden)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _free_names(child, hidden)


def _depth(node: ast.AST) -> int:
    depth = max(map(_depth, ast.iter_child_nodes(node)), default=0)
    return depth + isinstance(node, ast.expr)


class _Replacement(ast.NodeTransformer):
    def __init__(self, copies: Mapping[ast.AST, ast.expr]) -> None:
        self._copies = copies

    def visit_Name(self, node: ast.Name) -> Any:
        return self._copies.get(node, node)
