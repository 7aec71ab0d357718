"""Reads ``states`` and ``controllers``: what a policy asks at which events, and what it orders.

Each kind of mapping has a table of its keys. To add a key of a controller, write a row of ``_OTHER_KEYS``, the
function that reads it, and the attribute of ``Controller`` that it gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import yaml

from ...store.events import CUSTOM, INIT_END, LOOP_KINDS, custom_advice, is_kind
from ...store.metric_words import is_evaluation
from .. import habits
from ..effects import BEFORE_UPDATE, CALLS, CallTemplate, InvalidCall, is_before_update, is_call, parse_template
from ..errors import ExpressionError, Fault, kind_suggestion, suggestion
from ..language.clock import MODES, RESET_ON_FAILURE, Cooldown, Patience, Span, StepWindow, Unit
from ..language.name_patterns import is_pattern
from ..readings.past_decisions import PastDecisions
from ..readings.reading import SeriesKey
from ..readings.series_value import SeriesAge
from .declarations import (
    ACT,
    OF_STATE,
    SEVERITIES,
    SHADOW,
    AdmittedSeries,
    ComputedCall,
    Controller,
    Declarations,
    Escalation,
    MessageTemplate,
    Rule,
    Stage,
    StateDeclaration,
)
from .fields import FieldReader, Fields, Key, is_null
from .operations import DEFAULT_OPERATION, WORDS, meant_action
from .sentences import SentenceNode
from .written_expressions import is_free, parse_message, read_argument, read_rule

_TRIGGER: Final = "on_"

#: All triggers but those of custom kinds.
TRIGGERS: Final = tuple(f"{_TRIGGER}{kind}" for kind in (INIT_END, *LOOP_KINDS))

_CLASSES: Final = "Write one '- name: condition' per line."
_EACH_VALUE: Final = "value"
_EVERY_OTHER: Final = (
    "Write 'step % 100 == 0' in the rule for each 100th step, or 'cooldown: 100' for once in 100 steps."
)

_UNITS: Final = tuple(unit.value for unit in Unit)
#: Longest span, in any unit: more than a century of seconds.
_MAX_SPAN: Final = 10**10


# --- triggers -----------------------------------------------------------------------------------------------------


def is_trigger(trigger: str) -> bool:
    """Whether a rule may have this trigger."""
    return trigger in TRIGGERS or (trigger.startswith(_TRIGGER) and is_kind(trigger.removeprefix(_TRIGGER), ()))


def trigger_advice(trigger: str) -> str:
    """Return a sentence on what to write in place of an unknown trigger."""
    if custom_advice(trigger.removeprefix(_TRIGGER)):
        return kind_suggestion(trigger.removeprefix(_TRIGGER), ()).replace(CUSTOM, f"{_TRIGGER}{CUSTOM}", 1)
    return suggestion(trigger, TRIGGERS, habits.KINDS)


def _read_triggers(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> tuple[str, ...]:
    triggers: list[str] = []
    for item in reader.items(node, where):
        trigger = reader.text(item, where)
        if trigger is not None and not is_trigger(trigger):
            is_state = trigger.removeprefix(_TRIGGER) in declared.states
            meant = f"Write {OF_STATE}{trigger.removeprefix(_TRIGGER)}." if is_state else trigger_advice(trigger)
            reader.refuse(item, where, "unknown trigger", meant)
        elif trigger is not None:
            triggers.append(trigger)
    return tuple(triggers)


# --- states -------------------------------------------------------------------------------------------------------


def read_states(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    """Read the classes into which a policy sorts the run."""
    read: dict[str, StateDeclaration] = {}
    for name, entry in reader.entries(node, where).items():
        is_free(name, entry, f"state '{name}'", declared, reader, is_state=True)
        state = _state(name, entry, declared, reader)
        if state is not None:
            read[name] = state
    return replace(declared, states=read)


def _state(name: str, node: yaml.Node, declared: Declarations, reader: FieldReader) -> StateDeclaration | None:
    where = f"state '{name}'"
    if not isinstance(node, yaml.MappingNode):
        return StateDeclaration(name, _AT_EACH_STEP, _read_classes(node, f"{where}, classes", declared, reader))
    if not any(key.value in (each.name for each in STATE_KEYS) for key, _ in node.value):
        reader.refuse(node, f"{where}, classes", "must be a list, because the first true one counts", _CLASSES)
        return None
    values = reader.read(node, where, STATE_KEYS, declared)
    return None if values["classes"] is None else StateDeclaration(name, **values)


def _read_classes(
    node: yaml.Node, where: str, declared: Declarations, reader: FieldReader
) -> tuple[tuple[str, Rule], ...]:
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    if not items:
        reader.refuse(node, where, "must be a list of classes", _CLASSES)
    return tuple(filter(None, (_class(item, where, declared, reader) for item in items)))


def _class(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> tuple[str, Rule] | None:
    """Return the name of a class, and its condition."""
    pair = reader.fields(node, where, None) if isinstance(node, yaml.MappingNode) else {}
    if len(pair) != 1:
        reader.refuse(node, where, "takes one name and its condition", _CLASSES)
        return None
    ((name, condition),) = pair.items()
    where = f"{where.removesuffix(', classes')}, {name}"
    rule = read_rule(condition, where, replace(declared.scope, owner=where), declared, reader, is_condition=True)
    if rule is None:
        return None
    if rule.bound.ranks:
        reader.refuse(condition, where, "a state reads values of its own rank only")
    return name, rule


_AT_EACH_STEP: Final = ("on_step_end",)
_AT_EVALUATIONS: Final = ("on_evaluate",)

#: The keys of a state.
STATE_KEYS: Final[tuple[Key[Declarations], ...]] = (
    Key("triggers", _read_triggers, default=_AT_EACH_STEP),
    Key("classes", _read_classes, is_required=True),
)


# --- controllers --------------------------------------------------------------------------------------------------


def read_controllers(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    """Read controllers; their rules may ask about those above them."""
    entries = reader.items(node, where)
    for entry in entries:
        controller = _controller(entry, declared, reader)
        if controller is not None:
            above = (*declared.scope.above, controller.name)
            controllers = (*declared.controllers, controller)
            declared = replace(declared, scope=replace(declared.scope, above=above), controllers=controllers)
    names = Counter(controller.name for controller in declared.controllers)
    for controller, entry in zip(declared.controllers, entries, strict=False):
        if controller.each is not None and names[controller.name] > 1:
            where = f"controller '{controller.name}'"
            reader.refuse(entry, where, "a controller with for_each shares its name with no other", shows=False)
    return declared


def _controller(node: yaml.Node, declared: Declarations, reader: FieldReader) -> Controller | None:
    """Read first the keys that say what names mean in the others."""
    is_staged = _ESCALATE.name in reader.keys_of(node)
    implied = {"operations"} if is_staged else {"triggers"} if isinstance(node, SentenceNode) else frozenset()
    required = [key.name for key in CONTROLLER_KEYS if key.is_required and key.name not in implied]
    fields = reader.fields(node, "controller", [key.name for key in CONTROLLER_KEYS], required, habits.CONTROLLER_KEYS)
    name: str | None = reader.value(fields, "controller", _NAME, declared)
    where = f"controller '{name}'" if name else "controller"
    each: SeriesKey | None = reader.value(fields, where, _FOR_EACH, declared)
    changing = _state_named(fields["triggers"]) if "triggers" in fields else None
    scope = replace(
        declared.scope,
        each="" if each is None else each.name,
        # Two controllers may have one name, but not one number.
        owner="" if changing else f"controller {len(declared.scope.above)}",
        own={"stage": PastDecisions("stage", name)} if is_staged and name is not None else {},
    )
    within = replace(declared, scope=scope)
    escalation: Escalation | None = reader.value(fields, where, _ESCALATE, within)
    if is_staged and "operations" in fields:
        fix = "Leave one of them out."
        reader.refuse(fields["operations"], f"{where}, operations", "'escalate' has them", fix)
    staged = () if escalation is None else escalation.operations
    if staged:
        fields.pop("operations", None)
    values = reader.values(fields, where, _OTHER_KEYS, within)
    values["operations"] = staged or values["operations"]
    if isinstance(values["hold"], Patience):
        if "patience" in fields:
            reader.refuse(fields["for"], f"{where}, for", "'patience' counts results, too", "Leave one of them out.")
        values["patience"], values["hold"] = values["hold"], None
    if isinstance(node, SentenceNode):
        values["triggers"] = _triggers_of(node, values["rule"], values["operations"])
        if node.unit == "evaluation" and "for" in fields and values["triggers"] != _AT_EVALUATIONS:
            fix = "Write the number of steps."
            reader.refuse(fields["for"], f"{where}, for", "no evaluation is before an update", fix, shows=False)
    _check_together(fields, where, values, reader)
    if name is None or values["rule"] is None:
        return None
    computed = _computed(values["operations"], within, reader)
    controller = Controller(
        name, each=each, escalation=escalation, changing=changing or "", computed=computed, **values
    )
    states, admitted = _read_by(controller, declared)
    return replace(controller, states=states, admitted=admitted)


def _triggers_of(node: SentenceNode, rule: Rule | None, operations: tuple[str, ...]) -> tuple[str, ...]:
    """Return when a sentence is evaluated: at evaluations if it counts them, or reads their values and nothing else."""
    if any(map(is_before_update, operations)):
        return BEFORE_UPDATE[-1:]
    names = {key.name for key in rule.bound.series if not key.is_derived} if rule else frozenset()
    # At an evaluation the age of its values is 0.
    reads_age = rule is not None and any(isinstance(each, SeriesAge) for each in rule.bound.references.values())
    is_evaluated = node.unit == "evaluation" or (names and all(map(is_evaluation, names)) and not reads_age)
    return _AT_EVALUATIONS if is_evaluated else _AT_EACH_STEP


def _check_together(fields: Fields, where: str, values: Mapping[str, Any], reader: FieldReader) -> None:
    """Refuse values of two keys that do not fit together."""
    late = [trigger for trigger in values["triggers"] if trigger not in BEFORE_UPDATE]
    for operation in values["operations"]:
        # An operation that takes effect before an update needs a trigger that precedes one.
        if late and is_before_update(operation):
            what = f"{operation} takes effect before the update, and '{late[0]}' does not precede one"
            fix = f"Triggers that do are {', '.join(BEFORE_UPDATE)}."
            reader.refuse(fields["triggers"], f"{where}, triggers", what, fix, shows=False)
    rule: Rule | None = values["rule"]
    if values["awaits_value"] and rule is not None and rule.bound.driver is None:
        fix = "It is asked at each value of the first series that it reads."
        reader.refuse(fields["every"], f"{where}, every", "the rule reads no series", fix, shows=False)


def _state_named(node: yaml.Node) -> str | None:
    """Return the first state whose changes are triggers of a controller; None if it has other triggers alone."""
    nodes = node.value if isinstance(node, yaml.SequenceNode) else []
    named = (item.value for item in nodes if isinstance(item, yaml.ScalarNode) and item.value.startswith(OF_STATE))
    return next((str(trigger).removeprefix(OF_STATE) for trigger in named), None)


def _read_by(
    controller: Controller, declared: Declarations
) -> tuple[tuple[StateDeclaration, ...], tuple[AdmittedSeries, ...]]:
    """Return the states and admitted series that a controller reads, directly or not, with the state that triggers."""
    states, admitted = declared.states, declared.admitted
    waiting = list(controller.own_rules)
    found = {controller.changing} & states.keys()
    waiting += [bound for name in found for bound in states[name].bound_rules]
    while waiting:
        rule = waiting.pop()
        read = {*rule.metrics, *(key.name for key in rule.series if key.is_derived)} - found
        waiting += [bound for name in read & states.keys() for bound in states[name].bound_rules]
        waiting += [bound for name in read & admitted.keys() for bound in admitted[name].bound_rules]
        found |= read
    return (
        tuple(state for name, state in states.items() if name in found),
        tuple(each for name, each in admitted.items() if name in found),
    )


# --- what a controller asks ---------------------------------------------------------------------------------------


def read_name(node: yaml.Node, where: str, _declared: Declarations, reader: FieldReader) -> str | None:
    """Return the name of an entry, which may also be written as a number or truth value."""
    return reader.name(node, where)


def _read_asked(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> tuple[str, ...]:
    """Return the triggers of a controller; for one that a state triggers, those at which the state may change."""
    state, states = _state_named(node), declared.states
    if state is None:
        return _read_triggers(node, where, declared, reader)
    if len(node.value) > 1:
        named = next(item for item in node.value if item.value == f"{OF_STATE}{state}")
        fix = "Write a second controller for the others."
        reader.refuse(named, where, "the change of a state is a controller's only trigger", fix)
    if state not in states:
        fix = suggestion(state, states) or "Sort the run into classes under 'states:' at the top of the file."
        reader.refuse(node, where, f"unknown state '{state}'", fix, shows=False)
        return ()
    return states[state].triggers


def _read_condition(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Rule | None:
    return read_rule(node, where, replace(declared.scope, own={}), declared, reader, is_condition=True)


def _read_each(node: yaml.Node, where: str, _declared: Declarations, reader: FieldReader) -> SeriesKey | None:
    """Return the series of a member of the family for whose members there is a controller each."""
    if not isinstance(node, yaml.ScalarNode) or "(" in node.value:
        reader.refuse(node, where, "takes one pattern of names", "Write for_each: grad_norm/*.")
        return None
    key = _series_or_family(node, where, reader)
    if key is not None and not key.is_of_member:
        fix = f"Write {key.name}/* for all series whose names begin so."
        reader.refuse(node, where, "not a pattern of names", fix)
        return None
    return key


def _series_or_family(node: yaml.Node, where: str, reader: FieldReader) -> SeriesKey | None:
    name = reader.text(node, where)
    if name is None:
        return None
    reader.note_series(node, name)
    return SeriesKey(name, is_of_member=is_pattern(name))


def _read_requires(node: yaml.Node, where: str, _declared: Declarations, reader: FieldReader) -> tuple[SeriesKey, ...]:
    """Return the series without which a controller is not asked: metrics, and families with any member."""
    nodes = reader.items(node, where)
    for item in nodes:
        if isinstance(item, yaml.ScalarNode) and any(sign in item.value for sign in "<>="):
            reader.refuse(item, where, "takes names of metrics", "A condition belongs into the rule.")
    return tuple(filter(None, (_series_or_family(item, where, reader) for item in nodes)))


def _read_every(node: yaml.Node, where: str, _declared: Declarations, reader: FieldReader) -> bool:
    """Whether a controller is asked only where the first series of its rule has a new value."""
    if isinstance(node, yaml.ScalarNode) and node.value == _EACH_VALUE:
        return True
    reader.refuse(node, where, "takes the word 'value' alone", _EVERY_OTHER)
    return False


def _read_between(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> StepWindow | None:
    """Return the steps ``[first, last]``, either of them null for an open end."""
    ends = node.value if isinstance(node, yaml.SequenceNode) else ()
    if len(ends) != 2:
        reader.refuse(node, where, "takes the first and the last step", "Write [1000, 2000] or [1000, null].")
        return None
    first, last = (None if is_null(end) else reader.whole(end, where, declared.scope) for end in ends)
    if first is not None and last is not None and first > last:
        place = reader.document.place(node)
        reader.refuse_at(place, where, "the first step is after the last", f"[{first}, {last}]", "")
    return StepWindow(first, last)


# --- how it decides -----------------------------------------------------------------------------------------------


def _at_least_1(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> int | None:
    value = reader.whole(node, where, declared.scope)
    if value is not None and not 1 <= value <= _MAX_SPAN:
        given = isinstance(node, yaml.ScalarNode) and node.value in declared.params
        reader.refuse(node, where, f"must be from 1 to {_MAX_SPAN:,}{f', and the param is {value}' if given else ''}")
        return None
    return value


def read_span(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Span | None:
    """Return a span: a number of steps, or a mapping with one unit."""
    if _refuses_unit(node, where, declared, reader):
        return None
    if not isinstance(node, yaml.MappingNode):
        steps = _at_least_1(node, where, declared, reader)
        return None if steps is None else Span(steps)
    fields = reader.fields(node, where, _UNITS, habits=habits.UNITS)
    if len(fields) != 1:
        if not node.value or fields:
            reader.refuse(node, where, f"takes one of {', '.join(_UNITS)}", shows=False)
        return None
    ((name, value),) = fields.items()
    unit = Unit(name)
    read = _read_seconds if unit is Unit.SECONDS else _at_least_1
    amount = read(value, f"{where}, {name}", declared, reader)
    return None if amount is None else Span(amount, unit)


def _refuses_unit(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> bool:
    """Refuse a text such as ``5m``, and return whether it is one."""
    written = habits.SPAN.fullmatch(node.value) if isinstance(node, yaml.ScalarNode) else None
    if written is None or node.value in declared.params:
        return False
    amount, unit = float(written[1]), written[2]
    fix = "Write steps, or one of {steps: 100}, {evaluations: 3} and {seconds: 300}."
    if unit in habits.SECONDS:
        fix = f"Write {{seconds: {amount * habits.SECONDS[unit]:g}}}. The units are {', '.join(_UNITS)}."
    elif unit in ("step", "steps"):
        fix = f"Write {amount:g}."
    reader.refuse(node, where, "must be a number of steps, or a mapping with a unit", fix)
    return True


def _read_seconds(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> float | None:
    value = reader.number(node, where, declared.scope)
    if value is not None and not 0 < value <= _MAX_SPAN:
        reader.refuse(node, where, f"must be above 0 and at most {_MAX_SPAN:,}")
        return None
    return value


def _read_cooldown(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Cooldown | None:
    """Return the controller's cooldown: a span of its own, or the name of a shared one."""
    shared = declared.cooldowns
    is_text = isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str")
    if not is_text or node.value in declared.params:
        span = read_span(node, where, declared, reader)
        return None if span is None else Cooldown(span)
    if node.value in shared:
        return Cooldown(shared[node.value], node.value)
    if not _refuses_unit(node, where, declared, reader):
        reader.refuse(node, where, "not defined under 'cooldowns'", suggestion(node.value, shared))
    return None


