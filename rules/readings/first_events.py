"""The event of a run from which on something may be so, as its index, or the reason why it never is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...store.events import BEFORE_STREAM


@dataclass(frozen=True, slots=True)
class Never:
    """The reason why something never comes.

    Attributes:
        reason: What the run lacks.
        is_absent: Whether it lacks a series, a kind of event, a plan or a clock altogether.
        metrics: The metrics that it lacks altogether.
        is_unplanned: Whether it lacks a plan.
    """

    reason: str
    is_absent: bool = False
    metrics: tuple[str, ...] = ()
    is_unplanned: bool = False


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
    return Never(
        " and ".join(dict.fromkeys(part.reason for part in absent)),
        any(part.is_absent for part in absent),
        tuple(dict.fromkeys(name for part in absent for name in part.metrics)),
        any(part.is_unplanned for part in absent),
    )


def of_constant(value: bool, wanted: bool) -> First:
    """Return when a truth that never changes is the one that is wanted."""
    return START if value is wanted else Never("a constant that makes the rule false")


class PossibleCount(NamedTuple):
    """How a part of a rule counts something.

    Attributes:
        first: Returns when it may first be a number.
        longest: The greatest number that it can be.
    """

    first: Callable[[int], First]
    longest: float
