"""The newest values of all ranks, as in ``any_rank(not isfinite(loss))`` and ``spread(loss)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..functions.table import ANY_RANK
from .first_events import START, First
from .reading import Limits, Reading, Sightings, ValueType


@dataclass(frozen=True, slots=True)
class AcrossRanks(Reading):
    """A question about the newest values of all ranks.

    Attributes:
        question: The function.
        name: The series, for a function of one.
    """

    question: str
    name: str = ""

    is_of_event_alone: ClassVar[bool] = True

    @property
    def value_type(self) -> ValueType:
        """A truth or a float."""
        return ValueType.TRUTH if self.question == ANY_RANK else ValueType.FLOAT

    def bounds(self, limits: Limits) -> None:
        """Return None: nothing bounds it."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start: nothing says when other ranks bring values."""
        return START


@dataclass(frozen=True, slots=True)
class RankValue(Reading):
    """The newest value of a series on the rank of which a condition is asked."""

    name: str

    value_type: ClassVar[ValueType] = ValueType.FLOAT

    def bounds(self, limits: Limits) -> None:
        """Return None: nothing bounds it."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start: nothing says when other ranks bring values."""
        return START
