"""Reads what an event says of late values, and merges them with its earlier half for the semantics 1 and 2.

Such an event arrives twice: first with its host values, later with its late values. In between, its controller metrics
are not computed, and rules that read awaited values are not evaluated. So a step triggers each rule once, and each
metric takes it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..store.events import AWAITED, LATE_FOR, Event


def awaited_names(attrs: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that an event's attributes list as awaited, or as having come late.

    The result is empty unless the attribute has the form that a recorder writes: a loop may log a text under any name,
    this one included.
    """
    names = attrs.get(AWAITED)
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def lag_of(event: Event) -> int:
    """Return how many updates the loop was ahead of the event when rules saw its values."""
    return event.value_lag if event.attrs and event.is_late else 0


class _Expected(NamedTuple):
    """The earlier half of an event, and the numbers of the controllers that wait for the rest."""

    event: Event
    waiting: tuple[int, ...]


class Expectations:
    """The incomplete events of one engine. Late values arrive in the order of their events, or never."""

    def __init__(self) -> None:
        self._attempt = 0
        self._by_seq: dict[int, _Expected] = {}

    def note(self, event: Event, waiting: tuple[int, ...]) -> None:
        """Keep an event and the controllers that wait for its late values."""
        if event.attempt != self._attempt:
            # Values that the previous attempt still awaited were lost with it.
            self._by_seq.clear()
            self._attempt = event.attempt
        self._by_seq[event.seq] = _Expected(event, waiting)

    def fulfil(self, event: Event) -> tuple[Event, tuple[int, ...]]:
        """Return the late event merged with its earlier half, and the controllers that waited.

        The merged event keeps the late event's position and has the payload of both. An unknown earlier half leaves the
        event unchanged, and no controller has waited. Older incomplete events are dropped.
        """
        seq = event.attrs.get(LATE_FOR)
        if event.attempt != self._attempt or not isinstance(seq, int) or seq not in self._by_seq:
            return event, ()
        for earlier in [*self._by_seq]:
            expected = self._by_seq.pop(earlier)
            if earlier == seq:
                break
        first = expected.event
        metrics, attrs = {**first.metrics, **event.metrics}, {**first.attrs, **event.attrs}
        samples, vectors = event.samples or first.samples, {**first.vectors, **event.vectors}
        merged = event._replace(metrics=metrics, attrs=attrs, samples=samples, vectors=vectors)
        return merged, expected.waiting
