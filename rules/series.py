"""The last values of one metric, as long as some rule looks back."""

from __future__ import annotations

from typing import Final

from .references import SeriesKey

#: Values beyond the longest window that may pile up before the oldest are dropped, so that dropping costs little.
_SLACK: Final = 256


class Series:
    """One series of one engine.

    Attributes:
        key: Its name, and its kind when the rule says it.
        values: The newest values, oldest first; always the same list, at least ``keep`` of them once there are so many.
        count: How many values it has had.
        bound_kind: The kind of event that feeds it; None until one has carried it.
    """

    __slots__ = ("_keep", "_limit", "bound_kind", "count", "key", "values")

    def __init__(self, key: SeriesKey, keep: int) -> None:
        self.key = key
        self.values: list[float] = []
        self.count = 0
        self.bound_kind: str | None = None
        self._keep = keep
        self._limit = 2 * keep + _SLACK

    def append(self, value: float) -> None:
        """Take the next value."""
        values = self.values
        values.append(value)
        self.count += 1
        if len(values) > self._limit:
            del values[: -self._keep]
