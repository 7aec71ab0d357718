"""Evaluates rules as vectors: the value of a term at every event of a kind in one run, undefined values included.

Takes a term and the values of params. Returns its values at the rows where its trigger asks, and where it is defined.
Undefined spreads from left to right and short-circuits as in the event engine; a rule's failure counts as undefined, as
it does there. Results are cached, so that variants share them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...rules.functions.operators import power
from ...rules.readings.milestone import MilestoneTracker, Reached
from ...rules.readings.reading import MAX_EXACT, Extent, NotColumnar, Param, exact_float
from ...rules.readings.table import FUNCTIONS
from ...rules.readings.vectors import Ints, Truths, Vector, both, taken
from ...store.events import Event
from .metric_values import MetricValues
from .rule_firings import AskedPast
from .series_readings import SeriesReadings
from .stream import Stream, Values
from .terms import (
    OF_NUMBERS,
    ColumnarState,
    ComputedReading,
    CountedMilestone,
    Driver,
    SeriesOfTerm,
    StateQuestion,
    Term,
)

#: Size limit in bytes of the cached intermediate results of one run. Beyond it the cache is cleared.
_KEPT_BYTES: Final = 1 << 28

_Numbers = Any


#: Exact, and defined where all arguments are.
_PLAIN: Final[dict[str, np.ufunc]] = {
    "not": np.logical_not,
    "-": np.negative,
    "abs": np.abs,
    "isfinite": np.isfinite,
    "Lt": np.less,
    "LtE": np.less_equal,
    "Gt": np.greater,
    "GtE": np.greater_equal,
    "Eq": np.equal,
    "NotEq": np.not_equal,
}
#: Exact up to 2**53 where the arguments may be whole numbers.
_ARITHMETIC: Final[dict[str, np.ufunc]] = {"Add": np.add, "Sub": np.subtract, "Mult": np.multiply}
#: Computed value by value with Python's own functions, because numpy's differ in the last bits.
_ONE_BY_ONE: Final[dict[str, Callable[..., Any]]] = {
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": power,
    **{name: plain for name in OF_NUMBERS if (plain := FUNCTIONS[name].plain) is not None},
}


#: Computes what a rule asks of past decisions at the rows of a kind.
Past = Callable[[AskedPast, str, Mapping[str, Param]], Vector]


class Conditions:
    """Computes the terms of one run, once for each set of values of their params.

    Args:
        stream: The run.
        metrics: Its controller metrics.
        past: Computes what rules ask of past decisions.

    Attributes:
        metrics: Its controller metrics.
        series: Its series.
        may_fail: Whether an operation failed at some row: a rule fails there, unless it settles its answer before.
    """

    def __init__(self, stream: Stream, metrics: MetricValues, past: Past) -> None:
        self.may_fail = False
        self._stream = stream
        self.metrics = metrics
        self._past = past
        self.series = SeriesReadings(stream)
        self._kept: dict[tuple[object, ...], Vector] = {}
        self._kept_bytes = 0
        self._is_computed: dict[SeriesOfTerm, bool] = {}
        self._histories: dict[tuple[object, ...], _History] = {}
        self._reached: dict[CountedMilestone, Vector] = {}

    def rows(self, kind: str) -> Ints:
        """Return the indices of the events at which a trigger asks."""
        return self.series.rows(kind)

    def vector(self, term: Term, kind: str, params: Mapping[str, Param]) -> Vector:
        """Return the value of a rule at each event of a kind. It is not cached, but the terms that it consists of are.

        Raises:
            NotColumnar: An intermediate whole number is too large for a column.
        """
        with np.errstate(all="ignore"):
            return self._computed(term, kind, params)

    def _vector(self, term: Term, kind: str, params: Mapping[str, Param]) -> Vector:
        key = (id(term), kind, *map(params.__getitem__, term.params))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._computed(term, kind, params)
            self._kept_bytes += _size_bytes(found.values) + _size_bytes(found.defined)
            if self._kept_bytes > _KEPT_BYTES:
                self._kept.clear()
                self._kept_bytes = 0
        return found

    def _computed(self, term: Term, kind: str, params: Mapping[str, Param]) -> Vector:
        vectors = [self._vector(argument, kind, params) for argument in term.arguments]
        match term.operation:
            case "reference":
                found: Vector = term.payload.column(self.series, kind)
                return found
            case "series":
                return self._series_read(kind, term.payload)
            case "past":
                return self._past(term.payload, kind, params)
            case "state":
                return self._of_state(term.payload, kind, params)
            case "milestone":
                return self._of_milestone(term.payload, kind)
            case "metric":
                return self.metrics.read(term.payload, self.rows(kind))
            case "param" | "constant":
                return Vector(_scalar(params[term.payload] if term.params else term.payload), None)
            case "and" | "or":
                return _joined(term.operation, *vectors)
            case "if":
                return _chosen(*vectors)
            case _:
                found = _applied(term, vectors)
                self.may_fail = self.may_fail or _fails(found, vectors)
                return found

    # --- what rules read ----------------------------------------------------------------------------------------

    def is_new(self, kind: str, driver: Driver) -> Truths:
        """Return whether a series has had a value since the row before.

        Raises:
            NotColumnar: It is the series of an expression that fails.
        """
        self._need(driver.sources)
        return self.series.is_new(kind, driver.key)

    def _need(self, sources: Iterable[SeriesOfTerm]) -> None:
        """Compute series of expressions, once."""
        for source in sources:
            if source not in self._is_computed:
                self._is_computed[source] = self._compute(source)
            if not self._is_computed[source]:
                raise NotColumnar(f"the expression of {source.key.name!r} fails, or reads a constant")

    def _series_read(self, kind: str, reading: ComputedReading) -> Vector:
        self._need(reading.sources)
        found = reading.reference.column(self.series, kind)
        if not reading.is_full:
            return found
        return Vector(found.values, both([found.defined, self.series.is_full(kind, reading.reference)]))

    def _compute(self, source: SeriesOfTerm) -> bool:
        """Compute a series of an expression at each value of its driver; return whether that is exact.

        A failure would add NaN. Columns cannot tell it from an undefined result, which adds nothing.
        """
        failed_before, self.may_fail = self.may_fail, False
        at, rows = self.series.values(source.driver).at, source.key.name
        self.series.add_rows(rows, at)
        try:
            values, defined = self._computed(source.term, rows, {})
            if self.may_fail or (len(at) and at[0] < 0):
                return False
        finally:
            self.may_fail = failed_before
        known = np.broadcast_to(True if defined is None else defined, at.shape)
        numbers = np.broadcast_to(values, at.shape).astype(np.float64)
        self.series.add_values(source.key, Values(at[known], numbers[known]))
        return True

    # --- states and milestones ----------------------------------------------------------------------------------

    def _of_state(self, asked: StateQuestion, kind: str, params: Mapping[str, Param]) -> Vector:
        state = asked.state
        key = (state, *map(params.__getitem__, state.params))
        if key not in self._histories:
            self._histories[key] = self._history(state, params)
        history, rows = self._histories[key], self.rows(kind)
        place = np.searchsorted(history.at, rows, side="right") - 1
        match asked.question:
            case "changed":
                return Vector(np.isin(rows, history.at), None)
            case "age":
                since = taken(self._stream.steps[history.at], place)
                return Vector((self._stream.steps[rows] - since.values).astype(np.float64), since.defined)
            case "previous":
                place = place - 1
        return taken(np.array([name for name, _ in state.classes])[history.classes], place)

    def _history(self, state: ColumnarState, params: Mapping[str, Param]) -> _History:
        """Classify the run at each event of the state's kinds."""
        rows = [self.rows(kind) for kind in state.kinds]
        found = [
            _first_true([self._vector(condition, kind, params) for _, condition in state.classes], len(own))
            for kind, own in zip(state.kinds, rows, strict=True)
        ]
        at, classes = np.concatenate(rows), np.concatenate(found)
        order = np.argsort(at[classes >= 0], kind="stable")
        at, classes = at[classes >= 0][order], classes[classes >= 0][order]
        changes = np.diff(classes, prepend=-1) != 0
        return _History(at[changes], classes[changes])

    def _of_milestone(self, counted: CountedMilestone, kind: str) -> Vector:
        if counted not in self._reached:
            self._reached[counted] = self._counted(counted)
        reached, rows = self._reached[counted], self.rows(kind)
        assert reached.defined is not None
        return Vector(reached.values[rows], reached.defined[rows])

    def _counted(self, counted: CountedMilestone) -> Vector:
        """Return at each event that counts whether it reaches a milestone, by the engine's own tracker."""
        stream, extent = self._stream, counted.milestone.extent
        tracker, reached, plans = MilestoneTracker(*counted), Reached(), stream.recorded.plans
        found, known = np.zeros(len(stream), np.bool_), np.zeros(len(stream), np.bool_)
        positions = self.series.positions(extent)
        rows = np.flatnonzero(stream.is_any(counted.kinds))
        has_epoch, logged = stream.has_epoch.copy(), stream.metrics.get("epoch")
        if logged is not None:
            has_epoch[logged.at] = True
        epochs = np.where(stream.has_epoch, stream.epochs, stream.whole("epoch"))
        columns = (rows, stream.steps[rows], epochs[rows], has_epoch[rows], stream.attempts[rows], stream.codes[rows])
        for row, step, epoch, has_it, attempt, code in zip(*(column.tolist() for column in columns), strict=True):
            event = Event(stream.names[code], step=step, epoch=epoch if has_it else None)
            position = functools.partial(_position, float(positions[row]))
            reached = tracker.after(reached, event, plans.get(attempt, stream.plan), position)
            found[row], known[row] = reached.now > reached.before, reached.is_known
        return Vector(found, known)


