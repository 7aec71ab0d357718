"""Assigns roles to the columns of a table, and makes runs of its rows.

Runs are told apart by their columns. Rows of a long table, which has one value in a row, are joined by step. A table
whose steps repeat is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from ..store.errors import counted
from ..store.metric_words import EVALUATION_WORDS, is_evaluation
from .axes import LOGGED_STEP, on_one_axis, placed_rows
from .encodings.numbers import nanoseconds, number, number_of, sorted_out, step_of, unix_ns
from .rows import Row, runs_of
from .source import Fact, ImportedRun, Proof, ReadOptions, RefusedRun, UnreadableSource, stem_of

#: Columns that count steps, the most certain first; compared case-folded and stripped of blanks.
STEP_COLUMNS: Final = (
    "global_step",
    "step",
    "_step",
    "trainer/global_step",
    "global step",
    "steps",
    "train_step",
    "current_steps",
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
    "timestepssofar",
    "progress/tick/mean",
    "epoch",
)

#: Step columns that count something else than optimizer updates.
_OTHER_UNITS: Final = {
    "_step": "_step",
    "training_iteration": "training_iteration",
    "progress/tick/mean": "ticks",
    "epoch": "epochs",
}

#: Columns that tell the runs of a table apart, together.
RUN_COLUMNS: Final = (
    *("run_id", "run id", "run_uuid", "run_name", "run name"),
    *("agent", "experiment", "trial", "run", "seed"),
)

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
    "timeelapsed",
    "passed_time",
)

#: What W&B's export of a chart adds to a column's name for the range of values that its points stand for.
_RANGE_ENDS: Final = ("__MIN", "__MAX")

#: A larger number is milliseconds: as seconds since 1970 it would be the year 5138.
_MOST_SECONDS: Final = 1e11


def step_unit_of(column: str) -> str:
    """Return what a column that counts steps counts, as ``ImportedRun.step_unit``; its name where that is its own.

    >>> [step_unit_of(name) for name in ("iter", "Epoch", "total_timesteps", "tokens")]
    ['updates', 'epochs', 'timesteps', 'tokens']

    """
    name = column.strip().casefold()
    if "timesteps" in name:
        return "timesteps"
    return _OTHER_UNITS.get(name, "updates") if name in STEP_COLUMNS else column.strip()


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The roles of a table's columns.

    Attributes:
        step: The column that counts steps.
        wall_clock, stopwatch: The clock columns, if there are any.
        metrics: All other columns, by their names.
        runs: The columns that tell the runs of the table apart, together.
        long: The columns of a long table that hold a metric's name and its value.
        parts: The further columns of a long table, which say on which part of the data a value was measured.
    """

    step: str
    wall_clock: str | None
    stopwatch: str | None
    metrics: tuple[str, ...]
    runs: tuple[str, ...] = ()
    long: tuple[str, str] | None = None
    parts: tuple[str, ...] = ()

    @property
    def step_unit(self) -> str:
        """The unit of the steps, as in ``ImportedRun``."""
        return step_unit_of(self.step)

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
    if name is not None and value is not None:
        # Beside a column of metrics' names, ``name`` is the run's.
        named = tuple(column for column in metrics if column.strip().casefold() == "name" and column != name)
        parts = tuple(column for column in metrics if column.strip().casefold() in _PART_COLUMNS)
        if name == _NEPTUNE:
            layout = replace(layout, metrics=(value,), long=(name, value))
        elif {name, value, *named, *parts} == set(metrics):
            apart_by = layout.runs if run_column is not None else (*layout.runs, *named)
            layout = replace(layout, metrics=(value,), runs=apart_by, long=(name, value), parts=parts)
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


# --- runs in a table ------------------------------------------------------------------------------------------------

#: Run columns and their values, which tell a run from the table's others.
_Key: TypeAlias = tuple[tuple[str, str], ...]

#: Run columns whose values are names by themselves; of others, the name of the column is part of the run's name.
_NAMING: Final = frozenset(
    ("run_id", "run id", "run_uuid", "run_name", "run name", "run", "experiment", "agent", "name")
)

#: Columns that say on which part of the data a row was measured.
_PART_COLUMNS: Final = ("split", "phase", "stage", "subset", "set", "dataset", "mode", "partition")

#: One in so many steps may be repeated, as at a resume.
_STEPS_PER_REPEAT: Final = 100

#: The fewest steps of a table that is known to list the newest first. Fewer may be restarts, which are to be imported
#: alike while the log grows.
_DESCENDING: Final = 8


