"""A recorded stream as replays look at it: facts and what recorded rules did apart, kinds and clocks as plain lists.

Most events of a long run matter by kind, step and time alone. Of rows of a table, only the others are made into events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..store.event_rows import EventRows
from ..store.events import RULE_KINDS, Event


@dataclass(frozen=True, slots=True)
class EventStream:
    """One stream of the deciding rank's events, in which those of an attempt stand together.

    Attributes:
        facts: All but what recorded rules did. An event's index is its place among these.
        recorded: What recorded rules did, in order.
        kinds, steps, attempts, elapsed_ns: Of each fact.
        with_attrs: Indices of the facts that have attributes.
    """

    facts: Sequence[Event]
    recorded: Sequence[Event]
    kinds: Sequence[str]
    steps: Sequence[int]
    attempts: Sequence[int]
    elapsed_ns: Sequence[int]
    with_attrs: frozenset[int]

    def of_kind(self, kind: str) -> Iterator[tuple[int, Event]]:
        """The facts of a kind, each with its index."""
        kinds, index = self.kinds, -1
        for _ in range(kinds.count(kind)):
            index = kinds.index(kind, index + 1)
            yield index, self.facts[index]

    def values(self, metric: str) -> Sequence[float | None]:
        """The value of a metric at each fact; None where it was not logged."""
        if isinstance(self.facts, EventRows):
            return self.facts.values(metric)
        return [event.metrics.get(metric) for event in self.facts]

    def spans(self) -> dict[int, int]:
        """Of each attempt, in order, the time from its begin to its last fact, in ns."""
        spans: dict[int, int] = {}
        for start, end in self.stretches():
            attempt = self.attempts[start]
            spans[attempt] = max(spans.get(attempt, 0), max(self.elapsed_ns[start:end]))
        return spans

    def time_before(self) -> dict[int, int]:
        """For each attempt, the training time that was over when it began, in ns; empty for one attempt."""
        spans = self.spans()
        return dict(zip(spans, accumulate(spans.values(), initial=0), strict=False)) if len(spans) > 1 else {}

    def stretches(self) -> list[tuple[int, int]]:
        """Of each attempt, the index of its first fact and the one after its last."""
        attempts = self.attempts
        if not attempts or attempts[0] == attempts[-1]:
            return [(0, len(attempts))] if attempts else []
        begins = (index for index, (one, following) in enumerate(pairwise(attempts), 1) if one != following)
        return list(pairwise([0, *begins, len(attempts)]))


def event_stream(events: Sequence[Event]) -> EventStream:
    """A stream of events, apart."""
    if isinstance(events, EventRows):
        recorded = events.of_kinds(RULE_KINDS)
        facts = events.of_kinds(RULE_KINDS, others=True) if recorded else events
        return EventStream(
            facts,
            recorded,
            facts.column("kind"),
            facts.column("step"),
            facts.column("attempt"),
            facts.column("elapsed_ns"),
            frozenset(facts.rows_with_attrs),
        )
    made = [event for event in events if event.kind not in RULE_KINDS]
    return EventStream(
        made,
        [event for event in events if event.kind in RULE_KINDS],
        [event.kind for event in made],
        [event.step for event in made],
        [event.attempt for event in made],
        [event.elapsed_ns for event in made],
        frozenset(index for index, event in enumerate(made) if event.attrs),
    )
