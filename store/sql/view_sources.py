"""Builds the sources of the SQL views: Arrow tables of the runs' tails, and SELECTs over their Parquet files."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from ..columns import Columns
from ..errors import NotARun
from ..lineage import DECIDING_RANK, Cut
from ..parquet.schemas import EVENT_FIELDS, METRICS_SCHEMA, SAMPLES_SCHEMA, VECTORS_SCHEMA, events_schema
from ..reading.entry import Entry
from ..reading.snapshot import Snapshot
from ..reading.summary import RunSummary, runs_table, summarize
from ..reading.timeline import effective_lineage, rolled_back
from ..run_folder import Listing, SealedFile
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
class ViewedRun:
    """A run that the views show.

    Attributes:
        summary: Its row.
        source: What lists its files.
        columns: The columns of its metrics.
        cuts: The cuts of its rolled-back attempts.
        snapshot: The run with its tails; None without any.
    """

    summary: RunSummary
    source: Entry | Snapshot
    columns: Columns
    cuts: Mapping[int, Cut]
    snapshot: Snapshot | None = None

    @property
    def listing(self) -> Listing:
        """Its files. Parsed on access: most statements read the files of few runs."""
        return self.source.listing

    @property
    def has_tail(self) -> bool:
        """Whether it has events that are in no file yet."""
        return self.snapshot is not None and bool(self.snapshot.tail)


@dataclass(frozen=True, slots=True)
class ViewedRuns:
    """The runs that the views show.

    Attributes:
        runs: The runs.
        columns: One column for each metric that some run holds as a column.
        beyond: The column of each further metric, which no view shows unless a statement names it.
        long: The metrics that some run holds in ``metrics`` files instead of columns.
    """

    runs: Sequence[ViewedRun]
    columns: Columns
    beyond: Mapping[str, str]
    long: Set[str]

    @property
    def has_cuts(self) -> bool:
        """Whether any run has a cut."""
        return any(run.cuts for run in self.runs)

    @property
    def counting(self) -> str:
        """The SQL condition that an event is effective: no resume rolled it back."""
        return f"NOT {ROLLED_BACK}" if self.has_cuts else "true"

    def files(self, table: str) -> list[SealedFile]:
        """The files of one table."""
        return [file for run in self.runs for file in run.listing.table(table)]


def viewed_snapshot(snapshot: Snapshot) -> ViewedRun:
    """Return a run as the views show it."""
    held = snapshot if snapshot.listing.journals else None
    cuts = effective_lineage(snapshot).cuts
    return ViewedRun(summarize(snapshot), snapshot, snapshot.columns, cuts, held)


def viewed_entries(entries: Iterable[Entry]) -> list[ViewedRun]:
    """Return the runs of a catalog as the views show them. Only resumed runs, and those with journals, are read."""
    shared: dict[bytes | None, Columns] = {}
    found = []
    for entry in entries:
        if entry.is_settled and entry.summary.attempts == 1:
            if entry.columns_json not in shared:
                shared[entry.columns_json] = entry.columns
            found.append(ViewedRun(entry.summary, entry, shared[entry.columns_json], {}))
        else:
            with contextlib.suppress(NotARun):  # It was deleted since the scan.
                found.append(viewed_snapshot(entry.snapshot))
    return found


def viewed_runs(runs: Sequence[ViewedRun]) -> ViewedRuns:
    """Collect these runs, with the columns that they share."""
    shared = Columns({"": ROLLED_BACK})  # Reserve the column, ...
    del shared.by_metric[""]  # ... but not for a metric.
    # Most runs of a store share one object of columns.
    counts = Counter(id(run.columns) for run in runs)
    distinct = {id(run.columns): run.columns for run in runs}
    shared.extend(_commonest_first((distinct[key].wide().by_metric, count) for key, count in counts.items()))
    columns = Columns(shared.by_metric)
    long = _commonest_first((distinct[key].long(), count) for key, count in counts.items())
    shared.extend(long)
    beyond = shared.without(columns.by_metric).by_metric
    return ViewedRuns(runs, columns, beyond, set(long))


def view_tables(runs: ViewedRuns, views: Set[str]) -> dict[str, pa.Table]:
    """Return the Arrow tables that these views read besides Parquet files."""
    tables: dict[str, pa.Table] = {}
    if "runs" in views:
        tables["runs"] = runs_table(run.summary for run in runs.runs)
    if "all_events" in views:
        tables["event_tails"] = _event_tails(runs)
    if "all_samples" in views:
        tables["sample_tails"] = _sample_tails(runs)
    if "all_vectors" in views:
        tables["vector_tails"] = _vector_tails(runs)
    if "long_values" in views:
        tables["metric_tails"] = _metric_tails(runs)
    if "series_values" in views:
        tables["metric_columns"] = _metric_columns(runs.columns)
    if runs.has_cuts:
        tables["lineage_cuts"] = _lineage_cuts(runs)
    return tables


def _event_tails(runs: ViewedRuns) -> pa.Table:
    """The tails of all runs; columns that a run lacks are null."""
    tails = [
        _marked(one.tail.events_table(one.info.run_id, runs.columns.without(one.columns.long())), cuts)
        for one, cuts in _with_journals(runs)
        if one.tail
    ]
    empty = _marked(events_schema(runs.columns).empty_table(), {})  # First, since it has all columns.
    return pa.concat_tables([empty, *tails], promote_options="default")


def _sample_tails(runs: ViewedRuns) -> pa.Table:
    tails = [_marked(one.tail_samples.samples_table(one.info.run_id), cuts) for one, cuts in _with_journals(runs)]
    return pa.concat_tables([_marked(SAMPLES_SCHEMA.empty_table(), {}), *tails])


def _vector_tails(runs: ViewedRuns) -> pa.Table:
    tails = [_marked(one.tail_vectors.vectors_table(one.info.run_id), cuts) for one, cuts in _with_journals(runs)]
    return pa.concat_tables([_marked(VECTORS_SCHEMA.empty_table(), {}), *tails])


def _metric_tails(runs: ViewedRuns) -> pa.Table:
    tails = [one.tail_metrics.metrics_table(one.info.run_id, one.columns.long()) for one, _ in _with_journals(runs)]
    return pa.concat_tables([METRICS_SCHEMA.empty_table(), *tails])


def _with_journals(runs: ViewedRuns) -> Iterator[tuple[Snapshot, Mapping[int, Cut]]]:
    return ((run.snapshot, run.cuts) for run in runs.runs if run.snapshot is not None)


def _metric_columns(columns: Columns) -> pa.Table:
    by_metric = columns.by_metric
    return pa.table({"column_name": by_metric.values(), "metric": by_metric}, schema=_NAMES_SCHEMA)


def _lineage_cuts(runs: ViewedRuns) -> pa.Table:
    """The limits of the effective part of each attempt that has a cut."""
    rows = [
        {"run_id": run.summary.run_id, "attempt": attempt, **cut._asdict()}
        for run in runs.runs
        for attempt, cut in run.cuts.items()
    ]
    return pa.Table.from_pylist(rows, schema=_CUTS_SCHEMA)


def _commonest_first(metrics: Iterable[tuple[Iterable[str], int]]) -> list[str]:
    """Return the metrics of any run, the commonest first. Those of a single run keep their order.

    Args:
        metrics: The metrics of some runs, each with the number of runs that have these.
    """
    counts: Counter[str] = Counter()
    for names, runs in metrics:
        for name in names:
            counts[name] += runs
    return [name for name, _ in counts.most_common()]


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
    wide: dict[int, tuple[dict[str, str], tuple[str, ...], bool]] = {}
    for run in runs.runs:
        if id(run.columns) not in wide:
            names = run.columns.wide().by_metric
            deviates = any(shared[metric] != column for metric, column in names.items())
            wide[id(run.columns)] = names, tuple(sorted(names.values())), deviates
        own, columns, is_deviating = wide[id(run.columns)]
        files = run.listing.table("events")
        whole = [file.path for file in files if file.attempt not in run.cuts]
        cut = [file.path for file in files if file.attempt in run.cuts]
        if files and is_deviating:
            renamed = [f"{quoted_name(column)} AS {quoted_name(shared[metric])}" for metric, column in own.items()]
            yield from _sources(", ".join([ENVELOPE, *renamed, "attrs"]), whole, cut, own.values())
        elif len(files) == len(whole) == 1 and not run.has_tail:
            # A run's only file has all of the run's columns.
            uniform.setdefault(columns, []).append(files[0].path)
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
    files = [(file, run.cuts) for run in runs.runs for file in run.listing.table(table)]
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
