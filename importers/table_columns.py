"""The columns of tables that loggers write: which one counts steps, which are clocks, and which are metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .encodings.numbers import nanoseconds, number, unix_ns
from .errors import UnreadableSource

#: Columns that count steps, the surest first; compared case-folded, blanks around them ignored.
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

#: Columns of wall clocks, in seconds since 1970 or as ISO 8601.
_WALL_CLOCKS: Final = ("_timestamp", "timestamp", "wall time", "wall_time")

#: Columns that count seconds since the training began.
_STOPWATCHES: Final = ("_runtime", "total_duration", "relative time (process)", "relative time (wall)")

#: Seconds since 1970 above this are milliseconds: it is the year 5138.
_MOST_SECONDS: Final = 1e11


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What the columns of a table are.

    Attributes:
        step: The column that counts steps.
        wall_clock, stopwatch: Columns of the clocks, if there are any.
        metrics: All others, as they are called.
    """

    step: str
    wall_clock: str | None
    stopwatch: str | None
    metrics: tuple[str, ...]

    @property
    def is_algoperf(self) -> bool:
        """Whether it is a ``measurements.csv`` of AlgoPerf: rows of trainings and rows of evaluations, interleaved."""
        return {"score", "total_duration", "accumulated_submission_time"} <= set(self.names())

    @property
    def is_ultralytics(self) -> bool:
        """Whether it is a ``results.csv`` of Ultralytics, whose ``metrics/`` are what validation found."""
        starts = {name.partition("/")[0] for name in self.metrics if "/" in name}
        return {"metrics", "val", "train"} <= starts

    def names(self) -> tuple[str, ...]:
        """All columns but that of the steps."""
        return (*(name for name in (self.wall_clock, self.stopwatch) if name is not None), *self.metrics)


def layout_of(columns: Sequence[str], step_column: str | None = None) -> TableColumns | None:
    """What the columns of a table are; None when none of them counts steps.

    Args:
        columns: Their names.
        step_column: The one that counts steps, where a person said it.
    """
    folded = {name.strip().casefold(): name for name in reversed(columns)}
    wanted = (step_column.strip().casefold(),) if step_column is not None else STEP_COLUMNS
    step = next((folded[name] for name in wanted if name in folded), None)
    if step is None:
        return None
    wall_clock = next((folded[name] for name in _WALL_CLOCKS if name in folded), None)
    stopwatch = next((folded[name] for name in _STOPWATCHES if name in folded), None)
    apart = {step, wall_clock, stopwatch}
    # A column without a name is the index that pandas writes.
    metrics = tuple(name for name in columns if name and name not in apart)
    layout = TableColumns(step, wall_clock, stopwatch, metrics)
    if layout.is_ultralytics and "time" in folded:
        layout = TableColumns(
            step, wall_clock, folded["time"], tuple(name for name in metrics if name != folded["time"])
        )
    return layout


def wall_clock_ns(cell: str) -> int:
    """Nanoseconds since 1970 from a cell of a wall clock; 0 where it cannot be told."""
    seconds = number(cell)
    if seconds is None:
        return unix_ns(cell.strip()) or 0
    return nanoseconds(seconds / 1000 if abs(seconds) > _MOST_SECONDS else seconds)


def unknown_step_column(where: str, columns: Sequence[str], step_column: str | None) -> UnreadableSource:
    """What to say when no column counts steps."""
    what = "no column counts steps" if step_column is None else f"no column is called {step_column!r}"
    return UnreadableSource(
        what, where=where, got=", ".join(columns[:20]), fix="Name the one that does with --step COLUMN"
    )
