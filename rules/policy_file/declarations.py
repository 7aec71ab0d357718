"""The declarations of a policy file: frozen values from which engines build their state, and the digest of them all.

A new attribute of a declaration that changes what is decided joins its canonical form, which the digest is made of.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Final, Protocol

from ...store.errors import require_version
from ...store.plan import Plan
from ...store.run_info import Attempt
from ..effects import CallTemplate, Effect, may_become
from ..language.bound_rule import BoundRule, NameScope
from ..language.clock import Cooldown, Patience, Span, StepWindow
from ..readings.reading import Names, Param, SeriesKey
from ..readings.series_value import SeriesLength
from .classes import ArgumentValue
from .document import Place
from .metrics import METRIC_CLASSES, Metric
from .operations import OPERATION_CLASSES, Operation

#: Increases when the same policy and the same events may give different decisions than before.
SEMANTICS_VERSION: Final = 8

#: The severities of a decision, the lowest first.
SEVERITIES: Final = ("info", "warning", "critical")

#: The modes of a controller: its decisions order operations, or only record which they would have ordered.
ACT: Final = "act"
SHADOW: Final = "shadow"


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """An entry of ``controller_metrics``; arguments that the file leaves out have their defaults."""

    name: str
    class_name: str
    arguments: Mapping[str, ArgumentValue]

    @property
    def metric_class(self) -> type[Metric]:
        """The class that the entry names."""
        return METRIC_CLASSES[self.class_name]

    def metric(self, plan: Plan) -> Metric:
        """Return the metric for a run with this plan."""
        return self.metric_class(self.arguments, plan)


@dataclass(frozen=True, slots=True)
class OperationDeclaration:
    """An entry of ``operations``; arguments that the file leaves out have their defaults."""

    name: str
    class_name: str
    arguments: Mapping[str, ArgumentValue]

    @property
    def operation_class(self) -> type[Operation]:
        """The class that the entry names."""
        return OPERATION_CLASSES[self.class_name]

    def operation(self) -> Operation:
        """Return the operation."""
        return self.operation_class(self.arguments)


@dataclass(frozen=True, slots=True)
class Rule:
    """A controller's condition.

    Attributes:
        text: As in the file, escapes and folding resolved.
        bound: Its tree, every name resolved.
        code: Its code, before an engine binds names to values: the body of a function of the event that returns its
            value.
        leaf_codes: The same for each reading that explains a decision, by its text.
        place_at: Returns line and column in the file of an offset in the text.
    """

    text: str
    bound: BoundRule = field(repr=False, compare=False)
    code: CodeType = field(repr=False, compare=False)
    leaf_codes: Mapping[str, CodeType] = field(repr=False, compare=False)
    place_at: Callable[[int], Place] = field(repr=False, compare=False)

    def place_of_failure(self, traceback: TracebackType | None) -> Place:
        """Return the place in the file at which an exception was raised; that of the rule when unknown.

        It is taken from the innermost frame of the rule's own code.
        """
        codes = _nested_codes(self.code)
        offset = None
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if code in codes:
                position = list(code.co_positions())[traceback.tb_lasti // 2]
                if position[0] is not None and position[2] is not None:
                    offset = self.bound.expression.offset_at(position[0], position[2])
            traceback = traceback.tb_next
        return self.place_at(offset or 0)


def _nested_codes(code: CodeType) -> set[CodeType]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {code}.union(*(_nested_codes(constant) for constant in inner))


@dataclass(frozen=True, slots=True)
class MessageField:
    """An expression in braces.

    Attributes:
        text: The expression, as written.
        specification: The format after the colon; empty for none.
        bound: The expression, every name resolved.
        code: The code of a function of the event that returns its value.
        offset: Where the expression begins in the message.
    """

    text: str
    specification: str
    bound: BoundRule = field(repr=False, compare=False)
    code: CodeType = field(repr=False, compare=False)
    offset: int = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """A message before it is rendered.

    Attributes:
        text: As in the file.
        parts: Literal texts and expressions, in order.
    """

    text: str
    parts: tuple[str | MessageField, ...] = field(repr=False, compare=False)

    @property
    def fields(self) -> tuple[MessageField, ...]:
        """The expressions, in order."""
        return tuple(part for part in self.parts if isinstance(part, MessageField))


#: How the triggers begin that are changes of states.
OF_STATE: Final = "on_state:"


@dataclass(frozen=True, slots=True)
class StateDeclaration:
    """An entry of ``states``.

    Attributes:
        name: The name by which rules read it.
        triggers: The events at which it is classified.
        classes: The classes with their conditions, in file order.
    """

    name: str
    triggers: tuple[str, ...]
    classes: tuple[tuple[str, Rule], ...]

    @property
    def bound_rules(self) -> tuple[BoundRule, ...]:
        """The conditions of its classes."""
        return tuple(rule.bound for _, rule in self.classes)


@dataclass(frozen=True, slots=True)
class AdmittedSeries:
    """An entry of ``define`` that has ``admit``.

    Attributes:
        name: The name by which rules read it.
        value: The expression that gives its values.
        admit: The condition at which it takes one.
        driver: The series whose values it may follow.
    """

    name: str
    value: Rule
    admit: Rule
    driver: SeriesKey

    @property
    def key(self) -> SeriesKey:
        """The series of the admitted values."""
        return SeriesKey(self.name, is_derived=True)

    @property
    def source(self) -> SeriesKey:
        """The series of the run's events that it follows."""
        key = self.driver
        while key.is_derived:
            key = self.value.bound.derived[key].driver
        return key

    @property
    def bound_rules(self) -> tuple[BoundRule, BoundRule]:
        """Its two expressions."""
        return self.value.bound, self.admit.bound


