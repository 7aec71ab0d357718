"""The arithmetic of operations on the learning rate: the same for a loop that trains and for a replay.

Every rate here is one number for each parameter group of an optimizer. *Base* rates are what the loop's schedule gives.
*Scheduled* ones are these times the permanent reductions. *Used* ones follow an override for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .calls import OperationCall

Rates: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """What takes the place of the schedule for a while.

    Attributes:
        at: Updates finished when it began.
        factor: Of the scheduled rate.
        target: The absolute rates from which it begins.
        over: Its length in updates; None for one that lasts until it is lifted.
        is_blended: Whether it returns to the schedule in a straight line; otherwise it keeps the target until its end.
    """

    at: int
    factor: float
    target: Rates
    over: int | None
    is_blended: bool

    def used(self, update: int, scheduled: Rates) -> Rates:
        """Return the rates of an update."""
        if self.over is None:
            return tuple(self.factor * rate for rate in scheduled)
        elapsed = update - self.at
        if elapsed >= self.over:
            return scheduled
        targets = self._targets(scheduled)
        if not self.is_blended:
            return targets
        pairs = zip(targets, scheduled, strict=True)
        return tuple(target + (rate - target) * (elapsed / self.over) for target, rate in pairs)

    def _targets(self, scheduled: Rates) -> Rates:
        """Return a target for each parameter group. One that came after the override begins at the factor."""
        later = scheduled[len(self.target) :]
        return (*self.target[: len(scheduled)], *(self.factor * rate for rate in later))


@dataclass(frozen=True, slots=True)
class LearningRateState:
    """What the operations so far have made of the schedule.

    Attributes:
        reduction: The product of all permanent reductions.
        override: The newest override; None without one. It may be over.
    """

    reduction: float = 1.0
    override: Override | None = None

    def scheduled(self, base: Sequence[float]) -> Rates:
        """Return the scheduled rates. Reductions count, and overrides do not."""
        return tuple(self.reduction * rate for rate in base)

    def used(self, update: int, base: Sequence[float]) -> Rates:
        """Return the rates with which an update trains.

        Args:
            update: Its number: the first update of a run has 1.
            base: The rates of the loop's schedule. Shape (groups,).
        """
        scheduled = self.scheduled(base)
        return scheduled if self.override is None else self.override.used(update, scheduled)

    def after(self, call: OperationCall, step: int, base: Sequence[float]) -> LearningRateState:
        """Return the state once a call is carried out.

        Args:
            call: ``lr.scale``, ``lr.reduce`` or ``lr.restore``.
            step: Updates finished by then.
            base: The base rates of the newest update.
        """
        given = call.arguments
        if call.name == "lr.restore":
            return LearningRateState()
        factor = float(given["factor"] or 0)
        if call.name == "lr.reduce":
            return replace(self, reduction=self.reduction * factor)
        over = None if given["over"] is None else int(given["over"])
        target = tuple(factor * rate for rate in self.scheduled(base))
        return replace(self, override=Override(step, factor, target, over, given["blend"] == "linear"))
