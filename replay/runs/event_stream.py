"""A recorded stream as replays read it: facts apart from recorded rule outcomes, with columns such as kinds and steps.

Most events of a long run matter only by kind, step and time. Only the others are built as event objects from the rows
of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType

from ...rules.engine.own_values import MADE_UP, OwnValues, made_up
from ...rules.policy_file.policy import Policy
from ...store.events import PLAN, RANKS, RULE_KINDS, Event
from ...store.lineage import DECIDING_RANK
from ...store.parquet.rows import EventList, EventRows, with_columns
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot
from ...store.reading.timeline import deciding_stream, events_along, ranks_of

#: The events of each other rank.
Others = Callable[[], Mapping[int, Iterable[Event]]]


class EventStream:
    """One stream of the deciding rank's events, in which the events of an attempt are contiguous.

    Args:
        facts: All events except the outcomes of recorded rules. An event's index is its position among these.
        recorded: The outcomes of recorded rules, in order.
        gathered: The ``ranks`` events that were made up, by the index of the fact that each follows. They are no facts.

    Attributes:
        facts, recorded, gathered: As given.
        kinds: Kind of each fact.
        with_attrs: Indices of the facts that have attributes.
    """

    def __init__(
        self,
        facts: EventRows | EventList,
        recorded: Sequence[Event],
        gathered: Mapping[int, Event] = MappingProxyType({}),
    ) -> None:
        self.facts = facts
        self.recorded = recorded
        self.gathered = gathered
        self.kinds: Sequence[str] = facts.column("kind")
        self.with_attrs = frozenset(facts.rows_with_attrs)

    @cached_property
    def steps(self) -> Sequence[int]:
        """Step of each fact."""
        return self.facts.column("step")

    @cached_property
    def attempts(self) -> Sequence[int]:
        """Attempt of each fact."""
        return self.facts.column("attempt")

    @cached_property
    def elapsed_ns(self) -> Sequence[int]:
        """Elapsed time of each fact within its attempt, in ns."""
        return self.facts.column("elapsed_ns")

    def of_kind(self, kind: str) -> Iterator[tuple[int, Event]]:
        """Yield the facts of a kind, each with its index."""
        kinds, index = self.kinds, -1
        for _ in range(kinds.count(kind)):
            index = kinds.index(kind, index + 1)
            yield index, self.facts[index]

    def values(self, metric: str) -> Sequence[float | None]:
        """Return the value of a metric at each fact; None where it was not logged."""
        return self.facts.values(metric)

    @property
    def duration_ns(self) -> int | None:
        """Time from the begin of each attempt to its last fact, summed, in ns; None when the log has no times."""
        return sum(self._spans.values()) or None

    def time_up_to(self, index: int) -> int | None:
        """Return the training time up to a fact, summed over the attempts that led to it, in ns.

        It is zero before the first fact, at index -1, and None when the log has no times.
        """
        if self.duration_ns is None:
            return None
        return 0 if index < 0 else self._before_ns[self.attempts[index]] + self.elapsed_ns[index]

    @cached_property
    def _spans(self) -> dict[int, int]:
        """Time from the begin of each attempt to its last fact, in ns, in order of attempts."""
        spans: dict[int, int] = {}
        for start, end in self.stretches():
            attempt = self.attempts[start]
            spans[attempt] = max(spans.get(attempt, 0), max(self.elapsed_ns[start:end]))
        return spans

    @cached_property
    def _before_ns(self) -> dict[int, int]:
        """Training time before each attempt began, in ns."""
        return dict(zip(self._spans, accumulate(self._spans.values(), initial=0), strict=False))

    def stretches(self) -> list[tuple[int, int]]:
        """Return for each attempt the index of its first fact and the index after its last."""
        attempts = self.attempts
        if not attempts or attempts[0] == attempts[-1]:
            return [(0, len(attempts))] if attempts else []
        begins = (index for index, (one, following) in enumerate(pairwise(attempts), 1) if one != following)
        return list(pairwise([0, *begins, len(attempts)]))


def newest_plan(plan: Plan, stream: EventStream) -> Plan:
    """Return a plan with what the newest attempt of a stream declared late, as its engine knows it at the end."""
    late = [event for _, event in stream.of_kind(PLAN)]
    for event in late:
        plan = plan.updated(event.attrs) if event.attempt == stream.attempts[-1] else plan
    return plan


def event_stream(events: Sequence[Event]) -> EventStream:
    """Return a stream of events, with facts, rule outcomes and what was made up separated."""
    facts, gathered = with_columns(events), dict[int, Event]()
    if RANKS in facts.column("kind") and any(map(_is_made_up, events)):
        known = [event for event in events if event.kind not in RULE_KINDS]
        for place, event in enumerate(known):
            if _is_made_up(event):
                gathered[place - len(gathered) - 1] = event
        facts = with_columns([event for event in events if not _is_made_up(event)])
    if set(RULE_KINDS).isdisjoint(facts.column("kind")):
        return EventStream(facts, (), gathered)
    return EventStream(facts.of_kinds(RULE_KINDS, others=True), facts.of_kinds(RULE_KINDS), gathered)


def _is_made_up(event: Event) -> bool:
    return event.kind == RANKS and MADE_UP in event.attrs


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
            if gathered is not None:
                by_place.setdefault((event.attempt, event.step), {})[rank] = gathered
    return list(_inserted(events, by_place, OwnValues(names)))


def _inserted(
    events: Iterable[Event], by_place: Mapping[tuple[int, int], Mapping[int, Mapping[str, float]]], own: OwnValues
) -> Iterator[Event]:
    for event in events:
        yield event
        gathered = own.take(event)
        if gathered is not None:
            yield made_up(event, {event.rank: gathered, **by_place.get((event.attempt, event.step), {})})


def other_ranks(snapshot: Snapshot) -> dict[int, list[Event]]:
    """Return the effective events of all ranks of a run but the deciding one."""
    ranks = [rank for rank in ranks_of(snapshot) if rank != DECIDING_RANK]
    return {rank: list(events_along(snapshot, rank, "effective")) for rank in ranks}


def events_for(policy: Policy, snapshot: Snapshot) -> Sequence[Event]:
    """Return the effective events of the deciding rank over which a policy is folded."""
    events = deciding_stream(snapshot, samples=policy.reads_samples)
    return with_gathered(events, lambda: other_ranks(snapshot), policy.reads_ranks, snapshot.info.last.plan)
