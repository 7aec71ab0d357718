"""The declarations of a policy that is read and checked: frozen values from which engines build their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..compiled.compilation import CompiledRule
from ..language.bound_rule import BoundRule
from ..language.patience import Patience
from ..language.timing import Cooldown, Span, StepWindow
from .arguments import ArgumentValue
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


@dataclass(frozen=True, slots=True)
class Controller:
    """An entry of ``controllers``.

    Attributes:
        name: Not necessarily unique.
        triggers: ``on_<kind>``, in file order; a trigger that is listed twice counts twice.
        rule: The condition.
        operations: ``name.action``, in file order.
        patience: None to fire at every true answer.
        trigger_log_level: Level at which the live side logs a decision.
        hold: How long the rule must have been true; None to fire at once.
        cooldown: How long nothing fires after a decision; None without a cooldown.
        is_once: Whether it decides at most once in a run.
        between: The steps at which the rule is evaluated.
        severity: The severity of its decisions, one of ``SEVERITIES``; empty when undeclared.
        message: The message of its decisions; None without one.
        is_shadow: Whether its decisions are recorded but order nothing.
        requires: Metrics that must have had a value before it is asked.
        awaits_value: Whether it is asked only where the first series of its rule has a new value.
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
    requires: tuple[str, ...] = ()
    awaits_value: bool = False

    @property
    def bound_rules(self) -> tuple[BoundRule, ...]:
        """Its rule, and the expressions of its message."""
        fields = () if self.message is None else self.message.fields
        return (self.rule.bound, *(field.bound for field in fields))

    @property
    def ranks(self) -> frozenset[str]:
        """The metrics that it reads on all ranks."""
        return frozenset[str]().union(*(bound.ranks for bound in self.bound_rules))
