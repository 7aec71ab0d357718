"""What of a run's attempts counts: each attempt's ancestors, up to the checkpoints that it was resumed from.

Attempts as ``run.json`` names them flow in; which events the lineage of one of them holds flows out. What a parent
recorded after the checkpoint was rolled back: it can be read, and is part of no lineage that goes on from there,
however often the run is resumed later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .events import Event
from .run_info import Attempt

#: The rank whose events rules are folded over, and whose ``seq`` a checkpoint is known by.
DECIDING_RANK: Final = 0

#: As a limit: everything, and nothing. Places and steps are 64-bit signed integers.
NO_LIMIT: Final = 2**63 - 1
NOTHING: Final = -(2**63)


class Cut(NamedTuple):
    """How much of an attempt that is not the newest a lineage holds.

    Attributes:
        last_seq: Of the deciding rank: up to this ``seq``, inclusive, ...
        last_step: ... and up to this step, inclusive.
        last_step_elsewhere: Of every other rank: up to this step, inclusive. (Each rank has a ``seq`` of its own.)
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
        attempts: Their attempts, the first ancestor first, the attempt itself last. Numbers ascend.
        cuts: For each attempt of the run but that one, what of it counts; nothing of those that are no ancestors. An
            attempt that ``run.json`` does not name has no cut: nothing says that it was rolled back.
    """

    attempts: tuple[int, ...]
    cuts: Mapping[int, Cut]

    def holds(self, attempt: int, rank: int, seq: int, step: int) -> bool:
        """Whether an event counts; if not, a resume rolled it back."""
        cut = self.cuts.get(attempt)
        return cut is None or cut.holds(rank, seq, step)

    def events(self, events: Iterable[Event]) -> Iterator[Event]:
        """Those of the events that count, as they come."""
        if not self.cuts:
            return iter(events)
        return (event for event in events if self.holds(event.attempt, event.rank, event.seq, event.step))


def lineage_of(attempts: Iterable[Attempt], attempt: Attempt | None = None) -> Lineage:
    """The lineage of an attempt.

    An attempt that names no parent began from nothing: its lineage is itself alone. One that names a parent takes what
    the parent's lineage holds, of the parent up to the ``seq`` of the checkpoint, of other ranks up to its step; where
    the ``seq`` is not known, everything up to the step; where neither is known, nothing.

    Args:
        attempts: The attempts of the run, in order.
        attempt: Which one's; the newest's when not given. It need not be among the run's attempts yet.

    Raises:
        ValueError: A parent is none of the attempts before its child.
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
    """The attempts that an attempt goes on from, the first first, each with what of its events still counts.

    Args:
        attempts: The attempts of the run.
        attempt: The one that goes on. It need not be among them yet.
        events: Events of the run, in order; only those of ancestors are taken.

    Raises:
        ValueError: A parent is none of the attempts before its child.
    """
    known = {entry.attempt: entry for entry in attempts}
    lineage = lineage_of(known.values(), attempt)
    held: dict[int, list[Event]] = {number: [] for number in lineage.attempts[:-1]}
    for event in events:
        if event.attempt in held and lineage.cuts[event.attempt].holds(event.rank, event.seq, event.step):
            held[event.attempt].append(event)
    return [(known[number], own) for number, own in held.items()]


def merged(streams: Sequence[Iterable[Event]]) -> Iterator[Event]:
    """The events of several ranks as one timeline, by (step, rank), each rank's own order kept.

    Args:
        streams: The events of each rank, in order.
    """
    return heapq.merge(*streams, key=lambda event: (event.step, event.rank))
