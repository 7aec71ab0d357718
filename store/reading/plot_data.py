"""Computes what plots show: the x axis, extremes, moving averages, robust ranges, statistics over runs, and phases.

The x axis is each row's step, epoch, training time, samples or tokens seen, or the value of another metric. A phase is
all ``span`` events of one name. Its seconds are in the metric ``Time/{name}_seconds``; the attribute ``began_ns`` says
when a span began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Columns
from ..errors import TelemetryError
from ..event_json import decoded_attrs
from ..events import SPAN
from ..lineage import DECIDING_RANK
from .snapshot import PLACE, Snapshot, effective_lineage, effective_rows, of_rank

Axis = Literal["step", "epoch", "elapsed", "samples", "tokens", "metric"]

#: Metrics that count what the loop has seen: in total, or in each update.
_COUNTS: Final[Mapping[str, tuple[str, str]]] = {
    "samples": ("samples_seen", "batch_size"),
    "tokens": ("tokens_seen", "num_tokens"),
}

_NS_PER_S: Final = 1e9

#: A value beyond the quartiles by more than so many times their distance is an outlier: the outer fences of Tukey,
#: Exploratory Data Analysis, 1977; NIST/SEMATECH e-Handbook of Statistical Methods, 7.1.6.
_OUTER_FENCE: Final = 3.0

#: Values up to this have sums of squares that are finite.
_LARGE: Final = 1e150


def axis_column(axis: Axis, columns: Columns, x: str | None = None) -> str | None:
    """Return the column that ``axis_values`` needs besides kind, attempt, step, epoch and elapsed_ns; None for none.

    Raises:
        TelemetryError: The run does not count its samples or tokens, or lacks the metric ``x``.
    """
    if axis == "metric":
        if x not in columns.by_metric:
            raise TelemetryError("no event carries the metric of the x axis", got=x)
        return columns.by_metric[x]
    if axis not in _COUNTS:
        return None
    for metric in _COUNTS[axis]:
        if metric in columns.by_metric:
            return columns.by_metric[metric]
    in_total, in_each = _COUNTS[axis]
    raise TelemetryError(
        f"the run does not count its {axis}", fix=f"Log {in_total!r}, or {in_each!r} with every update"
    )


def axis_values(table: pa.Table, axis: Axis, columns: Columns, x: str | None = None) -> pa.Array:
    """Return the axis value of each row, as float64; null where it is unknown or not finite.

    Args:
        table: All effective events of one rank, in (attempt, seq) order.
        axis: ``step``; ``epoch``; ``elapsed``, seconds of training over all attempts; ``samples`` or ``tokens``, the
            newest value of the metric ``samples_seen`` (``tokens_seen``) or else the sum of ``batch_size``
            (``num_tokens``) over the updates so far; or ``metric``, the value of ``x`` in the same event or else the
            last one at the same step.
        columns: The columns of the run.
        x: A metric, for the axis ``metric``.
    """
    if axis == "elapsed":
        return pc.divide(pc.add(table["elapsed_ns"], _before_ns(table)).cast(pa.float64()), _NS_PER_S)
    name = axis_column(axis, columns, x)
    if name is None:
        return _finite(table[axis].cast(pa.float64()))
    values = _finite(table[name])
    if axis == "metric":
        return _by_step(table["step"], values)
    if columns.by_column()[name] == _COUNTS[axis][0]:
        return pc.fill_null_forward(values)
    counted = pc.if_else(pc.equal(table["kind"], "step_end"), values, pa.scalar(None, pa.float64()))
    return pc.cumulative_sum(pc.fill_null(counted, 0.0))


def _finite(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))


def _by_step(steps: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Fill each null with the last value at the same step."""
    known = pa.table({"step": steps, "value": values}).filter(values.is_valid())
    last = known.group_by("step", use_threads=False).aggregate([("value", "last")]).combine_chunks()
    return pc.coalesce(values, last["value_last"].take(pc.index_in(steps, value_set=last["step"])))


def _before_ns(table: pa.Table) -> pa.Array:
    """The total duration of the attempts before each row's own."""
    ends = table.group_by("attempt", use_threads=False).aggregate([("elapsed_ns", "max")])
    ends = ends.sort_by("attempt")
    before, total = [], 0
    for took in ends["elapsed_ns_max"].to_pylist():
        before.append(total)
        total += took or 0
    which = pc.index_in(table["attempt"], value_set=ends["attempt"].combine_chunks())
    return pa.array(before, pa.int64()).take(which)


