"""The gates between a rule's true answer and a decision: raised, hold, once, cap, cooldown and patience, in this order.

Takes the answers of one controller at one trigger; returns whether it fires.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...store.events import Event
from ..language.clock import RESET_ON_FAILURE, Clock, Cooldown, Patience, Span, Unit
from ..policy_file.declarations import Escalation
from ..readings.past_decisions import Past


class SpanTimer:
    """Measures one span from one event to another."""

    __slots__ = ("_began", "_length", "_unit")

    def __init__(self, span: Span) -> None:
        self._unit = span.unit
        self._length = span.length
        self._began: int | None = None

    def start(self, event: Event, clock: Clock) -> None:
        """Start at an event."""
        self._began = self._position(event, clock)

    def stop(self) -> None:
        """Stop, and forget the start."""
        self._began = None

    @property
    def is_running(self) -> bool:
        """Whether it has been started."""
        return self._began is not None

    def is_over(self, event: Event, clock: Clock) -> bool:
        """Whether the span has passed since the start."""
        return self._began is not None and self._position(event, clock) - self._began >= self._length

    def _position(self, event: Event, clock: Clock) -> int:
        """Return the run's position at an event in the span's unit, in nanoseconds for seconds.

        The clock must already have taken the event.
        """
        if self._unit is Unit.STEPS:
            return event.step
        return clock.evaluations if self._unit is Unit.EVALUATIONS else clock.elapsed_ns


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


class RaisedState:
    """Whether a controller that has a ``clear`` is raised: it has decided, and ``clear`` has not been true since.

    Attributes:
        raised_by: The event of the decision; None while it is not raised.
        raised_at: The step of the newest decision.
    """

    __slots__ = ("_cleared_by", "raised_at", "raised_by")

    def __init__(self) -> None:
        self.raised_at = 0
        self.renew()

    def renew(self) -> None:
        """Forget that it is raised."""
        self.raised_by: Event | None = None
        self._cleared_by: Event | None = None

    def start(self, event: Event) -> None:
        """Note that it decides."""
        self.raised_by, self.raised_at = event, event.step

    def stop(self, event: Event) -> None:
        """Note that its ``clear`` is true."""
        self.raised_by, self._cleared_by = None, event

    def holds(self, event: Event) -> bool:
        """Whether the controller may not decide at an event: it was raised at its beginning."""
        return self.raised_by is not None or self._cleared_by is event


class Ladder:
    """The stages of one controller's decisions.

    Attributes:
        declaration: As in the policy.
    """

    __slots__ = ("_count", "_timer", "declaration")

    def __init__(self, declaration: Escalation) -> None:
        self.declaration = declaration
        self._count = 0
        self._timer = None if declaration.forget_after is None else SpanTimer(declaration.forget_after)

    def renew(self) -> None:
        """Begin with the first stage."""
        self._count = 0
        if self._timer is not None:
            self._timer.stop()

    def is_spent(self, event: Event, clock: Clock) -> bool:
        """Whether the cap is reached. What is long enough ago is forgotten."""
        if self._timer is not None and self._timer.is_running and self._timer.is_over(event, clock):
            self.renew()
        return self.declaration.cap is not None and self._count >= self.declaration.cap

    def climb(self, event: Event, clock: Clock) -> int:
        """Return the index of the stage of a decision."""
        stage = self.declaration.stage_of(self._count)
        self._count += 1
        if self._timer is not None:
            self._timer.start(event, clock)
        return stage


class FiringLimits:
    """The limits that all triggers of a controller share: whether it has decided, is raised, and its cooldown.

    Args:
        past: Past decisions of the controllers of this name.
        is_once: Whether it may decide only once.
        cooldown: The timer of its cooldown, which other controllers may share; None without one.
        raised: Whether it is raised; None without a ``clear``.
        ladder: The stages of its decisions; None without any.
    """

    __slots__ = ("_has_fired", "_is_once", "cooldown", "gates", "ladder", "past", "raised")

    def __init__(
        self,
        past: Past,
        *,
        is_once: bool,
        cooldown: SpanTimer | None,
        raised: RaisedState | None = None,
        ladder: Ladder | None = None,
    ) -> None:
        self.past = past
        self.cooldown = cooldown
        self.raised = raised
        self.ladder = ladder
        self.gates: list[FiringGate] = []
        self._is_once = is_once
        self._has_fired = False

    def renew(self) -> None:
        """Forget past decisions and stop the cooldown."""
        self._has_fired = False
        self.past.renew()
        if self.raised is not None:
            self.raised.renew()
        if self.ladder is not None:
            self.ladder.renew()
        if self.cooldown is not None:
            self.cooldown.stop()

    def note_past(self, event: Event) -> None:
        """Note a decision for rules at later events."""
        self.past.note(event.step)

    @property
    def is_spent(self) -> bool:
        """Whether it has decided and may not decide again."""
        return self._is_once and self._has_fired

    def is_cooling(self, event: Event, clock: Clock) -> bool:
        """Whether its cooldown is running."""
        timer = self.cooldown
        return timer is not None and timer.is_running and not timer.is_over(event, clock)

    def note(self, event: Event, clock: Clock) -> int:
        """Note that it decides and start the cooldown; return the index of its stage.

        ``past`` learns of it once all rules of the event are asked.
        """
        self._has_fired = True
        if self.raised is not None:
            self.raised.start(event)
        if self.cooldown is not None:
            self.cooldown.start(event, clock)
        return 0 if self.ladder is None else self.ladder.climb(event, clock)


class FiringGate:
    """Applies hold, limits and patience to the answers of one controller at one trigger.

    Undefined answers never reach it.

    Args:
        restraint: The limits that its triggers share.
        clock: Advanced to each event before the event's answer arrives.
        patience: As declared.
        hold: How long the rule must have been true, as declared.

    Attributes:
        stage: The index of the stage of its newest decision.
    """

    __slots__ = ("_clock", "_hold", "_patience", "_restraint", "_timer", "stage")

    def __init__(self, restraint: FiringLimits, clock: Clock, patience: Patience | None, hold: Span | None) -> None:
        self._restraint = restraint
        self._clock = clock
        self._patience = None if patience is None else PatienceCounter(patience)
        self._timer = None if hold is None else SpanTimer(hold)
        self.stage = 0
        restraint.gates.append(self)

    def renew(self) -> None:
        """Reset patience and hold."""
        if self._patience is not None:
            self._patience.renew()
        if self._timer is not None:
            self._timer.stop()

    def asks_clear(self, event: Event) -> bool:
        """Whether the controller was raised at an earlier event than this one."""
        raised = self._restraint.raised
        return raised is not None and raised.raised_by is not None and raised.raised_by is not event

    def clear(self, event: Event) -> None:
        """Note that the ``clear`` of a raised controller is true: patience and hold begin anew, at all its triggers."""
        assert self._restraint.raised is not None
        self._restraint.raised.stop(event)
        for gate in self._restraint.gates:
            gate.renew()

    def on_false(self) -> None:
        """Record a false answer."""
        if self._patience is not None:
            self._patience.on_false()
        if self._timer is not None:
            self._timer.stop()

    def on_true(self, event: Event) -> bool:
        """Record a true answer; return whether the controller fires now."""
        timer, restraint = self._timer, self._restraint
        if restraint.raised is not None and restraint.raised.holds(event):
            return False
        if timer is not None and not self._has_held(timer, event):
            return False
        if restraint.is_spent or (restraint.ladder is not None and restraint.ladder.is_spent(event, self._clock)):
            return False
        if restraint.is_cooling(event, self._clock):
            if self._patience is not None:
                self._patience.count_true()
            return False
        if self._patience is not None and not self._patience.on_true():
            return False
        if timer is not None:
            timer.start(event, self._clock)
        self.stage = restraint.note(event, self._clock)
        return True

    def _has_held(self, timer: SpanTimer, event: Event) -> bool:
        """Whether the rule has been true for long enough, of which it is now."""
        if not timer.is_running:
            timer.start(event, self._clock)
        return timer.is_over(event, self._clock)


def shared_timers(cooldowns: Sequence[Cooldown | None]) -> dict[str, SpanTimer]:
    """Return one timer for each cooldown that controllers share by name."""
    return {cooldown.name: SpanTimer(cooldown.span) for cooldown in cooldowns if cooldown and cooldown.name}
