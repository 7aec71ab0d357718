"""Compiles bound rules to terms, which are computed for all events at once, with params left open.

Equal terms are one object, across variants and controllers. A rule without an exact columnar form is refused with the
reason, and goes to the event engine.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...rules.functions.table import FUNCTIONS
from ...rules.language import references as ref
from ...rules.language.bound_rule import BoundRule
from ...rules.language.expression_types import gives_float
from ...rules.language.references import Param

#: Largest whole number that is exact as a float; every number in a column is a float.
MAX_EXACT: Final = 2**53

_FACTS: Final = frozenset({"step", "epoch", "progress", "max_steps", "elapsed_s", "world_size"})
_WHOLE_FACTS: Final = frozenset({"step", "max_steps", "world_size"})
_ARITHMETIC: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_TESTS: Final = frozenset({"isnan", "isfinite"})
#: Functions of one number, and those of several with their minimum number of arguments.
_OF_ONE: Final = frozenset(
    {"abs", "sqrt", "math_sqrt", "exp", "log", "math_trunc", "math_floor", "math_ceil", "round", "int", "float"}
)
_OF_SEVERAL: Final = {"min": 2, "max": 2, "clamp": 3}
#: Functions of one or several numbers.
OF_NUMBERS: Final = frozenset({*_OF_ONE, *_OF_SEVERAL})


class NotColumnar(Exception):
    """A rule, or its values in one run, have no exact columnar form; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One operation of a rule.

    Attributes:
        operation: ``reference``, ``constant``, ``param``, ``and``, ``or``, ``not``, ``if``, ``-``, the name of a
            function, or the name of an operator's class in ``ast``.
        arguments: The terms that it is applied to.
        payload: The meaning of a reference, a constant's value, a param's name.
        is_truth: Whether it gives True or False; if not, a number.
        is_float: Whether it always gives a float; if not, it may give a whole number.
        params: Names of the params in it.
    """

    operation: str
    arguments: tuple[Term, ...]
    payload: Any
    is_truth: bool
    is_float: bool
    params: tuple[str, ...]


class Terms:
    """Builds terms; equal terms share one object.

    Args:
        params: The params of the policy, which give their types. Their values are left open.
        states: Names of its states.
    """

    def __init__(self, params: Mapping[str, Param], states: Collection[str] = ()) -> None:
        self._params = params
        self._states = states
        self._made: dict[tuple[object, ...], Term] = {}

    def condition(self, rule: BoundRule) -> Term:
        """Return the term of a rule.

        Raises:
            NotColumnar: It has no exact columnar form.
        """
        term = self._term(rule.expression.tree, rule)
        if not term.is_truth:
            raise NotColumnar("its value is not clearly True or False")
        return term

    def reading(self, node: ast.expr, rule: BoundRule) -> Term:
        """Return the term of a part of a rule.

        Raises:
            NotColumnar: It has no exact columnar form.
        """
        return self._term(node, rule)

    def _make(
        self, operation: str, *arguments: Term, payload: Any = None, is_truth: bool = False, is_float: bool = False
    ) -> Term:
        # The type is part of the key: True equals 1, and 1 equals 1.0.
        key = (operation, *(id(argument) for argument in arguments), type(payload), payload)
        if key not in self._made:
            own = (payload,) if operation == "param" else ()
            params = {name for argument in arguments for name in argument.params}.union(own)
            self._made[key] = Term(operation, arguments, payload, is_truth, is_float, tuple(sorted(params)))
        return self._made[key]

    def _term(self, node: ast.expr, rule: BoundRule) -> Term:  # noqa: C901 - one case a kind of node
        reference = rule.references.get(node)
        if reference is not None:
            return self._referred(node, reference, rule)
        match node:
            case ast.Constant(value=value):
                return self._constant(value)
            case ast.BoolOp():
                operation = "and" if isinstance(node.op, ast.And) else "or"
                return self._joined(operation, [self._truth(value, rule) for value in node.values])
            case ast.UnaryOp(op=ast.Not()):
                return self._make("not", self._truth(node.operand, rule), is_truth=True)
            case ast.UnaryOp(op=ast.USub()):
                return self._make("-", self._number(node.operand, rule), is_float=gives_float(node, rule))
            case ast.UnaryOp(op=ast.UAdd()):
                return self._number(node.operand, rule)
            case ast.Compare():
                return self._compared(node, rule)
            case ast.BinOp() if isinstance(node.op, _ARITHMETIC):
                return self._binary(node, rule)
            case ast.IfExp():
                return self._chosen(node, rule)
            case ast.Call(func=ast.Name(id=name)):
                return self._called(node, name, rule)
        raise NotColumnar(f"the column engine cannot evaluate {rule.expression.segment(node)}")

    def _truth(self, node: ast.expr, rule: BoundRule) -> Term:
        term = self._term(node, rule)
        if not term.is_truth:
            raise NotColumnar(f"a number in the place of a truth value: {rule.expression.segment(node)}")
        return term

    def _number(self, node: ast.expr, rule: BoundRule) -> Term:
        term = self._term(node, rule)
        if term.is_truth:
            raise NotColumnar(f"a truth value in the place of a number: {rule.expression.segment(node)}")
        return term

    def _constant(self, value: object) -> Term:
        if isinstance(value, bool):
            return self._make("constant", payload=value, is_truth=True)
        if isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_EXACT):
            return self._make("constant", payload=value, is_float=isinstance(value, float))
        raise NotColumnar(f"a constant that is not a plain number: {value!r}")

    def _joined(self, operation: str, terms: list[Term]) -> Term:
        joined = terms[0]
        for term in terms[1:]:
            joined = self._make(operation, joined, term, is_truth=True)
        return joined

    def _compared(self, node: ast.Compare, rule: BoundRule) -> Term:
        terms = [self._number(side, rule) for side in (node.left, *node.comparators)]
        links = []
        for operator, left, right in zip(node.ops, terms, terms[1:], strict=False):
            if not isinstance(operator, _COMPARISONS):
                raise NotColumnar(f"the column engine cannot evaluate {rule.expression.segment(node)}")
            links.append(self._make(type(operator).__name__, left, right, is_truth=True))
        return self._joined("and", links)

    def _binary(self, node: ast.BinOp, rule: BoundRule) -> Term:
        left, right = self._number(node.left, rule), self._number(node.right, rule)
        is_float = isinstance(node.op, ast.Div) or left.is_float or right.is_float
        if isinstance(node.op, ast.Pow) and not is_float:
            raise NotColumnar(f"a power of whole numbers: {rule.expression.segment(node)}")
        return self._make(type(node.op).__name__, left, right, is_float=is_float)

    def _chosen(self, node: ast.IfExp, rule: BoundRule) -> Term:
        test, body, otherwise = self._truth(node.test, rule), self._term(node.body, rule), self._term(node.orelse, rule)
        if body.is_truth is not otherwise.is_truth:
            raise NotColumnar(f"a number or a truth value: {rule.expression.segment(node)}")
        is_float = body.is_float and otherwise.is_float
        return self._make("if", test, body, otherwise, is_truth=body.is_truth, is_float=is_float)

    def _called(self, node: ast.Call, name: str, rule: BoundRule) -> Term:
        count = len(node.args)
        is_known = (name in {*_OF_ONE, *_TESTS} and count == 1) or count >= _OF_SEVERAL.get(name, count + 1)
        if node.keywords or not is_known:
            raise NotColumnar(f"it calls {rule.expression.segment(node)}")
        arguments = [self._number(argument, rule) for argument in node.args]
        is_float = FUNCTIONS[name].is_float or (name == "abs" and arguments[0].is_float)
        return self._make(name, *arguments, is_truth=name in _TESTS, is_float=is_float)

    def _referred(self, node: ast.expr, reference: ref.Reference, rule: BoundRule) -> Term:
        match reference:
            case ref.ParamValue(value):
                return self._param(node, value)
            case ref.ContextValue(name) if name in _FACTS:
                return self._make("reference", payload=reference, is_float=name not in _WHOLE_FACTS)
            case ref.ContextValue(name):
                raise NotColumnar(f"it reads the fact {name!r}")
            case ref.MetricValue(name) | ref.StateChange(_, name) if name in self._states:
                raise NotColumnar(f"it reads the state {name!r}")
            case ref.MetricValue(name):
                raise NotColumnar(f"it reads the controller metric {name!r}")
            case ref.PastDecisions(question, controller):
                raise NotColumnar(f"it asks {question} of {controller!r}")
            case ref.Milestone() | ref.FamilyReading():
                why = " (a family of series)" if isinstance(reference, ref.FamilyReading) else ""
                raise NotColumnar(f"it calls {rule.expression.segment(node)}{why}")
        if isinstance(reference, ref.SeriesReference):
            if reason := _not_columnar(reference):
                raise NotColumnar(f"it calls {rule.expression.segment(node)} ({reason})")
            return self._make("reference", payload=reference, is_float=gives_float(node, rule))
        raise NotColumnar(f"the column engine cannot evaluate {rule.expression.segment(node)}")

    def _param(self, node: ast.expr, value: Param) -> Term:
        name = node.id if isinstance(node, ast.Name) else None
        if name is None or isinstance(value, str):
            raise NotColumnar(f"a text: {name}")
        # Not marked as float: another value of the param may be a whole number.
        return self._make("param", payload=name, is_truth=isinstance(value, bool))


def _not_columnar(reference: ref.SeriesReference) -> str:
    """Return why a column has no values of what a rule reads of a series; empty if it has."""
    match reference:
        case ref.Window(extent=extent) if extent is not ref.Extent.VALUES:
            return f"a window by {extent}"
        case ref.Window(least=int()):
            return "a window with 'min'"
        case ref.Window() if reference.function.reads_newest:
            return "a window and the newest value"
        case ref.Window(is_per_step=True) | ref.SeriesAgo() | ref.SeriesRise() | ref.SeriesAge():
            return "the steps of values"
    return "a series of an expression" if reference.key.is_derived else ""
