"""Holds the newest values of one series, as far back as any rule looks."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Protocol

from ..language.bound_rule import Need
from ..language.context import Clock
from ..language.references import Extent, SeriesKey
from ..language.window_arguments import MAX_WINDOW

#: Values beyond the longest window that may accumulate before the oldest are dropped, so that dropping costs little.
SLACK: Final = 256


class Follower(Protocol):
    """Receives each value of a series as it arrives."""

    def append(self, value: float) -> None:
        """Append the next value."""


class Series:
    """One series of one engine.

    Attributes:
        key: Its name, and its kind when the rule gives one.
        values: The newest values, oldest first; always the same list.
        dropped: The number of older values, which are dropped.
        bound_kind: The kind of event that feeds it; None until one has carried it.
        followers: Objects that receive each of its values.
    """

    __slots__ = ("_clock", "_epochs", "_need", "_steps", "bound_kind", "dropped", "followers", "key", "values")

    def __init__(self, key: SeriesKey, need: Need, clock: Clock) -> None:
        self.key = key
        self.values: list[float] = []
        self.dropped = 0
        self.bound_kind: str | None = None
        self.followers: list[Follower] = []
        self._need = need
        self._clock = clock
        self._steps: list[float] | None = [] if need.steps else None
        self._epochs: list[float] | None = [] if need.epochs else None

    @property
    def is_plain(self) -> bool:
        """Whether a value may be appended to ``values`` directly."""
        return self._steps is None and self._epochs is None and not self.followers

    def append(self, value: float) -> None:
        """Append the next value, at the step and epoch that the clock has reached."""
        self.values.append(value)
        if self._steps is not None:
            self._steps.append(self._clock.reached_step)
        if self._epochs is not None:
            self._epochs.append(self._reached_epoch())
        for follower in self.followers:
            follower.append(value)

    def _reached_epoch(self) -> float:
        return -1.0 if self._clock.reached_epoch is None else self._clock.reached_epoch

    def first_within(self, extent: Extent, length: float) -> int:
        """Return the index in ``values`` of the first value within the last ``length`` steps or epochs."""
        if extent is Extent.STEPS:
            assert self._steps is not None
            start = bisect_right(self._steps, self._clock.reached_step - length)
        else:
            assert self._epochs is not None
            start = bisect_right(self._epochs, self._reached_epoch() - length)
        return max(start, len(self.values) - MAX_WINDOW)

    def trim(self) -> None:
        """Drop values that no window will read again, once enough have accumulated to be worth the work."""
        keep = self._need.values
        if self._steps is not None:
            keep = max(keep, len(self.values) - self.first_within(Extent.STEPS, self._need.steps))
        if self._epochs is not None:
            keep = max(keep, len(self.values) - self.first_within(Extent.EPOCHS, self._need.epochs))
        surplus = len(self.values) - keep
        if surplus < max(keep, SLACK):
            return
        for kept in (self.values, self._steps, self._epochs):
            if kept is not None:
                del kept[:surplus]
        self.dropped += surplus
