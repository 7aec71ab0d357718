"""Computes the x axis of plots: each row's step, epoch, training time or samples seen."""

from __future__ import annotations

from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Columns
from ..errors import TelemetryError

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
