"""What the keys mean that hold a controller back: ``patience``, ``for``, ``cooldown`` and ``between``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RESET_ON_FAILURE: Final = "reset_on_failure"
NO_RESET_ON_FAILURE: Final = "no_reset_on_failure"
MODES: Final = (RESET_ON_FAILURE, NO_RESET_ON_FAILURE)

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

    @property
    def length(self) -> int:
        """The amount in whole steps, evaluations or nanoseconds."""
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


@dataclass(frozen=True, slots=True)
class Patience:
    """The patience that a controller declares.

    Attributes:
        threshold: True answers to tolerate before one fires; 0 and less tolerate none.
        mode: Whether a false answer restarts the count.
    """

    threshold: int = 1
    mode: str = RESET_ON_FAILURE
