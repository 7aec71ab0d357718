"""Computes an attempt's lineage: its own events and those of its ancestors up to the checkpoints it was resumed from.

Takes the attempts of ``run.json``. Events that a parent recorded after the checkpoint are rolled back: they stay
readable, but no lineage that continues from that checkpoint ever includes them, however often the run is resumed later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .events import Event
from .run_info import Attempt

#: The rank whose events rules are folded over, and whose ``seq`` identifies a checkpoint.
DECIDING_RANK: Final = 0

#: Limits that include everything, and nothing. ``seq`` and steps are 64-bit signed integers.
NO_LIMIT: Final = 2**63 - 1
NOTHING: Final = -(2**63)


class Cut(NamedTuple):
    """The part of an attempt that a lineage includes, for attempts other than the newest.

    Attributes:
        last_seq: Deciding rank: the last ``seq`` included.
        last_step: Deciding rank: the last step included. Both limits apply.
        last_step_elsewhere: Every other rank: the last step included. (Each rank numbers ``seq`` on its own.)
    """

    last_seq: int
    last_step: int
    last_step_elsewhere: int

    def holds(self, rank: int, seq: int, step: int) -> bool:
        """Whether an event of the attempt is within the cut."""
        if rank == DECIDING_RANK:
            return seq <= self.last_seq and step <= self.last_step
        return step <= self.last_step_elsewhere


_EMPTY: Final = Cut(NOTHING, NOTHING, NOTHING)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The events that led to one attempt, its own included.

    Attributes:
        attempts: The attempts of the lineage, in ascending order: the first ancestor first, the attempt itself last.
        cuts: The effective part of every other attempt of the run. It is empty for an attempt that is not an ancestor.
            An attempt missing from ``run.json`` has no cut, since nothing shows that it was rolled back.
    """

    attempts: tuple[int, ...]
    cuts: Mapping[int, Cut]

    def holds(self, attempt: int, rank: int, seq: int, step: int) -> bool:
        """Whether an event is effective; otherwise a resume rolled it back."""
        cut = self.cuts.get(attempt)
        return cut is None or cut.holds(rank, seq, step)

    def events(self, events: Iterable[Event]) -> Iterator[Event]:
        """The effective events, in the order given."""
        if not self.cuts:
            return iter(events)
        return (event for event in events if self.holds(event.attempt, event.rank, event.seq, event.step))


def lineage_of(attempts: Iterable[Attempt], attempt: Attempt | None = None) -> Lineage:
    """Return the lineage of an attempt.

    An attempt without a parent started from scratch: its lineage is itself alone. An attempt with a parent inherits the
    parent's lineage. From the parent itself, it inherits the deciding rank's events up to the checkpoint's ``seq``, and
    other ranks' events up to its step. Without a ``seq``, it inherits everything up to the step; without either,
    nothing.

    Args:
        attempts: The attempts of the run, in order.
        attempt: The attempt; the newest when not given. It need not be among the run's attempts yet.

    Raises:
        ValueError: A parent is not one of the attempts before its child.
    """
    listed = tuple(attempts)
    known = {entry.attempt: entry for entry in listed}
    newest = listed[-1] if attempt is None else attempt
    cuts = dict.fromkeys(known.keys() - {newest.attempt}, _EMPTY)
    chain = [newest.attempt]
    last_step = last_step_elsewhere = NO_LIMIT
    child = newest
    while child.parent is not None:
        if child.parent not in known or child.parent >= child.attempt:
            raise ValueError(f"attempt {child.attempt} names attempt {child.parent} as its parent")
        step = NOTHING if child.from_step is None else child.from_step
        last_step_elsewhere = min(last_step_elsewhere, step)
        if child.parent_seq is None:
            last_step = min(last_step, step)
        last_seq = NO_LIMIT if child.parent_seq is None else child.parent_seq
        cuts[child.parent] = Cut(last_seq, last_step, last_step_elsewhere)
        chain.append(child.parent)
        child = known[child.parent]
    return Lineage(tuple(reversed(chain)), cuts)


def ancestors_of(
    attempts: Iterable[Attempt], attempt: Attempt, events: Iterable[Event]
) -> list[tuple[Attempt, list[Event]]]:
    """Return an attempt's ancestors, the first ancestor first, each with those of its events that are still effective.

    Args:
        attempts: The attempts of the run.
        attempt: The attempt that continues the run. It need not be among them yet.
        events: Events of the run, in order; only those of ancestors are used.

    Raises:
        ValueError: A parent is not one of the attempts before its child.
    """
    known = {entry.attempt: entry for entry in attempts}
    lineage = lineage_of(known.values(), attempt)
    held: dict[int, list[Event]] = {number: [] for number in lineage.attempts[:-1]}
    for event in events:
        if event.attempt in held and lineage.cuts[event.attempt].holds(event.rank, event.seq, event.step):
            held[event.attempt].append(event)
    return [(known[number], own) for number, own in held.items()]


def merged(streams: Sequence[Iterable[Event]]) -> Iterator[Event]:
    """Merge the events of several ranks into one timeline, by (step, rank). Each rank keeps its own order.

    Args:
        streams: The events of each rank, in order.
    """
    return heapq.merge(*streams, key=lambda event: (event.step, event.rank))
