"""Makes up what an agreement of the ranks would have gathered, where there was none.

Takes the events of a rank; returns its values after each update, and the ``ranks`` event of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...store.events import RANKS, STEP_TIME, Event
from ...store.reading.tally import NewestValues

#: The attribute of a ``ranks`` event that no recorder wrote.
MADE_UP: Final = "made_up"

_NS_PER_S: Final = 1e9


class OwnValues(NewestValues):
    """The values that an agreement gathers of one rank: the newest since the agreement before, and the step time."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._place = (0, 0)

    def gathered(self, event: Event) -> Mapping[str, float]:
        """Return what an agreement after an update gathers."""
        values = self.taken()
        if STEP_TIME in self.names:
            attempt, before_ns = self._place
            before_ns = before_ns if attempt == event.attempt else 0
            values.setdefault(STEP_TIME, (event.elapsed_ns - before_ns) / _NS_PER_S)
            self._place = event.attempt, event.elapsed_ns
        return values

    def whole(self, event: Event) -> Event:
        """Take a complete event, and return it: one that was made up without values with those of this rank."""
        if MADE_UP in event.attrs:
            return made_up(event, {event.rank: self.gathered(event)})
        self.take(event.metrics)
        return event


def made_up(event: Event, by_rank: Mapping[int, Mapping[str, float]]) -> Event:
    """Return the ``ranks`` event that rank 0 would have written after its update, had it gathered these values."""
    values = {f"{name}@{rank}": value for rank, own in by_rank.items() for name, value in own.items()}
    return event._replace(kind=RANKS, metrics=values, attrs={MADE_UP: True}, samples=None, vectors={})
