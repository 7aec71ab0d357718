"""Binds an expression: resolves every name and checks every call before the first event.

Takes an expression and the names of its policy; returns which series, window, metric or param each node means, or
raises all faults at once. A name resolves in this order: a variable of a comprehension, a controller metric, a param, a
fact about the run, and else a series.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from ...store.events import LOOP_KINDS, STEP_TIME, is_kind
from .. import habits
from ..errors import ExpressionError, Fault, kind_suggestion, suggestion
from ..functions.folds import FOLDS
from ..functions.methods import METHODS
from ..functions.table import (
    ANY_RANK,
    DECISION_FUNCTIONS,
    FUNCTIONS,
    OF_NOW,
    RANK_FUNCTIONS,
    STREAK,
    TRUE_OF_CONTROLLERS,
    Function,
)
from . import corrections
from . import references as ref
from .bound_rule import BoundRule, Derived, NameScope, Need
from .constants import constant
from .definitions import expand
from .expressions import Expression
from .window_arguments import WINDOW_KEYWORDS, WindowReader

#: Functions of a series that are not reductions of a window.
_OF_SERIES: Final = FOLDS | {"lag", "delta", "len", "rate", "age", "absent"}
#: Functions that compare or add their arguments when these are expressions: there only a keyword asks for a window.
_TAKE_NUMBERS: Final = frozenset({"min", "max", "sum"})
#: Expressions that give a number or a truth value, so that a series can be computed from them.
_NUMERIC: Final = (ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.UnaryOp)
_NO_PART_OF_A_SERIES: Final = (ref.MetricValue, ref.PastDecisions, ref.Variable, ref.AcrossRanks)
_COLLECTIONS: Final = frozenset({"list", "tuple", "sorted", "set", "dict", "str"})

_NO_KIND: Final = "values of all ranks are those of any kind of event"

#: Why a series cannot be indexed, iterated or have attributes.
_SERIES_IS_NUMBER: Final = "a series is a single number and has no items or attributes"


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


class _Binder:
    """One walk over a tree. ``variables`` maps the names of comprehension variables to unique ones."""

    def __init__(self, expression: Expression, scope: NameScope) -> None:
        self.expression = expression
        self.scope = scope
        self.faults: list[Fault] = []
        self.references: dict[ast.AST, ref.Reference] = {}
        self.series: dict[ref.SeriesKey, Need] = {}
        self.metrics: dict[str, None] = {}
        self.derived: dict[ref.SeriesKey, Derived] = {}
        self.ranks: set[str] = set()
        self._is_of_ranks = False
        self._variables = 0

    def refuse(self, node: ast.expr, what: str, fix: str = "") -> None:
        self.faults.append(self.expression.fault(node, what, fix))

    def visit(self, node: ast.AST, variables: Mapping[str, str]) -> None:
        """Bind a node and all nodes below it."""
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

    def _read_series(self, key: ref.SeriesKey, need: Need) -> None:
        self.series[key] = self.series.get(key, Need()) | need

    def _visit_name(self, node: ast.Name, variables: Mapping[str, str]) -> None:
        if node.id in variables:
            self.references[node] = ref.Variable(variables[node.id])
        elif node.id in self.scope.metrics:
            self.references[node] = ref.MetricValue(node.id)
            self.metrics[node.id] = None
        elif node.id in self.scope.params:
            self.references[node] = ref.ParamValue(self.scope.params[node.id])
        elif node.id in self.scope.context:
            self.references[node] = ref.ContextValue(node.id)
        elif self.scope.series is not None and node.id not in self.scope.series:
            self.refuse(node, "unknown name", suggestion(node.id, self.scope.names()))
        else:
            self._refer(node, ref.SeriesKey(node.id))

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
                    self.references[target] = ref.Variable(inner[target.id])
            for condition in generator.ifs:
                self.visit(condition, inner)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(part, inner)

    # --- series are numbers -------------------------------------------------------------------------------------

    def _series_key(self, node: ast.expr, variables: Mapping[str, str]) -> ref.SeriesKey | None:
        """Return the series that a node names, before it is visited; None when the node is something else."""
        if isinstance(node, ast.Name):
            return ref.SeriesKey(node.id) if node.id not in variables and self.scope.is_series(node.id) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "series":
            return _literal_series(node)
        return None

    def _check_containers(self, node: ast.AST, variables: Mapping[str, str]) -> None:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            self._refuse_series(node.value, variables, corrections.of_part(self.expression, node))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    self._refuse_series(value, variables)
        elif isinstance(node, ast.Compare):
            for operator, operand in zip(node.ops, node.comparators, strict=True):
                if isinstance(operator, (ast.In, ast.NotIn)):
                    self._refuse_series(operand, variables)

    def _refuse_series(self, node: ast.expr, variables: Mapping[str, str], fix: str = "") -> None:
        key = self._series_key(node, variables)
        if key is None or (self.scope.series is not None and key.name not in self.scope.series):
            return
        if isinstance(node, ast.Name) and self.scope.metrics:
            fix = suggestion(key.name, self.scope.metrics)
            self.refuse(node, f"not a controller metric; {_SERIES_IS_NUMBER}", fix)
        else:
            fix = fix or f"Functions read its last values, as in mean({self.expression.segment(node)}, 10)."
            self.refuse(node, _SERIES_IS_NUMBER, fix)

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
        elif function.name in DECISION_FUNCTIONS or (function.name == STREAK and _takes_text(node)):
            self._visit_decision_call(node, function)
        elif function.name in RANK_FUNCTIONS:
            self._visit_rank_call(node, function, variables)
        elif self._is_of_ranks and self._is_of_series(node, function, variables):
            self.refuse(node, f"{ANY_RANK} reads the newest value of each rank, and no window")
        elif self._is_of_series(node, function, variables):
            self._visit_series_call(node, function, variables)
        else:
            self._visit_plain_call(node, function, variables)

    def _visit_arguments(self, node: ast.Call, variables: Mapping[str, str]) -> None:
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self.visit(argument, variables)

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

    def _visit_series(self, node: ast.Call) -> None:
        key = _literal_series(node)
        if key is None:
            self.refuse(
                node, "series takes a string literal as its name", 'Write series("eval/loss") or add kind="evaluate".'
            )
        elif key.kind is not None and not is_kind(key.kind, LOOP_KINDS):
            self.refuse(node, "unknown kind of event", kind_suggestion(key.kind.removeprefix("on_"), LOOP_KINDS))
        elif self.scope.series is not None and key.name not in self.scope.series:
            self.refuse(node, "unknown series", suggestion(key.name, self.scope.series))
        else:
            self._refer(node, key)

    def _refer(self, node: ast.expr, key: ref.SeriesKey) -> None:
        """Let a node mean the newest value of a series: of its own rank, or of the rank that ``any_rank`` asks of."""
        if not self._is_of_ranks:
            self.references[node] = ref.SeriesValue(key)
            self._read_series(key, Need())
        elif key.kind is not None:
            self.refuse(node, _NO_KIND)
        else:
            self.references[node] = ref.RankValue(key.name)
            self._read_on_ranks(key.name)

    def _read_on_ranks(self, name: str) -> None:
        self.ranks.add(name)
        if name != STEP_TIME:
            # So that a name which no event carries is warned of.
            self._read_series(ref.SeriesKey(name), Need())

    def _visit_rank_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        """Bind a function of all ranks: of a condition, or of a series that is named."""
        if len(node.args) != 1 or node.keywords:
            self.refuse(node, f"{function.name} takes one argument", f"Write {function.signature}.")
        elif self._is_of_ranks:
            self.refuse(node, f"{function.name} cannot be asked within {ANY_RANK}")
        elif function.name == ANY_RANK:
            self._is_of_ranks, before = True, len(self.faults)
            self.visit(node.args[0], variables)
            self._is_of_ranks = False
            read = (self.references.get(part) for part in ast.walk(node.args[0]))
            if len(self.faults) == before and not any(isinstance(reference, ref.RankValue) for reference in read):
                self.refuse(node, f"{ANY_RANK} reads no series", "Write any_rank(not isfinite(loss)).")
            self.references[node] = ref.AcrossRanks(ANY_RANK)
        else:
            self._visit_rank_series(node, function, variables)

    def _visit_rank_series(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        key = self._series_key(node.args[0], variables)
        if key is None:
            self.refuse(node.args[0], f"{function.name} takes a series", f"Write {function.signature}.")
        elif key.kind is not None:
            self.refuse(node.args[0], _NO_KIND)
        elif self.scope.series is not None and key.name not in self.scope.series:
            self.refuse(node.args[0], "unknown series", suggestion(key.name, self.scope.series))
        else:
            self.references[node] = ref.AcrossRanks(function.name, key.name)
            self._read_on_ranks(key.name)

    def _visit_decision_call(self, node: ast.Call, function: Function) -> None:
        """Bind a question about a controller, whose name must be a literal."""
        name = _literal_text(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        if name is None:
            what = f"{function.name} takes a controller's name as a string literal"
            self.refuse(node, what, f"Write {function.signature}.")
        elif name not in self.scope.controllers:
            self.refuse(node.args[0], "unknown controller", suggestion(name, self.scope.controllers))
        elif function.name in OF_NOW and name not in self.scope.above:
            self.refuse(node.args[0], "not a controller above in the file", "Put it before this one.")
        else:
            self.references[node] = ref.PastDecisions(function.name, name)

    # --- functions of a series ----------------------------------------------------------------------------------

    def _is_of_series(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> bool:
        """Whether a call reads a series, named or to be computed, and not just a number or a list."""
        if not node.args or (function.reduction is None and function.name not in _OF_SERIES):
            return False
        if self._series_key(node.args[0], variables):
            return True
        if function.name == "len" or not self._is_computed(node.args[0], variables):
            return False
        asks_by_keyword = any(keyword.arg in WINDOW_KEYWORDS for keyword in node.keywords)
        if function.name in _OF_SERIES or asks_by_keyword:
            return True
        given = len(node.args) + len(node.keywords)
        return function.name not in _TAKE_NUMBERS and given == 2 + len(function.options)

    def _is_computed(self, node: ast.expr, variables: Mapping[str, str]) -> bool:
        """Whether an expression gives a number for each value of a series."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COLLECTIONS:
            return False
        return isinstance(node, _NUMERIC) and self._reads_series(node, variables)

    def _reads_series(self, node: ast.expr, variables: Mapping[str, str]) -> bool:
        if self._series_key(node, variables) is not None:
            return True
        parts = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        return any(self._reads_series(part, variables) for part in parts if isinstance(part, ast.expr))

    def _visit_series_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        """Bind a function of a series, with its window where it takes one."""
        key = self._series_read(node.args[0], variables)
        if key is None:
            return
        if function.name == "len":
            if len(node.args) != 1 or node.keywords:
                self.refuse(node, "len takes one argument")
            self.references[node] = ref.SeriesLength(key)
            return
        reader = WindowReader(
            lambda part: constant(part, self.scope, variables),
            self.refuse,
            self.expression.segment,
            self.scope.params,
        )
        read: ref.SeriesReference | None
        if function.name in FOLDS:
            read = reader.fold(node, function, key)
        elif function.reduction is not None or function.per_step is not None:
            read = reader.window(node, function, key)
        else:
            read = self._look_back(node, function, key, reader)
        if read is not None:
            self.references[node] = read
            self._read_series(key, _need(read))
        for argument in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
            self.visit(argument, variables)

    def _look_back(
        self, node: ast.Call, function: Function, key: ref.SeriesKey, reader: WindowReader
    ) -> ref.SeriesReference | None:
        """Return what ``lag``, ``delta``, ``age`` and ``absent`` read, which take at most one number."""
        is_lag, is_given = function.name == "lag", len(node.args) == 2
        if function.name == "age" and len(node.args) == 1 and not node.keywords:
            return ref.SeriesAge(key)
        if node.keywords and function.name != "age":
            ago = reader.ago(node, function, key)
            if ago is None or is_lag:
                return ago
            return ref.SeriesRise(ago) if function.name == "delta" else ref.SeriesAge(key, ago.length, ago.extent)
        if function.name not in ("lag", "delta") or len(node.args) > 2 or (is_lag and not is_given):
            what = f"{function.name} of a series does not take these arguments"
            self.refuse(node, what, f"Write {function.signature}.")
            return None
        number = reader.whole(node.args[1], 0 if is_lag else 1, "window length") if is_given else 1
        if number is None:
            return None
        return ref.SeriesValue(key, number) if is_lag else ref.SeriesChange(key, number)

    def _series_read(self, node: ast.expr, variables: Mapping[str, str]) -> ref.SeriesKey | None:
        """Visit a function's argument and return the series that it gives; None when it is refused.

        A series that must be computed is noted.
        """
        before = len(self.faults)
        self.visit(node, variables)
        if len(self.faults) > before:
            return None
        reference = self.references.get(node)
        if isinstance(reference, ref.SeriesValue) and self._series_key(node, variables) is not None:
            return reference.key
        for part in ast.walk(node):
            if isinstance(self.references.get(part), _NO_PART_OF_A_SERIES):
                self.refuse(node, "a series can be computed from series, params and numbers only")
                return None
        driver = self.driver(node)
        if driver is None:
            self.refuse(node, "not a series")
            return None
        key = ref.SeriesKey(self.expression.segment(node), is_derived=True)
        self.derived.setdefault(key, Derived(node, driver))
        return key

    def driver(self, node: ast.AST) -> ref.SeriesKey | None:
        """Return the first series that a visited expression reads, in the order of its text."""
        reference = self.references.get(node)
        if isinstance(reference, ref.SeriesReference):
            return reference.key
        keys = map(self.driver, ast.iter_child_nodes(node))
        return next((key for key in keys if key is not None), None)

    def _visit_plain_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        if function.plain is None:
            self.refuse(node, f"{function.name} takes a series as its first argument", f"Write {function.signature}.")
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

    # --- the verdict --------------------------------------------------------------------------------------------

    def check_verdict(self, tree: ast.expr) -> None:
        """Refuse a rule that can never give True or False."""
        kind = self._never_bool(tree)
        if kind and not self.faults:
            what = f"a rule must give True or False; this one gives {kind}"
            self.refuse(tree, what, corrections.of_verdict(self.expression))

    def _never_bool(self, node: ast.expr) -> str:
        reference = self.references.get(node)
        if isinstance(reference, ref.SeriesAge) and reference.limit is not None:
            return ""
        if isinstance(reference, ref.SeriesReference | ref.ContextValue):
            return "a number"
        if isinstance(reference, ref.AcrossRanks):
            return "" if reference.question == ANY_RANK else "a number"
        if isinstance(reference, ref.PastDecisions):
            return "" if reference.question in TRUE_OF_CONTROLLERS else "a number"
        if isinstance(reference, ref.ParamValue):
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


