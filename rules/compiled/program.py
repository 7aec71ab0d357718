"""Generates the functions that an engine runs at each event: one that evaluates all rules, and one that feeds series.

Takes bound rules in evaluation order; returns code that evaluates them all, reads shared readings once, and returns the
answers other than False. Takes the names of series; returns a function that appends an event's numbers to them. Ten
series cost 0.5 us this way, and 0.8 us in a loop over pairs of a name and a function.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType, FunctionType

from ..language.bound_rule import BoundRule
from ..language.clock import StepWindow
from ..language.expressions import COMPREHENSIONS
from ..language.rule_parts import gives_truth
from ..readings.generated import EVENT, attribute, call, name
from ..readings.metric import asked_of_state
from ..readings.reading import Names, SeriesKey, SeriesReading
from .compilation import Translator, compile_tree

#: Takes the numbers of one event.
Feed = Callable[[Mapping[str, float]], None]


@dataclass(frozen=True, slots=True)
class TriggeredRule:
    """One rule at one trigger.

    Attributes:
        rule: The rule.
        between: The steps at which it is evaluated.
        takes_false: Whether the gate counts false answers, by ``on_false()``.
        requires: Series that must have a value before the rule is evaluated.
        driver: The series that must have a new value for the rule to be evaluated; None without this condition.
        controller: Its controller.
        changing: The state that must change for the rule to be evaluated; empty without this condition.
        asked: What rules ask of the controller that its answers tell: ``streak``, ``fired_now``.
        clear: The condition that ends a decision's effect on the controller; None without one.
        is_explained: Whether its readings are taken when it is true. They show past decisions as the rule sees them.
        each: The series of a member, of a controller that there is for each member of a family.
    """

    rule: BoundRule
    between: StepWindow = StepWindow()  # noqa: RUF009 - a StepWindow is immutable
    takes_false: bool = False
    requires: tuple[SeriesKey, ...] = ()
    driver: SeriesKey | None = None
    controller: str = ""
    changing: str = ""
    asked: frozenset[str] = frozenset()
    clear: BoundRule | None = None
    is_explained: bool = False
    each: SeriesKey | None = None


def gate_name(kind: str, number: int) -> str:
    """Return the name by which the code for a kind of event reads the gate of one numbered rule."""
    return f"g{number}_{kind}"


def explanation_name(gate: str) -> str:
    """Return the name by which the code has the readings of a rule taken."""
    return f"e_{gate}"


def clearing_name(gate: str) -> str:
    """Return the name by which the code notes that the ``clear`` of a controller is true."""
    return f"c_{gate}"


def news_name(gate: str) -> str:
    """Return the name by which the code asks whether the series that drives a rule has a new value."""
    return f"v_{gate}"


def members_name(kind: str, number: int) -> str:
    """Return the name by which the code for a kind of event asks the controllers of all members."""
    return f"e{number}_{kind}"


def decides_at_once(questions: Iterable[TriggeredRule]) -> bool:
    """Whether rules ask what others decide at the same event, so that true answers must pass their gates at once."""
    return any("fired_now" in question.asked for question in questions)


def program(kind: str, questions: Mapping[int, TriggeredRule], names: Names, *, decides: bool) -> CodeType:
    """Return the code of a function of the event that evaluates every numbered rule, in order.

    The function reads the variables of ``names`` and ``gate_name``. It returns a list of pairs: the number of a rule,
    and its answer where that is not False, or the exception in its place unless that means "undefined". The answer to
    the ``clear`` of a raised controller precedes that of its rule, as a ``ClearAnswer``.

    Args:
        kind: The kind of event.
        questions: The rules, by number.
        names: The names of the policy.
        decides: Whether true answers pass their gates here. Those that do are ``FIRED``.
    """
    alone = [question for question in questions.values() if question.each is None]
    conditions = (condition for question in alone for condition in (question.clear, question.rule))
    shared = _shared_readings([condition for condition in conditions if condition is not None])
    statements: list[ast.stmt] = [_assigned("answers", ast.List([], ast.Load()))]
    statements += [_assigned(local, ast.Constant(None)) for local in shared.values()]
    for number, question in questions.items():
        if question.each is not None:
            members = name(members_name(kind, number))
            statements.append(ast.Expr(call(members, name(EVENT), name("answers"))))
            continue
        past = name(names.past_of(question.controller)) if question.asked else None
        answer = _Answer(number, question, past, gate_name(kind, number), decides=decides)
        if question.clear is not None:
            statements.append(answer.clearing(Translator(question.clear, names, shared=shared), question.clear))
        statements += answer.statements(Translator(question.rule, names, shared=shared))
    arguments = ast.arguments(posonlyargs=[], args=[ast.arg(EVENT)], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef("asked", arguments, [*statements, ast.Return(name("answers"))], [], None, None)
    if "type_params" in ast.FunctionDef._fields:
        function.type_params = []  # type: ignore[attr-defined]
    return compile_tree(ast.Module([function], []))


def member_program(kind: str, number: int, question: TriggeredRule, names: Names, *, decides: bool) -> CodeType:
    """Return the code that evaluates one rule for a member of a family; see ``program``, which calls it for each."""
    return program(kind, {number: replace(question, each=None)}, names, decides=decides)


class _Answer:
    """Generates the statements that evaluate one rule and note its answer.

    Args:
        number: The number of the rule.
        question: The rule.
        past: The object in which rules read about its controller; None if none does.
        gate: The name of its gate.
        decides: Whether a true answer passes its gate at once.
    """

    def __init__(
        self, number: int, question: TriggeredRule, past: ast.expr | None, gate: str, *, decides: bool
    ) -> None:
        self._number = number
        self._question = question
        self._past = past
        self._gate = gate
        self._decides = decides

    def statements(self, translator: Translator) -> list[ast.stmt]:
        """Return the statements, with the rule in a ``try``."""
        rule = self._question.rule
        tree, is_true = rule.expression.tree, ast.Compare(name("answer"), [ast.Is()], [ast.Constant(True)])
        if gives_truth(tree, rule) and not self._question.asked:
            # The fastest form: the interpreter jumps on the comparisons themselves.
            evaluation: list[ast.stmt] = [ast.If(translator.body(tree), self._when_true(), self._when_false())]
            answered: list[ast.stmt] = []
        else:
            evaluation = [_assigned("answer", translator.body(tree))]
            is_false = ast.Compare(name("answer"), [ast.Is()], [ast.Constant(False)])
            other: list[ast.stmt] = [ast.If(is_true, self._when_true(), [self._noted(name("answer"))])]
            answered = [ast.If(is_false, self._when_false() or [ast.Pass()], other)]
        handlers = [
            # Undefined: the rule does not fire and changes nothing.
            ast.ExceptHandler(name("LookupError"), None, [ast.Pass()]),
            # A rule may fail in any way; training continues, and the failure is recorded.
            ast.ExceptHandler(name("Exception"), "error", [self._noted(name("error"))]),
        ]
        attempt: ast.stmt = ast.Try(evaluation, handlers, answered, [])
        conditions = list[ast.expr]()
        if self._question.changing:
            conditions.append(asked_of_state(translator.names, self._question.changing, "changed"))
        if self._question.driver is not None:
            # Asked at each event of the trigger: a value from before ``between`` is not new within it.
            conditions.append(call(name(news_name(self._gate))))
        if (within := _within(self._question.between)) is not None:
            conditions.append(within)
        conditions += [name(translator.names.values_of(key)) for key in self._question.requires]
        return [_where(conditions, attempt)]

    def clearing(self, translator: Translator, clear: BoundRule) -> ast.stmt:
        """Return the statement that evaluates the controller's ``clear``, if the controller is raised."""
        gate, is_true = name(self._gate), ast.Compare(name("answer"), [ast.Is()], [ast.Constant(True)])
        end = ast.Expr(call(name(clearing_name(self._gate)), name(EVENT)))
        is_told = ast.Compare(name("answer"), [ast.IsNot()], [ast.Constant(False)])
        attempt = ast.Try(
            [_assigned("answer", translator.body(clear.expression.tree))],
            [
                ast.ExceptHandler(name("LookupError"), None, [ast.Pass()]),
                # As in a rule, a failure is recorded and training continues.
                ast.ExceptHandler(name("Exception"), "error", [self._noted(_told(name("error")))]),
            ],
            [ast.If(is_true, [end], []), ast.If(is_told, [self._noted(_told(name("answer")))], [])],
            [],
        )
        conditions = [call(attribute(gate, "asks_clear"), name(EVENT))]
        if self._question.changing:
            conditions.append(asked_of_state(translator.names, self._question.changing, "changed"))
        return _where(conditions, attempt)

    def _when_true(self) -> list[ast.stmt]:
        asked, done = self._question.asked, list[ast.stmt]()
        if self._question.is_explained:
            done.append(ast.Expr(call(name(explanation_name(self._gate)), name(EVENT))))
        if "streak" in asked:
            done.append(self._set("streak", ast.BinOp(self._read("streak"), ast.Add(), ast.Constant(1))))
        if not self._decides:
            return [*done, self._noted(ast.Constant(True))]
        fired = [self._noted(name("FIRED"))]
        if "fired_now" in asked:
            fired.append(self._set("fired_at", name(EVENT)))
        passes = call(attribute(name(self._gate), "on_true"), name(EVENT))
        return [*done, ast.If(passes, fired, [])]

    def _when_false(self) -> list[ast.stmt]:
        done = list[ast.stmt]()
        if self._question.takes_false:
            done.append(ast.Expr(call(attribute(name(self._gate), "on_false"))))
        if "streak" in self._question.asked:
            done.append(self._set("streak", ast.Constant(0)))
        return done

    def _set(self, field: str, value: ast.expr) -> ast.stmt:
        assert self._past is not None
        return ast.Assign([ast.Attribute(self._past, field, ast.Store())], value)

    def _read(self, field: str) -> ast.expr:
        assert self._past is not None
        return ast.Attribute(self._past, field, ast.Load())

    def _noted(self, answer: ast.expr) -> ast.stmt:
        pair = ast.Tuple([ast.Constant(self._number), answer], ast.Load())
        return ast.Expr(call(attribute(name("answers"), "append"), pair))


