"""Holds the newest values of one series, as far back as any rule looks."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Protocol

from ..functions.undefined import Undefined
from ..language.context import Clock
from ..readings.reading import MAX_WINDOW, Extent, Need, SeriesKey

#: Values beyond the longest window that may accumulate before the oldest are dropped, so that dropping costs little.
SLACK: Final = 256


#: The position of a value that came before the run said how far it had come.
_BEFORE_ALL: Final = -1.0


class Follower(Protocol):
    """Receives each value of a series as it arrives."""

    def append(self, value: float) -> None:
        """Append the next value."""


class News:
    """Whether a series has a new value, at each time that this is asked."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._taken = 0

    def __call__(self) -> bool:
        """Return whether it has had a value since the last call."""
        taken, self._taken = self._taken, self._series.dropped + len(self._series.values)
        return taken != self._taken


class Series:
    """One series of one engine.

    Attributes:
        key: Its name, and its kind when the rule gives one.
        values: The newest values, oldest first; always the same list.
        dropped: The number of older values, which are dropped.
        bound_kind: The kind of event that feeds it; None until one has carried it.
        followers: Objects that receive each of its values.
    """

    __slots__ = ("_clock", "_need", "_positions", "bound_kind", "dropped", "followers", "key", "values")

    def __init__(self, key: SeriesKey, need: Need, clock: Clock) -> None:
        self.key = key
        self.values: list[float] = []
        self.dropped = 0
        self.bound_kind: str | None = None
        self.followers: list[Follower] = []
        self._need = need
        self._clock = clock
        self._positions: dict[Extent, list[float]] = {extent: [] for extent in need.reach}

    @property
    def is_plain(self) -> bool:
        """Whether a value may be appended to ``values`` directly."""
        return not self._positions and not self.followers

    def append(self, value: float) -> None:
        """Append the next value, at the position that the clock has reached."""
        self.values.append(value)
        if self._positions:  # Asked first: an empty mapping's items cost 7% of ten means of 1,000 values.
            for extent, positions in self._positions.items():
                reached = self._clock.reached(extent)
                positions.append(_BEFORE_ALL if reached is None else reached)
        for follower in self.followers:
            follower.append(value)

    @property
    def steps(self) -> list[float]:
        """The step of each of its values; always the same list."""
        return self._positions[Extent.STEPS]

    def age(self, limit: float | None, extent: Extent) -> float:
        """Return how long ago its newest value came; with a limit, whether that is at least as long ago.

        Before the first value, only a limit has an answer: whether the run is so long.

        Raises:
            Undefined: There is no answer, or the run does not count in this unit.
        """
        reached, positions = self._clock.reached(extent), self._positions[extent]
        if reached is None or (limit is None and not positions):
            raise Undefined("no value yet")
        age = reached - (positions[-1] if positions else 0)
        return age if limit is None else age >= limit

    def first_within(self, extent: Extent, length: float) -> int:
        """Return the index in ``values`` of the first value within the last ``length`` steps, epochs, ...

        Raises:
            Undefined: The run counts no samples, or no tokens. Without epochs, any number of them holds all values.
        """
        if extent is not Extent.EPOCHS and self._clock.reached(extent) is None:
            raise Undefined(f"no {extent} counted")
        return max(self._start(extent, length), len(self.values) - MAX_WINDOW)

    def value_before(self, extent: Extent, length: float) -> float:
        """Return the newest value that is at least ``length`` steps, epochs, ... old.

        Raises:
            Undefined: There is none, or the run does not count in this unit.
        """
        start = self._start(extent, length)
        if not 0 < start >= len(self.values) - MAX_WINDOW:
            raise Undefined("no value so old")
        return self.values[start - 1]

    def _start(self, extent: Extent, length: float) -> int:
        reached = self._clock.reached(extent)
        return 0 if reached is None else bisect_right(self._positions[extent], reached - length)

    def trim(self) -> None:
        """Drop values that no window will read again, once enough have accumulated to be worth the work."""
        keep = self._need.values
        for extent, length in self._need.reach.items():
            if length:  # One more, for ``value_before``.
                keep = max(keep, min(len(self.values) - self._start(extent, length), MAX_WINDOW) + 1)
        surplus = len(self.values) - keep
        if surplus < max(keep, SLACK):
            return
        for kept in (self.values, *self._positions.values()):
            del kept[:surplus]
        self.dropped += surplus
