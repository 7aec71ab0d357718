"""Binds functions of a family: calls whose argument is evaluated for each member of a pattern."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from ..functions.family_functions import OF_FAMILIES
from ..functions.table import Function
from . import references as ref
from .constants import constant
from .node_binding import Members
from .question_binding import QuestionBinder

#: Functions that give collections.
COLLECTIONS: Final = frozenset({"list", "tuple", "sorted", "set", "dict", "str"})
_DISPLAYS: Final = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.DictComp)

_QUANTILE: Final = "quantile"


class FamilyBinder(QuestionBinder):
    """Binds calls of functions over the members of a family."""

    def _holds_pattern(self, node: ast.AST) -> bool:
        """Whether an expression holds a pattern, apart from functions of a family within it."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "series":
                key = self._literal_series(node)
                return key is not None and key.is_of_member
            if _takes_members(node, node.func.id):
                return False
        return any(map(self._holds_pattern, ast.iter_child_nodes(node)))

    def _is_of_family(self, node: ast.Call, function: Function) -> bool:
        """Whether a call evaluates its argument for each member of a family."""
        return _takes_members(node, function.name) and self._holds_pattern(node.args[0])

    def _visit_family_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        share = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        options = tuple(option for part in share if (option := self._share(part, variables)) is not None)
        before, outer, self._members = len(self.faults), self._members, Members(is_argument=True)
        self.visit(node.args[0], variables)
        members, self._members = self._members, outer
        outside = {ref.Variable(name) for name in variables.values()}
        for part in ast.walk(node.args[0]):
            if isinstance(part, ast.Name) and self.references.get(part) in outside:
                self.refuse(part, "a function of a family reads no variable of a comprehension around it")
            elif isinstance(part, ast.Call) and isinstance(self.references.get(part), ref.Milestone):
                self.refuse(part, "a milestone is no question about a member", "Ask for it outside, with 'and'.")
        if len(self.faults) == before and members.key is not None and len(options) == len(share):
            text = self.expression.segment(node.args[0])
            self.references[node] = ref.FamilyReading(function.name, members.key, text, options)

    def _share(self, node: ast.expr, variables: Mapping[str, str]) -> float | None:
        """Return the share of a quantile; None when it is refused."""
        value = constant(node, self.scope, variables)
        self.visit(node, variables)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        self.refuse(node, "'q' must be a number from 0 to 1, known when the policy loads", "Write q=0.9.")
        return None


def _takes_members(node: ast.Call, name: str) -> bool:
    """Whether the arguments of a call are those of a function of a family, if the first one holds a pattern."""
    if name not in OF_FAMILIES or not node.args or _is_collection(node.args[0]):
        return False
    given = [*(None for _ in node.args[1:]), *(keyword.arg for keyword in node.keywords)]
    return given in ([None], ["q"]) if name == _QUANTILE else not given


def _is_collection(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COLLECTIONS:
        return True
    return isinstance(node, _DISPLAYS)
