"""Makes up what rank 0 would have gathered of all ranks, for logs in which it did not.

Takes the logs of all ranks; returns the deciding rank's events with a ``ranks`` event after each update.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ...rules.language.ranks import OwnValues, made_up
from ...rules.policy_file.policy import Policy
from ...store.events import RANKS, Event
from ...store.lineage import DECIDING_RANK
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot
from ...store.reading.timeline import deciding_stream, events_along, ranks_of
from .event_stream import EventStream

#: The attribute of a ``ranks`` event that no recorder wrote.
MADE_UP: Final = "made_up"

#: The note on a run in which such events decide.
MADE_UP_NOTE: Final = "it gathered no values of all ranks: rules read what each rank had logged by the end of the step"

#: The events of each other rank.
Others = Callable[[], Mapping[int, Iterable[Event]]]


def with_gathered(events: Sequence[Event], others: Others, names: Collection[str], plan: Plan) -> Sequence[Event]:
    """Return events with those that an agreement of the ranks after each update would have added.

    Returns the events themselves if they hold what was gathered, if rules read no other rank, or if a single process
    trained: then the engine takes its values for those of all ranks.

    Args:
        events: The deciding rank's events.
        others: Reads those of the other ranks.
        names: The metrics that rules read on all ranks.
        plan: What the loop declared.
    """
    if not names or plan.world_size == 1 or any(event.kind == RANKS for event in events):
        return events
    by_place: dict[tuple[int, int], dict[int, Mapping[str, float]]] = {}
    for rank, own in others().items():
        values = OwnValues(names)
        for event in own:
            gathered = values.take(event)
            if gathered:
                by_place.setdefault((event.attempt, event.step), {})[rank] = gathered
    return list(_inserted(events, by_place, OwnValues(names)))


def _inserted(
    events: Iterable[Event], by_place: Mapping[tuple[int, int], Mapping[int, Mapping[str, float]]], own: OwnValues
) -> Iterator[Event]:
    for event in events:
        yield event
        gathered = own.take(event)
        elsewhere = by_place.get((event.attempt, event.step), {}) if event.kind == "step_end" else {}
        if gathered or (elsewhere and not event.is_late):
            yield made_up(event, {event.rank: gathered, **elsewhere})


def other_ranks(snapshot: Snapshot) -> dict[int, list[Event]]:
    """Return the effective events of all ranks of a run but the deciding one."""
    ranks = [rank for rank in ranks_of(snapshot) if rank != DECIDING_RANK]
    return {rank: list(events_along(snapshot, rank, "effective")) for rank in ranks}


def events_for(policy: Policy, snapshot: Snapshot) -> Sequence[Event]:
    """Return the effective events of the deciding rank over which a policy is folded."""
    events = deciding_stream(snapshot, samples=policy.reads_samples)
    return with_gathered(events, lambda: other_ranks(snapshot), policy.reads_ranks, snapshot.info.last.plan)


def controllers_on_made_up(policy: Policy, stream: EventStream) -> frozenset[str]:
    """Return the names of the controllers that read what was made up in a stream."""
    first = next((event for _, event in stream.of_kind(RANKS)), None)
    if first is None or not first.attrs.get(MADE_UP):
        return frozenset()
    return frozenset(controller.name for controller in policy.controllers if controller.ranks)
