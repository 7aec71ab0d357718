"""Builds the sources of the SQL views: Arrow tables of the runs' tails, and SELECTs over their Parquet files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from ..columns import Columns
from ..lineage import DECIDING_RANK, Cut
from ..parquet.schemas import EVENT_FIELDS, METRICS_SCHEMA, SAMPLES_SCHEMA, VECTORS_SCHEMA, events_schema
from ..reading.snapshot import Snapshot
from ..reading.summary import RUNS_SCHEMA, summarize
from ..reading.timeline import effective_lineage, rolled_back
from .sql_text import parquet_source, quoted_name

#: The column of ``events`` that says whether a resume rolled the event back.
ROLLED_BACK: Final = "rolled_back"

ENVELOPE: Final = ", ".join(field.name for field in EVENT_FIELDS)

_NAMES_SCHEMA: Final = pa.schema([("column_name", pa.string()), ("metric", pa.string())])

_CUTS_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("attempt", pa.int32()),
        ("last_seq", pa.int64()),
        ("last_step", pa.int64()),
        ("last_step_elsewhere", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class ViewedRuns:
    """The runs that the views show.

    Attributes:
        cut: Each run, with the cuts of its rolled-back attempts.
        columns: One column for each metric that some run holds as a column.
        beyond: The column of each further metric, which no view shows unless a statement names it.
        has_cuts: Whether any run has a cut.
        long: The metrics that some run holds in ``metrics`` files instead of columns.
    """

    cut: Sequence[tuple[Snapshot, Mapping[int, Cut]]]
    columns: Columns
    beyond: Mapping[str, str]
    has_cuts: bool
    long: Set[str]

    @property
    def counting(self) -> str:
        """The SQL condition that an event is effective: no resume rolled it back."""
        return f"NOT {ROLLED_BACK}" if self.has_cuts else "true"


def viewed_runs(snapshots: Sequence[Snapshot]) -> ViewedRuns:
    """Collect the runs of these snapshots."""
    cut = [(snapshot, effective_lineage(snapshot).cuts) for snapshot in snapshots]
    shared = Columns({"": ROLLED_BACK})  # Reserve the column, ...
    del shared.by_metric[""]  # ... but not for a metric.
    shared.extend(_commonest_first(snapshot.columns.wide().by_metric for snapshot in snapshots))
    columns = Columns(shared.by_metric)
    long = _commonest_first(snapshot.columns.long() for snapshot in snapshots)
    shared.extend(long)
    beyond = shared.without(columns.by_metric).by_metric
    return ViewedRuns(cut, columns, beyond, any(cuts for _, cuts in cut), set(long))


def view_tables(runs: ViewedRuns) -> dict[str, pa.Table]:
    """Return the Arrow tables that the views read besides Parquet files."""
    tables = {
        "runs": pa.Table.from_pylist([summarize(snapshot).to_row() for snapshot, _ in runs.cut], schema=RUNS_SCHEMA),
        "event_tails": _event_tails(runs),
        "sample_tails": _sample_tails(runs),
        "vector_tails": _vector_tails(runs),
        "metric_tails": _metric_tails(runs),
        "metric_columns": _metric_columns(runs.columns),
    }
    return tables | {"lineage_cuts": _lineage_cuts(runs)} if runs.has_cuts else tables


def _event_tails(runs: ViewedRuns) -> pa.Table:
    """The tails of all runs; columns that a run lacks are null."""
    tails = [
        _marked(snapshot.tail.events_table(snapshot.info.run_id, runs.columns.without(snapshot.columns.long())), cuts)
        for snapshot, cuts in runs.cut
        if snapshot.tail
    ]
    empty = _marked(events_schema(runs.columns).empty_table(), {})  # First, since it has all columns.
    return pa.concat_tables([empty, *tails], promote_options="default")


def _sample_tails(runs: ViewedRuns) -> pa.Table:
    tails = [_marked(one.tail_samples.samples_table(one.info.run_id), cuts) for one, cuts in runs.cut]
    return pa.concat_tables([_marked(SAMPLES_SCHEMA.empty_table(), {}), *tails])


def _vector_tails(runs: ViewedRuns) -> pa.Table:
    tails = [_marked(one.tail_vectors.vectors_table(one.info.run_id), cuts) for one, cuts in runs.cut]
    return pa.concat_tables([_marked(VECTORS_SCHEMA.empty_table(), {}), *tails])


def _metric_tails(runs: ViewedRuns) -> pa.Table:
    tails = [one.tail_metrics.metrics_table(one.info.run_id, one.columns.long()) for one, _ in runs.cut]
    return pa.concat_tables([METRICS_SCHEMA.empty_table(), *tails])


def _metric_columns(columns: Columns) -> pa.Table:
    by_metric = columns.by_metric
    return pa.table({"column_name": by_metric.values(), "metric": by_metric}, schema=_NAMES_SCHEMA)


def _lineage_cuts(runs: ViewedRuns) -> pa.Table:
    """The limits of the effective part of each attempt that has a cut."""
    rows = [
        {"run_id": snapshot.info.run_id, "attempt": attempt, **cut._asdict()}
        for snapshot, cuts in runs.cut
        for attempt, cut in cuts.items()
    ]
    return pa.Table.from_pylist(rows, schema=_CUTS_SCHEMA)


def _commonest_first(metrics_of_runs: Iterable[Iterable[str]]) -> list[str]:
    """Return the metrics of any run, the commonest first. Those of a single run keep their order."""
    return [metric for metric, _ in Counter(chain.from_iterable(metrics_of_runs)).most_common()]


def _marked(table: pa.Table, cuts: Mapping[int, Cut]) -> pa.Table:
    """Append the column ``ROLLED_BACK``."""
    marks = rolled_back(table, cuts) if cuts else pa.repeat(pa.scalar(False), table.num_rows)
    return table.append_column(ROLLED_BACK, marks)


def event_sources(runs: ViewedRuns) -> Iterator[str]:
    """Yield SELECTs that cover all events: the tails, most runs' files together, and runs with deviating columns.

    Such a run logged names that differ by case only, or in another order than other runs: its ``loss`` may be the
    ``Loss`` of the others. Reading them together would confuse one metric with the other.

    Files of attempts with a cut are read separately: only they are compared with the cuts.
    """
    yield "SELECT * FROM event_tails"
    plain: list[Path] = []
    plain_cut: list[Path] = []
    uniform: dict[tuple[str, ...], list[Path]] = {}
    shared = runs.columns.by_metric
    for snapshot, cuts in runs.cut:
        own = snapshot.columns.wide().by_metric
        files = snapshot.listing.table("events")
        whole = [file.path for file in files if file.attempt not in cuts]
        cut = [file.path for file in files if file.attempt in cuts]
        if files and any(shared[metric] != column for metric, column in own.items()):
            renamed = [f"{quoted_name(column)} AS {quoted_name(shared[metric])}" for metric, column in own.items()]
            yield from _sources(", ".join([ENVELOPE, *renamed, "attrs"]), whole, cut, own.values())
        elif len(files) == len(whole) == 1 and not snapshot.tail:
            # A run's only file has all of the run's columns.
            uniform.setdefault(tuple(sorted(own.values())), []).append(files[0].path)
        else:
            plain += whole
            plain_cut += cut
    for alike in uniform.values():
        yield f"SELECT *, false AS {ROLLED_BACK} FROM {parquet_source(alike, is_uniform=True)}"
    yield from _sources("*", plain, plain_cut)


def sample_sources(runs: ViewedRuns) -> Iterator[str]:
    """Yield SELECTs that cover all sample losses."""
    yield from _table_sources(runs, "samples", "sample_tails")


def vector_sources(runs: ViewedRuns) -> Iterator[str]:
    """Yield SELECTs that cover all vectors."""
    yield from _table_sources(runs, "vectors", "vector_tails")


def _table_sources(runs: ViewedRuns, table: str, tails: str) -> Iterator[str]:
    """Yield SELECTs that cover a table whose columns are not metrics: its tails and its files."""
    yield f"SELECT * FROM {tails}"
    files = [(file, cuts) for snapshot, cuts in runs.cut for file in snapshot.listing.table(table)]
    whole = [file.path for file, cuts in files if file.attempt not in cuts]
    yield from _sources("*", whole, [file.path for file, cuts in files if file.attempt in cuts])


def _sources(selected: str, whole: Sequence[Path], cut: Sequence[Path], metrics: Collection[str] = ()) -> Iterator[str]:
    """Yield SELECTs of these columns of files, and of whether each row was rolled back (never in ``whole`` files).

    ``rank`` and the like are qualified, because a metric may be named like a column of the cuts. Columns of ``metrics``
    exist, as nulls, even where no file has them.
    """
    missing = ", ".join(f"NULL::DOUBLE AS {quoted_name(metric)}" for metric in metrics)
    more = f" UNION ALL BY NAME SELECT {missing} WHERE false" if missing else ""
    if whole:
        yield f"SELECT {selected}, false AS {ROLLED_BACK} FROM (SELECT * FROM {parquet_source(whole)}{more})"
    if cut:
        yield f"""
            SELECT e.*, coalesce(
                CASE WHEN e.rank = {DECIDING_RANK} THEN e.seq > c.last_seq OR e.step > c.last_step
                ELSE e.step > c.last_step_elsewhere END, false
            ) AS {ROLLED_BACK}
            FROM (SELECT {selected} FROM (SELECT * FROM {parquet_source(cut)}{more})) e
            LEFT JOIN lineage_cuts c ON e.run_id = c.run_id AND e.attempt = c.attempt
        """
