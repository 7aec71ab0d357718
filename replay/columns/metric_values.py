"""Computes what rules read of controller metrics, for all events of a run at once.

A list of a ``HistoryBasedMetric`` is a window of the values that events pushed. The values of any other metric come
from the metric itself, which takes the events of its kinds once for all variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...rules.engine.decisions import is_storable
from ...rules.readings.reading import MAX_EXACT, NotColumnar
from ...rules.readings.table import FUNCTIONS
from ...rules.readings.vectors import Floats, Ints, Truths, Vector, nowhere, taken
from ...store.events import BEFORE_STREAM, INIT_END, Event
from .metric_readings import ListReading, MetricPaths, ValueReading
from .stream import Stream, Values
from .window_values import WindowSums, reduced

#: What a value of a metric may be: nothing, a number, a truth value, or something that no column holds.
_NOTHING: Final = 0
_NUMBER: Final = 1
_TRUTH: Final = 2
_OTHER: Final = 3

#: Stands for a key that a value lacks. None is a value: a rule that compares it fails.
_MISSING: Final = object()


@dataclass(frozen=True, eq=False)
class _List:
    """The values that a list of a ``HistoryBasedMetric`` was given.

    Attributes:
        begin: The event from which the list is there.
        at: The event of each value, ascending.
        sums: The values.
    """

    begin: int
    at: Ints
    sums: WindowSums


@dataclass(frozen=True, eq=False)
class _Path:
    """The values at one chain of keys of a metric.

    Attributes:
        at: The events that the metric took, ascending; -1 before the stream.
        numbers: The value at each.
        sorts: What the value is at each.
        found: The value itself at each; ``_MISSING`` for nothing.
    """

    at: Ints
    numbers: Floats
    sorts: Ints
    found: list[Any]


class MetricValues:
    """The controller metrics of one run.

    Args:
        stream: The run.
        events: Reads the run's events; called only for metrics that need them.
    """

    def __init__(self, stream: Stream, events: Callable[[], Sequence[Event]]) -> None:
        self._stream = stream
        self._events = events
        self._lists: dict[tuple[str, str], _List] = {}
        self._paths: dict[MetricPaths, dict[tuple[str | int, ...], _Path]] = {}

    def read(self, reading: ListReading | ValueReading, rows: Ints) -> Vector:
        """Return what a reading gives at each row.

        Raises:
            NotColumnar: The metric has values that no column holds.
        """
        return self._of_list(reading, rows) if isinstance(reading, ListReading) else self._of_path(reading, rows)

    def recorded(self, reading: ListReading | ValueReading, rows: Ints) -> list[Any]:
        """Return what a decision at each row records of a reading, in the type that it has; None for nothing."""
        if isinstance(reading, ValueReading):
            path = self._path(reading)
            places = (np.searchsorted(path.at, rows, side="right") - 1).tolist()
            found = [path.found[place] if place >= 0 else None for place in places]
            return [value if is_storable(value) else None for value in found]
        numbers, lengths = self._of_list(reading, rows), self._of_list(replace(reading, operation="len"), rows)
        known = _all(numbers).tolist()
        # The sum of an empty list is the whole number 0.
        is_whole = reading.operation == "sum"
        return [
            None if not is_known else int(number) if is_whole and not length else number
            for number, length, is_known in zip(numbers.values.tolist(), lengths.values.tolist(), known, strict=True)
        ]

    # --- lists --------------------------------------------------------------------------------------------------

    def _of_list(self, reading: ListReading, rows: Ints) -> Vector:
        if reading.operation == "window_size":
            first = np.flatnonzero(self._stream.is_any(("log", "evaluate")))
            return Vector(float(reading.size), rows >= first[0]) if len(first) else nowhere(len(rows))
        kept = self._list(reading.window, reading.key)
        ends = np.searchsorted(kept.at, rows, side="right")
        begins = ends - (ends if reading.size < 0 else np.minimum(ends, reading.size))
        for cut in reading.cuts:
            begins, ends = _cut(begins, ends, *cut)
        is_there = rows >= kept.begin
        values, counts = kept.sums.values, ends - begins
        match reading.operation:
            case "len":
                return Vector(counts.astype(np.float64), is_there)
            case "item":
                index = reading.index
                has_it = is_there & (counts > index if index >= 0 else counts >= -index)
                found = taken(values, np.where(has_it, (begins if index >= 0 else ends) + index, -1))
                return Vector(found.values, has_it)
        numbers, defined = reduced(FUNCTIONS[reading.operation], kept.sums, begins, ends, options=reading.options)
        if reading.operation == "sum":
            defined = defined | (counts == 0)
        return Vector(numbers, defined & is_there)

    def _list(self, window: str, key: str) -> _List:
        if (window, key) not in self._lists:
            found = self._of_losses() if window == "training_loss" else self._of_evaluations(key)
            self._lists.update({(window, name): made for name, made in found})
        if (window, key) not in self._lists:
            raise NotColumnar(f"a list with an unknown {key}")
        return self._lists[window, key]

    def _of_losses(self) -> Iterator[tuple[str, _List]]:
        stream = self._stream
        logs, places = stream.rows("log"), np.zeros(0, np.int64)
        losses = stream.metrics.get("loss")
        if losses is not None:
            places = losses.at[stream.is_any(("log",))[losses.at]]
        values, epochs, steps = stream.whole("loss")[places], self._epochs(places), stream.steps[places]
        # A repeated loss counts once; where the loop has no epochs, the step distinguishes two logs.
        where = np.where(_all(epochs), epochs.values, steps)
        is_new = np.ones(len(places), np.bool_)
        is_new[1:] = ~(_same(values[1:], values[:-1]) & _same(where[1:], where[:-1]))
        begin = int(logs[0]) if len(logs) else len(stream)
        for name, numbers in (("loss", values), ("steps", steps), ("epoch", epochs.values)):
            if name != "epoch" or _all(epochs)[is_new].all():
                yield name, _List(begin, places[is_new], WindowSums(numbers[is_new].astype(np.float64)))

    def _of_evaluations(self, key: str) -> Iterator[tuple[str, _List]]:
        stream = self._stream
        evaluated = stream.rows("evaluate")
        if key == "steps":
            pushed = Values(evaluated, stream.steps[evaluated].astype(np.float64))
        elif key == "epoch":
            epochs = self._epochs(evaluated)
            if not _all(epochs).all():
                return
            pushed = Values(evaluated, epochs.values)
        else:
            found = stream.metrics.get(key, Values(np.zeros(0, np.int64), np.zeros(0)))
            own = stream.is_any(("evaluate",))[found.at]
            pushed = Values(found.at[own], found.values[own])
        begin = int(pushed.at[0]) if len(pushed.at) else len(stream)
        yield key, _List(begin, pushed.at, WindowSums(pushed.values))

    def _epochs(self, events: Ints) -> Vector:
        """Return the epoch of each event: its own, or else its metric of that name."""
        stream = self._stream
        logged = stream.metrics.get("epoch")
        has_logged = np.zeros(len(stream), np.bool_)
        if logged is not None:
            has_logged[logged.at] = True
        own = stream.has_epoch[events]
        values = np.where(own, stream.epochs[events], stream.whole("epoch")[events])
        return Vector(values, own | has_logged[events])

    # --- values at chains of keys -------------------------------------------------------------------------------

    def _of_path(self, reading: ValueReading, rows: Ints) -> Vector:
        path = self._path(reading)
        wanted = _TRUTH if reading.is_truth else _NUMBER
        if np.isin(path.sorts, (_NOTHING, wanted), invert=True).any():
            what = "truth values" if reading.is_truth else "numbers"
            raise NotColumnar(f"values of {reading.metric.declaration.class_name} that are no {what}")
        place = np.searchsorted(path.at, rows, side="right") - 1
        values = path.numbers != 0.0 if reading.is_truth else path.numbers
        found, sort = taken(values, place), taken(path.sorts, place)
        is_there = sort.values == wanted
        return Vector(found.values, is_there if sort.defined is None else is_there & sort.defined)

    def _path(self, reading: ValueReading) -> _Path:
        if reading.metric not in self._paths:
            self._paths[reading.metric] = self._computed(reading.metric)
        return self._paths[reading.metric][reading.path]

    def _computed(self, paths: MetricPaths) -> dict[tuple[str | int, ...], _Path]:
        """Let the metric take its events, and note its value at each chain of keys."""
        metric = paths.declaration.metric(self._stream.plan)
        at = np.flatnonzero(self._stream.is_any(metric.kinds - {INIT_END}))
        events = self._events()
        before = [Event(INIT_END, seq=BEFORE_STREAM)] if INIT_END in metric.kinds else []
        found: dict[tuple[str | int, ...], list[Any]] = {path: [] for path in paths.paths}
        for event in (*before, *(events[index] for index in at.tolist())):
            try:
                value = metric.compute(event)
            except Exception:  # As in the engine, a metric that fails is unavailable until its next event.
                value = None
            for path, values in found.items():
                values.append(_MISSING if value is None else _value_at(value, path))
        at = np.concatenate([np.full(len(before), -1), at])
        return {path: _path_of(at, values) for path, values in found.items()}


def _value_at(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value at a chain of keys; ``_MISSING`` for nothing."""
    try:
        for key in path:
            value = value[key]
    except Exception:  # As in a rule, whatever goes wrong leaves it undefined.
        return _MISSING
    return value


