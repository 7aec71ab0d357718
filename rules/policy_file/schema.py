"""The schema of a policy file: reads a document into a policy's declarations.

Takes a document; returns declarations with all names resolved, or raises every problem of the file at once.
"""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import yaml

from ...store.events import CUSTOM, INIT_END, LOOP_KINDS, custom_advice, is_kind
from .. import habits
from ..compiled.names import Names
from ..errors import PolicyError, kind_suggestion, suggestion
from ..language.bound_rule import BoundRule, NameScope
from ..language.patience import MODES, RESET_ON_FAILURE, Patience
from ..language.references import Param, PastDecisions
from ..language.timing import Span
from .class_fields import ClassFieldReader
from .controller_fields import TIMING_KEYS
from .declarations import (
    OF_STATE,
    AdmittedSeries,
    Controller,
    Escalation,
    MetricDeclaration,
    OperationDeclaration,
    Rule,
    StateDeclaration,
)
from .definition_fields import Ends
from .document import Document, Place
from .fields import Fields, is_null

_TRIGGER: Final = "on_"

#: All triggers but those of custom kinds.
TRIGGERS: Final = tuple(f"{_TRIGGER}{kind}" for kind in (INIT_END, *LOOP_KINDS))

_ROOT_KEYS: Final = (
    "name",
    "description",
    "params",
    "series",
    "define",
    "ranges",
    "states",
    "controller_metrics",
    "operations",
    "cooldowns",
    "controllers",
)
#: How the keys begin that a file may have at the top for its own use, such as a place for anchors.
_FREE_KEYS: Final = "x-"
_CONTROLLER_KEYS: Final = ("name", "triggers", "rule", "operations", "patience", "config", *TIMING_KEYS)
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
    ranges: Mapping[str, Ends] = field(default_factory=dict)
    metrics: tuple[MetricDeclaration, ...] = ()
    admitted: tuple[AdmittedSeries, ...] = ()
    states: tuple[StateDeclaration, ...] = ()
    operations: tuple[OperationDeclaration, ...] = ()
    controllers: tuple[Controller, ...] = ()
    names: Names = field(default_factory=Names)


def read_declarations(document: Document, overrides: Mapping[str, object]) -> Declarations:
    """Return the declarations of a document, with params overridden.

    Args:
        document: The file.
        overrides: Values of params that replace those of the file.

    Raises:
        PolicyError: The policy is invalid. The error holds every problem of the file and of the overrides.
    """
    reader = _PolicyReader(document)
    declarations = reader.read(overrides)
    if reader.problems:
        raise PolicyError(reader.problems)
    return declarations


