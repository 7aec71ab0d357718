"""The gates between a rule's true answer and a decision: hold, once, cooldown and patience, in this order.

Takes the answers of one controller at one trigger; returns whether it fires.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...store.events import Event
from ..language.context import Clock, Past
from ..language.patience import Patience, PatienceCounter
from ..language.timing import Cooldown, Span, SpanTimer


class FiringLimits:
    """The limits that all triggers of a controller share: whether it has decided, and its cooldown.

    Args:
        past: Past decisions of the controllers of this name.
        is_once: Whether it may decide only once.
        cooldown: The timer of its cooldown, which other controllers may share; None without one.
    """

    __slots__ = ("_has_fired", "_is_once", "cooldown", "past")

    def __init__(self, past: Past, *, is_once: bool, cooldown: SpanTimer | None) -> None:
        self.past = past
        self.cooldown = cooldown
        self._is_once = is_once
        self._has_fired = False

    def renew(self) -> None:
        """Forget past decisions and stop the cooldown."""
        self._has_fired = False
        self.past.renew()
        if self.cooldown is not None:
            self.cooldown.stop()

    @property
    def is_spent(self) -> bool:
        """Whether it has decided and may not decide again."""
        return self._is_once and self._has_fired

    def is_cooling(self, event: Event, clock: Clock) -> bool:
        """Whether its cooldown is running."""
        timer = self.cooldown
        return timer is not None and timer.is_running and not timer.is_over(event, clock)

    def note(self, event: Event, clock: Clock) -> None:
        """Note that it decides and start the cooldown; ``past`` learns of it once all rules of the event are asked."""
        self._has_fired = True
        if self.cooldown is not None:
            self.cooldown.start(event, clock)


class FiringGate:
    """Applies hold, limits and patience to the answers of one controller at one trigger.

    Undefined answers never reach it.

    Args:
        restraint: The limits that its triggers share.
        clock: Advanced to each event before the event's answer arrives.
        patience: As declared.
        hold: How long the rule must have been true, as declared.
    """

    __slots__ = ("_clock", "_hold", "_patience", "_restraint", "_timer")

    def __init__(self, restraint: FiringLimits, clock: Clock, patience: Patience | None, hold: Span | None) -> None:
        self._restraint = restraint
        self._clock = clock
        self._patience = None if patience is None else PatienceCounter(patience)
        self._timer = None if hold is None else SpanTimer(hold)

    def renew(self) -> None:
        """Reset patience and hold."""
        if self._patience is not None:
            self._patience.renew()
        if self._timer is not None:
            self._timer.stop()

    def on_false(self) -> None:
        """Record a false answer."""
        if self._patience is not None:
            self._patience.on_false()
        if self._timer is not None:
            self._timer.stop()

    def on_true(self, event: Event) -> bool:
        """Record a true answer; return whether the controller fires now."""
        timer, restraint = self._timer, self._restraint
        if timer is not None:
            if not timer.is_running:
                timer.start(event, self._clock)
            if not timer.is_over(event, self._clock):
                return False
        if restraint.is_spent:
            return False
        if restraint.is_cooling(event, self._clock):
            if self._patience is not None:
                self._patience.count_true()
            return False
        if self._patience is not None and not self._patience.on_true():
            return False
        if timer is not None:
            timer.start(event, self._clock)
        restraint.note(event, self._clock)
        return True


def shared_timers(cooldowns: Sequence[Cooldown | None]) -> dict[str, SpanTimer]:
    """Return one timer for each cooldown that controllers share by name."""
    return {cooldown.name: SpanTimer(cooldown.span) for cooldown in cooldowns if cooldown and cooldown.name}