def _need(read: ref.SeriesReference) -> Need:
    """Return how much of a series must be kept for what reads it."""
    match read:
        case ref.SeriesValue(_, back) | ref.SeriesChange(_, back):
            return Need(back + 1)
        case ref.SeriesAgo(_, length, extent) | ref.SeriesRise(ref.SeriesAgo(_, length, extent)):
            return Need(reach={extent: length})
        case ref.SeriesAge(extent=extent):
            return Need(reach={extent: 0})
        case ref.Window(length=length, extent=extent):
            reach: dict[ref.Extent, float] = {} if extent is ref.Extent.VALUES else {extent: length}
            if read.is_per_step:
                reach.setdefault(ref.Extent.STEPS, 0)
            return Need(read.keep, reach)
    return Need()


def _literal_series(node: ast.Call) -> ref.SeriesKey | None:
    """Return the key that a ``series(...)`` call spells; None unless all its arguments are literal texts."""
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if len(node.args) != 1 or not set(keywords) <= {"kind"}:
        return None
    texts = [_literal_text(argument) for argument in (node.args[0], *keywords.values())]
    if None in texts:
        return None
    return ref.SeriesKey(texts[0] or "", texts[1] if len(texts) > 1 else None)


def _takes_text(node: ast.Call) -> bool:
    return len(node.args) == 1 and _literal_text(node.args[0]) is not None


def _literal_text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
