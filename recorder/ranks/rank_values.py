"""Keeps the newest values of the metrics of one rank that rules read on all ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from ...store.events import LATE_FOR, STEP_TIME, Event
from ...store.reading.tally import NewestValues


class RankValues:
    """The newest values of some metrics since the last agreement, and the time of a step between agreements."""

    def __init__(self, names: Iterable[str]) -> None:
        self._newest = NewestValues(names)
        self._steps = 0
        self._since = time.monotonic()

    def take(self, event: Event) -> None:
        """Take the values of an event of this rank."""
        self._steps += event.kind == "step_end" and LATE_FOR not in event.attrs
        self._newest.take(event.metrics)

    def vector(self) -> list[float]:
        """Return the values of this rank as a vector, whose length depends on the names only."""
        values = self._newest.taken()
        steps, self._steps = self._steps, 0
        step_time_s = (time.monotonic() - self._since) / steps if steps else 0.0
        pairs = ((float(name in values), values.get(name, 0.0)) for name in self._newest.names)
        return [float(steps > 0), step_time_s, *(number for pair in pairs for number in pair)]

    def resume(self) -> None:
        """Begin to measure steps again, after the wait for the other ranks."""
        self._since = time.monotonic()

    def of_all(self, vectors: Sequence[Sequence[float]]) -> Mapping[str, float]:
        """Return the values of all ranks, as ``<name>@<rank>``."""
        names = (STEP_TIME, *self._newest.names)
        return {
            f"{name}@{rank}": vector[2 * index + 1]
            for rank, vector in enumerate(vectors)
            for index, name in enumerate(names)
            if vector[2 * index]
        }
