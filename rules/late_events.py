"""Events some of whose values come later, and the event as it would have been if they had come at once.

Such an event flows in twice: first with the values that the host had, later with the others. Until then its controller
metrics are not computed, and the rules that look at what is to come are not asked. So a step is one trigger to each
rule, and one event to each metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..store.events import AWAITED, LATE_FOR, Event


def awaited_names(attrs: Mapping[str, Any]) -> frozenset[str]:
    """What an event's attributes say is to come, or has come late; nothing where they do not say it as a recorder does.

    A loop may log a text under any name, this one included.
    """
    names = attrs.get(AWAITED)
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def lag_of(event: Event) -> int:
    """Updates by which the loop was ahead of the event when rules saw its values."""
    return event.value_lag if event.attrs and event.is_late else 0


class _Expected(NamedTuple):
    """An event as it was recorded first, and the controllers that wait for the rest, by their numbers."""

    event: Event
    waiting: tuple[int, ...]


class Expectations:
    """The events of one engine that are not whole yet. Values come in the order of their events, or never."""

    def __init__(self) -> None:
        self._attempt = 0
        self._by_seq: dict[int, _Expected] = {}

    def note(self, event: Event, waiting: tuple[int, ...]) -> None:
        """Keep an event until its values come, and who waits for them."""
        if event.attempt != self._attempt:
            # What the attempt before still awaited went down with it.
            self._by_seq.clear()
            self._attempt = event.attempt
        self._by_seq[event.seq] = _Expected(event, waiting)

    def fulfil(self, event: Event) -> tuple[Event, tuple[int, ...]]:
        """The whole event, where this one brings the rest of it, and who has waited for that.

        The whole is in the later one's place, with the payload of both. Where nobody knows of the earlier one, it is
        the event itself, and nobody has waited.
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
        return event._replace(metrics=metrics, attrs=attrs, samples=event.samples or first.samples), expected.waiting