class _PolicyReader(ClassFieldReader):
    """Reads the keys of a policy: first those that others refer to, last the controllers that refer to them."""

    def __init__(self, document: Document) -> None:
        super().__init__(document, takes_last=True)
        self._scope = NameScope()
        self._cooldowns: Mapping[str, Span] = {}
        self._states: Mapping[str, StateDeclaration] = {}
        self._admitted: Mapping[str, AdmittedSeries] = {}
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
        fields = self.fields(root, "", (*_ROOT_KEYS, *free), habits=habits.ROOT_KEYS)
        metrics = self._metrics(fields)
        self.params = self._params(fields, overrides)
        self.series = self._series(fields)
        # Metrics may name params, and params may not be named like metrics: read metric names first, then arguments.
        declared_metrics = tuple(filter(None, (self._metric(node) for node in metrics)))
        operations = self._operations(fields)
        controllers = self._named_entries(fields, "controllers")
        scope = NameScope(tuple(self._metric_names), self.params, self.series, tuple(controllers))
        clearing = tuple(self._named_entries(fields, "controllers", "clear"))
        scope = replace(scope, clearing=clearing)
        states = self.state_names(fields, scope)
        scope = replace(scope, metrics=(*scope.metrics, *states), states=states)
        defined = self.defined(fields)
        scope = replace(scope, admitted=self.admitted_names(defined))
        definitions = self.definitions(defined, scope)
        self._scope = replace(scope, definitions=definitions)
        self._admitted = self.admitted(defined, self._scope, self._names)
        self._states = self.states(fields, self._condition, self._triggers)
        self._cooldowns = self.cooldowns(fields)
        return Declarations(
            name=self._optional_text(fields, "name"),
            description=self._optional_text(fields, "description"),
            params=MappingProxyType(dict(self.params)),
            series=self.series,
            definitions={name: meaning.text for name, meaning in definitions.items() if meaning is not None},
            ranges=self.ranges(fields, self._scope),
            metrics=declared_metrics,
            admitted=tuple(self._admitted.values()),
            states=tuple(self._states.values()),
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

    # --- controllers --------------------------------------------------------------------------------------------

    def _controllers(self, fields: Fields) -> tuple[Controller, ...]:
        if "controllers" not in fields:
            return ()
        read: list[Controller] = []
        entries = self.items(fields["controllers"], "controllers")
        for entry in entries:
            controller = self._controller(entry)
            if controller is not None:
                read.append(controller)
                self._scope = replace(self._scope, above=(*self._scope.above, controller.name))
        names = Counter(controller.name for controller in read)
        for controller, entry in zip(read, entries, strict=False):
            if controller.each is not None and names[controller.name] > 1:
                where = f"controller '{controller.name}'"
                self.refuse(entry, where, "a controller with for_each shares its name with no other", shows=False)
        return tuple(read)

    def _controller(self, node: yaml.Node) -> Controller | None:
        required = [key for key in _REQUIRED_KEYS if key != "operations" or "escalate" not in self.keys_of(node)]
        fields = self.fields(node, "controller", _CONTROLLER_KEYS, required, habits.CONTROLLER_KEYS)
        name = self.name(fields["name"], "controller, name") if "name" in fields else None
        where = f"controller '{name}'" if name else "controller"
        each = self.each(fields, where)
        self._scope = replace(self._scope, each="" if each is None else each.name)
        changing = self.changing_state(fields, where)
        triggers = self._triggers(fields, where) if changing is None else self._changes(fields, where, changing)
        # Two controllers may have one name, but not one number.
        number = len(self._scope.above)
        self._scope = replace(self._scope, owner="" if changing else f"controller {number}")
        rule, clear = (
            self._rule(fields[key], f"{where}, {key}") if key in fields else None for key in ("rule", "clear")
        )
        escalation, operations = self._orders(fields, where)
        self._check_updates(fields, where, operations, triggers)
        if escalation is not None and name is not None:
            self._scope = replace(self._scope, own={"stage": PastDecisions("stage", name)})
        patience = self._patience(fields["patience"], f"{where}, patience") if "patience" in fields else None
        level = self._trigger_log_level(fields, f"{where}, config")
        hold, cooldown = self.hold(fields, where), self.cooldown(fields, where, self._cooldowns)
        is_once, between = self.is_once(fields, where), self.between(fields, where)
        severity, is_shadow = self.severity(fields, where), self.is_shadow(fields, where)
        message = self.message(fields, where, self._scope, self._names)
        if name is None or rule is None:
            return None
        controller = Controller(
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
            clear=clear,
            changing=changing or "",
            each=each,
            escalation=escalation,
        )
        self._scope = replace(self._scope, own={})
        states, admitted = self._read_by(controller.own_rules, changing)
        return replace(controller, states=states, admitted=admitted)

    def _orders(self, fields: Fields, where: str) -> tuple[Escalation | None, tuple[str, ...]]:
        """Return the stages of a controller, if it has some, and all of its operations."""
        escalation = self.escalation(fields, where, self._references)
        stages = () if escalation is None else escalation.stages
        ordered = dict.fromkeys(operation for stage in stages for operation in stage.operations)
        return escalation, tuple(ordered) or self._references(fields, where)

    def _changes(self, fields: Fields, where: str, state: str) -> tuple[str, ...]:
        """Return the triggers of a state, at which it may change."""
        if state not in self._states:
            fix = suggestion(state, self._states) or "Sort the run into classes under 'states:' at the top of the file."
            self.refuse(fields["triggers"], f"{where}, triggers", f"unknown state '{state}'", fix, shows=False)
            return ()
        return self._states[state].triggers

    def _read_by(
        self, rules: Iterable[BoundRule], changing: str | None
    ) -> tuple[tuple[StateDeclaration, ...], tuple[AdmittedSeries, ...]]:
        """Return the states and admitted series that rules read, directly or not, with the state that triggers."""
        found: set[str] = set()
        waiting = list(rules)
        if changing is not None and changing in self._states:
            waiting += [condition.bound for _, condition in self._states[changing].classes]
            found.add(changing)
        while waiting:
            rule = waiting.pop()
            read = {*rule.metrics, *(key.name for key in rule.series if key.is_derived)} - found
            for name in read & self._states.keys():
                waiting += [condition.bound for _, condition in self._states[name].classes]
            for name in read & self._admitted.keys():
                waiting += self._admitted[name].bound_rules
            found |= read
        states = tuple(state for name, state in self._states.items() if name in found)
        return states, tuple(each for name, each in self._admitted.items() if name in found)

    def _triggers(self, fields: Fields, where: str) -> tuple[str, ...]:
        where += ", triggers"
        triggers: list[str] = []
        for node in self.items(fields["triggers"], where) if "triggers" in fields else []:
            trigger = self.text(node, where)
            if trigger is not None and not is_trigger(trigger):
                is_state = trigger.removeprefix(_TRIGGER) in self._states
                meant = f"Write {OF_STATE}{trigger.removeprefix(_TRIGGER)}." if is_state else trigger_advice(trigger)
                self.refuse(node, where, "unknown trigger", meant)
            elif trigger is not None:
                triggers.append(trigger)
        return tuple(triggers)

    def _condition(self, node: yaml.Node, where: str) -> Rule | None:
        """Return the condition of a state."""
        self._scope = replace(self._scope, owner=where)
        return self._rule(node, where)

    def _rule(self, node: yaml.Node, where: str) -> Rule | None:
        return self.rule(node, where, self._scope, self._names)

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
