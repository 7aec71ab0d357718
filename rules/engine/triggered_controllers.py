"""The parts of an engine: controller states, controllers at their triggers, and listeners for each kind of event."""

from __future__ import annotations

from collections.abc import Callable

from ...store.events import Event
from ..compiled.feeding import Feed, feed
from ..compiled.series import SLACK, Series
from ..compiled.workspace import Workspace
from ..policy_file.declarations import Controller
from .computed_series import ComputedSeries
from .gates import FiringGate, FiringLimits
from .metric_runners import Gauge

#: Evaluates rules at an event: returns number and answer of each whose answer is not False.
Ask = Callable[[Event], list[tuple[int, object]]]


class ControllerState:
    """The state of one controller of one engine, which its triggers share."""

    __slots__ = ("declaration", "error_count", "evaluations", "message", "readings", "restraint", "rule", "unseen")

    def __init__(self, declaration: Controller, workspace: Workspace, restraint: FiringLimits) -> None:
        compiled = declaration.rule.compiled
        fields = () if declaration.message is None else declaration.message.fields
        self.declaration = declaration
        self.restraint = restraint
        self.rule = workspace.function(compiled.code)
        self.readings = {text: workspace.function(code) for text, code in compiled.leaf_codes.items()}
        self.message = [workspace.function(field.code) for field in fields]
        self.forget(())

    def forget(self, unseen: tuple[Series, ...]) -> None:
        """Reset the counts of errors and evaluations, and await the given series."""
        self.error_count = 0
        self.evaluations = 0
        self.unseen: tuple[Series, ...] = unseen


class TriggeredController:
    """One controller at one trigger, with its own gate."""

    __slots__ = ("gate", "state", "trigger")

    def __init__(self, state: ControllerState, trigger: str, gate: FiringGate) -> None:
        self.state = state
        self.trigger = trigger
        self.gate = gate

    def is_asked(self, event: Event) -> bool:
        """Whether the event is within the controller's steps."""
        between = self.state.declaration.between
        return (between.first is None or event.step >= between.first) and (
            between.last is None or event.step <= between.last
        )


class Listener:
    """The series, metrics and rules that an event of one kind updates or evaluates."""

    __slots__ = (
        "answers",
        "ask",
        "computed",
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
        self.computed: list[ComputedSeries] = []
        self.gauges: list[Gauge] = []
        self.watches: list[TriggeredController] = []
        self.ask: Ask | None = None
        # The cached answers, while they are valid.
        self.answers: list[tuple[int, object]] | None = None
        self.keeps_answers = False
        # For events with late values: the controllers that wait, by awaited names; functions that evaluate some rules.
        self.waiting: dict[frozenset[str], tuple[int, ...]] = {}
        self.parts: dict[tuple[int, ...], Ask] = {}
        self.until_trim = SLACK
