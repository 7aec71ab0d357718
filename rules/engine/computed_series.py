"""A series that rules compute from other series, with one value per value of its driver series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...store.events import Event
from ..compiled.series import Series

_NAN: Final = float("nan")


class ComputedSeries:
    """One computed series of one engine.

    Args:
        function: Returns the next value at an event, once all source series have taken theirs.
        driver: The series whose values trigger a computation.
        target: The series that receives the computed values.
        order: Its place among those that are computed at the same event.

    Attributes:
        order: This place.
    """

    __slots__ = ("_append", "_driver", "_function", "_taken", "_values", "order")

    def __init__(
        self, function: Callable[[Event], Any], driver: Series, target: Series, order: tuple[int, str]
    ) -> None:
        self._function = function
        self._driver = driver
        self._values = driver.values
        # What the driver has had before does not count.
        self._taken = driver.dropped + len(driver.values)
        self._append = target.values.append if target.is_plain else target.append
        self.order = order

    def update(self, event: Event) -> None:
        """Append the next value, if the driver has had a new one.

        An undefined result, such as the first of a delta, adds no value. Any other failure, such as a division by zero,
        adds NaN, so that rules can see it.
        """
        count = self._driver.dropped + len(self._values)
        if count == self._taken:
            return
        self._taken = count
        try:
            value = float(self._function(event))
        except LookupError:
            return
        except Exception:  # An expression may fail in any way.
            value = _NAN
        self._append(value)
