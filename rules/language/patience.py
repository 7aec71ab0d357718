"""How often a rule must be true before its controller acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RESET_ON_FAILURE: Final = "reset_on_failure"
NO_RESET_ON_FAILURE: Final = "no_reset_on_failure"
MODES: Final = (RESET_ON_FAILURE, NO_RESET_ON_FAILURE)


@dataclass(frozen=True, slots=True)
class Patience:
    """What a controller declares.

    Attributes:
        threshold: True answers to tolerate before one fires; 0 and less tolerate none.
        mode: Whether a false answer starts the count again.
    """

    threshold: int = 1
    mode: str = RESET_ON_FAILURE


class PatienceCounter:
    """The count of one controller at one trigger. Undefined answers never reach it."""

    __slots__ = ("_count", "_resets", "_threshold")

    def __init__(self, patience: Patience) -> None:
        self._threshold = patience.threshold
        self._resets = patience.mode == RESET_ON_FAILURE
        self._count = 0

    def renew(self) -> None:
        """Start the count again."""
        self._count = 0

    def count_true(self) -> None:
        """Count a true answer of a controller that may not fire now."""
        self._count += 1

    def on_true(self) -> bool:
        """Count a true answer; whether the controller fires now, which starts the count again."""
        self._count += 1
        if self._count <= self._threshold:
            return False
        self._count = 0
        return True

    def on_false(self) -> None:
        """Note a false answer."""
        if self._resets:
            self._count = 0
