"""A question about a controller's decisions and answers at earlier events, such as ``fired("c")``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from ..functions.table import TRUE_OF_CONTROLLERS
from .first_events import START, First, PossibleCount
from .ranges import Range
from .reading import Limits, Reading, Sightings, ValueType

_TIMES: Final = "times_fired"


@dataclass(frozen=True, slots=True)
class PastDecisions(Reading):
    """A question about a controller's decisions at earlier events."""

    question: str
    controller: str

    is_of_event_alone: ClassVar[bool] = True

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

    def bounds(self, limits: Limits) -> Range | None:
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