@dataclass(frozen=True, slots=True)
class RecordedDefinition:
    """A name of ``record`` that is a definition.

    Attributes:
        name: The name.
        value: Its expression.
        driver: The series of the run's events at whose values it is recorded.
    """

    name: str
    value: Rule
    driver: SeriesKey

    @property
    def bound_rules(self) -> tuple[BoundRule, ...]:
        """Its expression."""
        return (self.value.bound,)


#: What a run records under ``derived/NAME``.
Recorded = RecordedDefinition | StateDeclaration


@dataclass(frozen=True, slots=True)
class ComputedCall:
    """An operation whose arguments are computed at each decision.

    Attributes:
        template: The call as the file writes it.
        arguments: Its expressions by the name of the argument.
    """

    template: CallTemplate
    arguments: Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of an escalation: what its decisions order, and how many it has."""

    operations: tuple[str, ...]
    times: int = 1


@dataclass(frozen=True, slots=True)
class Escalation:
    """The stages of a controller's operations.

    Attributes:
        stages: In file order, at least one.
        cycles: Whether the first stage follows the last. If not, the last one lasts.
        cap: The most decisions; None for any number.
        forget_after: How long after a decision stages and cap begin anew; None for never.
    """

    stages: tuple[Stage, ...]
    cycles: bool = False
    cap: int | None = None
    forget_after: Span | None = None

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations of all stages, each once."""
        return tuple(dict.fromkeys(operation for stage in self.stages for operation in stage.operations))

    @property
    def decisions(self) -> int:
        """The number of decisions in all stages, once each."""
        return sum(stage.times for stage in self.stages)

    def stage_of(self, number: int) -> int:
        """Return the index of the stage of a decision, by the number of decisions before it."""
        left = number % self.decisions if self.cycles else number
        for index, stage in enumerate(self.stages):
            left -= stage.times
            if left < 0:
                return index
        return len(self.stages) - 1


