"""The parts of an engine: controller states, controllers at their triggers, and listeners for each kind of event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from ...store.events import Event
from ..compiled.family_members import SeriesFamily
from ..compiled.feeding import Feed, feed
from ..compiled.series import SLACK, Series
from ..policy_file.declarations import Controller, Rule
from .admissions import Admissions
from .computed_series import ComputedSeries
from .decisions import Scalar, is_storable
from .gates import FiringGate, FiringLimits
from .metric_runners import Gauge

#: Evaluates rules at an event: returns number and answer of each whose answer is not False.
Ask = Callable[[Event], list[tuple[int, object]]]

#: A condition, or what it reads.
Reading = Callable[[Event], Any]


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
    """

    __slots__ = (
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
        function: Callable[[CodeType], Reading],
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
        self.clear: Reading | None = None
        self.clear_readings: dict[str, Reading] = {}
        if declaration.clear is not None:
            self.clear, self.clear_readings = _functions(declaration.clear, function)
        self.message = [function(field.code) for field in fields]
        self.forget(())

    def forget(self, unseen: tuple[Series, ...], notices: tuple[str, ...] = ()) -> None:
        """Reset the counts of errors and evaluations, and await the given series; warn of something once more."""
        self.notices = notices
        self.error_count = 0
        self.evaluations = 0
        self.unseen: tuple[Series, ...] = unseen


def _functions(rule: Rule, function: Callable[[CodeType], Reading]) -> tuple[Reading, dict[str, Reading]]:
    """Return a condition as a function of the event, and the readings that explain it, by their text."""
    return function(rule.code), {text: function(code) for text, code in rule.leaf_codes.items()}


def readings_at(readings: Mapping[str, Reading], event: Event) -> dict[str, Scalar]:
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


class FamilyFeed:
    """Appends the numbers of events of one kind to the series of the members that they feed.

    Attributes:
        family: The family.
        takers: The members' names, each with what takes its numbers.
    """

    __slots__ = ("family", "takers")

    def __init__(self, family: SeriesFamily) -> None:
        self.family = family
        self.takers: list[tuple[str, Callable[[float], None]]] = []

    def take(self, metrics: Mapping[str, float]) -> None:
        """Append the numbers of one event, and how many there are to the family as a whole."""
        count = 0
        for name, take in self.takers:
            value = metrics.get(name)
            if value is not None:
                take(float(value))
                count += 1
        if count:
            self.family.whole.append(float(count))


class Listener:
    """The series, metrics and rules that an event of one kind updates or evaluates."""

    __slots__ = (
        "admissions",
        "answers",
        "ask",
        "computed",
        "families",
        "feed",
        "feeds",
        "gauges",
        "keeps_answers",
        "parts",
        "series",
        "until_trim",
        "waiting",
        "watches",
    )

    def __init__(self) -> None:
        self.feeds: list[tuple[str, Callable[[float], None]]] = []
        self.feed: Feed = feed((), ())
        self.series: list[Series] = []
        self.families: list[FamilyFeed] = []
        self.computed: list[ComputedSeries] = []
        self.gauges: list[Gauge] = []
        self.admissions: Admissions | None = None
        self.watches: list[TriggeredController] = []
        self.ask: Ask | None = None
        # The cached answers, while they are valid.
        self.answers: list[tuple[int, object]] | None = None
        self.keeps_answers = False
        # For events with late values: the controllers that wait, by awaited names; functions that evaluate some rules.
        self.waiting: dict[frozenset[str], tuple[int, ...]] = {}
        self.parts: dict[tuple[int, ...], Ask] = {}
        self.until_trim = SLACK
