"""Keeps the newest values of some metrics of one rank since the ranks last agreed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


class NewestValues:
    """The newest value of each metric. A value that is not finite is not replaced by a finite one.

    Args:
        names: The metrics.

    Attributes:
        names: The metrics, in order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._values: dict[str, float] = {}

    def take(self, metrics: Mapping[str, float]) -> None:
        """Take the values of an event."""
        for name in self.names:
            value = metrics.get(name)
            if value is not None and math.isfinite(self._values.get(name, 0.0)):
                self._values[name] = value

    def taken(self) -> dict[str, float]:
        """Return the values since the call before."""
        values, self._values = self._values, {}
        return values
