"""The series of admitted values at one kind of event: they take theirs once all controllers have been asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ...store.events import Event
from ..compiled.series import News, Series
from ..policy_file.declarations import AdmittedSeries
from .computed_series import ComputedSeries
from .condition_answers import answer_of, failed_condition
from .decisions import RuleError

_NAN: Final = float("nan")


class Gatekeeper:
    """Admits values to one series of one engine.

    Args:
        declaration: As in the policy.
        value: Returns the next value at an event.
        admit: The condition.
        driver: The series whose values it may follow.
        target: The series of admitted values.
        source: The origin of the policy, as messages name it.

    Attributes:
        name: Its name.
        target: As given.
        error_count: How often the condition failed.
    """

    __slots__ = ("_admit", "_declaration", "_has_news", "_source", "_value", "error_count", "name", "target")

    def __init__(
        self,
        declaration: AdmittedSeries,
        value: Callable[[Event], Any],
        admit: Callable[[Event], Any],
        driver: Series,
        target: Series,
        source: str,
    ) -> None:
        self.name = declaration.name
        self.target = target
        self.error_count = 0
        self._declaration = declaration
        self._value = value
        self._admit = admit
        self._has_news = News(driver)
        self._source = source

    def candidate(self, event: Event, failures: list[RuleError]) -> float | None:
        """Return the value to admit; None for none. Add an error for the condition's first failure."""
        if not self._has_news():
            return None
        try:
            value = float(self._value(event))
        except LookupError:
            return None
        except Exception:  # An expression may fail in any way.
            value = _NAN
        answer = answer_of(self._admit, event)
        if isinstance(answer, Exception):
            self.error_count += 1
            if self.error_count == 1:
                admit, where = self._declaration.admit, f"define '{self.name}', admit"
                failures.append(failed_condition(self.name, admit, answer, event, source=self._source, where=where))
        return value if answer is True else None

    def renew(self) -> None:
        """Forget what was already reported."""
        self.error_count = 0


class Admissions:
    """The series of admitted values that events of one kind feed.

    Attributes:
        gatekeepers: Those of the series.
        computed: The series computed from these, in order.
    """

    __slots__ = ("computed", "gatekeepers")

    def __init__(self) -> None:
        self.gatekeepers: list[Gatekeeper] = []
        self.computed: list[ComputedSeries] = []

    def take(self, event: Event) -> Sequence[RuleError]:
        """Admit values of an event; return the first failures of conditions.

        All are evaluated before any series takes its value.
        """
        failures: list[RuleError] = []
        found = [(each.target, each.candidate(event, failures)) for each in self.gatekeepers]
        for target, value in found:
            if value is not None:
                target.append(value)
        for computed in self.computed:
            computed.update(event)
        return failures
