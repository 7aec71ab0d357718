"""The schema of a policy file: reads a document into a policy's declarations.

Takes a document; returns declarations with all names resolved, or raises every problem of the file at once.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar

import yaml

from ...store.errors import TelemetryError
from ...store.events import CUSTOM, INIT_END, LOOP_KINDS, custom_advice, is_kind
from .. import habits
from ..compiled.compilation import compile_rule
from ..compiled.names import Names
from ..errors import ExpressionError, PolicyError, kind_suggestion, suggestion
from ..language.binding import bind
from ..language.bound_rule import NameScope
from ..language.context import facts_since
from ..language.expressions import parse
from ..language.patience import MODES, RESET_ON_FAILURE, Patience
from ..language.references import Param
from ..language.timing import Span
from ..semantics import FIRST_WITH_CHECKED_FORMATS, FIRST_WITH_NEWER_KEYS
from .arguments import ArgumentValue
from .controller_fields import NEWER_KEYS, TIMING_KEYS, ControllerFieldReader
from .declarations import Controller, MetricDeclaration, OperationDeclaration, Rule
from .document import Document, Place
from .fields import Fields, is_null
from .metrics import Metric
from .operations import DEFAULT_OPERATION, HFControls, Operation, meant_action
from .registration import METRIC_CLASSES, OPERATION_CLASSES, Registry

_Class = TypeVar("_Class", bound=type[Metric] | type[Operation])

_TRIGGER: Final = "on_"

#: All triggers but those of custom kinds.
TRIGGERS: Final = tuple(f"{_TRIGGER}{kind}" for kind in (INIT_END, *LOOP_KINDS))

_DEFINE: Final = "define"
_ROOT_KEYS: Final = (
    "name",
    "description",
    "params",
    "series",
    _DEFINE,
    "controller_metrics",
    "operations",
    "cooldowns",
    "controllers",
)
#: How the keys begin that a file may have at the top for its own use, such as a place for anchors.
_FREE_KEYS: Final = "x-"
_CLASS_KEYS: Final = ("name", "class", "arguments")
_CONTROLLER_KEYS: Final = ("name", "triggers", "rule", "operations", "patience", "config", *TIMING_KEYS, *NEWER_KEYS)
_REQUIRED_KEYS: Final = ("name", "triggers", "rule", "operations")
_PATIENCE_KEYS: Final = ("patience_threshold", "mode")
_CONFIG_KEYS: Final = ("trigger_log_level",)


def is_trigger(trigger: str) -> bool:
    """Whether a rule may have this trigger."""
    return trigger in TRIGGERS or (trigger.startswith(_TRIGGER) and is_kind(trigger.removeprefix(_TRIGGER), ()))


def trigger_advice(trigger: str) -> str:
    """Return a sentence on what to write in place of an unknown trigger."""
    if custom_advice(trigger.removeprefix(_TRIGGER)):
        return kind_suggestion(trigger.removeprefix(_TRIGGER), ()).replace(CUSTOM, f"{_TRIGGER}{CUSTOM}", 1)
    return suggestion(trigger, TRIGGERS, habits.KINDS)


@dataclass(frozen=True, slots=True)
class Declarations:
    """The contents of a policy file."""

    name: str = ""
    description: str = ""
    params: Mapping[str, Param] = field(default_factory=dict)
    series: frozenset[str] | None = None
    definitions: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[MetricDeclaration, ...] = ()
    operations: tuple[OperationDeclaration, ...] = ()
    controllers: tuple[Controller, ...] = ()
    names: Names = field(default_factory=Names)


def read_declarations(document: Document, overrides: Mapping[str, object], semantics_version: int) -> Declarations:
    """Return the declarations of a document, with params overridden.

    Args:
        document: The file.
        overrides: Values of params that replace those of the file.
        semantics_version: The version under which it is read.

    Raises:
        PolicyError: The policy is invalid. The error holds every problem of the file and of the overrides.
    """
    reader = _PolicyReader(document, semantics_version)
    declarations = reader.read(overrides)
    if reader.problems:
        raise PolicyError(reader.problems)
    return declarations


class _PolicyReader(ControllerFieldReader):
    """Reads the keys of a policy: first those that others refer to, last the controllers that refer to them."""

    def __init__(self, document: Document, semantics_version: int) -> None:
        super().__init__(document, takes_last=True)
        self._actions: dict[str, tuple[str, ...]] = {}
        # A metric or operation of an unknown class keeps its name, so that one mistake is one problem.
        self._metric_names: dict[str, None] = {}
        self._context = facts_since(semantics_version)
        self._checks_formats = semantics_version >= FIRST_WITH_CHECKED_FORMATS
        self._has_newer = semantics_version >= FIRST_WITH_NEWER_KEYS
        self._scope = NameScope()
        self._cooldowns: Mapping[str, Span] = {}
        self._names = Names()

    def read(self, overrides: Mapping[str, object]) -> Declarations:
        root = self.document.root
        if root is None or is_null(root):
            self.refuse_at(Place(1, 1), "", "the file is empty", None, "Declare rules under 'controllers:'.")
            return Declarations()
        if not isinstance(root, yaml.MappingNode):
            self.refuse(root, "", "a policy must be a mapping", "Its top level holds keys such as 'controllers:'.")
            return Declarations()
        named = [key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode)]
        free = [key for key in named if key.startswith(_FREE_KEYS)]
        known = _ROOT_KEYS if self._has_newer else [key for key in _ROOT_KEYS if key != _DEFINE]
        fields = self.fields(root, "", (*known, *free), habits=habits.ROOT_KEYS)
        metrics = self._metrics(fields)
        self.params = self._params(fields, overrides)
        self.series = self._series(fields)
        # Metrics may name params, and params may not be named like metrics: read metric names first, then arguments.
        declared_metrics = tuple(filter(None, (self._metric(node) for node in metrics)))
        operations = self._operations(fields)
        controllers = self._named_entries(fields, "controllers")
        scope = NameScope(tuple(self._metric_names), self.params, self.series, tuple(controllers), self._context)
        definitions = self.definitions(fields, scope)
        self._scope = replace(scope, definitions=definitions)
        self._cooldowns = self.cooldowns(fields)
        return Declarations(
            name=self._optional_text(fields, "name"),
            description=self._optional_text(fields, "description"),
            params=MappingProxyType(dict(self.params)),
            series=self.series,
            definitions={name: meaning.text for name, meaning in definitions.items() if meaning is not None},
            metrics=declared_metrics,
            operations=operations,
            controllers=self._controllers(fields),
            names=self._names,
        )

    def _optional_text(self, fields: Fields, key: str) -> str:
        if key not in fields or is_null(fields[key]):
            return ""
        return self.text(fields[key], key) or ""

    # --- params and series --------------------------------------------------------------------------------------

    def _params(self, fields: Fields, overrides: Mapping[str, object]) -> dict[str, Param]:
        node = fields.get("params")
        declared = self.fields(node, "params", None) if node is not None and not is_null(node) else {}
        params: dict[str, Param] = {}
        for name, value_node in declared.items():
            where = f"param '{name}'"
            if not name.isidentifier() or keyword.iskeyword(name) or "__" in name:
                self.refuse(value_node, where, "a param's name must be an identifier", shows=False)
            elif name in self._metric_names:
                self.refuse(value_node, where, "a controller metric has the same name", shows=False)
            else:
                value = self.param(value_node, where)
                # A refused param keeps its name, so that one mistake is one problem.
                params[name] = 0 if value is None else value
        place = self.document.place(node) if node is not None else Place(1, 1)
        for name, given in overrides.items():
            self._override(params, name, given, place)
        return params

    def _override(self, params: dict[str, Param], name: str, given: object, place: Place) -> None:
        if name not in params:
            self.refuse_at(place, "params", "the policy has no such param", repr(name), suggestion(name, params))
            return
        value = _plain_param(given)
        if value is None or _type_name(value) != _type_name(params[name]):
            what = f"an override must be {_type_name(params[name])}, as in the file"
            self.refuse_at(place, f"param '{name}'", what, repr(given), "")
            return
        params[name] = value

    def _series(self, fields: Fields) -> frozenset[str] | None:
        if "series" not in fields:
            return None
        names = [self.text(node, "series") for node in self.items(fields["series"], "series")]
        return frozenset(name for name in names if name is not None)

    # --- metrics and operations ---------------------------------------------------------------------------------

    def _metrics(self, fields: Fields) -> list[yaml.Node]:
        """Return the entries of ``controller_metrics``, and note their names."""
        node = fields.get("controller_metrics")
        entries = self.items(node, "controller_metrics") if node is not None and not is_null(node) else []
        self._metric_names.update(self._named_entries(fields, "controller_metrics"))
        return entries

    def _named_entries(self, fields: Fields, key: str) -> dict[str, None]:
        """Return the names of a list's entries, where they have any; reading the entries reports their problems."""
        node = fields.get(key)
        names: dict[str, None] = {}
        for entry in node.value if isinstance(node, yaml.SequenceNode) else []:
            pairs = entry.value if isinstance(entry, yaml.MappingNode) else []
            values = [value for key, value in pairs if isinstance(key, yaml.ScalarNode) and key.value == "name"]
            if values and isinstance(values[-1], yaml.ScalarNode):
                names[values[-1].value] = None
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

    # --- controllers --------------------------------------------------------------------------------------------

    def _controllers(self, fields: Fields) -> tuple[Controller, ...]:
        if "controllers" not in fields:
            return ()
        read: list[Controller] = []
        for entry in self.items(fields["controllers"], "controllers"):
            controller = self._controller(entry)
            if controller is not None:
                read.append(controller)
                self._scope = replace(self._scope, above=(*self._scope.above, controller.name))
        return tuple(read)

    def _controller(self, node: yaml.Node) -> Controller | None:
        known = _CONTROLLER_KEYS if self._has_newer else [key for key in _CONTROLLER_KEYS if key not in NEWER_KEYS]
        fields = self.fields(node, "controller", known, _REQUIRED_KEYS, habits.CONTROLLER_KEYS)
        name = self.name(fields["name"], "controller, name") if "name" in fields else None
        where = f"controller '{name}'" if name else "controller"
        triggers = self._triggers(fields, where)
        rule = self._rule(fields["rule"], f"{where}, rule") if "rule" in fields else None
        operations = self._references(fields, where)
        patience = self._patience(fields["patience"], f"{where}, patience") if "patience" in fields else None
        level = self._trigger_log_level(fields, f"{where}, config")
        hold, cooldown = self.hold(fields, where), self.cooldown(fields, where, self._cooldowns)
        is_once, between = self.is_once(fields, where), self.between(fields, where)
        severity, is_shadow = self.severity(fields, where), self.is_shadow(fields, where)
        message = self.message(fields, where, self._scope, self._names, checks_formats=self._checks_formats)
        if name is None or rule is None:
            return None
        return Controller(
            name,
            triggers,
            rule,
            operations,
            patience,
            level,
            hold,
            cooldown,
            is_once,
            between,
            severity,
            message,
            is_shadow,
            self.requires(fields, where),
            self.awaits_value(fields, where, rule),
        )

    def _triggers(self, fields: Fields, where: str) -> tuple[str, ...]:
        where += ", triggers"
        triggers: list[str] = []
        for node in self.items(fields["triggers"], where) if "triggers" in fields else []:
            trigger = self.text(node, where)
            if trigger is not None and not is_trigger(trigger):
                self.refuse(node, where, "unknown trigger", trigger_advice(trigger))
            elif trigger is not None:
                triggers.append(trigger)
        return tuple(triggers)

    def _rule(self, node: yaml.Node, where: str) -> Rule | None:
        text = self.text(node, where)
        if text is None:
            return None
        assert isinstance(node, yaml.ScalarNode)
        scalar = node

        def place_at(offset: int) -> Place:
            return self.document.place_in(scalar, offset)

        try:
            bound = bind(parse(text), self._scope)
            return Rule(text, bound, compile_rule(bound, self._names), place_at)
        except ExpressionError as error:
            self.refuse_faults(scalar, where, error)
            return None

    def _references(self, fields: Fields, where: str) -> tuple[str, ...]:
        """Return the operations that a controller orders, each checked to exist."""
        where += ", operations"
        references: list[str] = []
        for node in self.items(fields["operations"], where) if "operations" in fields else []:
            reference = self.text(node, where)
            if reference is None:
                continue
            operation, _, action = reference.partition(".")
            if operation not in self._actions:
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

    def _patience(self, node: yaml.Node, where: str) -> Patience:
        if isinstance(node, yaml.ScalarNode) and not is_null(node):
            self.refuse(node, where, "must be a mapping", f"Write {{patience_threshold: {node.value}}}.")
            return Patience()
        fields = self.fields(node, where, _PATIENCE_KEYS, habits=habits.PATIENCE_KEYS)
        threshold: int | None = 1
        if "patience_threshold" in fields:
            threshold = self.whole(fields["patience_threshold"], f"{where}, patience_threshold")
        mode: str | None = RESET_ON_FAILURE
        if "mode" in fields:
            mode = self.text(fields["mode"], f"{where}, mode")
            if mode is not None and mode not in MODES:
                self.refuse(fields["mode"], f"{where}, mode", "unknown mode", suggestion(mode, MODES))
        return Patience(1 if threshold is None else threshold, mode or RESET_ON_FAILURE)

    def _trigger_log_level(self, fields: Fields, where: str) -> str:
        if "config" not in fields or is_null(fields["config"]):
            return "DEBUG"
        config = self.fields(fields["config"], where, _CONFIG_KEYS)
        if "trigger_log_level" not in config:
            return "DEBUG"
        return self.level(config["trigger_log_level"], f"{where}, trigger_log_level") or "DEBUG"


def _plain_param(value: object) -> Param | None:
    """Return a param as one of the four plain types, also from their subclasses; None for anything else."""
    for type_ in (bool, int, float, str):
        if isinstance(value, type_):
            return type_(value)
    return None


def _type_name(value: Param) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "text" if isinstance(value, str) else "a number"
