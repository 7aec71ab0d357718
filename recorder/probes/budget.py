"""Keeps the cost of probes within a share of the training time, by a longer cadence."""

from __future__ import annotations

import math
from typing import Final

#: Emissions whose cost is not judged: they include the first use of everything.
_WARM_UP: Final = 2


class Budget:
    """The cadence of the probes of a watch that are read together.

    Args:
        every: Updates between emissions, as the loop asked for.
        share: The most time that these probes may take, as a share of the training time; None for no limit.

    Attributes:
        every: Updates between emissions, in use.
    """

    def __init__(self, every: int, share: float | None) -> None:
        self.every = self._asked = every
        self._share = share
        self._seen = 0

    def note(self, cost: float, update: float) -> bool:
        """Note what an emission and an update cost, and return whether the cadence changed.

        Args:
            cost: Time that probes took for the emission, in any unit.
            update: Mean time of an update without probes, in the same unit.
        """
        self._seen += 1
        if self._share is None or self._seen <= _WARM_UP or not 0 < update < math.inf or not cost < math.inf:
            return False
        if cost <= self._share * self.every * update:
            return False
        # A multiple of the cadence asked for: emissions then stay at updates at which there would be one anyway.
        self.every = self._asked * math.ceil(cost / (self._share * update * self._asked))
        self._seen = _WARM_UP - 1  # The next emission is judged by itself, after one that is not.
        return True
