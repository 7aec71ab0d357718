"""The scales of a plot: they map values to drawing units and choose round tick values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: Positive values that span more than this factor are drawn on a logarithmic scale.
_WIDE: Final = 10.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A mapping from a range of values to a range of a drawing.

    Attributes:
        low, high: Values at the two ends.
        begin, end: Positions of the ends, in drawing units.
        is_log: Whether the scale is logarithmic.
    """

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, value = (math.log10(v) if self.is_log else v for v in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * (value - low) / (high - low)

    def ticks(self, count: int = 4) -> list[float]:
        """Return about ``count`` round values within the range.

        >>> Scale(0, 100, 0, 1).ticks()
        [0.0, 25.0, 50.0, 75.0, 100.0]
        """
        if self.is_log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            if len(powers) >= 2:
                stride = max(1, round(len(powers) / count))
                return [10.0**power for power in list(powers)[::stride]]
        raw = (self.high - self.low) / count
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def scale_of(values: Iterable[float], begin: float, end: float, *, may_be_log: bool = False) -> Scale | None:
    """Return a scale that holds every finite value, with a margin; None without finite values.

    Args:
        values: The values to draw.
        begin, end: Positions of the ends.
        may_be_log: Whether it becomes logarithmic if positive values span more than a factor of 10.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    if may_be_log and low > 0 and high / low > _WIDE:
        return Scale(low / 1.1, high * 1.1, begin, end, is_log=True)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, begin, end)


def tick_text(value: float) -> str:
    """Format a value for an axis.

    >>> tick_text(20000.0), tick_text(0.25), tick_text(1e-7)
    ('20k', '0.25', '1e-07')
    """
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:g}{unit}"
    return f"{value:.4g}"