def _path_of(at: Ints, values: list[Any]) -> _Path:
    sorts = [_sorted(value) for value in values]
    numbers = np.array([number for _, number in sorts])
    return _Path(at, numbers, np.array([sort for sort, _ in sorts], np.int64), values)


def _sorted(value: Any) -> tuple[int, float]:
    """Return what a value is, and the number."""
    if value is _MISSING:
        return _NOTHING, 0.0
    if isinstance(value, bool):
        return _TRUTH, float(value)
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_EXACT):
        return _NUMBER, float(value)
    return _OTHER, 0.0


def _cut(begins: Ints, ends: Ints, low: int | None, high: int | None) -> tuple[Ints, Ints]:
    """Return the bounds of a slice, as Python takes it of lists with these bounds."""
    counts = ends - begins
    starts, stops = (
        np.clip(counts + bound if bound < 0 else np.full_like(counts, bound), 0, counts)
        for bound in (0 if low is None else low, np.iinfo(np.int32).max if high is None else high)
    )
    return begins + starts, begins + np.maximum(starts, stops)


def _same(one: Floats, other: Floats) -> Truths:
    """Return where two values are equal, where NaN equals itself."""
    same: Truths = (one == other) | (np.isnan(one) & np.isnan(other))
    return same


def _all(vector: Vector) -> Truths:
    return np.ones(len(vector.values), np.bool_) if vector.defined is None else vector.defined
