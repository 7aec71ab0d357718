"""Whether an event reaches another share of the run's declared length, as in ``milestone(every=0.05)``.

Takes the events that count for a call, with the run's position and length at each; counts the shares that are reached,
in exact arithmetic. A share that was reached does not come again.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from ...store.events import RANKS, Event
from ...store.run_info import Plan
from ..functions.undefined import Undefined
from .first_events import START, First
from .generated import call, name
from .ranges import TRUTH, Range
from .reading import (
    AnyTerm,
    Code,
    Extent,
    NotColumnar,
    Reading,
    RunSeries,
    Sightings,
    TermMaker,
    ValueLimits,
    ValueType,
)

if TYPE_CHECKING:
    from .vectors import Vector

#: The most shares of one call.
MAX_SHARES: Final = 10_000


def exact(number: float | str | Fraction) -> Fraction:
    """Return a number as the decimal as which it is written.

    >>> exact(0.07), exact("1/3")
    (Fraction(7, 100), Fraction(1, 3))
    """
    return Fraction(str(number))


def position_of(share: Fraction, length: float) -> int:
    """Return the first whole position at which a share of a length is reached.

    >>> position_of(Fraction(7, 100), 100), position_of(Fraction(1, 4), 10)
    (7, 3)
    """
    return math.ceil(share * Fraction(length))


def multiples(share: Fraction) -> tuple[Fraction, ...]:
    """Return a share and its multiples, up to the whole.

    >>> multiples(Fraction(2, 5))
    (Fraction(2, 5), Fraction(4, 5))
    """
    return tuple(share * times for times in range(1, math.floor(1 / share) + 1))


@dataclass(frozen=True, slots=True)
class Milestone(Reading):
    """Whether an event reaches another share of a run's length.

    Attributes:
        shares: The shares, ascending.
        extent: The unit of the length; not values or seconds.
        owner: What asks: each controller and each state counts for itself.
    """

    shares: tuple[Fraction, ...]
    extent: Extent
    owner: str

    is_of_event_alone: ClassVar[bool] = True
    value_type: ClassVar[ValueType] = ValueType.TRUTH

    @property
    def unit(self) -> Extent:
        return self.extent

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        return call(name(code.names.milestone_of(self)))

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        raise NotColumnar(f"it calls {text}")

    def column(self, columns: RunSeries, kind: str) -> Vector:
        raise NotColumnar("columns count no milestones")

    def bounds(self, limits: ValueLimits) -> Range:
        """Return the range of a truth."""
        return TRUTH

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start."""
        return START


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