class _History(NamedTuple):
    """The changes of a state.

    Attributes:
        at: The event of each.
        classes: The index of the class that it took.
    """

    at: Ints
    classes: Ints


def _first_true(conditions: Sequence[Vector], rows: int) -> Ints:
    """Return the first true condition at each row; -1 where one before it is undefined, or none is true."""
    found = np.full(rows, -1)
    for index, condition in reversed([*enumerate(conditions)]):
        found = np.where(condition.values, index, found)
        if condition.defined is not None:
            found = np.where(condition.defined, found, -1)
    return found


def _position(number: float, _: Extent) -> float | None:
    return None if math.isnan(number) else number


def _scalar(value: Param) -> Any:
    return np.str_(value) if isinstance(value, str) else exact_float(value)


def _whole(values: _Numbers) -> _Numbers:
    """Return the results of arithmetic on possible whole numbers if they are exact as floats."""
    if np.any(np.isfinite(values) & (np.abs(values) > MAX_EXACT)):
        raise NotColumnar("whole numbers beyond 2**53")
    return values


def _size_bytes(part: _Numbers | None) -> int:
    return part.nbytes if isinstance(part, np.ndarray) else 0


def _applied(term: Term, vectors: list[Vector]) -> Vector:
    """Apply an operation to evaluated arguments: undefined where one of them is, or where it fails."""
    operation, values = term.operation, [vector.values for vector in vectors]
    defined = both([vector.defined for vector in vectors])
    if operation in _PLAIN:
        return Vector(_PLAIN[operation](*values), defined)
    if operation in _ARITHMETIC:
        result = _ARITHMETIC[operation](*values)
        return Vector(result if term.is_float else _whole(result), defined)
    match operation:
        case "Div":
            return Vector(np.divide(*values), both([defined, np.not_equal(values[1], 0.0)]))
        case "sqrt" | "math_sqrt":
            return Vector(np.sqrt(values[0]), both([defined, np.logical_not(np.less(values[0], 0.0))]))
    numbers, succeeded = _one_by_one(_ONE_BY_ONE[operation], values)
    return Vector(numbers, both([defined, succeeded]))