def between(table: pa.Table, column: str, low: float | None, high: float | None) -> pa.Table:
    """Return the rows whose value in the column is known and within bounds, both inclusive."""
    values = table[column]
    held = values.is_valid()
    if low is not None:
        held = pc.and_(held, pc.greater_equal(values, low))
    if high is not None:
        held = pc.and_(held, pc.less_equal(values, high))
    return table.filter(held)


def ends_and_extremes(values: Sequence[float], stretches: int) -> list[int] | None:
    """Return the indices of the first, last, first lowest and first highest value of each bucket of equal count.

    Args:
        values: The series; at least as long as the number of buckets.
        stretches: The number of buckets.

    Returns:
        Distinct indices in ascending order; None where a value is NaN or infinite.

    >>> ends_and_extremes([5.0, 1.0, 9.0, 2.0, 3.0, 3.0], 2)
    [0, 1, 2, 3, 4, 5]
    """
    series = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        return None
    bounds = np.arange(stretches + 1) * len(series) // stretches
    starts, counts = bounds[:-1], np.diff(bounds)
    places = [starts, bounds[1:] - 1]
    for extreme in (np.minimum, np.maximum):
        found = np.flatnonzero(series == np.repeat(extreme.reduceat(series, starts), counts))
        places.append(found[np.searchsorted(found, starts)])
    kept: list[int] = np.unique(np.concatenate(places)).tolist()
    return kept


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return the exponential moving average of each value, without the bias towards the first one.

    With ``w`` the weight and ``t`` counting finite values from 1, ``y[t]`` is ``sum(w**k * x[t-k]) / sum(w**k)`` over
    ``k`` from 0 to ``t-1``: TensorBoard's smoothing (``classicSmoothing`` in
    ``tensorboard/webapp/widgets/line_chart_v2/data_transformer.ts``), in a form that keeps a constant exactly.

    Args:
        values: The series, oldest first.
        weight: From 0, the values themselves, up to but excluding 1.

    Returns:
        One average per value. A NaN or infinite value stays as it is, and the average continues after it.

    >>> smoothed([4.0, float("nan"), 1.0], 0.5)
    [4.0, nan, 2.0]
    """
    averages: list[float] = []
    average, count = 0.0, 0
    for value in values:
        if not isfinite(value):
            averages.append(value)
            continue
        count += 1
        share = (1 - weight) / (1 - weight**count)
        average += share * value - share * average
        averages.append(average)
    return averages


class RobustRange(NamedTuple):
    """The range of a series without its outliers.

    Attributes:
        low: The least value within the range.
        high: The greatest.
        outside: The number of finite values beyond it.
    """

    low: float
    high: float
    outside: int


def robust_range(values: Sequence[float]) -> RobustRange | None:
    """Return the range of the finite values without outliers; None if no value is finite.

    An outlier lies beyond the quartiles by more than three times their distance: Tukey's outer fences. If the quartiles
    are equal, nothing is an outlier. A quartile is the value at this place of the sorted series, rounded outwards.

    >>> robust_range([1.0, 2.0, 3.0, 4.0, 62.0])
    RobustRange(low=1.0, high=4.0, outside=1)
    """
    series = np.asarray(values, dtype=np.float64)
    ordered = np.sort(series[np.isfinite(series)])
    if not len(ordered):
        return None
    quarter = (len(ordered) - 1) // 4
    low, high = float(ordered[quarter]), float(ordered[-1 - quarter])
    first, last = 0, len(ordered) - 1
    if low < high:
        room = _OUTER_FENCE * (high - low)
        first = int(np.searchsorted(ordered, low - room, "left"))
        last = int(np.searchsorted(ordered, high + room, "right")) - 1
    return RobustRange(float(ordered[first]), float(ordered[last]), first + len(ordered) - 1 - last)


class AxisCourse(NamedTuple):
    """Values along an axis, both of shape (n,). The places ascend strictly."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]

    def at(self, places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the newest value up to each place; NaN before the first value and after the last.

        >>> AxisCourse(np.array([1.0, 3.0]), np.array([5.0, 7.0])).at(np.array([0.0, 2.0, 3.0, 4.0])).tolist()
        [nan, 5.0, 7.0, nan]
        """
        if not len(self.x):
            return np.full(len(places), np.nan)
        newest = np.searchsorted(self.x, places, side="right") - 1
        return np.where(self.covers(places), self.y[newest], np.nan)

    def covers(self, places: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Whether each place is between the first and the last value, both inclusive."""
        low, high = (self.x[0], self.x[-1]) if len(self.x) else (np.inf, -np.inf)
        held: npt.NDArray[np.bool_] = (places >= low) & (places <= high)
        return held


def course_of(x: Sequence[float], y: Sequence[float]) -> AxisCourse:
    """Order values by their places; the last of several at one place counts."""
    places, values = np.asarray(x, np.float64), np.asarray(y, np.float64)
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    is_last = np.append(places[1:] != places[:-1], True)[: len(places)]
    return AxisCourse(places[is_last], values[is_last])


class CourseStatistics(NamedTuple):
    """Statistics of several courses at each place of any of them; all of shape (n,).

    Attributes:
        x: The places, ascending.
        counts: Number of courses with a finite value there.
        mean, least, greatest: Of these values; NaN without any.
        deviation: Their sample deviation; NaN for fewer than two.
    """

    x: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]
    least: npt.NDArray[np.float64]
    greatest: npt.NDArray[np.float64]

    @property
    def course(self) -> AxisCourse:
        """The mean along the axis."""
        return AxisCourse(self.x, self.mean)

    def less(self, base: AxisCourse) -> CourseStatistics:
        """Return the differences to a course, at the places that it covers; the deviation stays."""
        part = self.taken(np.flatnonzero(base.covers(self.x)))
        other = base.at(part.x)
        return part._replace(mean=part.mean - other, least=part.least - other, greatest=part.greatest - other)

    def between(self, low: float | None, high: float | None) -> CourseStatistics:
        """Return the part within bounds, both inclusive."""
        ends = (-np.inf if low is None else low), (np.inf if high is None else high)
        return self.taken(np.flatnonzero((self.x >= ends[0]) & (self.x <= ends[1])))

    def taken(self, indices: npt.ArrayLike) -> CourseStatistics:
        """Return these places alone."""
        chosen = np.asarray(indices, np.int64)
        return CourseStatistics._make(values[chosen] for values in self)

    def band(self) -> list[float]:
        """Return both ends of the mean plus and minus the deviation; the mean alone where that is unknown."""
        spread = np.nan_to_num(self.deviation)
        ends: list[float] = np.concatenate([self.mean - spread, self.mean + spread]).tolist()
        return ends


