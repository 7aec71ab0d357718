"""The declarations of a policy that is read and checked: frozen values from which engines build their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..compiled.compiled_rules import CompiledRule
from ..compiled.names import Names
from ..language.bound_rule import BoundRule, NameScope
from ..language.patience import Patience
from ..language.references import Param, SeriesKey
from ..language.timing import Cooldown, Span, StepWindow
from .classes import ArgumentValue
from .document import Place
from .message import MessageTemplate

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


@dataclass(frozen=True, slots=True)
class OperationDeclaration:
    """An entry of ``operations``; arguments that the file leaves out have their defaults."""

    name: str
    class_name: str
    arguments: Mapping[str, ArgumentValue]


@dataclass(frozen=True, slots=True)
class Rule:
    """A controller's condition.

    Attributes:
        text: As in the file, escapes and folding resolved.
        bound: Its tree, every name resolved.
        compiled: Its code.
        place_at: Returns line and column in the file of an offset in the text.
    """

    text: str
    bound: BoundRule = field(repr=False, compare=False)
    compiled: CompiledRule = field(repr=False, compare=False)
    place_at: Callable[[int], Place] = field(repr=False, compare=False)


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

    def may_order(self, operations: tuple[str, ...]) -> bool:
        """Whether these are the operations of one of its decisions."""
        stages = () if self.escalation is None else self.escalation.stages
        return operations in ([stage.operations for stage in stages] or [self.operations])

    @property
    def conditions(self) -> tuple[Rule, ...]:
        """Its own conditions: the rule, and ``clear``."""
        return (self.rule,) if self.clear is None else (self.rule, self.clear)

    @property
    def own_rules(self) -> tuple[BoundRule, ...]:
        """Its conditions, and the expressions of its message."""
        fields = () if self.message is None else self.message.fields
        return (*(rule.bound for rule in self.conditions), *(field.bound for field in fields))

    @property
    def listed_triggers(self) -> tuple[str, ...]:
        """The triggers as the file lists them."""
        return (f"{OF_STATE}{self.changing}",) if self.changing else self.triggers

    @property
    def bound_rules(self) -> tuple[BoundRule, ...]:
        """Its conditions, the expressions of its message, and those of the states and definitions that it reads."""
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
    def ranks(self) -> frozenset[str]:
        """The metrics that it reads on all ranks."""
        return frozenset[str]().union(*(bound.ranks for bound in self.bound_rules))


#: What a file declares that has conditions.
Declaration = Controller | StateDeclaration | AdmittedSeries

#: The least and the greatest value of a metric.
Ends = tuple[BoundRule, BoundRule]


@dataclass(frozen=True, slots=True)
class Declarations:
    """Declarations of a policy file so far: the scope in which its remaining keys are read.

    Attributes:
        scope: What names mean in expressions, params and listed series included. Names that later keys declare are
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
    cooldowns: Mapping[str, Span] = field(default_factory=dict)
    controllers: tuple[Controller, ...] = ()

    @property
    def params(self) -> Mapping[str, Param]:
        """Params with their values, overrides applied."""
        return self.scope.params

    @property
    def series(self) -> frozenset[str] | None:
        """The series that rules may read; None when the file does not list them."""
        return None if self.scope.series is None else frozenset(self.scope.series)

    @property
    def definitions(self) -> Mapping[str, str]:
        """The text of each defined expression, by name."""
        return {name: each.text for name, each in self.scope.definitions.items() if each is not None}
