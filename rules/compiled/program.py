"""Generates one function that evaluates all rules with a trigger at one kind of event.

Takes bound rules in evaluation order; returns code that evaluates them all, reads shared windows once, and returns the
answers other than False.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Final

from ..language.bound_rule import BoundRule
from ..language.expression_types import gives_truth
from ..language.references import Window
from ..language.timing import StepWindow
from .compilation import EVENT, Translator, compile_tree
from .names import Names

_COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp)


@dataclass(frozen=True, slots=True)
class TriggeredRule:
    """One rule at one trigger.

    Attributes:
        rule: The rule.
        between: The steps at which it is evaluated.
        takes_false: Whether the gate counts false answers, by ``on_false()``.
        asks_whether_it_holds: The controller whose ``holds`` the answer sets; None when no rule reads it.
    """

    rule: BoundRule
    between: StepWindow = StepWindow()  # noqa: RUF009 - a StepWindow is immutable
    takes_false: bool = False
    asks_whether_it_holds: str | None = None


def gate_name(kind: str, number: int) -> str:
    """Return the name by which the code for a kind of event reads the gate of one numbered rule."""
    return f"g{number}_{kind}"


def program(kind: str, questions: Mapping[int, TriggeredRule], names: Names) -> CodeType:
    """Return the code of a function of the event that evaluates every numbered rule, in order.

    The function reads the variables of ``names`` and ``gate_name``. It returns a list of pairs: the number of a rule,
    and its answer where that is not False, or the exception in its place unless that means "undefined". It sets
    ``holds`` at its end, so that rules at the same event see the previous value.
    """
    shared = _shared_windows([question.rule for question in questions.values()])
    statements: list[ast.stmt] = [_assigned("answers", ast.List([], ast.Load()))]
    statements += [_assigned(local, ast.Constant(None)) for local in shared.values()]
    closing: list[ast.stmt] = []
    for number, question in questions.items():
        statements += _asked(number, question, Translator(question.rule, names, shared=shared), gate_name(kind, number))
        if question.asks_whether_it_holds is not None:
            local = f"holds{number}"
            statements.insert(0, _assigned(local, ast.Constant(None)))
            past = ast.Name(names.past_of(question.asks_whether_it_holds), ast.Load())
            set_holds = ast.Assign([ast.Attribute(past, "holds", ast.Store())], _name(local))
            closing.append(ast.If(ast.Compare(_name(local), [ast.IsNot()], [ast.Constant(None)]), [set_holds], []))
    arguments = ast.arguments(posonlyargs=[], args=[ast.arg(EVENT)], kwonlyargs=[], kw_defaults=[], defaults=[])
    body = [*statements, *closing, ast.Return(_name("answers"))]
    function = ast.FunctionDef("asked", arguments, body, [], None, None)
    if "type_params" in ast.FunctionDef._fields:
        function.type_params = []  # type: ignore[attr-defined]
    return compile_tree(ast.Module([function], []))


def _asked(number: int, question: TriggeredRule, translator: Translator, gate: str) -> list[ast.stmt]:
    """Return the statements that ``try`` to evaluate one rule and note its answer."""
    when_false: list[ast.stmt] = []
    if question.takes_false:
        when_false = [ast.Expr(_call(ast.Attribute(_name(gate), "on_false", ast.Load())))]
    tree, keeps = question.rule.expression.tree, question.asks_whether_it_holds is not None
    if gives_truth(tree, question.rule) and not keeps:
        # The fastest form: the interpreter jumps on the comparisons themselves.
        evaluation: list[ast.stmt] = [ast.If(translator.body(tree), [_noted(number, ast.Constant(True))], when_false)]
        answered: list[ast.stmt] = []
    else:
        evaluation = [_assigned("answer", translator.body(tree))]
        is_false = ast.Compare(_name("answer"), [ast.Is()], [ast.Constant(False)])
        answered = [ast.If(is_false, when_false or [ast.Pass()], [_noted(number, _name("answer"))])]
    if keeps:
        holds = ast.Compare(_name("answer"), [ast.Is()], [ast.Constant(True)])
        answered.append(_assigned(f"holds{number}", holds))
    handlers = [
        # Undefined: the rule does not fire and changes nothing.
        ast.ExceptHandler(_name("LookupError"), None, [ast.Pass()]),
        # A rule may fail in any way; training continues, and the failure is recorded.
        ast.ExceptHandler(_name("Exception"), "error", [_noted(number, _name("error"))]),
    ]
    attempt: ast.stmt = ast.Try(evaluation, handlers, answered, [])
    condition = _within(question.between)
    return [attempt if condition is None else ast.If(condition, [attempt], [])]


def _within(between: StepWindow) -> ast.expr | None:
    step = ast.Attribute(_name(EVENT), "step", ast.Load())
    if between.first is None and between.last is None:
        return None
    if between.last is None:
        return ast.Compare(step, [ast.GtE()], [ast.Constant(between.first)])
    if between.first is None:
        return ast.Compare(step, [ast.LtE()], [ast.Constant(between.last)])
    return ast.Compare(ast.Constant(between.first), [ast.LtE(), ast.LtE()], [step, ast.Constant(between.last)])


def _noted(number: int, answer: ast.expr) -> ast.stmt:
    pair = ast.Tuple([ast.Constant(number), answer], ast.Load())
    return ast.Expr(_call(ast.Attribute(_name("answers"), "append", ast.Load()), pair))


def _shared_windows(rules: Sequence[BoundRule]) -> Mapping[Window, str]:
    """Return the windows that are read more than once at an event, each with a local variable."""
    counts: Counter[Window] = Counter()
    for rule in rules:
        _count_windows(rule.expression.tree, rule, counts)
    return {window: f"shared{number}" for number, window in enumerate(w for w, times in counts.items() if times > 1)}


def _count_windows(node: ast.AST, rule: BoundRule, counts: Counter[Window]) -> None:
    reference = rule.references.get(node)
    if isinstance(reference, Window):
        counts[reference] += 1
        return
    if isinstance(node, _COMPREHENSIONS):
        return
    for child in ast.iter_child_nodes(node):
        _count_windows(child, rule, counts)


def _assigned(local: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(local, ast.Store())], value)


def _name(identifier: str) -> ast.expr:
    return ast.Name(identifier, ast.Load())


def _call(function: ast.expr, *arguments: ast.expr) -> ast.expr:
    return ast.Call(function, list(arguments), [])
