"""Defines what the search for possible firings knows of a run: where values and events came, and what never does.

Holds no value of a series: only indices of events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ...store.events import BEFORE_STREAM
from ...store.run_info import Plan
from ..language.references import SeriesKey


class Appearances(Protocol):
    """Where in a run values and events came, as indices in its stream, ascending.

    Attributes:
        plan: What the loop declared.
        nan_filtered: Names of training metrics whose values that are not finite were replaced before they were logged.
    """

    plan: Plan
    nan_filtered: Collection[str]

    @property
    def has_samples(self) -> bool:
        """Whether any event has sample losses."""

    @property
    def vector_names(self) -> frozenset[str]:
        """The names of all vectors of its events."""

    def first_from(self, step: float) -> int | None:
        """Return the first event at a step or later; None without one."""

    def values(self, key: SeriesKey) -> Sequence[int]:
        """Return the events that brought the values of a series; ``BEFORE_STREAM`` for a declared constant."""

    def events(self, kind: str) -> Sequence[int]:
        """Return the events of a kind."""

    def step(self, index: int) -> int:
        """Return the step of an event."""

    def first_epoch(self) -> int | None:
        """Return the first event with a known epoch; None without one."""


@dataclass(frozen=True, slots=True)
class Never:
    """The reason why something never comes.

    Attributes:
        reason: What the run lacks.
        is_absent: Whether it lacks a series or a kind of event altogether.
    """

    reason: str
    is_absent: bool = False


#: The index of the first event at which something may be so, or why there is none.
First = int | Never

#: Before every event.
START: Final = BEFORE_STREAM


def all_of(parts: Iterable[First]) -> First:
    """Return when the last of some conditions is met."""
    latest, never = START, None
    for part in parts:
        if isinstance(part, int):
            latest = max(latest, part)
        elif never is None or (part.is_absent and not never.is_absent):
            never = part
    return latest if never is None else never


def any_of(parts: Iterable[First]) -> First:
    """Return when the first of some conditions is met."""
    found = list(parts)
    firsts = [part for part in found if isinstance(part, int)]
    if firsts:
        return min(firsts)
    nevers = [part for part in found if isinstance(part, Never)]
    # A rule that one side of an `or` can never make true lacks what the other sides lack.
    absent = [part for part in nevers if part.is_absent] or nevers
    return Never(" and ".join(dict.fromkeys(part.reason for part in absent)), any(part.is_absent for part in absent))
