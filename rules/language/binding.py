"""Binds an expression: resolves every name and checks every call before the first event.

Takes an expression and the names of its policy; returns which series, window, metric or param each node means, or
raises all faults at once. A name resolves in this order: a variable of a comprehension, a controller metric, a param, a
fact about the run, and else a series.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from .. import habits
from ..errors import ExpressionError, Fault, suggestion
from ..functions.family_functions import NAMES_OF_FAMILIES, TRUE_OF_FAMILIES
from ..functions.methods import METHODS
from ..functions.table import (
    AGE,
    ANY_RANK,
    DECISION_FUNCTIONS,
    FUNCTIONS,
    MILESTONE,
    RANK_FUNCTIONS,
    STATE_FUNCTIONS,
    STREAK,
    TRUE_OF_CONTROLLERS,
    Function,
)
from . import corrections
from . import references as ref
from .bound_rule import BoundRule, NameScope
from .definitions import expand
from .expressions import Expression
from .node_binding import literal_text
from .series_binding import SeriesBinder


def bind(expression: Expression, scope: NameScope, *, is_condition: bool = True) -> BoundRule:
    """Resolve every name and check every call of an expression; put definitions in place of their names.

    Args:
        is_condition: Whether to refuse an expression that can never give True or False.

    Raises:
        ExpressionError: The expression is invalid. The error holds all faults found; none if it reads a definition that
            was refused.
    """
    expand(expression, scope.definitions)
    binder = _Binder(expression, scope)
    binder.visit(expression.tree, {})
    if is_condition:
        binder.check_verdict(expression.tree)
    if binder.faults:
        raise ExpressionError(binder.faults)
    return BoundRule(
        expression,
        binder.references,
        binder.series,
        tuple(binder.metrics),
        binder.derived,
        frozenset(binder.ranks),
        binder.driver(expression.tree),
    )


class _Binder(SeriesBinder):
    """Binds a whole expression, calls of plain functions and methods included."""

    def _visit_call(self, node: ast.Call, variables: Mapping[str, str]) -> None:
        if isinstance(node.func, ast.Attribute):
            self._visit_method(node, node.func, variables)
            return
        assert isinstance(node.func, ast.Name)
        function = FUNCTIONS.get(node.func.id)
        if function is None:
            self._refuse_function(node.func)
            self._visit_arguments(node, variables)
        elif function.name == "series":
            self._visit_series(node)
        elif function.name in DECISION_FUNCTIONS or (function.name == STREAK and _takes_text(node)):
            self._visit_decision_call(node, function)
        elif function.name in STATE_FUNCTIONS or (function.name == AGE and _takes_text(node)):
            self._visit_state_call(node, function)
        elif function.name == MILESTONE:
            self._visit_milestone(node, variables)
        elif function.name in RANK_FUNCTIONS:
            self._visit_rank_call(node, function, variables)
        else:
            self._visit_value_call(node, function, variables)

    def _visit_value_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        """Bind a function of a family, of a series or of plain values."""
        if self._is_of_family(node, function):
            self._visit_family_call(node, function, variables)
        elif not self._is_of_series(node, function, variables):
            self._visit_plain_call(node, function, variables)
        elif self._is_of_ranks:
            self.refuse(node, f"{ANY_RANK} reads the newest value of each rank, and no window")
        else:
            self._visit_series_call(node, function, variables)

    def _refuse_function(self, name: ast.Name) -> None:
        self.refuse(name, "unknown function", suggestion(name.id, FUNCTIONS, habits.FUNCTIONS))

    def _visit_method(self, node: ast.Call, method: ast.Attribute, variables: Mapping[str, str]) -> None:
        name = method.attr
        is_series = self._series_key(method.value, variables) is not None
        if is_series and isinstance(method.value, ast.Name) and method.value.id in habits.MODULES:
            fix = corrections.of_module_call(self.expression, node, name)
            self.refuse(node, "a function has no module before its name", fix)
            self._visit_arguments(node, variables)
            return
        if is_series:
            self._refuse_series(method.value, variables)
        elif name not in METHODS:
            offset = self.expression.offset(method)
            self.faults.append(Fault(offset, "method not allowed", repr(name), suggestion(name, METHODS)))
        elif node.keywords or len(node.args) > 3:
            self.refuse(node, "a method takes at most 3 arguments, and no keyword arguments")
        self.visit(method.value, variables)
        self._visit_arguments(node, variables)

    def _visit_plain_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        if function.plain is None:
            fix = corrections.of_state(node, self.scope) or f"Write {function.signature}."
            self.refuse(node, f"{function.name} takes a series as its first argument", fix)
        elif not self._is_arity_right(node, function):
            self.refuse(node, f"{function.name} does not take these arguments", f"Write {function.signature}.")
        elif function.iterates and len(node.args) == 1:
            self._refuse_series(node.args[0], variables)
        self._visit_arguments(node, variables)

    def _is_arity_right(self, node: ast.Call, function: Function) -> bool:
        count = len(node.args) + len(node.keywords)
        if function.keywords is None:
            return len(node.args) <= 1
        if not all(keyword.arg in function.keywords for keyword in node.keywords):
            return False
        # `sorted` takes one positional argument; its other argument is a keyword.
        most = 1 if function.name == "sorted" else function.most
        return function.least <= count and (most is None or len(node.args) <= most) and self._fits(count, function)

    def _fits(self, count: int, function: Function) -> bool:
        limit = function.most if function.most is None else max(function.most, 1 + len(function.keywords or ()))
        return limit is None or count <= limit

    def check_verdict(self, tree: ast.expr) -> None:
        """Refuse a rule that can never give True or False."""
        kind = self._never_bool(tree)
        if kind and not self.faults:
            what = f"a rule must give True or False; this one gives {kind}"
            self.refuse(tree, what, corrections.of_verdict(self.expression))

    def _never_bool(self, node: ast.expr) -> str:
        reference = self.references.get(node)
        if reference is not None:
            return _never_bool_reference(reference)
        if isinstance(node, ast.Constant):
            return "" if isinstance(node.value, bool) else "a constant"
        if isinstance(node, ast.BinOp):
            return "" if isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)) else "a number"
        if isinstance(node, ast.JoinedStr):
            return "a text"
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            return "a collection"
        return ""


def _never_bool_reference(reference: ref.Reference) -> str:
    match reference:
        case ref.FamilyReading(question) if question in TRUE_OF_FAMILIES:
            return ""
        case ref.FamilyReading(question) if question in NAMES_OF_FAMILIES:
            return "a text"
        case ref.MemberName():
            return "a text"
        case ref.FamilyReading():
            return "a number"
        case ref.SeriesAge(limit=float() | int()):
            return ""
        case ref.AcrossRanks(question):
            return "" if question == ANY_RANK else "a number"
        case ref.StateChange(question):
            return {"changed": "", "previous": "a text"}.get(question, "a number")
        case ref.PastDecisions(question):
            return "" if question in TRUE_OF_CONTROLLERS else "a number"
        case ref.ParamValue(value):
            return "" if isinstance(value, bool) else "a constant"
    return "a number" if isinstance(reference, ref.SeriesReference | ref.ContextValue) else ""


def _takes_text(node: ast.Call) -> bool:
    return len(node.args) == 1 and literal_text(node.args[0]) is not None
