"""A series that rules compute from other series, with one value per value of its driver series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...store.events import Event
from ..compiled.series import News, Series

_NAN: Final = float("nan")


class ComputedSeries:
    """One computed series of one engine.

    Args:
        function: Returns the next value at an event, once all source series have taken theirs.
        driver: The series whose values trigger a computation.
        target: The series that receives the computed values.
    """

    __slots__ = ("_function", "_has_news", "_target")

    def __init__(self, function: Callable[[Event], Any], driver: Series, target: Series) -> None:
        self._function = function
        self._has_news = News(driver)
        self._target = target

    def update(self, event: Event) -> None:
        """Append the next value, if the driver has had a new one.

        An undefined result, such as the first of a delta, adds no value. Any other failure, such as a division by zero,
        adds NaN, so that rules can see it.
        """
        if not self._has_news():
            return
        try:
            value = float(self._function(event))
        except LookupError:
            return
        except Exception:  # An expression may fail in any way.
            value = _NAN
        self._target.append(value)