@dataclass(frozen=True, slots=True)
class Controller:
    """An entry of ``controllers``.

    Attributes:
        name: Not necessarily unique.
        triggers: ``on_<kind>``, in file order; a trigger that is listed twice counts twice.
        rule: The condition.
        operations: ``name.action``, in file order; those of all stages if it escalates.
        patience: None to fire at every true answer.
        trigger_log_level: Level at which the live side logs a decision.
        hold: How long the rule must have been true; None to fire at once.
        cooldown: How long nothing fires after a decision; None without a cooldown.
        is_once: Whether it decides at most once in a run.
        between: The steps at which the rule is evaluated.
        severity: The severity of its decisions, one of ``SEVERITIES``; empty when undeclared.
        message: The message of its decisions; None without one.
        is_shadow: Whether its decisions are recorded but order nothing.
        requires: Series that must have had a value before it is asked; of a family, any member's.
        awaits_value: Whether it is asked only where the first series of its rule has a new value.
        states: The states that it reads, directly or through others.
        clear: The condition until which a decision keeps it from making another; None without one.
        changing: The state at whose changes it is asked, and whose triggers are its own; empty if it is asked always.
        each: The series of a member of the family for whose members there is one controller each; None for one alone.
        admitted: The definitions with ``admit`` that it reads, directly or through others.
        escalation: The stages of its operations; None without any.
        computed: Those of its operations whose arguments are computed, by their text.
    """

    name: str
    triggers: tuple[str, ...]
    rule: Rule
    operations: tuple[str, ...]
    patience: Patience | None = None
    trigger_log_level: str = "DEBUG"
    hold: Span | None = None
    cooldown: Cooldown | None = None
    is_once: bool = False
    between: StepWindow = StepWindow()  # noqa: RUF009 - a StepWindow is immutable
    severity: str = ""
    message: MessageTemplate | None = None
    is_shadow: bool = False
    requires: tuple[SeriesKey, ...] = ()
    awaits_value: bool = False
    states: tuple[StateDeclaration, ...] = ()
    clear: Rule | None = None
    changing: str = ""
    each: SeriesKey | None = None
    admitted: tuple[AdmittedSeries, ...] = ()
    escalation: Escalation | None = None
    computed: Mapping[str, ComputedCall] = field(default_factory=dict, hash=False)

    def may_order(self, operations: tuple[str, ...]) -> bool:
        """Whether these are the operations of one of its decisions."""
        stages = [] if self.escalation is None else [stage.operations for stage in self.escalation.stages]
        return any(self._may_become(each, operations) for each in stages or [self.operations])

    def _may_become(self, declared: tuple[str, ...], operations: tuple[str, ...]) -> bool:
        """Whether a decision may order these operations where the file has others. It leaves out what has no value."""
        waiting = list(operations)
        for each in declared:
            if waiting and (may_become(each, waiting[0]) if each in self.computed else each == waiting[0]):
                waiting.pop(0)
            elif each not in self.computed:
                return False
        return not waiting

    @property
    def conditions(self) -> tuple[Rule, ...]:
        """Its own conditions: the rule, and ``clear``."""
        return (self.rule,) if self.clear is None else (self.rule, self.clear)

    @property
    def own_rules(self) -> tuple[BoundRule, ...]:
        """Its conditions, and the expressions of its message and of its operations."""
        fields = () if self.message is None else self.message.fields
        computed = (rule.bound for call in self.computed.values() for rule in call.arguments.values())
        return (*(rule.bound for rule in self.conditions), *(field.bound for field in fields), *computed)

    @property
    def listed_triggers(self) -> tuple[str, ...]:
        """The triggers as the file lists them."""
        return (f"{OF_STATE}{self.changing}",) if self.changing else self.triggers

    @property
    def bound_rules(self) -> tuple[BoundRule, ...]:
        """Those of ``own_rules``, and those of the states and definitions that it reads."""
        read: tuple[StateDeclaration | AdmittedSeries, ...] = (*self.states, *self.admitted)
        return (*self.own_rules, *(rule for each in read for rule in each.bound_rules))

    @property
    def series_named(self) -> tuple[SeriesKey, ...]:
        """The series that its keys name: those it requires, and the family of its members."""
        return (*self.requires, *(() if self.each is None else (self.each,)))

    @property
    def series_read(self) -> tuple[SeriesKey, ...]:
        """The series that its conditions read, and the family of its members."""
        read = (key for rule in self.conditions for key in rule.bound.series)
        of_each = () if self.each is None else (self.each, self.each.whole)
        return tuple(dict.fromkeys((*read, *of_each)))

    @property
    def series_awaited(self) -> tuple[SeriesKey, ...]:
        """Those of ``series_read`` that the run's events carry, but for those whose length alone its conditions read.

        A length has an answer without values: ``len(s) == 0`` asks whether the series is missing.
        """
        counted, read = set[SeriesKey](), set[SeriesKey | None]()
        for rule in self.conditions:
            lengths = {node: each for node, each in rule.bound.references.items() if isinstance(each, SeriesLength)}
            arguments = {node.args[0] for node in lengths if isinstance(node, ast.Call)}
            others = rule.bound.references.keys() - lengths.keys() - arguments
            counted.update(each.key for each in lengths.values())
            read.update(rule.bound.references[node].driver for node in others)
            read.update(derived.driver for derived in rule.bound.derived.values())
        return tuple(key for key in self.series_read if not key.is_derived and key not in counted - read)

    @property
    def ranks(self) -> frozenset[str]:
        """The metrics that it reads on all ranks."""
        return frozenset[str]().union(*(bound.ranks for bound in self.bound_rules))


