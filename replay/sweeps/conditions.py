"""Rules as vectors: what a term comes to at every event of a kind in one run, the undefined included.

A term and the values of params flow in; out flow its values at the rows where its trigger asks, and where it is
defined. Undefined spreads from left to right and short-circuits as in the event engine; a rule's failure counts as
undefined, as it does there. What is computed is kept, so that variants share it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...rules.language import references as ref
from ...rules.language.functions import FUNCTIONS
from ...rules.language.operators import power
from ...rules.language.references import Param
from .features import WindowSums, folded, windowed
from .stream import Ints, Stream, Truths, Values
from .terms import MAX_EXACT, OF_NUMBERS, NotColumnar, Term

#: Bytes of intermediate results of one run that are kept before all are forgotten.
_KEPT_BYTES: Final = 1 << 28

_NS_PER_S: Final = 1e9

_Numbers = Any


class Vector(NamedTuple):
    """What a term comes to.

    Attributes:
        values: One for each row, or one for all rows: floats or truth values. Where undefined, anything.
        defined: Whether each is defined; None where all are.
    """

    values: _Numbers
    defined: Truths | None


#: What is defined where all arguments are, and exact.
_PLAIN: Final[dict[str, np.ufunc]] = {
    "not": np.logical_not,
    "-": np.negative,
    "abs": np.abs,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "Lt": np.less,
    "LtE": np.less_equal,
    "Gt": np.greater,
    "GtE": np.greater_equal,
    "Eq": np.equal,
    "NotEq": np.not_equal,
}
#: What is exact up to 2**53 where its arguments may be whole.
_ARITHMETIC: Final[dict[str, np.ufunc]] = {"Add": np.add, "Sub": np.subtract, "Mult": np.multiply}
#: What goes through Python's own functions value by value, because numpy's differ in the last bits.
_ONE_BY_ONE: Final[dict[str, Callable[..., Any]]] = {
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": power,
    **{name: plain for name in OF_NUMBERS if (plain := FUNCTIONS[name].plain) is not None},
}


class Conditions:
    """The terms of one run, computed once for each set of values of their params.

    Args:
        stream: The run.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rows: dict[str, Ints] = {}
        self._places: dict[tuple[str, object], tuple[Ints, bool]] = {}
        self._series: dict[object, Values] = {}
        self._sums: dict[object, WindowSums] = {}
        self._kept: dict[tuple[object, ...], Vector] = {}
        self._kept_bytes = 0

    def rows(self, kind: str) -> Ints:
        """The events at which a trigger asks, by index."""
        if kind not in self._rows:
            self._rows[kind] = self._stream.rows(kind)
        return self._rows[kind]

    def vector(self, term: Term, kind: str, params: Mapping[str, Param]) -> Vector:
        """What a rule comes to at each event of a kind. Not it is kept, but the terms that it is made of.

        Raises:
            NotColumnar: A whole number on the way is too great for a column.
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
                return self._read(kind, term.payload)
            case "param":
                return Vector(_exact(params[term.payload]), None)
            case "constant":
                return Vector(_exact(term.payload), None)
            case "and" | "or":
                return _joined(term.operation, *vectors)
            case "if":
                return _chosen(*vectors)
            case _:
                return _applied(term, vectors)

    # --- what rules read ----------------------------------------------------------------------------------------

    def _read(self, kind: str, reference: ref.Reference) -> Vector:
        if isinstance(reference, ref.ContextValue):
            return self._fact(reference.name, self.rows(kind))
        assert isinstance(reference, ref.SeriesReference)
        series = self._values(reference.key)
        place, is_own = self._place(kind, reference)
        defined: Truths | None
        match reference:
            case ref.SeriesLength():
                return Vector((place + 1).astype(np.float64), None)
            case ref.SeriesValue(_, back):
                return Vector(series.values, None) if is_own and not back else _taken(series.values, place - back)
            case ref.SeriesChange(_, back):
                newest, older = _taken(series.values, place), _taken(series.values, place - back)
                return Vector(newest.values - older.values, _both([newest.defined, older.defined]))
            case ref.SeriesFold():
                numbers, defined = folded(reference, series.values)
            case ref.Window():
                numbers, defined = windowed(reference, self._sums_of(reference.key))
        if isinstance(reference, ref.Window) and reference.function.name == "count":
            # It counts nothing where there is nothing, and is never undefined.
            counted = numbers if defined is None else np.where(defined, numbers, 0.0)
            return Vector(_taken(counted, place).values * (place >= 0), None)
        if is_own:
            return Vector(numbers, defined)
        taken = _taken(numbers, place)
        return taken if defined is None else Vector(taken.values, _both([taken.defined, _taken(defined, place).values]))

    def _values(self, key: ref.SeriesKey) -> Values:
        if key not in self._series:
            self._series[key] = self._stream.series(key)
        return self._series[key]

    def _sums_of(self, key: ref.SeriesKey) -> WindowSums:
        if key not in self._sums:
            self._sums[key] = WindowSums(self._values(key).values)
        return self._sums[key]

    def _place(self, kind: str, reference: ref.SeriesReference) -> tuple[Ints, bool]:
        """For each row the index of the newest value of a series, -1 before the first; and whether each has its own."""
        key = (kind, reference.key)
        if key not in self._places:
            at, rows = self._values(reference.key).at, self.rows(kind)
            self._places[key] = np.searchsorted(at, rows, side="right") - 1, np.array_equal(at, rows)
        return self._places[key]

    def _fact(self, name: str, rows: Ints) -> Vector:
        plan, stream = self._stream.plan, self._stream
        if name == "step":
            return Vector(stream.steps[rows].astype(np.float64), None)
        if name == "elapsed_s":
            return Vector(stream.clock_ns[rows] / _NS_PER_S, None)
        if name in ("max_steps", "world_size"):
            return _declared(plan.max_steps() if name == "max_steps" else plan.world_size, rows)
        if name == "progress" and plan.max_steps():
            return Vector(stream.steps[rows] / _exact(plan.max_steps() or 0), None)
        own, logged = stream.has_epoch[rows], stream.metrics.get("epoch")
        epochs = stream.epochs[rows]
        if logged is not None:
            place = np.searchsorted(logged.at, rows)
            here = _taken(logged.at, np.where(place < len(logged.at), place, -1))
            is_here = np.logical_and(here.values == rows, True if here.defined is None else here.defined)
            values = logged.values[np.where(is_here, place, 0)]
            epochs, own = np.where(own, epochs, values), own | is_here
        epoch = Vector(epochs, own)
        if name == "epoch":
            return epoch
        total = _declared(plan.total_epochs, rows)
        if not total.values:
            return Vector(epochs, np.zeros(len(rows), np.bool_))
        return Vector(epochs / total.values, own)


def _declared(value: int | None, rows: Ints) -> Vector:
    return Vector(0.0, np.zeros(len(rows), np.bool_)) if value is None else Vector(_exact(value), None)


def _exact(value: object) -> Any:
    """A number as a column holds it."""
    if isinstance(value, bool):
        return value
    assert isinstance(value, (int, float))
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        raise NotColumnar(f"a whole number beyond 2**53: {value}")
    return float(value)


def _whole(values: _Numbers) -> _Numbers:
    """What arithmetic on what may be whole numbers gave, if it is exact as floats."""
    if np.any(np.isfinite(values) & (np.abs(values) > MAX_EXACT)):
        raise NotColumnar("whole numbers beyond 2**53")
    return values


def _taken(values: npt.NDArray[Any], place: Ints) -> Vector:
    """The values at those places, undefined where a place is below 0."""
    known = place >= 0
    if not len(values):
        return Vector(np.zeros(len(place), values.dtype), known & False)
    return Vector(values[np.maximum(place, 0)], None if known.all() else known)


def _size_bytes(part: _Numbers | None) -> int:
    return part.nbytes if isinstance(part, np.ndarray) else 0


def _both(parts: list[Any]) -> Truths | None:
    """Where all of them are; None means everywhere."""
    result: Any = None
    for part in parts:
        if part is not None:
            result = part if result is None else result & part
    return result  # type: ignore[no-any-return]


def _applied(term: Term, vectors: list[Vector]) -> Vector:
    """An operation whose arguments are all evaluated: undefined where one of them is, or where it fails."""
    operation, values = term.operation, [vector.values for vector in vectors]
    defined = _both([vector.defined for vector in vectors])
    if operation in _PLAIN:
        return Vector(_PLAIN[operation](*values), defined)
    if operation in _ARITHMETIC:
        result = _ARITHMETIC[operation](*values)
        return Vector(result if term.is_float else _whole(result), defined)
    match operation:
        case "Div":
            return Vector(np.divide(*values), _both([defined, np.not_equal(values[1], 0.0)]))
        case "sqrt" | "math_sqrt":
            return Vector(np.sqrt(values[0]), _both([defined, np.logical_not(np.less(values[0], 0.0))]))
    numbers, succeeded = _one_by_one(_ONE_BY_ONE[operation], values)
    return Vector(numbers, _both([defined, succeeded]))


def _joined(operation: str, left: Vector, right: Vector) -> Vector:
    is_and = operation == "and"
    values = np.logical_and(left.values, right.values) if is_and else np.logical_or(left.values, right.values)
    if right.defined is None:
        return Vector(values, left.defined)
    # What is on the right is not looked at where the left one has settled it.
    settled = np.logical_not(left.values) if is_and else left.values
    return Vector(values, _both([left.defined, settled | right.defined]))


def _chosen(test: Vector, body: Vector, otherwise: Vector) -> Vector:
    values = np.where(test.values, body.values, otherwise.values)
    if body.defined is None and otherwise.defined is None:
        return Vector(values, test.defined)
    parts = [True if vector.defined is None else vector.defined for vector in (body, otherwise)]
    return Vector(values, _both([test.defined, np.where(test.values, *parts)]))


def _one_by_one(function: Callable[..., Any], values: list[_Numbers]) -> tuple[_Numbers, Truths]:
    """A function of Python's at each row, and where it did not fail."""
    columns = np.broadcast_arrays(*values)
    numbers, succeeded = np.zeros(columns[0].size), np.ones(columns[0].size, np.bool_)
    for row, arguments in enumerate(zip(*(column.ravel().tolist() for column in columns), strict=True)):
        try:
            number = function(*arguments)
        except Exception:  # As a rule may fail in the engine: in any way.
            succeeded[row] = False
            continue
        if not isinstance(number, (int, float)) or (isinstance(number, int) and abs(number) > MAX_EXACT):
            raise NotColumnar(f"a value that is no float: {number!r}")
        numbers[row] = number
    return numbers.reshape(columns[0].shape), succeeded.reshape(columns[0].shape)
