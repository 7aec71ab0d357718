"""Computes what plots of a run show: the x axis, the extremes of each bucket, and the phases of the loop.

The x axis is each row's step, epoch, training time or samples seen. A phase is all ``span`` events of one name. Its
seconds are in the metric ``Time/{name}_seconds``; the attribute ``began_ns`` says when a span began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Columns
from ..errors import TelemetryError
from ..event_json import decoded_attrs
from ..events import SPAN
from ..lineage import DECIDING_RANK
from .snapshot import PLACE, Snapshot, effective_lineage, effective_rows, of_rank

Axis = Literal["step", "epoch", "elapsed", "samples"]

#: Metrics that count the samples seen: in total, or in each update.
_SAMPLES_SEEN: Final = "samples_seen"
_BATCH_SIZE: Final = "batch_size"

_NS_PER_S: Final = 1e9


def axis_columns(axis: Axis, columns: Columns) -> tuple[str, ...]:
    """Return the columns that ``axis_values`` needs besides kind, attempt, step, epoch and elapsed_ns.

    Raises:
        TelemetryError: The run does not count its samples.
    """
    if axis != "samples":
        return ()
    for metric in (_SAMPLES_SEEN, _BATCH_SIZE):
        if metric in columns.by_metric:
            return (columns.by_metric[metric],)
    raise TelemetryError(
        "the run does not count its samples", fix=f"Log {_SAMPLES_SEEN!r}, or {_BATCH_SIZE!r} with every update"
    )


def axis_values(table: pa.Table, axis: Axis, columns: Columns) -> pa.Array:
    """Return the axis value of each row, as float64; null where unknown.

    Args:
        table: All effective events of one rank, in (attempt, seq) order.
        axis: ``step``; ``epoch``; ``elapsed``, seconds of training over all attempts; or ``samples``, the newest value
            of the metric ``samples_seen`` or else the sum of ``batch_size`` over the updates so far.
        columns: The columns of the run.
    """
    if axis in ("step", "epoch"):
        return table[axis].cast(pa.float64())
    if axis == "elapsed":
        return pc.divide(pc.add(table["elapsed_ns"], _before_ns(table)).cast(pa.float64()), _NS_PER_S)
    (name,) = axis_columns(axis, columns)
    if columns.by_column()[name] == _SAMPLES_SEEN:
        return pc.fill_null_forward(table[name])
    counted = pc.if_else(pc.equal(table["kind"], "step_end"), table[name], pa.scalar(None, pa.float64()))
    return pc.cumulative_sum(pc.fill_null(counted, 0.0))


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