def row_of(document: dict[str, object], layout: TableColumns) -> Row:
    """Convert a record to a row. A null is a value that was not logged.

    Args:
        document: The record's leaves by name; roles other than metrics are removed from it.
        layout: The roles of its names.

    Raises:
        UnreadableSource: It has no step.
    """
    step = step_of(document.pop(layout.step, None), "")
    wall_clock = document.pop(layout.wall_clock, None) if layout.wall_clock else None
    stopwatch = document.pop(layout.stopwatch, None) if layout.stopwatch else None
    run = tuple((column, _text(document.pop(column, None))) for column in layout.runs)
    if layout.long is not None:
        name, value = (document.pop(column, None) for column in layout.long)
        parts = {column: document[column] for column in layout.parts if document.get(column) is not None}
        document = {} if name is None else {str(name): value, **parts}
    metrics, attrs = sorted_out(document)
    elapsed_ns = nanoseconds(number_of(stopwatch))
    time_ns = 0 if wall_clock is None else wall_clock_ns(str(wall_clock))
    return Row(step, metrics, attrs, time_ns, elapsed_ns, run=run, step_unit=layout.step_unit)


def no_step(error: UnreadableSource) -> str:
    """Return the reason to skip a row that ``row_of`` refused."""
    return "it has no step" if error.got is None else f"no step number in {error.got!r:.60}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def runs_in_table(
    rows: Iterable[Row],
    path: Path,
    options: ReadOptions,
    *,
    config: Callable[[], dict[str, object]] = dict,
    facts_of: Callable[[Row, int], Iterator[Fact]] | None = None,
) -> Iterator[ImportedRun]:
    """Yield the runs in the rows of a table.

    Rows without a run are streamed. Otherwise all rows are held, since those of several runs may alternate.

    Args:
        rows: The table's rows, in its order.
        path: The table.
        options: As for ``Reader.read``.
        config, facts_of: As for ``rows.runs_of``.
    """
    rest = map(_with_part, rows)
    first = next(rest, None)
    if first is None:
        return
    rows = chain((first,), rest)
    read = partial(_checked_runs, where=str(path), options=options, config=config, facts_of=facts_of)
    if not first.run:
        yield from read(rows)
        return
    by_key, problem = _gathered(rows)
    for index, (key, own) in enumerate(by_key.items()):
        told = {column: value for column, value in key if value}
        named = "/".join(value if name.casefold() in _NAMING else f"{name}={value}" for name, value in told.items())
        # The first run keeps the identity that it had while the table held no other.
        identity = "/".join(f"{name}={value}" for name, value in key) if index else ""
        ordered = chain(own, _raised(problem if index == len(by_key) - 1 else None))
        for run in read(ordered, called=f"the run {named}"):
            again = f"-{int(run.identity) + 1}" if run.identity else ""
            yield replace(
                run,
                identity=identity + again if index else run.identity,
                name=f"{stem_of(path.name)}/{named}{again}" if len(by_key) > 1 else "",
                config={**run.config, **told},
            )


def _checked_runs(
    rows: Iterable[Row],
    *,
    where: str,
    options: ReadOptions,
    config: Callable[[], dict[str, object]],
    facts_of: Callable[[Row, int], Iterator[Fact]] | None,
    called: str = "the same run",
) -> Iterator[ImportedRun]:
    """Yield the runs of rows, each with an error at its end if its steps repeat or count within epochs."""
    repeats = _Repeats(where)
    for run in runs_of(repeats.seen(on_one_axis(_oldest_first(rows), options)), config=config, facts_of=facts_of):
        yield replace(run, facts=repeats.refused(run.facts, called))
        if repeats.within_epoch is not None:
            return  # Each epoch would be refused like the first.


