"""What an engine computes of events besides its rules: controller metrics, states, computed and admitted series.

Metrics and states take an event before rules are asked, computed series after those that they are computed from, and
recorded and admitted values once all controllers have been asked. Returns what is to be reported: first failures, and
warnings of keys that no value of a metric has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any, Final, Protocol

from ...store.events import DERIVED_PREFIX, Event, lag_of
from ...store.plan import Plan
from ..compiled.workspace import Cell, News, Series
from ..errors import phrase, suggestion
from ..functions.undefined import UNAVAILABLE
from ..language.rule_parts import keys_read
from ..policy_file.declarations import (
    AdmittedSeries,
    Controller,
    MetricDeclaration,
    RecordedDefinition,
    Rule,
    StateDeclaration,
)
from ..policy_file.metrics import Metric
from ..readings.metric import HeldState
from .decisions import DerivedValues, RuleError, RuleWarning, failure_text, outcome_fields

_NAN: Final = float("nan")
#: Values of a metric after which a key that none of them had is worth a warning.
MISSING_KEY_AFTER: Final = 100


class Gauge(Protocol):
    """What takes the events of a kind before rules are asked: a controller metric, or the values of all ranks."""

    name: str

    def update(self, event: Event) -> Sequence[RuleError | RuleWarning]:
        """Take an event; return what is reported for the first time."""


# --- controller metrics ---------------------------------------------------------------------------------------------


class ExpectedKeys:
    """The keys of one metric that rules read, until a value has had them.

    Args:
        metric: The name of the metric.
        reads: Each key, after those that lead to it, with the controller that reads it.
    """

    def __init__(self, metric: str, reads: Mapping[tuple[str, ...], str]) -> None:
        self._metric = metric
        self._reads = reads
        self.renew()

    def renew(self) -> None:
        """Expect all keys anew."""
        self.unseen = dict(self._reads)
        self._values = 0

    def check_value(self, value: Mapping[str, Any], event: Event) -> list[RuleWarning]:
        """Look for the keys in the metric's next value; warn, once, of those that never came."""
        self._values += 1
        self.unseen = {path: controller for path, controller in self.unseen.items() if _lacks(value, path)}
        if self._values < MISSING_KEY_AFTER:
            return []
        missing, self.unseen = self.unseen, {}
        trigger, lag = f"on_{event.kind}", lag_of(event)
        return [
            RuleWarning(*outcome_fields(name, trigger, event), warning=self._warning(value, path), value_lag=lag)
            for path, name in missing.items()
        ]

    def _warning(self, value: Mapping[str, Any], path: tuple[str, ...]) -> str:
        depth = next(depth for depth in range(len(path)) if _lacks(value, path[: depth + 1]))
        holder = value
        for key in path[:depth]:
            holder = holder[key]
        what = f"no value of controller metric '{self._metric}' has had this key after {self._values} values"
        fix = suggestion(path[depth], [key for key in holder if isinstance(key, str)])
        return phrase(what, repr(".".join(path)), fix.replace("Known here:", "It has:"))


def _lacks(value: Any, path: tuple[str, ...]) -> bool:
    """Whether a value, or a mapping in it, lacks the next key of a path. Other values may have any."""
    for key in path:
        if not isinstance(value, Mapping):
            return False
        if key not in value:
            return True
        value = value[key]
    return False


