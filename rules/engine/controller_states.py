"""The controllers of an engine: what each has seen so far, its gate at each trigger, and those of members of families.

For a controller with ``for_each`` one controller is made for each member of the family, as members appear. They are
asked in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

from ...store.events import Event
from ..compiled.program import clearing_name, explanation_name, gate_name, members_name, news_name
from ..compiled.workspace import Member, News, Series, Workspace
from ..policy_file.declarations import Controller, Rule
from ..readings.past_decisions import Past
from .decisions import Scalar, is_storable
from .gates import FiringGate, FiringLimits, Ladder, RaisedState, SpanTimer

#: Evaluates rules at an event: returns number and answer of each whose answer is not False.
Ask = Callable[[Event], list[tuple[int, object]]]

#: A condition, or what it reads.
CompiledPart = Callable[[Event], Any]


class ControllerState:
    """The state of one controller of one engine, which its triggers share.

    Args:
        declaration: The controller.
        function: Returns generated code as a function.
        restraint: What holds it back.
        whole: For the controller of a member, the state that counts for all members.

    Attributes:
        member: The member that it is of; empty without one.
        own: The variables of the member's controller, by generated name.
        arguments: The arguments to compute of its operations, by the text of the operation.
    """

    __slots__ = (
        "arguments",
        "clear",
        "clear_readings",
        "declaration",
        "error_count",
        "evaluations",
        "member",
        "message",
        "notices",
        "own",
        "readings",
        "restraint",
        "rule",
        "unseen",
        "whole",
    )

    def __init__(
        self,
        declaration: Controller,
        function: Callable[[CodeType], CompiledPart],
        restraint: FiringLimits,
        whole: ControllerState | None = None,
    ) -> None:
        fields = () if declaration.message is None else declaration.message.fields
        self.declaration = declaration
        self.restraint = restraint
        self.whole = whole or self
        self.member = ""
        self.own: Mapping[str, Any] = {}
        self.rule, self.readings = _functions(declaration.rule, function)
        self.clear: CompiledPart | None = None
        self.clear_readings: dict[str, CompiledPart] = {}
        if declaration.clear is not None:
            self.clear, self.clear_readings = _functions(declaration.clear, function)
        self.message = [function(field.code) for field in fields]
        self.arguments = {
            text: {name: function(rule.code) for name, rule in call.arguments.items()}
            for text, call in declaration.computed.items()
        }
        self.forget(())

    def forget(self, unseen: tuple[Series, ...], notices: tuple[str, ...] = ()) -> None:
        """Reset the counts of errors and evaluations, and await the given series; warn of something once more."""
        self.notices = notices
        self.error_count = 0
        self.evaluations = 0
        self.unseen: tuple[Series, ...] = unseen


def _functions(
    rule: Rule, function: Callable[[CodeType], CompiledPart]
) -> tuple[CompiledPart, dict[str, CompiledPart]]:
    """Return a condition as a function of the event, and the readings that explain it, by their text."""
    return function(rule.code), {text: function(code) for text, code in rule.leaf_codes.items()}


def readings_at(readings: Mapping[str, CompiledPart], event: Event) -> dict[str, Scalar]:
    """Return what readings give at an event, as far as it can be recorded."""
    values: dict[str, Scalar] = {}
    for text, reading in readings.items():
        try:
            value = reading(event)
        except Exception:
            continue  # The rule short-circuited before this reading: it explains nothing.
        if is_storable(value):
            values[text] = value
    return values


class TriggeredController:
    """One controller at one trigger, with its own gate.

    Attributes:
        clear_explanation: What those of its ``clear`` gave when that was last true.
        explanation: What its readings gave when its rule was last evaluated; None where they are taken at a decision.
    """

    __slots__ = ("clear_explanation", "explanation", "gate", "state", "trigger")

    def __init__(self, state: ControllerState, trigger: str, gate: FiringGate) -> None:
        self.state = state
        self.trigger = trigger
        self.gate = gate
        self.explanation: Mapping[str, Scalar] | None = None
        self.clear_explanation: Mapping[str, Scalar] = {}

    def explain(self, event: Event) -> None:
        """Take its readings while past decisions are as its rule has seen them."""
        self.explanation = readings_at(self.state.readings, event)

    def clear(self, event: Event) -> None:
        """Note that its ``clear`` is true, while it is raised."""
        self.clear_explanation = readings_at(self.state.clear_readings, event)
        self.gate.clear(event)

    def is_asked(self, event: Event) -> bool:
        """Whether the event is within the controller's steps."""
        between = self.state.declaration.between
        return (between.first is None or event.step >= between.first) and (
            between.last is None or event.step <= between.last
        )


class MemberAnswers(NamedTuple):
    """The answers of the controllers of all members to one rule, without those that are False."""

    answers: Sequence[tuple[TriggeredController, object]]


