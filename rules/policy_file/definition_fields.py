"""Reads ``define:``, the names that a policy gives to expressions."""

from __future__ import annotations

import keyword
from dataclasses import replace
from graphlib import CycleError
from typing import Final, NamedTuple

import yaml

from ..errors import ExpressionError
from ..functions.table import FUNCTIONS
from ..language.binding import bind
from ..language.bound_rule import NameScope
from ..language.definitions import in_order
from ..language.expressions import Expression, parse
from .fields import FieldReader, Fields, is_null

#: The types that YAML gives to the texts of expressions.
_EXPRESSIONS: Final = (":str", ":int", ":float")


class _Definition(NamedTuple):
    """A definition that parses."""

    node: yaml.ScalarNode
    expression: Expression


class DefinitionFieldReader(FieldReader):
    """Reads definitions, and resolves their names."""

    def definitions(self, fields: Fields, scope: NameScope) -> dict[str, Expression | None]:
        """Return the expressions by name, each after those that it reads; None for one that is refused.

        Args:
            scope: The names that they may use, apart from each other's.
        """
        node = fields.get("define")
        entries = self.fields(node, "define", None) if node is not None and not is_null(node) else {}
        parsed = {name: each for name, value in entries.items() if (each := self._parsed(name, value, scope))}
        expressions = {name: each.expression for name, each in parsed.items()}
        # A refused definition keeps its name, so that one mistake is one problem.
        meanings: dict[str, Expression | None] = dict.fromkeys(entries)
        try:
            names = in_order(expressions)
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            node, where = parsed[circle[0]].node, f"define '{circle[0]}'"
            self.refuse_at(self.document.place(node), where, "defined by itself", " -> ".join(circle), "")
            return meanings
        for name in names:
            try:
                bind(
                    expressions[name], replace(scope, definitions=meanings, above=scope.controllers), is_condition=False
                )
            except ExpressionError as error:
                self.refuse_faults(parsed[name].node, f"define '{name}'", error)
            else:
                meanings[name] = expressions[name]
        return meanings

    def _parsed(self, name: str, node: yaml.Node, scope: NameScope) -> _Definition | None:
        where = f"define '{name}'"
        others = {"controller metric": scope.metrics, "param": scope.params, "fact about the run": scope.context}
        if not name.isidentifier() or keyword.iskeyword(name) or "__" in name:
            self.refuse(node, where, "a defined name must be an identifier", shows=False)
            return None
        for what, names in {**others, "function": FUNCTIONS}.items():
            if name in names:
                self.refuse(node, where, f"a {what} has the same name", shows=False)
                return None
        if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(_EXPRESSIONS):
            self.refuse(node, where, "must be an expression", "Write it as in a rule: mean(loss, 10) / lr.")
            return None
        try:
            return _Definition(node, parse(node.value))
        except ExpressionError as error:
            self.refuse_faults(node, where, error)
            return None

    def refuse_faults(self, node: yaml.ScalarNode, where: str, error: ExpressionError) -> None:
        """Add the problems of an expression that a node holds."""
        for fault in error.faults:
            self.refuse_at(self.document.place_in(node, fault.offset), where, fault.what, fault.got, fault.fix)