class RuleFile(Protocol):
    """What a rule file declares, for those that look at it before a run. A ``Policy`` is one."""

    @property
    def controllers(self) -> tuple[Controller, ...]:
        """Controllers, in file order."""

    @property
    def states(self) -> tuple[StateDeclaration, ...]:
        """States, in file order."""

    @property
    def metrics(self) -> tuple[MetricDeclaration, ...]:
        """Controller metrics, in file order."""

    @property
    def ranges(self) -> Mapping[str, Ends]:
        """The least and the greatest value of metrics, by name."""

    def effects(self, operation: str) -> Effect:
        """Return the effect on the training loop of an operation."""


#: What a file declares that has conditions, or is computed at events.
Declaration = Controller | StateDeclaration | AdmittedSeries | RecordedDefinition

#: The least and the greatest value of a metric.
Ends = tuple[BoundRule, BoundRule]


@dataclass(frozen=True, slots=True)
class Declarations:
    """Declarations of a policy file so far: the scope in which its remaining keys are read.

    Attributes:
        scope: What names mean in expressions, params included. Names that later keys declare are
            already among them.
        own_metrics: The names of controller metrics, those of unknown classes included.
        overrides: Values of params that replace those of the file.
        names: The policy's names for generated code.
        name: As in the file; empty when absent.
        description: As in the file; empty when absent.
        ranges: The ranges of metrics, by name.
        metrics: Controller metrics, in file order.
        actions: The actions of each operation by name; empty for one of an unknown class.
        operations: Operations, in file order; ``hfcontrols`` last unless the file declares it.
        admitted: The definitions that have ``admit``, by name.
        states: The states, by name.
        recorded: The definitions and states that a run records.
        cooldowns: The cooldowns that controllers share, by name.
        controllers: Controllers, in file order.
    """

    scope: NameScope = field(default_factory=NameScope)
    own_metrics: tuple[str, ...] = ()
    overrides: Mapping[str, object] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    name: str = ""
    description: str = ""
    ranges: Mapping[str, Ends] = field(default_factory=dict)
    metrics: tuple[MetricDeclaration, ...] = ()
    actions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    operations: tuple[OperationDeclaration, ...] = ()
    admitted: Mapping[str, AdmittedSeries] = field(default_factory=dict)
    states: Mapping[str, StateDeclaration] = field(default_factory=dict)
    recorded: tuple[Recorded, ...] = ()
    cooldowns: Mapping[str, Span] = field(default_factory=dict)
    controllers: tuple[Controller, ...] = ()

    @property
    def params(self) -> Mapping[str, Param]:
        """Params with their values, overrides applied."""
        return self.scope.params

    @property
    def definitions(self) -> Mapping[str, str]:
        """The text of each defined expression, by name."""
        return {name: each.text for name, each in self.scope.definitions.items() if each is not None}


# --- the meaning of a file ------------------------------------------------------------------------------------------


def require_semantics(attempt: Attempt, folder: Path) -> None:
    """Refuse an attempt of a run whose rules had other semantics: they may decide otherwise today.

    Raises:
        UnsupportedVersion: Its rule file was recorded under another version.
    """
    if attempt.policy is not None:
        where = f"{folder}, rule file of attempt {attempt.attempt}"
        require_version("rule semantics", attempt.policy.semantics_version, SEMANTICS_VERSION, where=where)


