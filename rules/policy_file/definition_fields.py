"""Reads ``define:`` and ``ranges:``, the names that a policy gives to expressions, and the ends of its metrics."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Mapping
from dataclasses import replace
from graphlib import CycleError
from typing import Final, NamedTuple

import yaml

from ..compiled.compiled_rules import compile_rule
from ..compiled.names import Names
from ..errors import ExpressionError
from ..functions.table import FUNCTIONS
from ..language.binding import bind
from ..language.bound_rule import BoundRule, NameScope
from ..language.context import CONTEXT
from ..language.definitions import in_order
from ..language.expressions import Expression, parse
from ..language.references import ContextValue, ParamValue
from .declarations import Rule
from .document import Place
from .fields import FieldReader, Fields, is_null

#: The types that YAML gives to the texts of expressions.
_EXPRESSIONS: Final = (":str", ":int", ":float")
_FORM: Final = "Write the least and the greatest value: [0, 1]. An end that is not known is undefined."
_KNOWN: Final = "Numbers, params and definitions of these are known when the file loads."

#: The least and the greatest value of a metric.
Ends = tuple[BoundRule, BoundRule]


class _Definition(NamedTuple):
    """A definition that parses."""

    node: yaml.ScalarNode
    expression: Expression


class DefinitionFieldReader(FieldReader):
    """Reads definitions, and resolves their names."""

    def defined(self, fields: Fields) -> Fields:
        """Return the entries of ``define`` by name."""
        node = fields.get("define")
        return {} if node is None or is_null(node) else self.fields(node, "define", None)

    def definitions(self, defined: Fields, scope: NameScope) -> dict[str, Expression | None]:
        """Return the expressions by name, each after those that it reads; None for one that is refused.

        Args:
            defined: The entries of ``define``. Those that have ``admit`` are left out.
            scope: The names that they may use, apart from each other's.
        """
        entries = {name: node for name, node in defined.items() if name not in scope.admitted}
        parsed = {name: each for name, value in entries.items() if (each := self._parsed(name, value, scope))}
        expressions = {name: each.expression for name, each in parsed.items()}
        # A refused definition keeps its name, so that one mistake is one problem.
        meanings: dict[str, Expression | None] = dict.fromkeys(entries)
        try:
            names = in_order(expressions)
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            node, where = parsed[circle[0]].node, f"define '{circle[0]}'"
            fix = f'Write series("{circle[0]}") for the metric of that name.' if len(circle) == 2 else ""
            self.refuse_at(self.document.place(node), where, "defined by itself", " -> ".join(circle), fix)
            return meanings
        for name in names:
            try:
                # What a definition means is bound again where it is read.
                known = replace(
                    scope, definitions=meanings, above=scope.controllers, owner="define", is_definition=True
                )
                bind(expressions[name], known, is_condition=False)
            except ExpressionError as error:
                self.refuse_faults(parsed[name].node, f"define '{name}'", error)
            else:
                meanings[name] = expressions[name]
        return meanings

    def _parsed(self, name: str, node: yaml.Node, scope: NameScope) -> _Definition | None:
        where = f"define '{name}'"
        if not self.is_free(name, node, where, scope, {"state": scope.states}):
            return None
        if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(_EXPRESSIONS):
            self.refuse(node, where, "must be an expression", "Write it as in a rule: mean(loss, 10) / lr.")
            return None
        try:
            return _Definition(node, parse(node.value, has_rates=scope.has_rates))
        except ExpressionError as error:
            self.refuse_faults(node, where, error)
            return None

    def rule(
        self,
        node: yaml.Node,
        where: str,
        scope: NameScope,
        names: Names,
        *,
        is_condition: bool = True,
    ) -> Rule | None:
        """Return an expression, bound and compiled; None when it is refused.

        Args:
            scope: The names that it may use.
            names: The policy's names for generated code.
            is_condition: Whether it gives True or False.
        """
        if where.endswith(", clear") and not node.tag.endswith((":str", ":bool")):
            fix = "Write one, as in loss < 1. For a number of steps write 'cooldown: 100'."
            self.refuse(node, where, "must be a condition", fix)
            return None
        if node.tag.endswith(":bool"):
            self.refuse(node, where, "must be text", f'Write "{node.value.capitalize()}" in quotes.')
            return None
        text = self.text(node, where)
        if text is None:
            return None
        assert isinstance(node, yaml.ScalarNode)
        scalar = node

        def place_at(offset: int) -> Place:
            return self.document.place_in(scalar, offset)

        try:
            bound = bind(parse(text, has_rates=scope.has_rates), scope, is_condition=is_condition)
            return Rule(text, bound, compile_rule(bound, names), place_at)
        except ExpressionError as error:
            self.refuse_faults(scalar, where, error)
            return None

    def is_free(
        self, name: str, node: yaml.Node, where: str, scope: NameScope, others: Mapping[str, Collection[str]]
    ) -> bool:
        """Whether an expression may be read by a name; if not, that is a problem.

        Args:
            scope: The names that mean something else.
            others: More such names, by what they are.
        """
        metrics = [metric for metric in scope.metrics if metric not in scope.states]
        known = {"controller metric": metrics, "param": scope.params, "fact about the run": CONTEXT}
        if not name.isidentifier() or keyword.iskeyword(name) or "__" in name:
            self.refuse(node, where, "the name must be an identifier", shows=False)
            return False
        for what, names in {**known, **others, "function": FUNCTIONS}.items():
            if name in names:
                self.refuse(node, where, f"a {what} has the same name", shows=False)
                return False
        return True

    def refuse_faults(self, node: yaml.ScalarNode, where: str, error: ExpressionError) -> None:
        """Add the problems of an expression that a node holds."""
        for fault in error.faults:
            self.refuse_at(self.document.place_in(node, fault.offset), where, fault.what, fault.got, fault.fix)


class RangeFieldReader(DefinitionFieldReader):
    """Reads the ranges of metrics. They decide nothing; ``steptape check`` draws conclusions from them."""

    def ranges(self, fields: Fields, scope: NameScope) -> Mapping[str, Ends]:
        """Return the ranges by name of the metric.

        Args:
            scope: The names that their ends may use.
        """
        node = fields.get("ranges")
        entries = {} if node is None or is_null(node) else self.fields(node, "ranges", None)
        read = {name: self._ends(entry, f"range of '{name}'", scope) for name, entry in entries.items()}
        return {name: ends for name, ends in read.items() if ends is not None}

    def _ends(self, node: yaml.Node, where: str, scope: NameScope) -> Ends | None:
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        if len(items) != 2 or not all(isinstance(end, yaml.ScalarNode) for end in items):
            self.refuse(node, where, "must be a list of two ends", _FORM)
            return None
        ends = [self._end(end, where, scope) for end in items]
        low, high = ends
        return None if low is None or high is None else (low, high)

    def _end(self, node: yaml.ScalarNode, where: str, scope: NameScope) -> BoundRule | None:
        if not node.tag.endswith(_EXPRESSIONS):
            self.refuse(node, where, "an end is a number or an expression", _FORM)
            return None
        try:
            bound = bind(parse(node.value, has_rates=scope.has_rates), scope, is_condition=False)
        except ExpressionError as error:
            self.refuse_faults(node, where, error)
            return None
        unknown = ContextValue("undefined")
        if all(isinstance(each, ParamValue) or each == unknown for each in bound.references.values()):
            return bound
        self.refuse(node, where, "an end reads nothing of the run", _KNOWN)
        return None