def expected_keys(metrics: Iterable[MetricDeclaration], controllers: Iterable[Controller]) -> dict[str, ExpectedKeys]:
    """Return the keys that the rules of controllers read of each metric."""
    reads: dict[str, dict[tuple[str, ...], str]] = {metric.name: {} for metric in metrics}
    for controller in controllers:
        for read in (read for rule in controller.bound_rules for read in keys_read(rule)):
            if read.metric in reads:
                reads[read.metric].setdefault(read.path, controller.name)
    return {name: ExpectedKeys(name, paths) for name, paths in reads.items()}


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
        lacks_samples: Whether it reads sample losses, and no event has had any yet.
    """

    __slots__ = ("_cell", "_expected", "_metric", "_source", "error_count", "lacks_samples", "name")

    def __init__(self, name: str, metric: Metric, cell: Cell, source: str, expected: ExpectedKeys) -> None:
        self.name = name
        self.error_count = 0
        self.lacks_samples = metric.reads_samples
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

    def update(self, event: Event) -> Sequence[RuleError | RuleWarning]:
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
        if self.lacks_samples and event.samples:
            self.lacks_samples = False
        if self._expected.unseen and isinstance(computed, Mapping):
            return self._expected.check_value(computed, event)
        return ()

    def _failure(self, event: Event, error: Exception) -> RuleError:
        where = f"{self._source}: controller metric '{self.name}', {type(self._metric).__name__}.compute"
        fields = outcome_fields(self.name, f"on_{event.kind}", event)
        return RuleError(*fields, error=f"{where}: {failure_text(error)}", value_lag=lag_of(event))


# --- states ---------------------------------------------------------------------------------------------------------


def answer_of(condition: Callable[[Event], Any], event: Event) -> bool | Exception | None:
    """Return what a condition gives at an event: None where it is undefined, an exception where it fails."""
    try:
        answer = condition(event)
    except LookupError:
        return None
    except Exception as error:  # A condition may fail in any way; training continues.
        return error
    if answer is True or answer is False:
        return answer
    if answer is UNAVAILABLE:
        return None
    return TypeError(f"a condition must give True or False, this gave a {type(answer).__name__}")


def failed_condition(name: str, rule: Rule, error: Exception, event: Event, *, source: str, where: str) -> RuleError:
    """Return the error that records a failure.

    Args:
        name: The name under which it is recorded.
        rule: The condition.
        error: Its failure.
        event: The event.
        source: The origin of the policy, as messages name it.
        where: Words for the condition.
    """
    place = rule.place_of_failure(error.__traceback__)
    message = phrase(failure_text(error), where=f"{source}:{place.line}:{place.column}: {where}")
    return RuleError(*outcome_fields(name, f"on_{event.kind}", event), error=message, value_lag=lag_of(event))


class StateRunner:
    """One state of one engine. Rules read it like a controller metric.

    Args:
        declaration: As in the policy.
        conditions: The condition of each class, as a function of the event.
        cell: Holds the class.
        held: Holds since when.
        source: The origin of the policy, as messages name it.

    Attributes:
        name: Its name.
        declaration: As given.
        count: How often it was classified.
        error_count: How often a condition failed.
    """

    __slots__ = ("_cell", "_conditions", "_held", "_source", "count", "declaration", "error_count", "name")

    def __init__(
        self,
        declaration: StateDeclaration,
        conditions: Sequence[Callable[[Event], Any]],
        cell: Cell,
        held: HeldState,
        source: str,
    ) -> None:
        self.name = declaration.name
        self.count = self.error_count = 0
        self.declaration = declaration
        self._conditions = conditions
        self._cell = cell
        self._held = held
        self._source = source

    def update(self, event: Event) -> Sequence[RuleError]:
        """Take the first class whose condition is true; return an error for its first failure.

        Where a condition before it is undefined or fails, and where none is true, the state stays as it is.
        """
        self.count += 1
        for (name, rule), condition in zip(self.declaration.classes, self._conditions, strict=True):
            answer = answer_of(condition, event)
            if answer is None:
                return ()
            if isinstance(answer, Exception):
                self.error_count += 1
                where = f"state '{self.name}', {name}"
                failure = failed_condition(self.name, rule, answer, event, source=self._source, where=where)
                return (failure,) if self.error_count == 1 else ()
            if answer:
                before = self.current
                if name != before:
                    self._held.change(before, event)
                    self._cell.value = name
                return ()
        return ()

    @property
    def current(self) -> str | None:
        """Its class; None before the first."""
        return None if self._cell.value is UNAVAILABLE else self._cell.value

    def renew(self) -> None:
        """Forget what was already reported."""
        self.error_count = 0


# --- series ---------------------------------------------------------------------------------------------------------


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

    def candidate(self, event: Event) -> float | RuleError | None:
        """Return the value to admit, None for none, or an error for the condition's first failure."""
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
                return failed_condition(self.name, admit, answer, event, source=self._source, where=where)
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

    def admit_values(self, event: Event) -> Sequence[RuleError]:
        """Admit values of an event; return the first failures of conditions.

        All are evaluated before any series takes its value.
        """
        failures: list[RuleError] = []
        candidates = [(gatekeeper.target, gatekeeper.candidate(event)) for gatekeeper in self.gatekeepers]
        for target, candidate in candidates:
            if isinstance(candidate, RuleError):
                failures.append(candidate)
            elif candidate is not None:
                target.append(candidate)
        for computed in self.computed:
            computed.update(event)
        return failures