def digest_of(declared: Declarations) -> str:
    """Return the SHA-256, in hexadecimal, of the meaning of a policy file."""
    canonical = {
        "language": SEMANTICS_VERSION,
        "params": {name: _constant(value) for name, value in declared.params.items()},
        "metrics": [_canonical_entry(entry, entry.metric_class.version) for entry in declared.metrics],
        "operations": [_canonical_entry(entry, entry.operation_class.version) for entry in declared.operations],
        "controllers": [_canonical_controller(controller) for controller in declared.controllers],
        # Left out when there are none: a key that joins the language leaves the digests of other files alone.
        **({"states": [_canonical_state(state) for state in declared.states.values()]} if declared.states else {}),
        **({"admitted": list(map(_canonical_admitted, declared.admitted.values()))} if declared.admitted else {}),
    }
    return hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical_entry(entry: MetricDeclaration | OperationDeclaration, version: str) -> list[Any]:
    """Return name, class, arguments, and the version of a class that has one."""
    return [entry.name, entry.class_name, dict(entry.arguments), *([version] if version else [])]


def _canonical_state(state: StateDeclaration) -> list[Any]:
    classes = [[name, _canonical_rule(rule)] for name, rule in state.classes]
    return [state.name, state.triggers, classes]


def _canonical_admitted(series: AdmittedSeries) -> list[Any]:
    return [series.name, _canonical_rule(series.value), _canonical_rule(series.admit)]


def _canonical_rule(rule: Rule) -> Any:
    return _canonical_tree(rule.bound.expression.tree, rule.bound.expression.defined)


def _canonical_controller(controller: Controller) -> dict[str, object]:
    patience, cooldown = controller.patience, controller.cooldown
    # Unused keys are left out: a key that joins the language leaves the digests of other files alone.
    timing = {
        "for": None if controller.hold is None else _canonical_span(controller.hold),
        "cooldown": None if cooldown is None else [*_canonical_span(cooldown.span), cooldown.name],
        "once": controller.is_once or None,
        "between": None if controller.between == StepWindow() else [controller.between.first, controller.between.last],
        "severity": controller.severity or None,
        "message": None if controller.message is None else controller.message.text,
        "mode": SHADOW if controller.is_shadow else None,
        "requires": [key.name for key in controller.requires] or None,
        "for_each": None if controller.each is None else controller.each.name,
        "every": controller.awaits_value or None,
        "clear": None if controller.clear is None else _canonical_rule(controller.clear),
        "escalate": None if controller.escalation is None else _canonical_escalation(controller.escalation),
        "changing": controller.changing or None,
        "computed": [_canonical_call(name, call) for name, call in controller.computed.items()] or None,
    }
    return {
        **{key: value for key, value in timing.items() if value is not None},
        "name": controller.name,
        "triggers": controller.triggers,
        "rule": _canonical_rule(controller.rule),
        "patience": [patience.threshold, patience.mode] if patience else None,
        "operations": controller.operations,
        "trigger_log_level": controller.trigger_log_level,
    }


def _canonical_call(name: str, call: ComputedCall) -> list[Any]:
    return [name, [[argument, _canonical_rule(rule)] for argument, rule in call.arguments.items()]]


def _canonical_escalation(escalation: Escalation) -> list[Any]:
    forget = None if escalation.forget_after is None else _canonical_span(escalation.forget_after)
    stages = [[stage.operations, stage.times] for stage in escalation.stages]
    return [stages, escalation.cycles, escalation.cap, forget]


def _canonical_span(span: Span) -> list[str]:
    return [float(span.amount).hex(), str(span.unit)]


def _canonical_tree(node: object, defined: Mapping[ast.AST, str]) -> Any:
    """Return a syntax tree as JSON, the same in every version of Python (whose own dump and unparse are not).

    Args:
        defined: The names that stand for parts of it.
    """
    if isinstance(node, list):
        return [_canonical_tree(item, defined) for item in node]
    if isinstance(node, ast.Constant):
        tree = _constant(node.value)
    elif isinstance(node, ast.AST):
        fields = [_canonical_tree(value, defined) for name, value in ast.iter_fields(node) if name != "ctx"]
        tree = [type(node).__name__, *fields]
    else:
        return node
    return ["define", defined[node], tree] if node in defined else tree


def _constant(value: object) -> list[str]:
    """Return a constant as its type and text: floats exactly, and whole numbers of any length."""
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, int) and not isinstance(value, bool):
        return ["int", hex(value)]
    return [type(value).__name__, ascii(value)]
