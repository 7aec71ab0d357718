"""Binds names, comprehensions and ``series(...)``: the parts of an expression that are no calls of other functions."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from ...store.events import LOOP_KINDS, STEP_TIME, is_kind
from ..errors import Fault, kind_suggestion, suggestion
from . import corrections
from . import references as ref
from .bound_rule import MEMBER, Derived, NameScope, Need
from .context import CONTEXT
from .expressions import Expression
from .families import is_pattern

NO_KIND: Final = "values of all ranks are those of any kind of event"
OWN_RANK: Final = "an admitted value is that of its own rank"

#: Why a series cannot be indexed, iterated or have attributes.
_SERIES_IS_NUMBER: Final = "a series is a single number and has no items or attributes"


class Members:
    """The members that a pattern means at some place in an expression.

    Attributes:
        key: The series of a member; None until a pattern says which.
        is_argument: Whether a function of a family evaluates the place for each of them.
    """

    def __init__(self, key: ref.SeriesKey | None = None, *, is_argument: bool = False) -> None:
        self.key = key
        self.is_argument = is_argument


class NodeBinder(ABC):
    """One walk over a tree. ``variables`` maps the names of comprehension variables to unique ones.

    Attributes:
        faults: What is wrong, so far.
        references, series, metrics, derived, ranks: As in the bound rule.
    """

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
        self._members: Members | None = None
        if scope.each:
            self._members = Members(ref.SeriesKey(scope.each, is_of_member=True))
        elif scope.is_definition:
            self._members = Members()

    def refuse(self, node: ast.expr, what: str, fix: str = "") -> None:
        """Note a fault at a node."""
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

    @abstractmethod
    def _visit_call(self, node: ast.Call, variables: Mapping[str, str]) -> None:
        """Bind a call."""

    def _read_series(self, key: ref.SeriesKey, need: Need) -> None:
        self.series[key] = self.series.get(key, Need()) | need

    def _visit_name(self, node: ast.Name, variables: Mapping[str, str]) -> None:
        if node.id in variables:
            self.references[node] = ref.Variable(variables[node.id])
        elif node.id in self.scope.own:
            self.references[node] = self.scope.own[node.id]
        elif node.id in self.scope.admitted:
            self._refer(node, ref.SeriesKey(node.id, is_derived=True))
        elif node.id in self.scope.metrics:
            kind = ref.StateClass if node.id in self.scope.states else ref.MetricValue
            self.references[node] = kind(node.id)
            self.metrics[node.id] = None
        elif node.id in self.scope.params:
            self.references[node] = ref.ParamValue(self.scope.params[node.id])
        elif node.id == MEMBER and self.scope.each:
            self._refer_to_name(node)
        elif node.id in CONTEXT:
            self.references[node] = ref.ContextValue(node.id)
        elif not self.scope.lists(node.id):
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

    def _series_key(self, node: ast.expr, variables: Mapping[str, str]) -> ref.SeriesKey | None:
        """Return the series that a node names, before it is visited; None when the node is something else."""
        if isinstance(node, ast.Name):
            key = ref.SeriesKey(node.id, is_derived=node.id in self.scope.admitted)
            return key if node.id not in variables and self.scope.is_series(node.id) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "series":
            return self._literal_series(node)
        return None

    def _literal_series(self, node: ast.Call) -> ref.SeriesKey | None:
        """Return the key that a ``series(...)`` call spells; None unless all its arguments are literal texts."""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if len(node.args) != 1 or not set(keywords) <= {"kind"}:
            return None
        texts = [literal_text(argument) for argument in (node.args[0], *keywords.values())]
        if None in texts:
            return None
        name, kind = texts[0] or "", texts[1] if len(texts) > 1 else None
        return ref.SeriesKey(name, kind, is_of_member=is_pattern(name))

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
        if key is None or not (key.is_derived or self.scope.lists(key.name)):
            return
        if key.is_of_member and self._members is None:
            return  # It is refused as a pattern.
        if key.is_of_member:
            fix = f"Write any({self.expression.segment(node)} > 100)."
            self.refuse(node, "a pattern means one member after the other, and no list", fix)
        elif isinstance(node, ast.Name) and self.scope.metrics:
            fix = suggestion(key.name, self.scope.metrics)
            self.refuse(node, f"not a controller metric; {_SERIES_IS_NUMBER}", fix)
        else:
            fix = fix or f"Functions read its last values, as in mean({self.expression.segment(node)}, 10)."
            self.refuse(node, _SERIES_IS_NUMBER, fix)

    def _visit_arguments(self, node: ast.Call, variables: Mapping[str, str]) -> None:
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self.visit(argument, variables)

    def _visit_series(self, node: ast.Call) -> None:
        key = self._literal_series(node)
        if key is None:
            self.refuse(
                node, "series takes a string literal as its name", 'Write series("eval/loss") or add kind="evaluate".'
            )
        elif key.kind is not None and not is_kind(key.kind, LOOP_KINDS):
            self.refuse(node, "unknown kind of event", kind_suggestion(key.kind.removeprefix("on_"), LOOP_KINDS))
        elif not self.scope.lists(key.name):
            self.refuse(node, "unknown series", suggestion(key.name, self.scope.series or ()))
        else:
            self._refer(node, key)

    def _refer(self, node: ast.expr, key: ref.SeriesKey) -> None:
        """Let a node mean the newest value of a series: of its own rank, or of the rank that ``any_rank`` asks of."""
        if key.is_of_member and not self._means_member(node, key):
            return
        if not self._is_of_ranks:
            self.references[node] = ref.SeriesValue(key)
            self._read_series(key, Need())
        elif key.kind is not None or key.is_derived:
            self.refuse(node, OWN_RANK if key.is_derived else NO_KIND)
        else:
            self.references[node] = ref.RankValue(key.name)
            self._read_on_ranks(key.name)

    def _means_member(self, node: ast.expr, key: ref.SeriesKey) -> bool:
        """Whether a pattern means one member here; if not, it is refused."""
        members = self._members
        if self._is_of_ranks:
            self.refuse(node, "functions of all ranks take no pattern")
        elif members is None:
            self.refuse(
                node, "a pattern means many series", f"Write any({self.expression.segment(node)} > 100) or for_each."
            )
        elif members.key not in (None, key):
            meant = members.key.name if members.key else ""
            self.refuse(node, f"another pattern than '{meant}'", "An argument, and a rule with for_each, has one.")
        else:
            members.key = key
            self._read_series(key.whole, Need())
            return True
        return False

    def _refer_to_name(self, node: ast.expr) -> None:
        if self._members is None or self._members.is_argument:
            self.refuse(node, "a function of a family has no one member")
        else:
            self.references[node] = ref.MemberName()

    def _read_on_ranks(self, name: str) -> None:
        self.ranks.add(name)
        if name != STEP_TIME:
            # So that a name which no event carries is warned of.
            self._read_series(ref.SeriesKey(name), Need())


def literal_text(node: ast.expr) -> str | None:
    """Return the value of a text; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
