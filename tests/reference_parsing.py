"""What the second implementation of the rule language reads of a policy file: trees, definitions, spans, messages."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reference_language import OF_RANKS, children


def parsed(text: Any) -> ast.expr:
    """Return the tree of a rule."""
    return ast.parse(f"({str(text).strip()}\n)", mode="eval").body


class Definitions(ast.NodeTransformer):
    """Puts the expressions of definitions in the place of their names."""

    def __init__(self, trees: Mapping[str, ast.expr]) -> None:
        self.trees = trees
        self.bound: list[str] = []

    def replaced(self, node: ast.expr) -> ast.expr:
        """Return a tree that reads no definition."""
        result: ast.expr = self.visit(copy.deepcopy(node))
        return result

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Leave the names of functions alone."""
        node.args = [self.visit(argument) for argument in node.args]
        for word in node.keywords:
            word.value = self.visit(word.value)
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        return node

    def _visit_comprehension(self, node: Any) -> ast.AST:
        names = [loop.target.id for loop in node.generators]
        node.generators[0].iter = self.visit(node.generators[0].iter)
        self.bound += names
        node.elt = self.visit(node.elt)
        for loop in node.generators:
            loop.ifs = [self.visit(condition) for condition in loop.ifs]
        for loop in node.generators[1:]:
            loop.iter = self.visit(loop.iter)
        del self.bound[len(self.bound) - len(names) :]
        return node  # type: ignore[no-any-return]

    visit_ListComp = visit_GeneratorExp = visit_SetComp = _visit_comprehension  # noqa: N815, names of the syntax tree

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a defined name."""
        if node.id in self.trees and node.id not in self.bound:
            return self.replaced(self.trees[node.id])
        return node


@dataclass
class Span:
    """A length in steps, evaluations or seconds."""

    unit: str
    length: float

    @classmethod
    def of(cls, given: Any) -> Span:
        """Read a number of steps, or a mapping of one unit."""
        return cls(*next(iter(given.items()))) if isinstance(given, dict) else cls("steps", given)

    def has_passed(self, since: Clocks, now: Clocks) -> bool:
        """Whether so much lies between two events."""
        return bool(getattr(now, self.unit) - getattr(since, self.unit) >= self.length)


class Clocks(NamedTuple):
    """The clocks of spans, as of one event."""

    steps: float
    evaluations: int
    seconds: float


def calls_ranks(tree: ast.expr) -> bool:
    """Whether an expression reads all ranks."""
    return any(isinstance(part, ast.Name) and part.id in OF_RANKS for part in ast.walk(tree))


def braces(text: str) -> list[tuple[str, str]]:
    """Split a message into ``("", literal)`` and ``(expression, format)``."""
    literal, brace, rest = text.partition("{")
    found = [("", literal)] if literal else []
    if not brace:
        return found
    for end in (place for place, sign in enumerate(rest) if sign == "}"):
        head, colon, tail = rest[:end].rpartition(":")
        form = tail if colon and re.fullmatch(r"[.\d]*[a-z%]?", tail) else ""
        expression = head if form else rest[:end]
        try:
            parsed(expression)
        except SyntaxError:
            continue
        return [*found, (expression, form), *braces(rest[end + 1 :])]
    raise ValueError(text)


def readable(node: ast.AST, is_closed: Callable[[ast.AST], bool]) -> Iterable[ast.expr]:
    """Yield names, calls, subscripts and attribute chains outside of comprehensions, f-strings and what is closed."""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.JoinedStr)):
        return
    if isinstance(node, (ast.Name, ast.Call, ast.Subscript, ast.Attribute)):
        yield node
    if isinstance(node, (ast.Subscript, ast.Attribute)) or is_closed(node):
        return
    for part in children(node):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and part is node.func.value):
            yield from readable(part, is_closed)
