"""Reads of a run what a comparison needs: the values of one metric along steps, tokens or time.

Takes a snapshot of a run, returns a course; takes a course and a point, returns the value there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...store.errors import TelemetryError
from ...store.lineage import DECIDING_RANK
from ...store.reading.snapshot import Snapshot, events_table_along
from ...store.reading.tally import NUM_TOKENS
from ..runs.event_stream import Renames, renamed_columns
from ..runs.metric_names import mode_of

Floats = npt.NDArray[np.float64]

#: Metrics that count the tokens so far, in order of preference.
_TOKENS_SEEN: Final = ("Tokens/seen", "num_input_tokens_seen", "tokens_seen")

_NS_PER_S: Final = 1e9

#: Statuses of runs that ended as their loop or their rules wanted.
FINISHED: Final = ("completed", "stopped")


class Axis(StrEnum):
    """What two runs have in common where they are compared.

    Attributes:
        STEP: Optimizer updates.
        TOKENS: Tokens of training data.
        TIME: Seconds of training.
    """

    STEP = "step"
    TOKENS = "tokens"
    TIME = "time"


class Standing(StrEnum):
    """What a run contributes to a comparison.

    Attributes:
        COUNTED: A value.
        LOST: No finite value: the run ended before the point, or diverged.
        WAITING: Nothing yet: the run has not passed the point.
    """

    COUNTED = "counted"
    LOST = "lost"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class MetricCourse:
    """The values of one metric in one run.

    Attributes:
        positions: Position of each value on the axis. Shape (n,), ascending.
        values: The values; may be NaN. Shape (n,).
        reached: Position of the newest event.
        status: Status of the run.
    """

    positions: Floats
    values: Floats
    reached: float
    status: str

    @property
    def is_live(self) -> bool:
        """Whether the run may still record values."""
        return self.status == "running"

    @property
    def is_finished(self) -> bool:
        """Whether the run ended as its loop or its rules wanted."""
        return self.status in FINISHED

    def at(self, point: float) -> tuple[Standing, float]:
        """Return the newest value up to a point; NaN unless it counts.

        A live run has passed the point once it recorded anything beyond it, or a value exactly there.
        """
        before = int(np.searchsorted(self.positions, point, side="right"))
        if self.reached < point:
            return (Standing.WAITING if self.is_live else Standing.LOST), math.nan
        if self.is_live and self.reached == point and not (before and self.positions[before - 1] == point):
            return Standing.WAITING, math.nan
        if before == 0 or not math.isfinite(self.values[before - 1]):
            return Standing.LOST, math.nan
        return Standing.COUNTED, float(self.values[before - 1])


def evaluated_metrics(snapshot: Snapshot, renames: Renames) -> set[str]:
    """Return the metrics of a run's evaluations whose names say whether lower or higher is better."""
    columns = {name: column for name, column in renamed_columns(snapshot, renames).items() if mode_of(name) is not None}
    table = _own_rows(events_table_along(snapshot, ("kind", "rank", *columns.values())))
    rows = _kinds(table) == "evaluate"
    return {name for name, column in columns.items() if bool((_is_known(table, column) & rows).any())}


def read_course(snapshot: Snapshot, metric: str, axis: Axis, renames: Renames) -> MetricCourse:
    """Return the values of a metric in a run: those of its evaluations, else of the first kind of event that has any.

    Args:
        snapshot: The run.
        metric: The metric, under its new name.
        axis: What to order values by.
        renames: The metrics to rename.

    Returns:
        The course; one that reached nothing if the run has no value of the metric.

    Raises:
        TelemetryError: The run lacks the axis.
    """
    columns = renamed_columns(snapshot, renames)
    if metric not in columns:
        return MetricCourse(np.zeros(0), np.zeros(0), 0.0, snapshot.status)
    clocks = [columns[name] for name in (NUM_TOKENS, *_TOKENS_SEEN) if name in columns] if axis is Axis.TOKENS else []
    wanted = dict.fromkeys(("kind", "rank", "attempt", "step", "elapsed_ns", columns[metric], *clocks))
    table = _own_rows(events_table_along(snapshot, tuple(wanted)))
    kinds, rows = _kinds(table), np.flatnonzero(_is_known(table, columns[metric]))
    if not len(rows):
        return MetricCourse(np.zeros(0), np.zeros(0), 0.0, snapshot.status)
    first_kind = "evaluate" if (kinds[rows] == "evaluate").any() else kinds[rows[0]]
    rows = rows[kinds[rows] == first_kind]
    steps = np.maximum.accumulate(_numbers(table, "step"))
    positions = steps if axis is Axis.STEP else _positions(table, axis, columns, snapshot.info.run_id)
    # A late value arrives some updates later with its own step: it belongs where that step ended.
    at = np.minimum(rows, np.searchsorted(steps, _numbers(table, "step")[rows], side="right") - 1)
    order = np.argsort(at, kind="stable")
    values = _numbers(table, columns[metric])[rows][order]
    return MetricCourse(positions[at][order], values, float(positions[-1]), snapshot.status)


def _positions(table: Any, axis: Axis, columns: dict[str, str], run_id: str) -> Floats:
    """Return how many tokens or seconds each event has behind it; shape (events,), ascending."""
    attempts = _numbers(table, "attempt")
    if axis is Axis.TIME:
        times = _along_attempts(_numbers(table, "elapsed_ns") / _NS_PER_S, attempts)
        if len(times) and not times.any():
            raise TelemetryError("the log has no times", where=run_id, fix="Compare at steps: --at step")
        return times
    if NUM_TOKENS in columns:
        return np.cumsum(np.nan_to_num(_numbers(table, columns[NUM_TOKENS])))
    for name in _TOKENS_SEEN:
        if name in columns:
            return _along_attempts(_numbers(table, columns[name]), attempts)
    fix = f"Record {NUM_TOKENS} at each step, or compare at steps: --at step"
    raise TelemetryError("the run counts no tokens", where=run_id, fix=fix)


def _along_attempts(values: Floats, attempts: Floats) -> Floats:
    """Add up a count that begins again with each attempt; a missing value repeats the one before."""
    found = np.zeros(len(values))
    before = 0.0
    for part in np.split(np.arange(len(values)), np.flatnonzero(np.diff(attempts)) + 1):
        if len(part):
            found[part] = before + np.maximum.accumulate(np.nan_to_num(values[part]))
            before = float(found[part[-1]])
    return found


def _own_rows(table: Any) -> Any:
    """Return the events of the deciding rank."""
    return table.take(np.flatnonzero(_numbers(table, "rank") == DECIDING_RANK))


def _kinds(table: Any) -> npt.NDArray[np.object_]:
    return np.array(table["kind"].to_pylist(), dtype=object)


def _is_known(table: Any, column: str) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = table[column].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    return known


def _numbers(table: Any, column: str) -> Floats:
    numbers: Floats = table[column].combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers
