"""Reads ``states:``, the classes into which a policy sorts the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import yaml

from ..language.bound_rule import NameScope
from .declarations import OF_STATE, Rule, StateDeclaration
from .escalation_fields import EscalationFieldReader
from .fields import Fields, is_null

_KEYS: Final = ("triggers", "classes")
_TRIGGER: Final = "on_step_end"
_CLASSES: Final = "Write one '- name: condition' per line."


class StateFieldReader(EscalationFieldReader):
    """Reads states, and the triggers that stand for their changes."""

    def state_names(self, fields: Fields, scope: NameScope) -> tuple[str, ...]:
        """Return the names of the states; those that mean something else are refused."""
        for name, node in self._entries_of(fields).items():
            self.is_free(name, node, f"state '{name}'", scope, {})
        return tuple(self._entries_of(fields))

    def states(
        self,
        fields: Fields,
        rule: Callable[[yaml.Node, str], Rule | None],
        triggers: Callable[[Fields, str], tuple[str, ...]],
    ) -> dict[str, StateDeclaration]:
        """Return the states by name.

        Args:
            rule: Reads a condition.
            triggers: Reads the triggers of an entry.
        """
        read = {}
        for name, node in self._entries_of(fields).items():
            where = f"state '{name}'"
            at: tuple[str, ...] = (_TRIGGER,)
            if isinstance(node, yaml.MappingNode):
                if not any(key.value in _KEYS for key, _ in node.value):
                    self.refuse(
                        node, f"{where}, classes", "must be a list, because the first true one counts", _CLASSES
                    )
                    continue
                entry = self.fields(node, where, _KEYS, ("classes",))
                at = triggers(entry, where) if "triggers" in entry else at
                if "classes" not in entry:
                    continue
                node = entry["classes"]
            read[name] = StateDeclaration(name, at, tuple(self._classes(node, where, rule)))
        return read

    def _classes(
        self, node: yaml.Node, where: str, rule: Callable[[yaml.Node, str], Rule | None]
    ) -> Iterator[tuple[str, Rule]]:
        """Yield the classes of a state, each with its condition."""
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        if not items:
            self.refuse(node, f"{where}, classes", "must be a list of classes", _CLASSES)
        for item in items:
            pair = self.fields(item, f"{where}, classes", None) if isinstance(item, yaml.MappingNode) else {}
            if len(pair) != 1:
                self.refuse(item, f"{where}, classes", "takes one name and its condition", _CLASSES)
                continue
            called, condition = next(iter(pair.items()))
            bound = rule(condition, f"{where}, {called}")
            if bound is not None:
                yield called, bound
                if bound.bound.ranks:
                    self.refuse(condition, f"{where}, {called}", "a state reads values of its own rank only")

    def changing_state(self, fields: Fields, where: str) -> str | None:
        """Return the state whose changes are a controller's only trigger; None if it has other triggers."""
        nodes = self.items(fields["triggers"], f"{where}, triggers") if "triggers" in fields else []
        named = [node for node in nodes if isinstance(node, yaml.ScalarNode) and node.value.startswith(OF_STATE)]
        if not named:
            return None
        if len(nodes) > 1:
            fix = "Write a second controller for the others."
            self.refuse(named[0], f"{where}, triggers", "the change of a state is a controller's only trigger", fix)
        return str(named[0].value).removeprefix(OF_STATE)

    def _entries_of(self, fields: Fields) -> Mapping[str, yaml.Node]:
        node = fields.get("states")
        return {} if node is None or is_null(node) else self.fields(node, "states", None)