def _fails(found: Vector, arguments: list[Vector]) -> bool:
    """Whether an operation has no value at a row where all of its arguments have one."""
    before = both([argument.defined for argument in arguments])
    if found.defined is None or found.defined is before:
        return False
    failed = np.logical_not(found.defined)
    return bool(np.any(failed if before is None else failed & before))


def _joined(operation: str, left: Vector, right: Vector) -> Vector:
    is_and = operation == "and"
    values = np.logical_and(left.values, right.values) if is_and else np.logical_or(left.values, right.values)
    if right.defined is None:
        return Vector(values, left.defined)
    # The right side is not read where the left side has settled the result.
    settled = np.logical_not(left.values) if is_and else left.values
    return Vector(values, both([left.defined, settled | right.defined]))


def _chosen(test: Vector, body: Vector, otherwise: Vector) -> Vector:
    values = np.where(test.values, body.values, otherwise.values)
    if body.defined is None and otherwise.defined is None:
        return Vector(values, test.defined)
    parts = [True if vector.defined is None else vector.defined for vector in (body, otherwise)]
    return Vector(values, both([test.defined, np.where(test.values, *parts)]))


def _one_by_one(function: Callable[..., Any], values: list[_Numbers]) -> tuple[_Numbers, Truths]:
    """Apply a Python function at each row; return its values and where it did not fail."""
    columns = np.broadcast_arrays(*values)
    numbers, succeeded = np.zeros(columns[0].size), np.ones(columns[0].size, np.bool_)
    for row, arguments in enumerate(zip(*(column.ravel().tolist() for column in columns), strict=True)):
        try:
            number = function(*arguments)
        except Exception:  # A rule may fail in any way in the engine, too.
            succeeded[row] = False
            continue
        if not isinstance(number, (int, float)) or (isinstance(number, int) and abs(number) > MAX_EXACT):
            raise NotColumnar(f"a value that is not a float: {number!r}")
        numbers[row] = number
    return numbers.reshape(columns[0].shape), succeeded.reshape(columns[0].shape)
