"""Patience: the number of true answers that a rule must give before its controller fires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RESET_ON_FAILURE: Final = "reset_on_failure"
NO_RESET_ON_FAILURE: Final = "no_reset_on_failure"
MODES: Final = (RESET_ON_FAILURE, NO_RESET_ON_FAILURE)


@dataclass(frozen=True, slots=True)
class Patience:
    """The patience that a controller declares.

    Attributes:
        threshold: True answers to tolerate before one fires; 0 and less tolerate none.
        mode: Whether a false answer restarts the count.
    """

    threshold: int = 1
    mode: str = RESET_ON_FAILURE


class PatienceCounter:
    """Counts the true answers of one controller at one trigger. Undefined answers never reach it."""

    __slots__ = ("_count", "_resets", "_threshold")

    def __init__(self, patience: Patience) -> None:
        self._threshold = patience.threshold
        self._resets = patience.mode == RESET_ON_FAILURE
        self._count = 0

    def renew(self) -> None:
        """Restart the count."""
        self._count = 0

    def count_true(self) -> None:
        """Count a true answer of a controller that may not fire now."""
        self._count += 1

    def on_true(self) -> bool:
        """Count a true answer; return whether the controller fires now, which restarts the count."""
        self._count += 1
        if self._count <= self._threshold:
            return False
        self._count = 0
        return True

    def on_false(self) -> None:
        """Record a false answer, which restarts the count if the mode says so."""
        if self._resets:
            self._count = 0