def _told(answer: ast.expr) -> ast.expr:
    return call(name("ClearAnswer"), answer)


def _where(conditions: list[ast.expr], statement: ast.stmt) -> ast.stmt:
    """Return a statement under conditions."""
    if not conditions:
        return statement
    return ast.If(conditions[0] if len(conditions) == 1 else ast.BoolOp(ast.And(), conditions), [statement], [])


def _within(between: StepWindow) -> ast.expr | None:
    step = attribute(name(EVENT), "step")
    if between.first is None and between.last is None:
        return None
    if between.last is None:
        return ast.Compare(step, [ast.GtE()], [ast.Constant(between.first)])
    if between.first is None:
        return ast.Compare(step, [ast.LtE()], [ast.Constant(between.last)])
    return ast.Compare(ast.Constant(between.first), [ast.LtE(), ast.LtE()], [step, ast.Constant(between.last)])


def _shared_readings(rules: Sequence[BoundRule]) -> Mapping[SeriesReading, str]:
    """Return the readings that are read more than once at an event and worth it, each with a local variable."""
    counts: Counter[SeriesReading] = Counter()
    for rule in rules:
        _count_readings(rule.expression.tree, rule, counts)
    return {reading: f"shared{number}" for number, reading in enumerate(r for r, times in counts.items() if times > 1)}


