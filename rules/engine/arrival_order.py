"""Judges late values as they arrive, as semantics 1 and 2 do.

A step without a late value of its own is judged at once, on the values that have arrived by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...store.events import NO_METRICS, Event
from ..late_events import Expectations, awaited_names
from .decisions import Outcome
from .event_fold import EventFold


class ArrivalOrder:
    """The events of one engine that await late values, and the events that bring them.

    Args:
        fold: The engine's state.

    Attributes:
        backlog: Always empty: no event waits for an earlier one.
    """

    backlog: Final = ()

    def __init__(self, fold: EventFold) -> None:
        self._fold = fold
        self._expectations = Expectations()
        self._waiting: dict[tuple[str, frozenset[str]], tuple[int, ...]] = {}

    def observe(self, event: Event) -> Sequence[Outcome]:
        """Fold an event that awaits values, or the late values of an earlier one."""
        awaited = awaited_names(event.attrs)
        if not awaited:
            return self._fold.observe(event)
        self._fold.standing.forget()
        if self._fold.needs_clock:
            self._fold.clock.take(event)
        return self._complete(event) if event.is_late else self._begin(event, awaited)

    def _begin(self, event: Event, awaited: frozenset[str]) -> Sequence[Outcome]:
        """Fold the earlier half of an event that awaits late values; see ``late_events``."""
        fold, kind = self._fold, event.kind
        # A series begins with the event that its value belongs to, whenever the value arrives.
        fold.greet({**dict.fromkeys(awaited - NO_METRICS), **event.metrics}, kind)
        waiting = self._waiting.get((kind, awaited))
        if waiting is None:
            waiting = self._waiting[kind, awaited] = fold.reading(kind, awaited)
        self._expectations.note(event, waiting)
        listener = fold.listener(kind)
        fold.append(listener, event.metrics, event)
        others = tuple(number for number in range(len(listener.watches)) if number not in waiting)
        return fold.ask(listener, others, event)

    def _complete(self, event: Event) -> Sequence[Outcome]:
        """Fold the late values of an earlier event."""
        fold = self._fold
        fold.greet(event.metrics, event.kind)
        whole, waiting = self._expectations.fulfil(event)
        listener = fold.listener(event.kind)
        with fold.clock.as_of(event):
            fold.append(listener, event.metrics, whole)
            failures = fold.compute(listener, whole)
            return [*failures, *fold.ask(listener, waiting, whole)]
