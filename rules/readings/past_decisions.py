"""A question about a controller's decisions and answers at earlier events, such as ``fired("c")``."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ...store.events import Event
from ..functions.table import TRUE_OF_CONTROLLERS
from ..functions.undefined import Undefined
from .first_events import START, First, PossibleCount
from .generated import EVENT, attribute, call, name
from .ranges import Range
from .reading import AnyTerm, Code, NotColumnar, Reading, RunSeries, Sightings, TermMaker, ValueLimits, ValueType

if TYPE_CHECKING:
    from .vectors import Vector

_TIMES: Final = "times_fired"


@dataclass(frozen=True, slots=True)
class PastDecisions(Reading):
    """A question about a controller's decisions at earlier events."""

    question: str
    controller: str

    is_of_event_alone: ClassVar[bool] = True
    changes_within_event: ClassVar[bool] = True

    @property
    def value_type(self) -> ValueType:
        """A truth or a whole number."""
        return ValueType.TRUTH if self.question in TRUE_OF_CONTROLLERS else ValueType.WHOLE

    @property
    def asks_about(self) -> str:
        return self.controller

    @property
    def is_count(self) -> bool:
        """Whether it counts decisions."""
        return self.question == _TIMES

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        past = name(code.names.past_of(self.controller))
        match self.question:
            case "fired" | "raised":
                count = attribute(past, "times" if self.question == "fired" else self.question)
                return ast.Compare(count, [ast.Gt()], [ast.Constant(0)])
            case "times_fired":
                return attribute(past, "times")
            case "streak" | "stage":
                return attribute(past, self.question)
            case "true_now" | "fired_now":
                noted = attribute(past, f"{self.question.removesuffix('_now')}_at")
                return ast.Compare(noted, [ast.Is()], [name(EVENT)])
            case "steps_since":
                return call(attribute(past, "steps_since"), attribute(name(EVENT), "step"))
        return attribute(past, "holds")

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        return terms.of_past(self.question, self.controller)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("the firings of other rules answer it")

    def bounds(self, limits: ValueLimits) -> Range | None:
        """Return the range of the answer, which depends on the other rule."""
        return limits.asked(self.question, self.controller)

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the other controller may have decided, where the answer needs it."""
        is_needed = self.question == "steps_since" or (self.question != _TIMES and wanted is True)
        return seen.decided(self.question, self.controller) if is_needed else START

    def counted(self, seen: Sightings) -> PossibleCount | None:
        """Return how it counts decisions, if it does."""
        if not self.is_count:
            return None
        return PossibleCount(lambda number: seen.decided("fired", self.controller) if number else START, math.inf)


class Past:
    """The answers and decisions of a controller (or several of one name).

    Attributes:
        times: The number of decisions at earlier events.
        step: The step of the newest of them; None before the first.
        holds: Whether the rule was true at its last evaluation at an earlier event.
        streak: How many of its newest answers in a row are true.
        true_at, fired_at: The newest event at which the rule was true, and at which the controller decided.
        raised: How many of the controllers are raised as of earlier events.
        stage: The stage of the newest decision, from 1.
        next_holds: What ``holds`` is once all rules of an event are asked, for a member; None to stay.
    """

    __slots__ = ("fired_at", "holds", "next_holds", "raised", "stage", "step", "streak", "times", "true_at")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget all decisions."""
        self.times = 0
        self.step: int | None = None
        self.holds = False
        self.streak = 0
        self.true_at: Event | None = None
        self.fired_at: Event | None = None
        self.raised = 0
        self.stage = 0
        self.next_holds: bool | None = None

    def note(self, step: int) -> None:
        """Note a decision."""
        self.times += 1
        self.step = step

    def steps_since(self, step: int) -> int:
        """Return the steps from the newest decision to a step.

        Raises:
            Undefined: There was no decision.
        """
        if self.step is None:
            raise Undefined("has not decided")
        return step - self.step
