"""Reads ``controller_metrics:`` and ``operations:``, whose entries ask for classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

import yaml

from ...store.errors import TelemetryError
from ..control.calls import BEFORE_UPDATE, CALLS, InvalidCall, is_call, parse_call
from ..errors import suggestion
from .arguments import ArgumentValue
from .declarations import MetricDeclaration, OperationDeclaration
from .document import Document
from .fields import Fields, is_null
from .metrics import Metric
from .operations import DEFAULT_OPERATION, HFControls, Operation, meant_action
from .registration import METRIC_CLASSES, OPERATION_CLASSES, Registry
from .state_fields import StateFieldReader

_Class = TypeVar("_Class", bound=type[Metric] | type[Operation])

_CLASS_KEYS: Final = ("name", "class", "arguments")


class ClassFieldReader(StateFieldReader):
    """Reads the entries that ask for a class, and notes their names."""

    def __init__(self, document: Document, *, takes_last: bool) -> None:
        super().__init__(document, takes_last=takes_last)
        self._actions: dict[str, tuple[str, ...]] = {}
        # A metric or operation of an unknown class keeps its name, so that one mistake is one problem.
        self._metric_names: dict[str, None] = {}

    def _metrics(self, fields: Fields) -> list[yaml.Node]:
        """Return the entries of ``controller_metrics``, and note their names."""
        node = fields.get("controller_metrics")
        entries = self.items(node, "controller_metrics") if node is not None and not is_null(node) else []
        self._metric_names.update(self._named_entries(fields, "controller_metrics"))
        return entries

    def _named_entries(self, fields: Fields, key: str, having: str = "name") -> dict[str, None]:
        """Return the names of a list's entries that have a key; reading the entries reports their problems."""
        node = fields.get(key)
        names: dict[str, None] = {}
        for entry in node.value if isinstance(node, yaml.SequenceNode) else []:
            values = self.keys_of(entry)
            name = values.get("name")
            if having in values and isinstance(name, yaml.ScalarNode):
                names[name.value] = None
        return names

    def _metric(self, node: yaml.Node) -> MetricDeclaration | None:
        name, found, fields = self._class_entry(node, "controller metric", METRIC_CLASSES)
        if name is None or found is None:
            return None
        self._metric_names[name] = None
        values = self._class_arguments(fields, f"controller metric '{name}'", node, found)
        return MetricDeclaration(name, found.__name__, values)

    def _operations(self, fields: Fields) -> tuple[OperationDeclaration, ...]:
        node = fields.get("operations")
        entries = self.items(node, "operations") if node is not None and not is_null(node) else []
        declared: list[OperationDeclaration] = []
        for entry in entries:
            name, found, entry_fields = self._class_entry(entry, "operation", OPERATION_CLASSES)
            if name is None:
                continue
            if name in self._actions:
                self.refuse(entry_fields["name"], "operations", "an operation of this name is already declared")
                continue
            self._actions[name] = tuple(found.actions) if found else ()
            if found is not None:
                values = self._class_arguments(entry_fields, f"operation '{name}'", entry, found)
                declared.append(OperationDeclaration(name, found.__name__, values))
        if DEFAULT_OPERATION not in self._actions:
            self._actions[DEFAULT_OPERATION] = tuple(HFControls.actions)
            declared.append(OperationDeclaration(DEFAULT_OPERATION, HFControls.__name__, MappingProxyType({})))
        return tuple(declared)

    def _references(self, fields: Fields, where: str) -> tuple[str, ...]:
        """Return the operations that a controller orders, each checked to exist."""
        where += ", operations"
        references: list[str] = []
        for node in self.items(fields["operations"], where) if "operations" in fields else []:
            reference = self.text(node, where)
            if reference is None:
                continue
            operation, _, action = reference.partition(".")
            if is_call(reference) or (reference in CALLS and operation not in self._actions):
                references += self._call(node, where, reference)
            elif operation not in self._actions:
                fix = suggestion(operation, self._actions)
                if not action and DEFAULT_OPERATION in self._actions:
                    fix = meant_action(DEFAULT_OPERATION, operation, self._actions[DEFAULT_OPERATION])
                self.refuse(node, where, "unknown operation", fix)
            elif self._actions[operation] and action not in self._actions[operation]:
                fix = meant_action(operation, action, self._actions[operation])
                self.refuse(node, where, "unknown action", fix)
            else:
                references.append(reference)
        return tuple(references)

    def _call(self, node: yaml.Node, where: str, text: str) -> tuple[str, ...]:
        """Return an operation with arguments as decisions name it; nothing when it is refused."""
        try:
            return (str(parse_call(text, self.params)),)
        except InvalidCall as error:
            self.refuse(node, where, str(error), error.fix)
            return ()

    def _check_updates(
        self, fields: Fields, where: str, operations: tuple[str, ...], triggers: tuple[str, ...]
    ) -> None:
        """Refuse an operation that takes effect before an update at any other trigger."""
        late = [trigger for trigger in triggers if trigger not in BEFORE_UPDATE]
        for operation in operations:
            if late and is_call(operation) and CALLS[parse_call(operation).name].is_before_update:
                what = f"{operation} takes effect before the update, and '{late[0]}' does not precede one"
                fix = f"Triggers that do are {', '.join(BEFORE_UPDATE)}."
                self.refuse(fields["triggers"], f"{where}, triggers", what, fix, shows=False)

    def _class_entry(
        self, node: yaml.Node, what: str, classes: Registry[_Class]
    ) -> tuple[str | None, _Class | None, Fields]:
        """Return name, class and keys of an entry that asks for a class; None for what is missing or unknown."""
        fields = self.fields(node, what, _CLASS_KEYS, ("name", "class"))
        name = self.name(fields["name"], f"{what}, name") if "name" in fields else None
        class_name = self.text(fields["class"], f"{what}, class") if "class" in fields else None
        if class_name is None:
            return name, None, fields
        where = f"{what} '{name}'" if name else what
        try:
            found = classes.find(class_name)
        except TelemetryError as error:
            self.refuse(fields["class"], where, str(error), shows=False)
            return name, None, fields
        if found is None:
            self.refuse(fields["class"], where, "unknown class", suggestion(class_name, classes.names()))
        return name, found, fields

    def _class_arguments(
        self, fields: Fields, where: str, owner: yaml.Node, found: type[Metric] | type[Operation]
    ) -> Mapping[str, ArgumentValue]:
        """Return the ``arguments:`` of an entry, each checked alone and then all together."""
        problems = len(self.problems)
        node = fields.get("arguments")
        values = MappingProxyType(self.arguments(node, where, owner, found.arguments))
        if len(self.problems) == problems:
            try:
                found.validate(values)
            except ValueError as error:
                self.refuse(node or owner, f"{where}, arguments", str(error), shows=False)
        return values