# --- recorded values -------------------------------------------------------------------------------------------------


class _RecordedState:
    """One state that the run records, as the index of its class."""

    __slots__ = ("_count", "_numbers", "_shown", "_state", "metric", "name")

    def __init__(self, state: StateRunner) -> None:
        self.name, self.metric = state.name, f"{DERIVED_PREFIX}{state.name}"
        classes = dict.fromkeys(name for name, _ in state.declaration.classes)
        self._state = state
        self._numbers = {name: float(number) for number, name in enumerate(classes)}
        self._count = 0
        self._shown: str | None = None

    def number(self) -> float | None:
        """Return the index of its class, if it was classified since the last call."""
        count, self._count = self._count, self._state.count
        current = self._state.current
        return None if count == self._count or current is None else self._numbers[current]

    def news(self) -> str | None:
        """Return its class, if that has changed since the last call."""
        shown, self._shown = self._shown, self._state.current
        return None if shown == self._shown else self._shown


class RecordedValues:
    """Records definitions and states at events of one kind."""

    __slots__ = ("_definitions", "_known", "_states")

    def __init__(self) -> None:
        self._definitions: dict[Series, tuple[News, list[tuple[str, Callable[[Event], Any]]]]] = {}
        self._known: set[str] = set()
        self._states: list[_RecordedState] = []

    def add_state(self, state: StateRunner) -> None:
        """Record a state that these events classify."""
        self._states.append(_RecordedState(state))

    def add_definition(
        self, recorded: RecordedDefinition, driver: Series, function: Callable[[CodeType], Callable[[Event], Any]]
    ) -> None:
        """Record a definition at each value of its driver, if this is not done yet."""
        if recorded.name not in self._known:
            self._known.add(recorded.name)
            _, functions = self._definitions.setdefault(driver, (News(driver), []))
            functions.append((f"{DERIVED_PREFIX}{recorded.name}", function(recorded.value.code)))

    def values_at(self, event: Event) -> DerivedValues | None:
        """Return the values at an event, as rules read them; None without any.

        What is undefined, fails or is no number has no value.
        """
        names: list[str] = []
        values: list[float] = []
        for has_news, functions in self._definitions.values():
            if has_news():
                for name, function in functions:
                    try:
                        values.append(float(function(event)))
                    except Exception:  # An expression may fail in any way; LookupError is an undefined value.
                        continue
                    names.append(name)
        classes: dict[str, str] = {}
        for state in self._states:
            if (number := state.number()) is not None:
                names.append(state.metric)
                values.append(number)
                if (current := state.news()) is not None:
                    classes[state.name] = current
        if not names:
            return None
        place = (event.seq, event.step, event.epoch, event.time_ns, event.elapsed_ns, lag_of(event))
        return DerivedValues(*place, tuple(names), tuple(values), classes)
