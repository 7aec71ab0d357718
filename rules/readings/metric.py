"""The value of a controller metric, the class of a state, and the newest change of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .first_events import START, First
from .reading import Limits, Reading, Sightings, ValueType


@dataclass(frozen=True, slots=True)
class MetricValue(Reading):
    """The value of a controller metric."""

    name: str

    is_of_event_alone: ClassVar[bool] = True
    value_type: ClassVar[ValueType] = ValueType.UNKNOWN

    @property
    def is_standing(self) -> bool:
        return True

    def bounds(self, limits: Limits) -> None:
        """Return None: it may be no number."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the metric may be there. The truth of one that is not there yet is true."""
        return seen.metric(self.name) if wanted is None else START


class StateClass(MetricValue):
    """The class of a state."""

    __slots__ = ()

    is_shown_by_name: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class StateChange(Reading):
    """A question about the newest change of a state: whether it is now, its age in steps, or the class before."""

    question: str
    state: str

    is_of_event_alone: ClassVar[bool] = True

    @property
    def value_type(self) -> ValueType:
        """A truth, a text or a number of steps."""
        types = {"changed": ValueType.TRUTH, "previous": ValueType.TEXT}
        return types.get(self.question, ValueType.WHOLE)

    def bounds(self, limits: Limits) -> None:
        """Return None: nothing bounds it."""

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return the start: when a state takes a class depends on values."""
        return START
