"""Makes up what an agreement of the ranks would have gathered, where there was none.

Takes the events of a rank; returns its values after each update, and the ``ranks`` event of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from ...store.events import RANKS, STEP_TIME, Event

#: The attribute of a ``ranks`` event that no recorder wrote.
MADE_UP: Final = "made_up"

_NS_PER_S: Final = 1e9


class OwnValues:
    """Makes up what an agreement gathers of one rank: its newest values since the one before, and the time of a step.

    A value that is not finite is not replaced by a finite one, as in an agreement.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._values: dict[str, float] = {}
        self._place = (0, 0)

    def take(self, event: Event) -> Mapping[str, float] | None:
        """Take an event of the rank; return what an agreement after it would gather; None unless an update ended."""
        for name in self._names:
            value = event.metrics.get(name)
            if value is not None and math.isfinite(self._values.get(name, 0.0)):
                self._values[name] = value
        if event.kind != "step_end" or event.is_late:
            return None
        values, self._values = self._values, {}
        if STEP_TIME in self._names:
            attempt, before_ns = self._place
            before_ns = before_ns if attempt == event.attempt else 0
            values.setdefault(STEP_TIME, (event.elapsed_ns - before_ns) / _NS_PER_S)
            self._place = event.attempt, event.elapsed_ns
        return values


def made_up(event: Event, by_rank: Mapping[int, Mapping[str, float]]) -> Event:
    """Return the ``ranks`` event that rank 0 would have written after its update, had it gathered these values."""
    values = {f"{name}@{rank}": value for rank, own in by_rank.items() for name, value in own.items()}
    return event._replace(kind=RANKS, metrics=values, attrs={MADE_UP: True}, samples=None)
