"""Milestones of a run: what a call of ``milestone`` asks for, and which of its shares a run has reached.

Takes the events that count for a call, with the run's position and length at each; returns whether one of them reached
another share. A share that was reached does not come again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from ...store.events import RANKS, Event
from ...store.run_info import Plan
from ..functions.milestones import position_of
from ..functions.undefined import Undefined
from ..readings.milestone import Milestone
from ..readings.reading import Extent


class Reached(NamedTuple):
    """How many shares a run has reached. Clocks copy each other, so it does not change.

    Attributes:
        before: Those of events before the newest that counts.
        now: Those up to that event.
        is_known: Whether position and length were known at that event.
    """

    before: int = 0
    now: int = 0
    is_known: bool = False

    def read(self) -> bool:
        """Return whether the newest event that counts reached a share.

        Raises:
            Undefined: Position or length were not known there.
        """
        if not self.is_known:
            raise Undefined("no declared length, or no known position")
        return self.now > self.before


class MilestoneTracker:
    """Counts the shares that a run has reached at events of some kinds.

    Args:
        milestone: The shares, and the unit of the length.
        kinds: The kinds of events that count.
    """

    def __init__(self, milestone: Milestone, kinds: frozenset[str]) -> None:
        self._shares = milestone.shares
        self._extent = milestone.extent
        self._kinds = kinds
        # The positions of one length: a run has few lengths.
        self._length: float | None = None
        self._positions: list[float] = []

    def after(self, reached: Reached, event: Event, plan: Plan, position: Callable[[Extent], float | None]) -> Reached:
        """Return what is reached after an event.

        Args:
            reached: What was reached before.
            event: The event.
            plan: What its attempt has declared so far.
            position: Returns how far the run has come in a unit.
        """
        if event.kind not in self._kinds:
            return reached
        length, now = length_in(plan, self._extent), reached.now
        at = _position(self._extent, event, position)
        if length is None or at is None:
            return Reached(now, now)
        if length != self._length:
            self._length = length
            self._positions = [_place_of(share, length, self._extent) for share in self._shares]
        count = now
        while count < len(self._positions) and at >= self._positions[count]:
            count += 1
        return Reached(now, count, is_known=True)


def length_in(plan: Plan, extent: Extent) -> float | None:
    """Return the declared length of a run in a unit; None without one that is finite and above 0."""
    length: float | None
    match extent:
        case Extent.STEPS:
            length = plan.max_steps()
        case Extent.EPOCHS:
            length = plan.total_epochs
        case _:
            length = plan.constants.get(f"total_{extent}")
    return length if length is not None and math.isfinite(length) and length > 0 else None


def _position(extent: Extent, event: Event, position: Callable[[Extent], float | None]) -> float | None:
    if extent is Extent.STEPS:
        return event.step
    if extent is Extent.EPOCHS:
        epoch = event.epoch if event.epoch is not None else event.metrics.get("epoch")
        if epoch is not None or event.kind != RANKS:
            return epoch
    return position(extent)


def _place_of(share: Fraction, length: float, extent: Extent) -> float:
    """Return where a share is reached. Only epochs pass in fractions."""
    return float(share * Fraction(length)) if extent is Extent.EPOCHS else position_of(share, length)