class PastOfMembers:
    """The answers and decisions of the controllers of all members, as other controllers read them.

    Attributes:
        members: Those of each member.
        fired_at: The newest event at which that of some member decided.
    """

    def __init__(self) -> None:
        self.members: list[Past] = []
        self.fired_at: Event | None = None

    def note_asked(self, event: Event) -> None:
        """Note what all members have answered to an event."""
        for past in self.members:
            if past.fired_at is event:
                self.fired_at = event

    @property
    def times(self) -> int:
        """The number of decisions at earlier events."""
        return sum(past.times for past in self.members)

    @property
    def streak(self) -> int:
        """The longest streak of a member."""
        return max((past.streak for past in self.members), default=0)

    def steps_since(self, step: int) -> int:
        """Return the steps from the newest decision to a step; see ``Past``."""
        past = Past()
        past.step = max((past.step for past in self.members if past.step is not None), default=None)
        return past.steps_since(step)


class MembersAtTrigger:
    """The controllers of all members at one trigger, as generated code asks them.

    Args:
        kind: The kind of event.
        number: The number of the rule at this kind.
        trigger: The trigger.
        code: The code that asks one member.
        past: The answers and decisions of all members.
    """

    def __init__(self, kind: str, number: int, trigger: str, code: CodeType, past: PastOfMembers) -> None:
        self._kind = kind
        self._number = number
        self._trigger = trigger
        self._code = code
        self._past = past
        self._asked: list[tuple[TriggeredController, Ask]] = []

    def insert(self, index: int, state: ControllerState, member: Member, workspace: Workspace) -> None:
        """Take the controller of a new member that has this place in the order of names."""
        declared, clock, gated = state.declaration, workspace.clock, gate_name(self._kind, self._number)
        gate = FiringGate(state.restraint, clock, declared.patience, declared.hold)
        own: dict[str, Any] = {gated: gate, **state.own}
        driver = declared.rule.bound.driver
        if declared.awaits_value and driver is not None:
            series = member.series[driver] if driver.is_of_member else workspace.series[driver]
            own[news_name(gated)] = News(series)
        watch = TriggeredController(state, self._trigger, gate)
        own[explanation_name(gated)] = watch.explain
        own[clearing_name(gated)] = watch.clear
        self._asked.insert(index, (watch, member.function(self._code, own)))

    def __call__(self, event: Event, answers: list[tuple[int, object]]) -> None:
        """Ask all members at an event; append their answers, if any is not False."""
        given = [(watch, answer) for watch, ask in self._asked for _, answer in ask(event)]
        if given:
            answers.append((self._number, MemberAnswers(given)))
        self._past.note_asked(event)

    def renew(self) -> None:
        """Reset patience and hold of all members."""
        for watch, _ in self._asked:
            watch.gate.renew()


class MemberControllers:
    """The controllers that one declaration makes for the members of a family.

    Args:
        whole: The state that they share: what was reported.
        workspace: The values that rules read.
        timer: The timer of a cooldown that the controller shares; None without one.
    """

    def __init__(self, whole: ControllerState, workspace: Workspace, timer: SpanTimer | None) -> None:
        self._whole = whole
        self._workspace = workspace
        self._timer = timer
        self._limits: list[FiringLimits] = []
        self.past = PastOfMembers()
        self._triggers: list[MembersAtTrigger] = []

    def add_trigger(self, kind: str, number: int, trigger: str, codes: Mapping[int, CodeType]) -> None:
        """Let generated code ask them at a trigger.

        Args:
            kind: The kind of event.
            number: The number of the rule at this kind.
            trigger: The trigger.
            codes: The code that asks one member, by these numbers.
        """
        at_trigger = MembersAtTrigger(kind, number, trigger, codes[number], self.past)
        self._workspace.variables[members_name(kind, number)] = at_trigger
        self._triggers.append(at_trigger)

    def insert(self, index: int, member: Member) -> None:
        """Make the controller of a new member."""
        declared, past = self._whole.declaration, Past()
        timer = self._timer
        if timer is None and declared.cooldown is not None:
            timer = SpanTimer(declared.cooldown.span)
        raised = None if declared.clear is None else RaisedState()
        ladder = None if declared.escalation is None else Ladder(declared.escalation)
        limits = FiringLimits(past, is_once=declared.is_once, cooldown=timer, raised=raised, ladder=ladder)
        own = {self._workspace.past_name(declared.name): past}
        state = ControllerState(declared, lambda code: member.function(code, own), limits, self._whole)
        state.member, state.own = member.name, own
        self.past.members.insert(index, past)
        self._limits.append(limits)
        for trigger in self._triggers:
            trigger.insert(index, state, member, self._workspace)

    def renew(self) -> None:
        """Let the controllers of all members start fresh."""
        for limits in self._limits:
            limits.renew()
        for trigger in self._triggers:
            trigger.renew()
