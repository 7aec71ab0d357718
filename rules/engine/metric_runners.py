"""Runs the controller metrics of one engine: computes each at an event, and stores the value that rules read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ...store.errors import shortened
from ...store.events import Event
from ...store.run_info import Plan
from ..compiled.workspace import Cell
from ..functions.undefined import UNAVAILABLE
from ..late_events import lag_of
from ..policy_file.metrics import Metric
from .decisions import RuleError, RuleWarning
from .missing_keys import ExpectedKeys


class MetricRunner:
    """One metric of one engine.

    Args:
        name: Its name in the policy file.
        metric: The metric that computes.
        cell: Receives the value.
        source: The origin of the policy, as messages name it.
        expected: The keys that rules read of it.

    Attributes:
        error_count: How often it failed.
    """

    __slots__ = ("_cell", "_expected", "_metric", "_source", "error_count", "name")

    def __init__(self, name: str, metric: Metric, cell: Cell, source: str, expected: ExpectedKeys) -> None:
        self.name = name
        self.error_count = 0
        self._metric = metric
        self._cell = cell
        self._source = source
        self._expected = expected

    def take_plan(self, plan: Plan) -> None:
        """Give the metric a newer plan."""
        self._metric.plan = plan

    def renew(self) -> None:
        """Forget what was already reported."""
        self.error_count = 0
        self._expected.renew()

    def take(self, event: Event) -> Sequence[RuleError | RuleWarning]:
        """Compute the metric; return an error for its first failure, and warnings about keys that it never has.

        A failure makes the metric unavailable until its next event.
        """
        try:
            computed = self._metric.compute(event)
        except Exception as error:  # Third-party code may raise; training continues, and the failure is recorded.
            self._cell.value = UNAVAILABLE
            self.error_count += 1
            return (self._failure(event, error),) if self.error_count == 1 else ()
        self._cell.value = UNAVAILABLE if computed is None else computed
        return self._expected.take(computed, event) if self._expected.unseen and isinstance(computed, Mapping) else ()

    def _failure(self, event: Event, error: Exception) -> RuleError:
        what = shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        where = f"{self._source}: controller metric '{self.name}', {type(self._metric).__name__}.compute"
        place = (event.attempt, event.rank, event.seq, event.step, event.epoch)
        return RuleError(self.name, f"on_{event.kind}", *place, error=f"{where}: {what}", value_lag=lag_of(event))


class Gauge(Protocol):
    """What takes the events of a kind before rules are asked: a controller metric, or the values of all ranks."""

    name: str

    def take(self, event: Event) -> Sequence[RuleError | RuleWarning]:
        """Take an event; return what is reported for the first time."""


def compute_all(gauges: Iterable[Gauge], event: Event) -> list[RuleError | RuleWarning]:
    """Compute controller metrics; return what is reported about them for the first time."""
    return [reported for gauge in gauges for reported in gauge.take(event)]
