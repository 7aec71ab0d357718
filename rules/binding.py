"""From an expression to a bound rule: every name and call is known for what it is before the first event.

An expression and the names of its policy flow in; which series, windows, metrics and params each node means flows out,
or all the faults at once. The order in which a name resolves: a comprehension's own variable, a controller metric, a
param, and else a series.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..store.events import LOOP_KINDS
from .errors import ExpressionError, Fault, suggestion
from .expressions import Expression
from .functions import FUNCTIONS, METHODS, Function
from .references import (
    MetricValue,
    Param,
    ParamValue,
    Reference,
    SeriesKey,
    SeriesLength,
    SeriesValue,
    Variable,
    Window,
)

MAX_WINDOW: Final = 100_000

_FOLDABLE: Final = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that a policy gives to its rules.

    Attributes:
        metrics: Names of the controller metrics.
        params: Params with their values.
        series: The series that rules may read; None when the policy does not list them.
    """

    metrics: Collection[str] = ()
    params: Mapping[str, Param] = field(default_factory=dict)
    series: Collection[str] | None = None

    def names(self) -> list[str]:
        """Every name that is known before training starts."""
        return [*self.metrics, *self.params, *(self.series or ())]


@dataclass(frozen=True, slots=True)
class BoundRule:
    """An expression whose names are resolved.

    Attributes:
        expression: Text and tree.
        references: What the nodes mean that are neither operators nor literals.
        series: Each series that is read, in order of appearance, with how many of its values must be kept.
        metrics: Controller metrics that are read, in order of appearance.
    """

    expression: Expression
    references: Mapping[ast.AST, Reference]
    series: Mapping[SeriesKey, int]
    metrics: tuple[str, ...]


def bind(expression: Expression, scope: Scope, *, is_condition: bool = True) -> BoundRule:
    """Resolve every name and check every call of an expression.

    Args:
        is_condition: Whether to refuse what can never give True or False.

    Raises:
        ExpressionError: With all the faults found.
    """
    binder = _Binder(expression, scope)
    binder.visit(expression.tree, {})
    if is_condition:
        binder.check_verdict(expression.tree)
    if binder.faults:
        raise ExpressionError(binder.faults)
    return BoundRule(expression, binder.references, binder.series, tuple(binder.metrics))


