"""A question about a controller's decisions and answers at earlier events, such as ``times_fired("c")``."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ...store.events import Event
from ..errors import suggestion
from ..functions.plain_functions import Function
from ..functions.undefined import Undefined
from .call import Call
from .first_events import START, First, PossibleCount
from .generated import EVENT, attribute, call, name
from .ranges import Range
from .reading import AnyTerm, Code, NotColumnar, Reading, RunSeries, Sightings, TermMaker, ValueLimits, ValueType

if TYPE_CHECKING:
    from .vectors import Vector

_TIMES: Final = "times_fired"

#: What a controller above in the file has decided at the same event.
FIRED_NOW: Final = "fired_now"
#: The functions whose argument is a controller's name.
FUNCTIONS: Final = (
    Function(
        "times_fired",
        'times_fired("c")',
        "The number of earlier events and triggers at which rule c made a decision.",
    ),
    Function(
        "steps_since",
        'steps_since("c")',
        "Steps since the newest decision of rule c. Undefined if there is none.",
    ),
    Function(FIRED_NOW, 'fired_now("c")', "Whether rule c, above in the file, has made a decision at this event."),
)


@dataclass(frozen=True, slots=True)
class PastDecisions(Reading):
    """A question about a controller's decisions at earlier events."""

    question: str
    controller: str

    examples: ClassVar[tuple[str, ...]] = (
        'times_fired("above")',
        'steps_since("above")',
        'streak("above")',
        'fired_now("above")',
    )
    is_of_event_alone: ClassVar[bool] = True
    changes_within_event: ClassVar[bool] = True

    @classmethod
    def bind(cls, call: Call) -> PastDecisions | None:
        """Return a question about a controller, whose name is a literal."""
        name, question, scope = call.named("controller"), call.function.name, call.scope
        if name is None:
            return None
        argument = call.node.args[0]
        if name not in scope.controllers:
            call.faults.refuse(argument, "unknown controller", suggestion(name, scope.controllers))
        elif question == FIRED_NOW and name not in scope.above:
            fix = f'Put it before this one, or ask times_fired("{name}") > 0 of earlier events.'
            call.faults.refuse(argument, "not a controller above in the file", fix)
        else:
            return cls(question, name)
        return None

    @property
    def value_type(self) -> ValueType:
        return ValueType.TRUTH if self.question == FIRED_NOW else ValueType.WHOLE

    @property
    def asks_about(self) -> str:
        return self.controller

    @property
    def is_count(self) -> bool:
        return self.question in (_TIMES, "streak")

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        past = name(code.names.past_of(self.controller))
        match self.question:
            case "times_fired":
                return attribute(past, "times")
            case "fired_now":
                return ast.Compare(attribute(past, "fired_at"), [ast.Is()], [name(EVENT)])
            case "steps_since":
                return call(attribute(past, "steps_since"), attribute(name(EVENT), "step"))
        return attribute(past, self.question)

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        return terms.of_past(self.question, self.controller)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("the firings of other rules answer it")

    def bounds(self, limits: ValueLimits) -> Range | None:
        """Return the range of the answer, which depends on the other rule."""
        return limits.asked(self.question, self.controller)

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the other controller may have decided, where the answer needs it."""
        is_needed = self.question == "steps_since" or (self.question == FIRED_NOW and wanted is True)
        return seen.decided(self.question, self.controller) if is_needed else START

    def counted(self, seen: Sightings) -> PossibleCount | None:
        """Return how it counts decisions or answers, if it does."""
        if not self.is_count:
            return None
        return PossibleCount(lambda number: seen.decided(self.question, self.controller) if number else START, math.inf)


class Past:
    """The answers and decisions of a controller (or several of one name).

    Attributes:
        times: The number of decisions at earlier events.
        step: The step of the newest of them; None before the first.
        streak: How many of its newest answers in a row are true.
        fired_at: The newest event at which the controller decided.
        stage: The stage of the newest decision, from 1.
    """

    __slots__ = ("fired_at", "stage", "step", "streak", "times")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget all decisions."""
        self.times = 0
        self.step: int | None = None
        self.streak = 0
        self.fired_at: Event | None = None
        self.stage = 0

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
