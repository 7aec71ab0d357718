"""Spans of a run, and the keys of a controller that hold it back for a span: ``for``, ``cooldown``, ``between``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...store.events import Event
from .context import Clock

_NS_PER_S: Final = 1_000_000_000


class Unit(StrEnum):
    """The unit of a span."""

    STEPS = "steps"
    EVALUATIONS = "evaluations"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Span:
    """A length of a run.

    Attributes:
        amount: In the unit; seconds may be fractions.
        unit: Steps, ``evaluate`` events, or seconds of training time over all attempts.
    """

    amount: float
    unit: Unit = Unit.STEPS

    def now(self, event: Event, clock: Clock) -> int:
        """Return the run's position at an event, in this span's unit, with nanoseconds for seconds.

        The clock must already have taken the event.
        """
        if self.unit is Unit.STEPS:
            return event.step
        return clock.evaluations if self.unit is Unit.EVALUATIONS else clock.elapsed_ns

    @property
    def length(self) -> int:
        """The amount in the unit of ``now``."""
        return round(self.amount * _NS_PER_S) if self.unit is Unit.SECONDS else int(self.amount)


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The span after a decision in which a controller cannot fire.

    Attributes:
        span: Counted from the decision.
        name: The name under which controllers share it; empty for a cooldown of one controller alone.
    """

    span: Span
    name: str = ""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The steps at which a controller is evaluated, both ends included; None for an open end."""

    first: int | None = None
    last: int | None = None


class SpanTimer:
    """Measures one span from one event to another."""

    __slots__ = ("_began", "_length", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._length = span.length
        self._began: int | None = None

    def start(self, event: Event, clock: Clock) -> None:
        """Start at an event."""
        self._began = self._span.now(event, clock)

    def stop(self) -> None:
        """Stop, and forget the start."""
        self._began = None

    @property
    def is_running(self) -> bool:
        """Whether it has been started."""
        return self._began is not None

    def is_over(self, event: Event, clock: Clock) -> bool:
        """Whether the span has passed since the start."""
        return self._began is not None and self._span.now(event, clock) - self._began >= self._length
