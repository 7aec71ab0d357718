"""A recorded stream as replays read it: facts apart from recorded rule outcomes, with columns such as kinds and steps.

Most events of a long run matter only by kind, step and time. Only the others are built as event objects from the rows
of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from ...store.events import PLAN, RULE_KINDS, Event
from ...store.parquet.rows import EventList, EventRows, with_columns
from ...store.plan import Plan


class EventStream:
    """One stream of the deciding rank's events, in which the events of an attempt are contiguous.

    Args:
        facts: All events except the outcomes of recorded rules. An event's index is its position among these.
        recorded: The outcomes of recorded rules, in order.

    Attributes:
        facts, recorded: As given.
        kinds: Kind of each fact.
        with_attrs: Indices of the facts that have attributes.
    """

    def __init__(self, facts: EventRows | EventList, recorded: Sequence[Event]) -> None:
        self.facts = facts
        self.recorded = recorded
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
    """Return a stream of events, with facts and rule outcomes separated."""
    facts = with_columns(events)
    if set(RULE_KINDS).isdisjoint(facts.column("kind")):
        return EventStream(facts, ())
    return EventStream(facts.of_kinds(RULE_KINDS, others=True), facts.of_kinds(RULE_KINDS))
