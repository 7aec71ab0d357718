"""Compiles bound rules to terms.

Takes a rule, the controllers that it asks about and the controller metrics that it reads; returns a term. A rule
without an exact columnar form is refused with the reason, and goes to the event engine.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...rules.language.bound_rule import BoundRule
from ...rules.language.rule_parts import gives_float
from ...rules.policy_file.declarations import MetricDeclaration
from ...rules.readings.milestone import Milestone
from ...rules.readings.reading import MAX_EXACT, NotColumnar, Param, Reading, SeriesKey, SeriesReading, ValueType
from ...rules.readings.table import FUNCTIONS
from .metric_readings import ListReading, MetricReadings, is_list
from .terms import (
    OF_ONE,
    OF_SEVERAL,
    ColumnarState,
    ComputedReading,
    CountedMilestone,
    Driver,
    SeriesOfTerm,
    Term,
    Terms,
)

_ARITHMETIC: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_TESTS: Final = frozenset({"isfinite"})


@dataclass(frozen=True, slots=True)
class PastAnswer:
    """A question about past decisions that columns can answer.

    Attributes:
        question: The question; equal ones are one.
        is_truth: Whether its answer is True or False; if not, a whole number.
        params: The params on which the answer depends.
    """

    question: Any
    is_truth: bool
    params: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PolicyReadings:
    """The metrics that the rules of a policy read.

    Attributes:
        metrics: The controller metrics by name, without those that share a name.
        readings: Makes what columns can compute of the metrics.
        counting: The kinds of events that count for each milestone.
    """

    metrics: Mapping[str, MetricDeclaration]
    readings: MetricReadings
    counting: Mapping[Milestone, frozenset[str]]


class Asked(NamedTuple):
    """Functions that answer questions of a rule about other rules. Each raises ``NotColumnar`` if it has no answer.

    Attributes:
        past: Returns how columns answer a question about past decisions of a controller.
        state: Returns a state.
    """

    past: Callable[[str, str], PastAnswer]
    state: Callable[[str], ColumnarState]


def condition_of(
    rule: BoundRule,
    terms: Terms,
    read: PolicyReadings,
    asked: Asked,
) -> Term:
    """Return the term of a rule.

    Args:
        rule: The rule.
        terms: Makes the terms.
        read: What it reads besides series.
        asked: Answers what it asks of other rules.

    Raises:
        NotColumnar: It has no exact columnar form.
    """
    return _Compiler(rule, terms, read, asked).condition()


def driver_of(key: SeriesKey, rule: BoundRule, terms: Terms, read: PolicyReadings, asked: Asked) -> Driver:
    """Return a series that a rule reads, as what its answers wait for; otherwise as ``condition_of``."""
    sources = _Compiler(rule, terms, read, asked).sources(key)
    return Driver(sources[-1].key if sources else key, sources)


def reading_of(
    node: ast.expr,
    rule: BoundRule,
    terms: Terms,
    read: PolicyReadings,
    asked: Asked,
) -> Term | None:
    """Return the term of a part of a rule; None for a list, which no decision records.

    Args:
        node: The part.
        rule, terms, read, asked: As for ``condition_of``.

    Raises:
        NotColumnar: It has no exact columnar form.
    """
    if is_list(node, rule, read.metrics):
        return None
    return _Compiler(rule, terms, read, asked).reading(node)


class _Compiler:
    """Compiles one rule; see ``condition_of``."""

    def __init__(
        self,
        rule: BoundRule,
        terms: Terms,
        read: PolicyReadings,
        asked: Asked,
        *,
        is_of_series: bool = False,
    ) -> None:
        self._rule = rule
        self._terms = terms
        self._read = read
        self._asked = asked
        # Within the expression of a series, windows have to be full, and params are those of the policy.
        self._is_of_series = is_of_series

    def condition(self) -> Term:
        """Return the term of the rule."""
        tree = self._rule.expression.tree
        term = self._metric(tree, is_truth=True) or self._term(tree)
        if not term.is_truth:
            raise NotColumnar("its value is not clearly True or False")
        return term

    def reading(self, node: ast.expr) -> Term:
        """Return the term of a part of the rule."""
        return self._term(node)

    def _term(self, node: ast.expr) -> Term:  # noqa: C901 - one case a kind of node
        reference = self._rule.references.get(node)
        if reference is not None:
            return reference.term(self, self._rule.expression.segment(node))
        reading = self._metric(node, is_truth=False)
        if reading is not None:
            return reading
        match node:
            case ast.Constant(value=value):
                return self._constant(value)
            case ast.BoolOp():
                operation = "and" if isinstance(node.op, ast.And) else "or"
                return self._joined(operation, [self._truth(value) for value in node.values])
            case ast.UnaryOp(op=ast.Not()):
                return self._terms.make("not", self._truth(node.operand), is_truth=True)
            case ast.UnaryOp(op=ast.USub()):
                return self._terms.make("-", self._number(node.operand), is_float=gives_float(node, self._rule))
            case ast.UnaryOp(op=ast.UAdd()):
                return self._number(node.operand)
            case ast.Compare():
                return self._compared(node)
            case ast.BinOp() if isinstance(node.op, _ARITHMETIC):
                return self._binary(node)
            case ast.IfExp():
                return self._chosen(node)
            case ast.Call(ast.Name("float"), [ast.Constant(str(text))], []):
                return self._constant(float(text))
            case ast.Call(ast.Name("min" | "max" as name), [ast.List(elements)], []) if len(elements) > 1:
                return self._called(ast.Call(node.func, elements, []), name)
            case ast.Call(func=ast.Name(id=name)):
                return self._called(node, name)
        raise NotColumnar(f"the column engine cannot evaluate {self._rule.expression.segment(node)}")

    def _truth(self, node: ast.expr) -> Term:
        term = self._metric(node, is_truth=True) or self._term(node)
        if not term.is_truth:
            raise NotColumnar(f"a number in the place of a truth value: {self._rule.expression.segment(node)}")
        return term

    def _number(self, node: ast.expr) -> Term:
        term = self._term(node)
        if term.is_truth or term.is_text:
            what = "truth value" if term.is_truth else "text"
            raise NotColumnar(f"a {what} in the place of a number: {self._rule.expression.segment(node)}")
        return term

    def _side(self, node: ast.expr) -> Term:
        """Return the term of a side of a comparison: a text or a number."""
        term = self._term(node)
        return term if term.is_text else self._number(node)

    def _metric(self, node: ast.expr, *, is_truth: bool) -> Term | None:
        """Return the term of what a node reads of a controller metric; None if it is no such reading."""
        found = self._read.readings.of(node, self._rule, self._read.metrics, is_truth=is_truth)
        if found is None:
            return None
        is_float = isinstance(found, ListReading) and found.is_float
        return self._terms.make("metric", payload=found, is_truth=is_truth, is_float=is_float)

    def _constant(self, value: object) -> Term:
        if isinstance(value, bool):
            return self._terms.make("constant", payload=value, is_truth=True)
        if isinstance(value, str):
            return self._terms.make("constant", payload=value, is_text=True)
        if isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_EXACT):
            return self._terms.make("constant", payload=value, is_float=isinstance(value, float))
        raise NotColumnar(f"a constant that is not a plain number: {value!r}")

    def _joined(self, operation: str, terms: list[Term]) -> Term:
        joined = terms[0]
        for term in terms[1:]:
            joined = self._terms.make(operation, joined, term, is_truth=True)
        return joined

    def _compared(self, node: ast.Compare) -> Term:
        terms = [self._side(side) for side in (node.left, *node.comparators)]
        links = []
        for operator, left, right in zip(node.ops, terms, terms[1:], strict=False):
            known = (ast.Eq, ast.NotEq) if left.is_text else _COMPARISONS
            if not isinstance(operator, known) or left.is_text is not right.is_text:
                raise NotColumnar(f"the column engine cannot evaluate {self._rule.expression.segment(node)}")
            links.append(self._terms.make(type(operator).__name__, left, right, is_truth=True))
        return self._joined("and", links)

    def _binary(self, node: ast.BinOp) -> Term:
        left, right = self._number(node.left), self._number(node.right)
        is_float = isinstance(node.op, ast.Div) or left.is_float or right.is_float
        if isinstance(node.op, ast.Pow) and not is_float:
            raise NotColumnar(f"a power of whole numbers: {self._rule.expression.segment(node)}")
        return self._terms.make(type(node.op).__name__, left, right, is_float=is_float)

    def _chosen(self, node: ast.IfExp) -> Term:
        test, body, otherwise = self._truth(node.test), self._term(node.body), self._term(node.orelse)
        if body.is_truth is not otherwise.is_truth or body.is_text or otherwise.is_text:
            raise NotColumnar(f"a number or a truth value: {self._rule.expression.segment(node)}")
        is_float = body.is_float and otherwise.is_float
        return self._terms.make("if", test, body, otherwise, is_truth=body.is_truth, is_float=is_float)

    def _called(self, node: ast.Call, name: str) -> Term:
        count = len(node.args)
        is_known = (name in {*OF_ONE, *_TESTS} and count == 1) or count >= OF_SEVERAL.get(name, count + 1)
        if node.keywords or not is_known:
            raise NotColumnar(f"it calls {self._rule.expression.segment(node)}")
        arguments = [self._number(argument) for argument in node.args]
        is_float = FUNCTIONS[name].is_float or (name == "abs" and arguments[0].is_float)
        return self._terms.make(name, *arguments, is_truth=name in _TESTS, is_float=is_float)

    # --- what readings ask for ----------------------------------------------------------------------------------

    def of_fact(self, reading: Reading) -> Term:
        """Return the term of a fact about the run."""
        is_float = reading.value_type is not ValueType.WHOLE
        return self._terms.make("reference", payload=reading, is_float=is_float)

    def of_past(self, question: str, controller: str) -> Term:
        """Return the term of a question about past decisions."""
        past = self._asked.past(question, controller)
        return self._terms.make("past", payload=past.question, is_truth=past.is_truth, params=past.params)

    def of_state(self, question: str, state: str) -> Term:
        """Return the term of the class of a state, or of a question about its newest change."""
        return self._terms.of_state(question, self._asked.state(state))

    def of_milestone(self, milestone: Reading) -> Term:
        """Return the term of a milestone."""
        assert isinstance(milestone, Milestone)
        counted = CountedMilestone(milestone, self._read.counting[milestone])
        return self._terms.make("milestone", payload=counted, is_truth=True)

    def of_series(self, reading: SeriesReading) -> Term:
        """Return the term of a reading of a series."""
        is_truth, is_float = reading.value_type is ValueType.TRUTH, reading.value_type is ValueType.FLOAT
        is_full = self._is_of_series and reading.waits_until_full
        sources = self.sources(reading.key)
        if sources:
            reading = reading.of_series(sources[-1].key)
        elif not is_full:
            return self._terms.make("reference", payload=reading, is_truth=is_truth, is_float=is_float)
        computed = ComputedReading(reading, sources, is_full)
        return self._terms.make("series", payload=computed, is_truth=is_truth, is_float=is_float)

    def of_param(self, param: str, value: Param) -> Term:
        """Return the term of a param, whose value may differ between variants."""
        if self._is_of_series:
            return self._constant(value)
        if isinstance(value, str):
            return self._terms.make("param", payload=param, is_text=True, params=(param,))
        # Not marked as float: another value of the param may be a whole number.
        return self._terms.make("param", payload=param, is_truth=isinstance(value, bool), params=(param,))

    def sources(self, key: SeriesKey) -> tuple[SeriesOfTerm, ...]:
        """Return the series of expressions on which a series depends, itself the last; empty for a recorded one."""
        if not key.is_derived:
            return ()
        derived = self._rule.derived.get(key)
        if derived is None or key.is_of_member:
            raise NotColumnar(f"it reads the series {key.name!r}")
        inner = _Compiler(self._rule, self._terms, self._read, self._asked, is_of_series=True)
        driven, term = self.sources(derived.driver), inner.reading(derived.node)
        driver = driven[-1].key if driven else derived.driver
        within = (reading.sources for reading in term.leaves("series"))
        before = dict.fromkeys(source for sources in (driven, *within) for source in sources)
        return (*before, self._terms.series(key.name, term, driver))