class _Binder:
    """One walk over a tree. ``variables`` maps a comprehension's names to unique ones."""

    def __init__(self, expression: Expression, scope: Scope) -> None:
        self.expression = expression
        self.scope = scope
        self.faults: list[Fault] = []
        self.references: dict[ast.AST, Reference] = {}
        self.series: dict[SeriesKey, int] = {}
        self.metrics: dict[str, None] = {}
        self._variables = 0

    def refuse(self, node: ast.expr, what: str, fix: str = "") -> None:
        self.faults.append(self.expression.fault(node, what, fix))

    def visit(self, node: ast.AST, variables: Mapping[str, str]) -> None:
        """Bind a node and all below it."""
        if isinstance(node, ast.Name):
            self._visit_name(node, variables)
        elif isinstance(node, ast.Call):
            self._visit_call(node, variables)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            self._visit_comprehension(node, variables)
        else:
            self._check_containers(node, variables)
            for child in ast.iter_child_nodes(node):
                self.visit(child, variables)

    def _read_series(self, key: SeriesKey, keep: int) -> None:
        self.series[key] = max(self.series.get(key, 1), keep)

    def _visit_name(self, node: ast.Name, variables: Mapping[str, str]) -> None:
        if node.id in variables:
            self.references[node] = Variable(variables[node.id])
        elif node.id in self.scope.metrics:
            self.references[node] = MetricValue(node.id)
            self.metrics[node.id] = None
        elif node.id in self.scope.params:
            self.references[node] = ParamValue(self.scope.params[node.id])
        elif self.scope.series is not None and node.id not in self.scope.series:
            self.refuse(node, "unknown name", suggestion(node.id, self.scope.names()))
        else:
            self.references[node] = SeriesValue(SeriesKey(node.id))
            self._read_series(SeriesKey(node.id), 1)

    def _visit_comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp, variables: Mapping[str, str]
    ) -> None:
        inner = dict(variables)
        for generator in node.generators:
            self._refuse_series(generator.iter, inner)
            self.visit(generator.iter, inner)
            for target in ast.walk(generator.target):
                if isinstance(target, ast.Name):
                    self._variables += 1
                    inner[target.id] = f"v{self._variables}"
                    self.references[target] = Variable(inner[target.id])
            for condition in generator.ifs:
                self.visit(condition, inner)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(part, inner)

    # --- series are numbers -------------------------------------------------------------------------------------

    def _series_key(self, node: ast.expr, variables: Mapping[str, str]) -> SeriesKey | None:
        """The series that a node is, before it is visited; None when it is something else."""
        if isinstance(node, ast.Name):
            known = node.id in variables or node.id in self.scope.metrics or node.id in self.scope.params
            return None if known else SeriesKey(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "series":
            return _literal_series(node)
        return None

    def _check_containers(self, node: ast.AST, variables: Mapping[str, str]) -> None:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            self._refuse_series(node.value, variables)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    self._refuse_series(value, variables)
        elif isinstance(node, ast.Compare):
            for operator, operand in zip(node.ops, node.comparators, strict=True):
                if isinstance(operator, (ast.In, ast.NotIn)):
                    self._refuse_series(operand, variables)

    def _refuse_series(self, node: ast.expr, variables: Mapping[str, str]) -> None:
        key = self._series_key(node, variables)
        if key is None or (self.scope.series is not None and key.name not in self.scope.series):
            return
        if isinstance(node, ast.Name) and self.scope.metrics:
            fix = suggestion(key.name, self.scope.metrics)
            self.refuse(node, "not a controller metric, and a series is one number, with nothing inside", fix)
        else:
            fix = f"Its last values are read by functions, as in mean({self.expression.segment(node)}, 10)."
            self.refuse(node, "a series is one number, with nothing inside", fix)

    # --- calls --------------------------------------------------------------------------------------------------

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
        elif node.args and self._series_key(node.args[0], variables) and _takes_series(function):
            self._visit_series_call(node, function, variables)
        else:
            self._visit_plain_call(node, function, variables)

    def _visit_arguments(self, node: ast.Call, variables: Mapping[str, str]) -> None:
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self.visit(argument, variables)

    def _refuse_function(self, name: ast.Name) -> None:
        fix = suggestion(name.id, FUNCTIONS)
        if name.id in ("rand", "randint", "random"):
            fix = "Rules know no randomness: the same events give the same decisions."
        self.refuse(name, "unknown function", fix)

    def _visit_method(self, node: ast.Call, method: ast.Attribute, variables: Mapping[str, str]) -> None:
        name = method.attr
        if name not in METHODS:
            offset = self.expression.offset(method)
            self.faults.append(Fault(offset, "method not allowed", repr(name), suggestion(name, METHODS)))
        elif node.keywords or len(node.args) > 3:
            self.refuse(node, "a method takes few arguments, and no keywords")
        self._refuse_series(method.value, variables)
        self.visit(method.value, variables)
        self._visit_arguments(node, variables)

    def _visit_series(self, node: ast.Call) -> None:
        key = _literal_series(node)
        if key is None:
            self.refuse(
                node, "series takes a name as literal text", 'Write series("eval/loss") or add kind="evaluate".'
            )
        elif key.kind is not None and key.kind not in LOOP_KINDS:
            self.refuse(node, "no such kind of event", suggestion(key.kind.removeprefix("on_"), LOOP_KINDS))
        elif self.scope.series is not None and key.name not in self.scope.series:
            self.refuse(node, "unknown series", suggestion(key.name, self.scope.series))
        else:
            self.references[node] = SeriesValue(key)
            self._read_series(key, 1)

    def _visit_series_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        """A function of a series, and of a window length where it takes one."""
        series = node.args[0]
        key = self._series_key(series, variables)
        before = len(self.faults)
        self.visit(series, variables)
        if key is None or len(self.faults) > before:
            return
        if function.name == "len":
            if len(node.args) != 1 or node.keywords:
                self.refuse(node, "len takes one argument")
            self.references[node] = SeriesLength(key)
            return
        length = self._window_length(node, function, variables)
        if length is None:
            return
        self.visit(node.args[1], variables)
        if function.reduction is None:
            self.references[node] = SeriesValue(key, back=length)
            self._read_series(key, length + 1)
        else:
            self.references[node] = Window(function, key, length)
            self._read_series(key, length)

    def _window_length(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> int | None:
        least = 1 if function.reduction else 0
        name = self.expression.segment(node.args[0])
        if len(node.args) != 2 or node.keywords:
            fix = f"Write {function.name}({name}, 10) for the last ten values."
            self.refuse(node, f"{function.name} of a series takes the series and how many values", fix)
            return None
        length = self._constant(node.args[1], variables)
        if isinstance(length, int) and not isinstance(length, bool) and least <= length <= MAX_WINDOW:
            return length
        fix = f"It is a whole number from {least} to {MAX_WINDOW:,}, a param that is one, or arithmetic on those."
        if function.name in ("min", "max"):
            other = self.expression.segment(node.args[1])
            fix += f" To compare two values write {function.name}([{name}, {other}])."
        self.refuse(node.args[1], "not a window length", fix)
        return None

    def _constant(self, node: ast.expr, variables: Mapping[str, str]) -> Param | None:
        """The value of a constant expression; None when it is none."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            hidden = node.id in variables or node.id in self.scope.metrics
            return None if hidden else self.scope.params.get(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self._constant(node.operand, variables)
            return -operand if isinstance(operand, int) else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, _FOLDABLE):
            return _folded(node.op, self._constant(node.left, variables), self._constant(node.right, variables))
        return None

    def _visit_plain_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        if function.plain is None:
            self.refuse(node, f"{function.name} takes a series first", f"Write {function.signature}.")
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
        # Positional arguments of `sorted` and the like end where its keywords begin.
        most = 1 if function.name == "sorted" else function.most
        return function.least <= count and (most is None or len(node.args) <= most) and self._fits(count, function)

    def _fits(self, count: int, function: Function) -> bool:
        limit = function.most if function.most is None else max(function.most, 1 + len(function.keywords or ()))
        return limit is None or count <= limit

    # --- the verdict --------------------------------------------------------------------------------------------

    def check_verdict(self, tree: ast.expr) -> None:
        """Refuse a rule that can never give True or False."""
        kind = self._never_bool(tree)
        if kind and not self.faults:
            self.refuse(tree, f"a rule must give True or False, this gives {kind}", "Compare it, as in loss > 3.0.")

    def _never_bool(self, node: ast.expr) -> str:
        reference = self.references.get(node)
        if isinstance(reference, (SeriesValue, SeriesLength, Window)):
            return "a number"
        if isinstance(reference, ParamValue):
            return "" if isinstance(reference.value, bool) else "a constant"
        if isinstance(node, ast.Constant):
            return "" if isinstance(node.value, bool) else "a constant"
        if isinstance(node, ast.BinOp):
            return "" if isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)) else "a number"
        if isinstance(node, ast.JoinedStr):
            return "a text"
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            return "a collection"
        return ""


def _takes_series(function: Function) -> bool:
    return function.reduction is not None or function.name in ("lag", "len")


def _literal_series(node: ast.Call) -> SeriesKey | None:
    """The key that a ``series(...)`` call spells; None unless all its arguments are literal texts."""
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if len(node.args) != 1 or not set(keywords) <= {"kind"}:
        return None
    texts = [_literal_text(argument) for argument in (node.args[0], *keywords.values())]
    if None in texts:
        return None
    return SeriesKey(texts[0] or "", texts[1] if len(texts) > 1 else None)


def _literal_text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _folded(operator: ast.operator, left: Param | None, right: Param | None) -> int | None:
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    if max(abs(left), abs(right)) > MAX_WINDOW * MAX_WINDOW:
        return None
    if isinstance(operator, (ast.FloorDiv, ast.Mod)):
        if right == 0:
            return None
        return left // right if isinstance(operator, ast.FloorDiv) else left % right
    if isinstance(operator, ast.Mult):
        return left * right
    return left + right if isinstance(operator, ast.Add) else left - right


def dependencies(rules: Iterable[BoundRule]) -> dict[SeriesKey, int]:
    """Every series that the rules read, with the longest window any of them needs."""
    longest: dict[SeriesKey, int] = {}
    for rule in rules:
        for key, keep in rule.series.items():
            longest[key] = max(longest.get(key, 1), keep)
    return longest
