"""Reads the definitions that have ``admit``: series that take a value only where a condition is true."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Final

import yaml

from .. import habits
from ..compiled.names import Names
from ..language.binding import NO_PART_OF_A_SERIES
from ..language.bound_rule import NameScope, driver_of_the_run
from .declarations import AdmittedSeries, Rule
from .definition_fields import RangeFieldReader
from .fields import Fields

_KEYS: Final = ("value", "admit")


class AdmissionFieldReader(RangeFieldReader):
    """Reads the series that rules read by the name of a definition with ``admit``."""

    def admitted_names(self, defined: Fields) -> tuple[str, ...]:
        """Return the names of those among the entries of ``define``."""
        return tuple(name for name, node in defined.items() if isinstance(node, yaml.MappingNode))

    def admitted(self, defined: Fields, scope: NameScope, names: Names) -> dict[str, AdmittedSeries]:
        """Return these definitions by name; refused ones are left out.

        Args:
            defined: The entries of ``define``.
            scope: The names that they may use, each other's included.
            names: The policy's names for generated code.
        """
        # They are evaluated after all controllers of the event.
        scope = replace(scope, above=scope.controllers)
        nodes = {name: node for name, node in defined.items() if name in scope.admitted}
        read: dict[str, AdmittedSeries] = {}
        for name, node in nodes.items():
            where = f"define '{name}'"
            if self.is_free(name, node, where, scope, {"state": scope.states}):
                entry = self.fields(node, where, _KEYS, _KEYS, habits.ADMISSION_KEYS)
                found = self._admission(name, entry, scope, names)
                if found is not None:
                    read[name] = found
        self._refuse_circles(read, nodes)
        return read

    def _admission(self, name: str, entry: Fields, scope: NameScope, names: Names) -> AdmittedSeries | None:
        rules: dict[str, Rule] = {}
        for key in (key for key in _KEYS if key in entry):
            where = f"define '{name}', {key}"
            rule = self.rule(entry[key], where, scope, names, is_condition=key == "admit")
            if rule is None:
                continue
            rules[key] = rule
            if rule.bound.ranks:
                self.refuse(entry[key], where, "a definition with 'admit' reads values of its own rank only")
        if len(rules) < len(_KEYS):
            return None
        value, where = rules["value"], f"define '{name}', value"
        driver = driver_of_the_run(value.bound)
        if _reads_more_than_series(value):
            self.refuse(entry["value"], where, "a series can be computed from series, params and numbers only")
        elif driver is None:
            self.refuse(entry["value"], where, "reads no series of the run")
        return None if driver is None else AdmittedSeries(name, value, rules["admit"], driver)

    def _refuse_circles(self, read: Mapping[str, AdmittedSeries], nodes: Mapping[str, yaml.Node]) -> None:
        """Refuse definitions whose value reads itself, directly or through others."""
        reads = {
            name: sorted({key.name for key in each.value.bound.series} & read.keys()) for name, each in read.items()
        }
        try:
            TopologicalSorter(reads).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            place = self.document.place(nodes[circle[0]])
            self.refuse_at(place, f"define '{circle[0]}'", "defined by itself", " -> ".join(circle), "")


def _reads_more_than_series(rule: Rule) -> bool:
    references = rule.bound.references
    return any(isinstance(references.get(part), NO_PART_OF_A_SERIES) for part in ast.walk(rule.bound.expression.tree))