def _oldest_first(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows; in reverse where all of them descend, as in tables that list the newest first.

    A few steps, or a clock that rises, are restarts instead.
    """
    held: list[Row] = []
    rest = iter(rows)
    problem: UnreadableSource | None = None
    descends = True
    try:
        while descends and (row := next(rest, None)) is not None:
            descends = not held or row.step <= held[-1].step
            held.append(row)
    except UnreadableSource as error:
        problem = error
    many = len({row.step for row in held}) >= _DESCENDING
    yield from reversed(held) if descends and many and held[0].time_ns >= held[-1].time_ns else held
    yield from _raised(problem)
    yield from rest


def _with_part(row: Row) -> Row:
    """Prefix the metrics of a row of held-out data with its part, such as ``val/loss``, if a column names the part."""
    for column, part in row.attrs.items():
        if column.casefold() in _PART_COLUMNS and isinstance(part, str) and part.casefold() in EVALUATION_WORDS:
            metrics = {name if is_evaluation(name) else f"{part}/{name}": value for name, value in row.metrics.items()}
            return row._replace(metrics=metrics)
    return row


def joined_by_step(rows: Iterable[Row], options: ReadOptions) -> Iterator[Row]:
    """Join the rows of a long table that belong to one step of a run. The runs follow each other, each by step.

    A second value of a metric at a step begins another row. What counts something else than the training is a row of
    its own after those of its step.

    Args:
        rows: The table's rows, in its order.
        options: As for ``Reader.read``.
    """
    by_key, problem = _gathered(map(_with_part, rows))
    for own in by_key.values():
        by_step: dict[tuple[int, int], dict[object, list[Row]]] = {}
        for row in placed_rows((), own, options):
            is_apart = row.axis is not None and row.axis.proof is not Proof.COUNTED
            own_count = (row.epoch, row.attrs.get(LOGGED_STEP)) if is_apart else None
            of_step = by_step.setdefault((row.step, is_apart), {}).setdefault(own_count, [])
            if not of_step or not of_step[-1].metrics.keys().isdisjoint(row.metrics):
                of_step.append(row)
            else:
                last = of_step[-1]
                metrics = {**last.metrics, **row.metrics}
                of_step[-1] = last._replace(metrics=metrics, time_ns=max(last.time_ns, row.time_ns))
        for step in sorted(by_step):
            for of_step in by_step[step].values():
                yield from of_step
    yield from _raised(problem)


def _gathered(rows: Iterable[Row]) -> tuple[dict[_Key, list[Row]], UnreadableSource | None]:
    """Return the rows by run, and the error that ended them."""
    by_key: dict[_Key, list[Row]] = {}
    try:
        for row in rows:
            by_key.setdefault(row.run, []).append(row)
    except UnreadableSource as error:
        return by_key, error
    return by_key, None


def _raised(problem: UnreadableSource | None) -> Iterator[Row]:
    """Yield nothing, and raise the error if there is one."""
    if problem is not None:
        raise problem
    yield from ()


class _Repeats:
    """Detects steps that several rows of one run claim with nothing to tell them apart.

    Rows at one step are fine if each brings a metric that the others lack, such as those of training and evaluation.

    Attributes:
        within_epoch: The step that an epoch began with after a higher one, while ``epoch`` went on; None as long as
            none did. Such steps count within an epoch.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._steps = self._repeats = 0
        self._first: int | None = None
        self.within_epoch: int | None = None

    def seen(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows, and count the repeats among them."""
        step: int | None = None
        names: set[str] = set()
        epoch = math.inf
        for row in rows:
            if row.axis is not None:
                yield row
                continue
            if step is not None and row.step < step and row.metrics.get("epoch", -math.inf) > epoch:
                self.within_epoch = row.step
            epoch = row.metrics.get("epoch", epoch)
            if row.step != step:
                step, names = row.step, set()
                self._steps += 1
            if row.metrics and names.issuperset(row.metrics):
                self._repeats += 1
                self._first = step if self._first is None else self._first
            names.update(row.metrics)
            yield row

    def refused(self, facts: Iterator[Fact], run: str) -> Iterator[Fact]:
        """Yield the facts of a run, then raise an error if its steps count within epochs, or repeat too often.

        Args:
            facts: Its facts.
            run: What the error calls it.

        Raises:
            RefusedRun: They do, and more of them repeat than a resume explains.
        """
        problem: UnreadableSource | None = None
        try:
            yield from facts
        except UnreadableSource as error:
            problem = error
        repeats, steps, first = self._repeats, self._steps, self._first
        self._repeats = self._steps = 0
        self._first = None
        if self.within_epoch is not None:
            raise RefusedRun(
                f"the step begins again, at {self.within_epoch}, while 'epoch' goes on: it counts within an epoch",
                where=self._where,
                fix="Name a column that counts through all epochs with --step COLUMN",
            )
        if repeats > max(1, steps // _STEPS_PER_REPEAT):
            raise RefusedRun(
                f"{counted(repeats, 'row')} repeat the step and the metrics of another row of {run};"
                f" the first is at step {first}, of {counted(steps, 'step')}",
                where=self._where,
                fix="Name the column that tells the runs apart with --run COLUMN, or one that counts each row with"
                " --step COLUMN",
            )
        if problem is not None:
            raise problem
