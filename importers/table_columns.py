"""Classifies the columns of a logger's table: the step counter, the clocks and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .encodings.numbers import nanoseconds, number, unix_ns
from .errors import UnreadableSource

#: Columns that count steps, the most certain first; compared case-folded and stripped of blanks.
STEP_COLUMNS: Final = (
    "global_step",
    "step",
    "_step",
    "trainer/global_step",
    "global step",
    "steps",
    "train_step",
    "iteration",
    "iterations",
    "iter",
    "num_updates",
    "update",
    "epoch",
)

#: Wall clock columns, in seconds since 1970 or as ISO 8601.
_WALL_CLOCKS: Final = ("_timestamp", "timestamp", "wall time", "wall_time")

#: Columns that count seconds since the training began.
_STOPWATCHES: Final = ("_runtime", "total_duration", "relative time (process)", "relative time (wall)")

#: A larger number is milliseconds: as seconds since 1970 it would be the year 5138.
_MOST_SECONDS: Final = 1e11


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The roles of a table's columns.

    Attributes:
        step: The column that counts steps.
        wall_clock, stopwatch: The clock columns, if there are any.
        metrics: All other columns, by their names.
    """

    step: str
    wall_clock: str | None
    stopwatch: str | None
    metrics: tuple[str, ...]

    @property
    def is_algoperf(self) -> bool:
        """Whether it is AlgoPerf's ``measurements.csv``, which interleaves rows of training and of evaluation."""
        return {"score", "total_duration", "accumulated_submission_time"} <= set(self.names())

    @property
    def is_ultralytics(self) -> bool:
        """Whether it is Ultralytics' ``results.csv``, whose ``metrics/`` columns are validation results."""
        starts = {name.partition("/")[0] for name in self.metrics if "/" in name}
        return {"metrics", "val", "train"} <= starts

    def names(self) -> tuple[str, ...]:
        """Return all columns except the step column."""
        return (*(name for name in (self.wall_clock, self.stopwatch) if name is not None), *self.metrics)


def layout_of(columns: Sequence[str], step_column: str | None = None) -> TableColumns | None:
    """Assign roles to the columns of a table; None when no column counts steps.

    Args:
        columns: Their names.
        step_column: The column that counts steps, where the user named it.
    """
    folded = {name.strip().casefold(): name for name in reversed(columns)}
    wanted = (step_column.strip().casefold(),) if step_column is not None else STEP_COLUMNS
    step = next((folded[name] for name in wanted if name in folded), None)
    if step is None:
        return None
    wall_clock = next((folded[name] for name in _WALL_CLOCKS if name in folded), None)
    stopwatch = next((folded[name] for name in _STOPWATCHES if name in folded), None)
    apart = {step, wall_clock, stopwatch}
    # An unnamed column is the index that pandas writes.
    metrics = tuple(name for name in columns if name and name not in apart)
    layout = TableColumns(step, wall_clock, stopwatch, metrics)
    if layout.is_ultralytics and "time" in folded:
        layout = TableColumns(
            step, wall_clock, folded["time"], tuple(name for name in metrics if name != folded["time"])
        )
    return layout


def wall_clock_ns(cell: str) -> int:
    """Parse a wall clock cell to nanoseconds since 1970; 0 where it does not parse."""
    seconds = number(cell)
    if seconds is None:
        return unix_ns(cell.strip()) or 0
    return nanoseconds(seconds / 1000 if abs(seconds) > _MOST_SECONDS else seconds)


def unknown_step_column(where: str, columns: Sequence[str], step_column: str | None) -> UnreadableSource:
    """Build the error for a table without a step column."""
    what = "no column holds the step" if step_column is None else f"no column is named {step_column!r}"
    return UnreadableSource(
        what, where=where, got=", ".join(columns[:20]), fix="Name the step column with --step COLUMN"
    )
