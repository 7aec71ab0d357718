"""Whether an event reaches another share of the run's declared length, as in ``milestone(every=0.05)``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from .first_events import START, First
from .ranges import TRUTH, Range
from .reading import Extent, Limits, Reading, Sightings, ValueType


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

    def bounds(self, limits: Limits) -> Range:
        """Return the range of a truth."""
        return TRUTH

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start."""
        return START