def course_statistics(courses: Sequence[AxisCourse]) -> CourseStatistics:
    """Return the statistics of courses at all of their places.

    At each place a course counts with its newest value up to there, from its first value to its last. A value that is
    not finite does not count.

    >>> found = course_statistics([course_of([1, 2], [1.0, 3.0]), course_of([1], [2.0])])
    >>> found.mean.tolist(), found.counts.tolist()
    ([1.5, 3.0], [2, 1])
    """
    first = courses[0].x if courses else np.zeros(0)
    is_shared = all(np.array_equal(course.x, first) for course in courses)
    x = first if is_shared else np.unique(np.concatenate([course.x for course in courses]))
    # Squares of large values overflow, and so do differences of the largest.
    scale = max(
        (float(np.max(np.abs(course.y), initial=1.0, where=np.isfinite(course.y))) for course in courses), default=1.0
    )
    scale = scale if scale > _LARGE else 1.0
    count, mean, squares = np.zeros(len(x), np.int64), np.zeros(len(x)), np.zeros(len(x))
    least, greatest = np.full(len(x), np.inf), np.full(len(x), -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for course in courses:
            values = (course.y if is_shared else course.at(x)) / scale
            held = np.isfinite(values)
            count += held
            # Welford's update: sums of squares alone lose the digits of values far from zero.
            change = np.where(held, values - mean, 0.0)
            mean += change / np.maximum(count, 1)
            squares += np.where(held, change * (values - mean), 0.0)
            least = np.where(held, np.minimum(least, values), least)
            greatest = np.where(held, np.maximum(greatest, values), greatest)
        deviation = np.sqrt(np.where(count > 1, squares / np.maximum(count - 1, 1), np.nan))
        mean, deviation, least, greatest = (values * scale for values in (mean, deviation, least, greatest))
    mean, least, greatest = (np.where(count > 0, values, np.nan) for values in (mean, least, greatest))
    return CourseStatistics(x, count, mean, deviation, least, greatest)


_METRIC: Final = re.compile(r"Time/([^/]+)_seconds")


class PhaseSpan(NamedTuple):
    """One span of the run.

    Attributes:
        name: The name of its phase.
        step: Updates finished when it ended.
        began_s: Its begin, in seconds of training over all attempts.
        ended_s: Its end, likewise.
        trace: The path of a profiler trace; empty without one.
    """

    name: str
    step: int
    began_s: float
    ended_s: float
    trace: str = ""

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class Phase:
    """All spans of one name.

    Attributes:
        name: Their name.
        count: Their number.
        total_s: The sum of their durations.
        own_s: The same without the time of spans that began within them.
    """

    name: str
    count: int
    total_s: float
    own_s: float


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where a run spent its time.

    Attributes:
        elapsed_s: Time of training over all attempts, in seconds.
        phases: The phases, the longest first.
        spans: The spans, in the order of their ends.
    """

    elapsed_s: float
    phases: tuple[Phase, ...]
    spans: tuple[PhaseSpan, ...]


def time_spent(snapshot: Snapshot) -> TimeSpent:
    """Return the phases of the deciding rank's effective events; none for a run without spans."""
    names = {
        found[1]: column
        for metric, column in snapshot.columns.by_metric.items()
        if (found := _METRIC.fullmatch(metric))
    }
    if not names:
        return TimeSpent(0.0, (), ())
    wanted = ("kind", "elapsed_ns", "attrs", *PLACE, *names.values())
    rows = of_rank(snapshot, DECIDING_RANK).events_table(wanted)
    rows = effective_rows(rows, effective_lineage(snapshot).cuts)
    rows = rows.append_column("ended_s", axis_values(rows, "elapsed", snapshot.columns))
    spans = tuple(_spans(rows.filter(pc.equal(rows["kind"], SPAN)), names))
    return TimeSpent(pc.max(rows["ended_s"]).as_py() or 0.0, _phases(spans), spans)


def own_seconds(spans: Sequence[PhaseSpan]) -> dict[str, float]:
    """Return the seconds of each name, every moment counted once: for the open span that began last.

    >>> own_seconds([PhaseSpan("eval", 1, 0.0, 10.0), PhaseSpan("save", 1, 4.0, 7.0)])
    {'eval': 7.0, 'save': 3.0}
    """
    own = dict.fromkeys((span.name for span in spans), 0.0)
    lasting = [span for span in spans if span.seconds > 0]
    # Ends come before begins, and outer spans begin before inner ones.
    changes = sorted(
        [(span.began_s, True, -span.ended_s, place) for place, span in enumerate(lasting)]
        + [(span.ended_s, False, 0.0, place) for place, span in enumerate(lasting)]
    )
    is_open: dict[int, None] = {}
    for (moment, begins, _, place), (following, *_) in pairwise(changes):
        if begins:
            is_open[place] = None
        else:
            is_open.pop(place, None)
        if is_open:
            own[lasting[next(reversed(is_open))].name] += following - moment
    return own


def _spans(rows: pa.Table, names: Mapping[str, str]) -> Iterator[PhaseSpan]:
    attrs = [decoded_attrs(text) if text else {} for text in rows["attrs"].to_pylist()]
    places = list(
        zip(rows["step"].to_pylist(), rows["elapsed_ns"].to_pylist(), rows["ended_s"].to_pylist(), strict=True)
    )
    seconds = {name: rows[column].to_pylist() for name, column in names.items()}
    for row, (step, elapsed_ns, ended_s) in enumerate(places):
        began_ns, trace = attrs[row].get("began_ns"), attrs[row].get("trace")
        for name, values in seconds.items():
            if values[row] is None or not isfinite(values[row]):
                continue
            # The clock of `began_ns` is that of `elapsed_ns`: it begins anew with each attempt.
            took_s = (elapsed_ns - began_ns) / 1e9 if isinstance(began_ns, int) else values[row]
            yield PhaseSpan(name, step, ended_s - max(took_s, 0.0), ended_s, trace if isinstance(trace, str) else "")


def _phases(spans: Sequence[PhaseSpan]) -> tuple[Phase, ...]:
    durations: dict[str, list[float]] = {}
    for span in spans:
        durations.setdefault(span.name, []).append(span.seconds)
    own = own_seconds(spans)
    found = [Phase(name, len(each), sum(each), own[name]) for name, each in durations.items()]
    return tuple(sorted(found, key=lambda phase: -phase.total_s))