_UNITS_OF_HOLD: Final[Mapping[str, str]] = {
    **habits.UNITS,
    **dict.fromkeys(("steps", "evaluations"), "Write for: n for n results in a row."),
}


def _read_hold(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Span | Patience | None:
    """Return how long the rule must be true: a number of results in a row, or a mapping with seconds."""
    if not isinstance(node, yaml.MappingNode):
        span = read_span(node, where, declared, reader)
        return None if span is None else Patience(int(span.amount) - 1)
    # An unknown key is problem enough.
    required = () if node.value else (Unit.SECONDS,)
    fields = reader.fields(node, where, (Unit.SECONDS,), required, _UNITS_OF_HOLD)
    seconds = (
        _read_seconds(fields[Unit.SECONDS], f"{where}, {Unit.SECONDS}", declared, reader)
        if Unit.SECONDS in fields
        else None
    )
    return None if seconds is None else Span(seconds, Unit.SECONDS)


def _read_flag(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> bool | None:
    return reader.flag(node, where, declared.scope)


def _read_patience(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Patience:
    if isinstance(node, yaml.ScalarNode) and not is_null(node):
        fix = "Write 'for: 3' for the third true result in a row."
        reader.refuse(node, where, "must be a mapping", fix)
        return Patience()
    return Patience(**reader.read(node, where, PATIENCE_KEYS, declared, habits.PATIENCE_KEYS))


def _read_whole(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> int | None:
    return reader.whole(node, where, declared.scope)


def _one_of(
    what: str, known: tuple[str, ...], meant: Mapping[str, str] = MappingProxyType({})
) -> Callable[[yaml.Node, str, Declarations, FieldReader], str | None]:
    """Return a reader of a key that takes one of the known words."""

    def read(node: yaml.Node, where: str, _declared: Declarations, reader: FieldReader) -> str | None:
        value = reader.text(node, where)
        if value is None or value in known:
            return value
        reader.refuse(node, where, f"unknown {what}", suggestion(value, known, meant))
        return None

    return read


_read_mode: Final = _one_of("mode", (ACT, SHADOW), habits.CONTROLLER_MODES)


def _read_is_shadow(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> bool:
    return _read_mode(node, where, declared, reader) == SHADOW


# --- what it orders and says --------------------------------------------------------------------------------------


def _read_operations(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> tuple[str, ...]:
    """Return operations that a controller orders, each checked to exist."""
    actions = declared.actions
    references: list[str] = []
    for item in reader.items(node, where):
        reference = reader.text(item, where)
        if reference is None:
            continue
        reference = reference if reference in actions else WORDS.get(reference, reference)
        operation, _, action = reference.partition(".")
        if is_call(reference) or (reference in CALLS and operation not in actions):
            references += _read_call(item, reference, where, declared, reader)
        elif operation not in actions:
            fix = suggestion(operation, actions)
            if not action and DEFAULT_OPERATION in actions:
                fix = meant_action(DEFAULT_OPERATION, operation, actions[DEFAULT_OPERATION])
            reader.refuse(item, where, "unknown operation", fix)
        elif actions[operation] and action not in actions[operation]:
            reader.refuse(item, where, "unknown action", meant_action(operation, action, actions[operation]))
        else:
            references.append(reference)
    return tuple(references)


def _read_call(node: yaml.Node, text: str, where: str, declared: Declarations, reader: FieldReader) -> tuple[str, ...]:
    """Return a call, checked as far as its arguments are known; nothing where it is refused."""
    try:
        template = parse_template(text, declared.params)
        for name, rule in _compute(template, declared).items():
            assert isinstance(node, yaml.ScalarNode)
            reader.note_expression(node, rule.bound, template.expressions[name])
    except InvalidCall as error:
        reader.refuse(node, where, str(error), error.fix, shows="; got " not in str(error))
    except ExpressionError as error:
        reader.refuse_faults(node, where, error)
    else:
        return (str(template),)
    return ()


def _computed(operations: tuple[str, ...], declared: Declarations, reader: FieldReader) -> Mapping[str, ComputedCall]:
    """Return those of a controller's operations whose arguments are computed, by their text."""
    if reader.problems:
        return {}
    templates = {each: parse_template(each, declared.params) for each in operations if is_call(each)}
    return {each: ComputedCall(it, _compute(it, declared)) for each, it in templates.items() if it.expressions}


def _compute(template: CallTemplate, declared: Declarations) -> dict[str, Rule]:
    """Return the expressions of a call, bound and compiled, by the name of the argument.

    Raises:
        ExpressionError: One is refused. The error holds the faults of all, each with its offset in the call.
    """
    rules: dict[str, Rule] = {}
    faults: list[Fault] = []
    for name, start in template.expressions.items():
        text = str(template.call.arguments[name])
        try:
            rules[name] = read_argument(name, text, declared)
        except ExpressionError as error:
            faults += [replace(fault, offset=start + fault.offset) for fault in error.faults]
    if faults:
        raise ExpressionError(faults)
    return rules


def _read_escalation(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Escalation | None:
    values = reader.read(node, where, ESCALATION_KEYS, declared, habits.ESCALATION_KEYS)
    cap = reader.keys_of(node).get("cap")
    if cap is not None and cap.value == "1" and values["forget_after"] is None:
        fix = "Write 'once: true', and the operations of the first stage as 'operations'."
        reader.refuse(cap, f"{where}, cap", "one decision in all is 'once'", fix)
    return Escalation(**values) if values["stages"] else None


def _read_stages(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> tuple[Stage, ...]:
    nodes = node.value if isinstance(node, yaml.SequenceNode) else []
    if not nodes:
        reader.refuse(node, where, "must be a list of stages", "Write one '- operations: [...]' per line.")
    return tuple(
        Stage(**reader.read(item, f"{where.removesuffix('s')} {number}", STAGE_KEYS, declared, habits.CONTROLLER_KEYS))
        for number, item in enumerate(nodes, 1)
    )


def _read_message(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> MessageTemplate | None:
    """Return the template of a decision's message."""
    text = reader.text(node, where)
    if text is None:
        return None
    assert isinstance(node, yaml.ScalarNode)
    try:
        template = parse_message(text, declared.scope, declared.names)
    except ExpressionError as error:
        reader.refuse_faults(node, where, error)
        return None
    for each in template.fields:
        reader.note_expression(node, each.bound, each.offset)
    return template


def _read_config(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> str | None:
    level: str | None = None if is_null(node) else reader.read(node, where, CONFIG_KEYS, declared)["trigger_log_level"]
    return level


def _read_level(node: yaml.Node, where: str, _declared: Declarations, reader: FieldReader) -> str | None:
    return reader.level(node, where)


# --- the tables ---------------------------------------------------------------------------------------------------

#: The keys of a controller's patience, of its configuration, of an escalation and of a stage.
PATIENCE_KEYS: Final[tuple[Key[Declarations], ...]] = (
    Key("patience_threshold", _read_whole, default=1, attribute="threshold"),
    Key("mode", _one_of("mode", MODES), default=RESET_ON_FAILURE),
)
CONFIG_KEYS: Final[tuple[Key[Declarations], ...]] = (Key("trigger_log_level", _read_level),)
STAGE_KEYS: Final[tuple[Key[Declarations], ...]] = (
    Key("operations", _read_operations, default=(), is_required=True),
    Key("times", _at_least_1, default=1),
)
ESCALATION_KEYS: Final[tuple[Key[Declarations], ...]] = (
    Key("stages", _read_stages, is_required=True),
    Key("cycle", _read_flag, default=False, attribute="cycles"),
    Key("cap", _at_least_1),
    Key("forget_after", read_span),
)

#: The keys of a controller that say what names mean in the others.
_NAME: Final[Key[Declarations]] = Key("name", read_name, "text | The name in decisions and messages.", is_required=True)
_FOR_EACH: Final[Key[Declarations]] = Key(
    "for_each",
    _read_each,
    "text | A pattern such as `grad_norm/*`: one rule for each series that matches.",
)
_ESCALATE: Final[Key[Declarations]] = Key(
    "escalate",
    _read_escalation,
    "mapping | Operations in stages, in place of `operations`.",
)

#: The other keys of a controller.
_OTHER_KEYS: Final[tuple[Key[Declarations], ...]] = (
    Key(
        "triggers",
        _read_asked,
        "list | When to evaluate the rule: `on_<kind>`.",
        (),
        is_required=True,
    ),
    Key("rule", _read_condition, "text | The condition.", is_required=True),
    Key(
        "operations",
        _read_operations,
        "list | What to order when it fires: a word, `name.action`, or a call. May be `[]`.",
        (),
        is_required=True,
    ),
    Key("patience", _read_patience, "mapping | How many true results the rule tolerates."),
    Key(
        "for",
        _read_hold,
        "number, or `{seconds: x}` | At how many results in a row the rule must be true, or how long.",
        attribute="hold",
    ),
    Key(
        "cooldown",
        _read_cooldown,
        "span, or text | How long nothing fires after a decision: a span, or the name of a shared cooldown.",
    ),
    Key("once", _read_flag, "`true`/`false` | Decide at most once in a run.", False, attribute="is_once"),
    Key(
        "between",
        _read_between,
        "list | `[first, last]`: the steps at which the rule is evaluated; null for an open end.",
        StepWindow(),
    ),
    Key(
        "every",
        _read_every,
        "`value` | Evaluate the rule only when the first series in it has a new value.",
        False,
        attribute="awaits_value",
    ),
    Key(
        "requires",
        _read_requires,
        "list | Metrics, or patterns of names, that must have had a value before the rule is evaluated.",
        (),
    ),
    Key(
        "clear",
        _read_condition,
        "text | A second condition: after a decision nothing fires until it is true.",
    ),
    Key(
        "severity",
        _one_of("severity", SEVERITIES, habits.SEVERITIES),
        "text | `info`, `warning` or `critical`: recorded, and the logging level of the message.",
        "",
    ),
    Key("message", _read_message, "text | The message of a decision, with expressions in braces."),
    Key(
        "mode",
        _read_is_shadow,
        "text | `act` (default), or `shadow`: decide and record, but order nothing.",
        False,
        attribute="is_shadow",
    ),
    Key(
        "config",
        _read_config,
        "mapping | `trigger_log_level`: the logging level at which the live side logs the decision; default `DEBUG`.",
        "DEBUG",
        attribute="trigger_log_level",
    ),
)

#: All keys of a controller.
CONTROLLER_KEYS: Final[tuple[Key[Any], ...]] = (_NAME, _FOR_EACH, _ESCALATE, *_OTHER_KEYS)
