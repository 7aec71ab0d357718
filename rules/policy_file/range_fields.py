"""Reads ``ranges:``, what a policy says that metrics lie between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import yaml

from ..errors import ExpressionError
from ..language.binding import bind
from ..language.bound_rule import BoundRule, NameScope
from ..language.expressions import parse
from ..language.references import ContextValue, ParamValue
from .definition_fields import EXPRESSIONS, DefinitionFieldReader
from .fields import Fields, is_null

_FORM: Final = "Write the least and the greatest value: [0, 1]. An end that is not known is undefined."
_KNOWN: Final = "Numbers, params and definitions of these are known when the file loads."

#: The least and the greatest value of a metric.
Ends = tuple[BoundRule, BoundRule]


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
        if not node.tag.endswith(EXPRESSIONS):
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
