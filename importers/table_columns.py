"""Classifies the columns of a logger's table: the step counter, the clocks, the runs and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .encodings.numbers import nanoseconds, number, unix_ns
from .errors import UnreadableSource
from .source import ReadOptions

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
    "training_iteration",
    "time/total_timesteps",
    "misc/total_timesteps",
    "total_timesteps",
    "timesteps_total",
    "timesteps",
    "epoch",
)

#: Step columns that count something else than optimizer updates.
_OTHER_UNITS: Final = {"_step": "_step", "training_iteration": "training_iteration", "epoch": "epochs"}

#: Columns that tell the runs of a table apart, together.
RUN_COLUMNS: Final = ("run_id", "run_uuid", "run_name", "agent", "experiment", "trial", "run", "seed")

#: Columns of a long table, which has one value in a row: the metric's name, and its value.
_NEPTUNE: Final = "attribute_path"
_NAME_COLUMNS: Final = (_NEPTUNE, "metric", "metric_name", "tag", "variable", "key", "name")
_VALUE_COLUMNS: Final = ("float_value", "value", "metric_value")

#: Wall clock columns, in seconds since 1970 or as ISO 8601.
_WALL_CLOCKS: Final = ("_timestamp", "timestamp", "wall time", "wall_time")

#: Columns that count seconds since the training began.
_STOPWATCHES: Final = (
    "_runtime",
    "total_duration",
    "relative time (process)",
    "relative time (wall)",
    "time/time_elapsed",
    "misc/time_elapsed",
    "time_total_s",
)

#: What W&B's export of a chart adds to a column's name for the range of values that its points stand for.
_RANGE_ENDS: Final = ("__MIN", "__MAX")

#: A larger number is milliseconds: as seconds since 1970 it would be the year 5138.
_MOST_SECONDS: Final = 1e11


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The roles of a table's columns.

    Attributes:
        step: The column that counts steps.
        wall_clock, stopwatch: The clock columns, if there are any.
        metrics: All other columns, by their names.
        runs: The columns that tell the runs of the table apart, together.
        long: The columns of a long table that hold a metric's name and its value.
    """

    step: str
    wall_clock: str | None
    stopwatch: str | None
    metrics: tuple[str, ...]
    runs: tuple[str, ...] = ()
    long: tuple[str, str] | None = None

    @property
    def step_unit(self) -> str:
        """The unit of the steps, as in ``ImportedRun``. A column with a name of its own is its own unit."""
        name = self.step.strip().casefold()
        if "timesteps" in name:
            return "timesteps"
        return _OTHER_UNITS.get(name, "updates") if name in STEP_COLUMNS else self.step.strip()

    @property
    def is_algoperf(self) -> bool:
        """Whether it is AlgoPerf's ``measurements.csv``, which interleaves rows of training and of evaluation."""
        return {"score", "total_duration", "accumulated_submission_time"} <= set(self.names())

    @property
    def is_ultralytics(self) -> bool:
        """Whether it is Ultralytics' ``results.csv``, whose ``metrics/`` columns are validation results."""
        starts = {name.partition("/")[0] for name in self.metrics if "/" in name}
        return {"metrics", "val", "train"} <= starts

    @property
    def is_fastai(self) -> bool:
        """Whether it is fastai's ``history.csv``, whose metrics are of the validation."""
        return self.step == "epoch" and self.metrics[:2] == ("train_loss", "valid_loss") and self.metrics[-1] == "time"

    def names(self) -> tuple[str, ...]:
        """Return all columns except the step column."""
        return (*(name for name in (self.wall_clock, self.stopwatch) if name is not None), *self.metrics)


def layout_of(
    columns: Sequence[str], step_column: str | None = None, run_column: str | None = None
) -> TableColumns | None:
    """Assign roles to the columns of a table; None when no column counts steps.

    Args:
        columns: Their names.
        step_column, run_column: The columns that count steps and that tell runs apart, where the user named them.
    """
    folded = {name.strip().casefold(): name for name in reversed(columns)}

    def first(names: Sequence[str]) -> str | None:
        return next((folded[name] for name in names if name in folded), None)

    step = first(STEP_COLUMNS if step_column is None else (step_column.strip().casefold(),))
    if step is None and step_column is None and _is_frame(columns):
        step = columns[0]
    if step is None:
        return None
    wall_clock, stopwatch = first(_WALL_CLOCKS), first(_STOPWATCHES)
    runs = [folded[name] for name in RUN_COLUMNS if name in folded]
    if run_column is not None:
        runs = [name for name in (first((run_column.strip().casefold(),)),) if name is not None]
    # An unnamed column is the index that pandas writes.
    apart = {"", step, wall_clock, stopwatch, *runs}
    ranges = {f"{name}{end}" for name in columns for end in _RANGE_ENDS}
    metrics = tuple(name for name in columns if name not in apart and name not in ranges)
    layout = TableColumns(step, wall_clock, stopwatch, metrics, tuple(column for column in runs if column != step))
    name, value = first(_NAME_COLUMNS), first(_VALUE_COLUMNS)
    if name is not None and value is not None and (name == _NEPTUNE or {name, value} == set(metrics)):
        layout = replace(layout, metrics=(value,), long=(name, value))
    if layout.is_ultralytics and "time" in folded:
        time = folded["time"]
        layout = replace(layout, stopwatch=time, metrics=tuple(name for name in layout.metrics if name != time))
    return layout


def _is_frame(columns: Sequence[str]) -> bool:
    """Whether the columns are those of pandas' ``DataFrame(history.history).to_csv()``: an index and losses."""
    return columns[:1] == [""] and any(name.casefold().rpartition("_")[2] == "loss" for name in columns)


def wall_clock_ns(cell: str) -> int:
    """Parse a wall clock cell to nanoseconds since 1970; 0 where it does not parse."""
    seconds = number(cell)
    if seconds is None:
        return unix_ns(cell.strip()) or 0
    return nanoseconds(seconds / 1000 if abs(seconds) > _MOST_SECONDS else seconds) or 0


def checked_layout(columns: Sequence[str], options: ReadOptions, where: str) -> TableColumns:
    """Assign roles to the columns of a table.

    Raises:
        UnreadableSource: No column counts steps, or the table lacks a column that the user named.
    """
    layout = layout_of(columns, options.step_column, options.run_column)
    if layout is None:
        raise unknown_step_column(where, columns, options.step_column)
    if options.run_column is not None and not layout.runs:
        what, fix = f"no column is named {options.run_column!r}", "Name one that tells the runs apart with --run COLUMN"
        raise UnreadableSource(what, where=where, got=", ".join(columns[:20]), fix=fix)
    return layout


def unknown_step_column(where: str, columns: Sequence[str], step_column: str | None) -> UnreadableSource:
    """Build the error for a table without a step column."""
    what = "no column holds the step" if step_column is None else f"no column is named {step_column!r}"
    return UnreadableSource(
        what, where=where, got=", ".join(columns[:20]), fix="Name the step column with --step COLUMN"
    )
