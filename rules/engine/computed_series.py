"""A series whose values rules compute from other series, one at each value of the series that drives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...store.events import Event
from ..compiled.series import Series

_NAN: Final = float("nan")


class ComputedSeries:
    """One computed series of one engine.

    Args:
        function: Gives the next value as of an event, when all its series have taken theirs.
        driver: The series whose values call for one.
        target: The series that takes them.
    """

    __slots__ = ("_driver", "_function", "_taken", "_target")

    def __init__(self, function: Callable[[Event], Any], driver: Series, target: Series) -> None:
        self._function = function
        self._driver = driver
        self._target = target
        self._taken = 0

    def update(self, event: Event) -> None:
        """Take the next value, if the driver has had one.

        What is undefined, such as the first of a delta, adds no value. What fails in another way, such as a division by
        zero, is NaN, so that rules can see it.
        """
        had = self._driver.dropped + len(self._driver.values)
        if had == self._taken:
            return
        self._taken = had
        try:
            value = float(self._function(event))
        except LookupError:
            return
        except Exception:  # An expression may fail in any way.
            value = _NAN
        self._target.append(value)
