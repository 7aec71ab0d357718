"""The parts of an engine: controllers, each of them at each of its triggers, and what events of a kind concern."""

from __future__ import annotations

from collections.abc import Callable

from ...store.events import Event
from ..compiled.feeding import Feed, feed
from ..compiled.series import SLACK, Series
from ..compiled.workspace import Workspace
from ..policy_file.declarations import Controller
from .computed_series import ComputedSeries
from .gates import FiringGate, FiringLimits
from .metric_runners import MetricRunner

#: What asks rules about an event: the numbers of those whose answer is not False, with the answer.
Ask = Callable[[Event], list[tuple[int, object]]]


class ControllerState:
    """One controller of one engine, across its triggers."""

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
        """Forget what was counted and told, and wait for those series."""
        self.error_count = 0
        self.evaluations = 0
        self.unseen: tuple[Series, ...] = unseen


class TriggeredController:
    """One controller at one trigger, with a gate of its own."""

    __slots__ = ("gate", "state", "trigger")

    def __init__(self, state: ControllerState, trigger: str, gate: FiringGate) -> None:
        self.state = state
        self.trigger = trigger
        self.gate = gate

    def is_asked(self, event: Event) -> bool:
        """Whether the event is within the steps of the controller."""
        between = self.state.declaration.between
        return (between.first is None or event.step >= between.first) and (
            between.last is None or event.step <= between.last
        )


class Listener:
    """What an event of one kind concerns."""

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
        self.gauges: list[MetricRunner] = []
        self.watches: list[TriggeredController] = []
        self.ask: Ask | None = None
        # What it answered last, while that is what it would answer again.
        self.answers: list[tuple[int, object]] | None = None
        self.keeps_answers = False
        # Of events some of whose values come later: who waits for which, and functions that ask some of the rules.
        self.waiting: dict[frozenset[str], tuple[int, ...]] = {}
        self.parts: dict[tuple[int, ...], Ask] = {}
        self.until_trim = SLACK