def _count_readings(node: ast.AST, rule: BoundRule, counts: Counter[SeriesReading]) -> None:
    reference = rule.references.get(node)
    if isinstance(reference, SeriesReading) and reference.is_shared:
        counts[reference] += 1
        return
    if isinstance(node, COMPREHENSIONS) or (reference is not None and reference.is_closed):
        return
    for child in ast.iter_child_nodes(node):
        _count_readings(child, rule, counts)


def _assigned(local: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(local, ast.Store())], value)


def feed(names: Sequence[str], takers: Sequence[Callable[[float], None]]) -> Feed:
    """Return a function of an event's metrics that passes each named number, where present, as a float to its taker."""
    variables = {f"take{number}": taker for number, taker in enumerate(takers)}
    return FunctionType(_code(tuple(names)), {"__builtins__": {}, "float": float, "type": type, **variables})


@lru_cache(maxsize=256)
def _code(names: tuple[str, ...]) -> CodeType:
    """Return the function's code. The runs of a backtest share it: they carry the same names."""
    lines = ["def fed(metrics):", " value_of = metrics.get"]
    for number, metric in enumerate(names):
        # The name is a literal, and nothing else: whatever a metric is called, it is data here.
        lines.append(f" value = value_of({metric!r})")
        lines.append(f" if value is not None: take{number}(value if type(value) is float else float(value))")
    return compile_tree(ast.parse("\n".join(lines)))
