"""Creates all DuckDB connections, with the views that people, HTTP and reports query.

A connection sees the files and tails of the given snapshots. It reads files by explicit path: a glob over 1,000 runs
costs 23 ms a query, a path 0.8 ms. It is locked before any user statement runs. The sources of the views are Arrow
tables of the runs' tails, and SELECTs over their Parquet files.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ..columns import Columns
from ..errors import NotARun, QueryRefused
from ..event_json import ROLLED_BACK
from ..events import CUSTOM, DERIVED, LOOP_KINDS
from ..lineage import DECIDING_RANK, Cut
from ..objects.mirror_access import fetch
from ..parquet.tables import EVENT_FIELDS, METRICS_SCHEMA, SAMPLES_SCHEMA, VECTORS_SCHEMA, events_schema, require_own
from ..reading.snapshot import Snapshot, effective_lineage, rolled_back
from ..reading.summary import Entry, RunSummary, runs_table, summarize
from ..run_folder import Listing, SealedFile
from .statement_scope import SOURCES
from .statements import (
    names_in,
    parquet_source,
    path_pattern,
    quoted_name,
    scope_in,
    text_list,
    text_literal,
    translated,
)

if TYPE_CHECKING:
    import duckdb


#: Maximum metrics that views have as columns, besides those that a statement names: the commonest over all runs.
METRIC_COLUMNS: Final = 256

#: Default memory limit of user statements.
MEMORY_LIMIT: Final = "2GB"


def connect(
    snapshots: Sequence[Snapshot], statement: str = "", *, memory_limit: str = MEMORY_LIMIT, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a locked in-memory connection with the views over these runs, for one statement.

    Views: ``runs`` (one row per run), ``run_summary`` (the same with what its events amount to), ``events`` (envelope,
    a column for each of the ``METRIC_COLUMNS`` commonest metrics and of those that the statement names, attrs,
    ``rolled_back``), ``steps``, ``evals`` and ``saves`` (the events of one kind), ``samples`` (per-sample losses),
    ``vectors``, ``decisions`` (of rules), ``metric_values`` (one row per value), ``windows`` (rolling mean, min, max
    and std of every series over its last 10 and 100 values). Table macros: ``series(metric)``, ``rolling(n)``,
    ``spiking_samples(step)``.

    ``events`` holds all events, the other views only effective ones. ``all_samples`` and ``all_vectors`` also hold
    rolled-back rows, marked by the same column ``rolled_back``.

    The connection can read only the snapshots' Parquet files. It can write nothing and does not spill to disk.

    Raises:
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
        DamagedLog: A Parquet file has another one's name.
        QueryRefused: A Parquet file is damaged, or the statement names a metric that DuckDB would take for another one.
    """
    runs = viewed_runs([viewed_snapshot(snapshot) for snapshot in snapshots])
    views = scope_in(statement).views
    exposed = exposed_metrics(runs, names_in(statement))
    return connect_to(runs, views, exposed, memory_limit=memory_limit, threads=threads)


def connect_to(
    runs: ViewedRuns,
    views: Set[str] | None,
    exposed: Mapping[str, str],
    *,
    memory_limit: str = MEMORY_LIMIT,
    threads: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a locked connection with some of the views that ``connect`` creates.

    Args:
        runs: The runs to show.
        views: The views to create, with those that they read; None for all.
        exposed: The metrics to show, with their columns.
        memory_limit: DuckDB's memory limit, in its own notation.
        threads: DuckDB's thread count.

    Raises:
        FileNotFoundError, QueryRefused: As ``connect``.
    """
    import duckdb  # Takes 50 ms to load, and a server runs its queries in separate processes.

    wanted = SOURCES.keys() if views is None else views
    tables = [table for table, view in _VIEW_OF_FILES.items() if view in wanted]
    files = [(run, [file for file in run.listing.sealed if file.table in tables]) for run in runs.runs if tables]
    paths = [file.path for _, own in files for file in own]
    fetch(paths)
    for run, own in files:
        require_own(own, run.summary.run_id)
    connection = duckdb.connect(config={"python_enable_replacements": False, "autoinstall_known_extensions": False})
    with translated():
        _create_views(connection, runs, wanted, exposed)
    # DuckDB checks the pattern when it plans a statement, the path when it opens the file.
    allowed = sorted({str(path) for path in paths} | {path_pattern(path) for path in paths})
    connection.execute("SET memory_limit = ?", [memory_limit])
    if threads is not None:
        connection.execute("SET threads = ?", [threads])
    connection.execute("SET temp_directory = ''")
    connection.execute(f"SET allowed_paths = {text_list(allowed)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


#: The view that reads the files of each table.
_VIEW_OF_FILES: Final = {
    "events": "all_events",
    "metrics": "long_values",
    "samples": "all_samples",
    "vectors": "all_vectors",
}

#: All decisions, rolled-back ones included. Not a view, since creating one costs 2 ms.
ALL_DECISIONS: Final = """
SELECT run_id, attempt, rank, seq, TRY_CAST(attrs->>'event_seq' AS BIGINT) AS event_seq,
       step, epoch, time_ns, elapsed_ns,
       attrs->>'controller' AS controller, attrs->>'trigger' AS trigger,
       TRY_CAST(attrs->'operations' AS VARCHAR[]) AS operations, attrs->'values' AS values,
       coalesce(attrs->>'mode', 'act') AS mode, attrs->>'severity' AS severity, attrs->>'message' AS message,
       attrs->>'member' AS member, TRY_CAST(attrs->>'stage' AS INTEGER) AS stage, rolled_back
FROM events WHERE kind = 'decision'
"""


def _create_views(
    connection: duckdb.DuckDBPyConnection, runs: ViewedRuns, wanted: Set[str], exposed: Mapping[str, str]
) -> None:
    for name, table in view_tables(runs, wanted).items():
        connection.register(name, table)
    for name, selecting in _VIEWS.items():
        if name in wanted:
            connection.execute(f"CREATE VIEW {name} AS {selecting(runs, exposed)}")
    for name, (signature, select) in _macros(runs).items():
        if name in wanted:
            connection.execute(f"CREATE MACRO {signature} AS TABLE {select}")


def _macros(runs: ViewedRuns) -> dict[str, tuple[str, str]]:
    """The signature and the SELECT of each table macro."""
    name, n = (_free(parameter, runs.columns) for parameter in ("name", "n"))
    return {
        "series": (f"series({name})", f"SELECT * FROM metric_values WHERE metric = {name}"),
        "rolling": (f"rolling({n})", f"SELECT *, {_rolling(n, suffix='')} FROM metric_values"),
    }


def _all_events(runs: ViewedRuns) -> str:
    metrics = map(quoted_name, runs.columns.by_metric.values())
    as_named = [f"{column} AS {column}" for column in metrics]  # A file's spelling may differ in case.
    named = ", ".join([ENVELOPE, *as_named, "attrs", ROLLED_BACK])
    return f"SELECT {named} FROM ({' UNION ALL BY NAME '.join(event_sources(runs))})"


def _long_values(runs: ViewedRuns) -> str:
    """The metrics stored in ``metrics`` files and tails instead of columns."""
    paths = [file.path for file in runs.files("metrics")]
    return "SELECT * FROM metric_tails" + (f" UNION ALL BY NAME SELECT * FROM {parquet_source(paths)}" if paths else "")


def exposed_metrics(runs: ViewedRuns, names: Set[str]) -> dict[str, str]:
    """Return the metrics that the views show, with their columns: the commonest, and those that a statement names.

    Args:
        runs: The runs.
        names: The names in the statement.

    Raises:
        QueryRefused: A name is that of a metric, and DuckDB would take it for another one.
    """
    every = {**runs.columns.by_metric, **runs.beyond}
    owners = {column.casefold(): metric for metric, column in every.items()}
    for name in sorted(names & every.keys()):
        other = owners.get(name.casefold(), name)
        if other != name:
            what = f"the metrics {other!r} and {name!r} differ by case only, which names in SQL ignore"
            raise QueryRefused(what, got=name, fix=f"Write {quoted_name(every[name])} for the metric {name!r}")
    folded = {name.casefold() for name in names}
    common = set(list(runs.columns.by_metric)[:METRIC_COLUMNS])
    return {metric: column for metric, column in every.items() if metric in common or column.casefold() in folded}


def _events(runs: ViewedRuns, exposed: Mapping[str, str]) -> str:
    """The events with these metrics, including those that some run stores outside columns."""
    split = {metric: column for metric, column in exposed.items() if metric in runs.long}
    if not split:
        named = ", ".join([ENVELOPE, *map(quoted_name, exposed.values()), "attrs::JSON AS attrs", ROLLED_BACK])
        return f"SELECT {named} FROM all_events"
    picked = ", ".join(
        f"any_value(value) FILTER (metric = {text_literal(metric)}) AS {quoted_name(column)}"
        for metric, column in split.items()
    )
    within = ", ".join(map(text_literal, split))
    envelope = ", ".join(f"e.{field.name}" for field in EVENT_FIELDS)
    values = [_joined_value(quoted_name(column), metric, runs) for metric, column in exposed.items()]
    same = " AND ".join(f"e.{name} = l.{name}" for name in ("run_id", "attempt", "rank", "seq"))
    return (
        f"SELECT {', '.join([envelope, *values, 'e.attrs::JSON AS attrs', f'e.{ROLLED_BACK}'])} FROM all_events e "
        f"LEFT JOIN (SELECT run_id, attempt, rank, seq, {picked} FROM long_values WHERE metric IN ({within}) "
        f"GROUP BY run_id, attempt, rank, seq) l ON {same}"
    )


def _joined_value(column: str, metric: str, runs: ViewedRuns) -> str:
    """A metric's value: a column of the events ``e``, a row of the long values ``l``, or one or the other by run."""
    if metric not in runs.long:
        return f"e.{column}"
    return f"l.{column}" if metric in runs.beyond else f"coalesce(e.{column}, l.{column}) AS {column}"


def _effective(source: str, runs: ViewedRuns) -> str:
    """The rows of a view or a statement in brackets that no resume rolled back."""
    return f"SELECT * EXCLUDE ({ROLLED_BACK}) FROM {source} WHERE {runs.counting}"


def _of_kind(kind: str, runs: ViewedRuns) -> str:
    """The view of one kind of events, such as ``steps`` and ``evals``."""
    return f"SELECT * EXCLUDE (kind, {ROLLED_BACK}) FROM events WHERE kind = '{kind}' AND {runs.counting}"


def _saves(runs: ViewedRuns) -> str:
    return f"""
SELECT * EXCLUDE (kind, attrs, {ROLLED_BACK}), attrs->>'path' AS path,
       TRY_CAST(attrs->>'size_bytes' AS BIGINT) AS size_bytes, attrs
FROM events WHERE kind = 'save' AND {runs.counting}
"""


def _metric_values(runs: ViewedRuns) -> str:
    """One row for each value of each metric at the events of the loop, and of what rules computed at them."""
    held = f"SELECT * EXCLUDE (attrs, {ROLLED_BACK}) FROM all_events WHERE {runs.counting}"
    metrics = ", ".join(map(quoted_name, runs.columns.by_metric.values()))
    unpivoted = (
        f"UNPIVOT ({held}) ON {metrics} INTO NAME column_name VALUE value"
        if metrics
        else f"SELECT *, NULL::VARCHAR AS column_name, NULL::DOUBLE AS value FROM ({held}) LIMIT 0"
    )
    values = f"SELECT * FROM ({unpivoted}) JOIN metric_columns USING (column_name)"
    if runs.long:
        clocks = f"(SELECT {ENVELOPE} FROM all_events WHERE {runs.counting})"
        values += f" UNION ALL BY NAME SELECT * FROM {clocks} JOIN long_values USING (run_id, attempt, rank, seq)"
    return f"""
SELECT run_id, attempt, rank, kind, metric, seq, step, epoch, time_ns, elapsed_ns, value
FROM ({values})
WHERE kind IN ({", ".join(f"'{kind}'" for kind in (*LOOP_KINDS, DERIVED))}) OR starts_with(kind, '{CUSTOM}')
"""


def _windows() -> str:
    return f"SELECT *, {_rolling('10')}, {_rolling('100')} FROM metric_values"


def _rolling(n: str, suffix: str | None = None) -> str:
    """Rolling statistics over the last ``n`` values of each series' own clock, fewer at its start.

    A window that holds a NaN yields NaN throughout, as in rules. SQL's min would ignore it, since SQL orders NaN above
    all numbers, and its deviation of a single NaN or infinity is 0. (The deviation is the population's.)
    """
    tail = f"_{n}" if suffix is None else suffix
    over = (
        "OVER (PARTITION BY run_id, rank, kind, metric ORDER BY attempt, seq "
        f"ROWS BETWEEN {n} - 1 PRECEDING AND CURRENT ROW)"
    )
    return (
        f"avg(value) {over} AS mean{tail}, "
        f"CASE WHEN isnan(max(value) {over}) THEN 'NaN'::DOUBLE ELSE min(value) {over} END AS min{tail}, "
        f"max(value) {over} AS max{tail}, "
        f"CASE WHEN isfinite(avg(value) {over}) THEN stddev_pop(value) {over} ELSE 'NaN'::DOUBLE END AS std{tail}"
    )


def _free(parameter: str, columns: Columns) -> str:
    """Return a name for a macro's parameter that no column has: DuckDB would confuse them, whatever their case."""
    taken = {column.casefold() for column in columns.by_metric.values()}
    while parameter in taken:
        parameter += "_"
    return parameter


#: The SELECT of each view, in an order in which views follow those they read.
_VIEWS: Final[dict[str, Callable[[ViewedRuns, Mapping[str, str]], str]]] = {
    "run_summary": lambda _, __: "SELECT * FROM runs JOIN run_events USING (run_id)",
    "all_events": lambda runs, _: _all_events(runs),
    "long_values": lambda runs, _: _long_values(runs),
    "events": _events,
    "all_samples": lambda runs, _: " UNION ALL BY NAME ".join(sample_sources(runs)),
    "samples": lambda runs, _: _effective("all_samples", runs),
    "all_vectors": lambda runs, _: " UNION ALL BY NAME ".join(vector_sources(runs)),
    "vectors": lambda runs, _: _effective("all_vectors", runs),
    "decisions": lambda runs, _: _effective(f"({ALL_DECISIONS})", runs),
    "steps": lambda runs, _: _of_kind("step_end", runs),
    "evals": lambda runs, _: _of_kind("evaluate", runs),
    "saves": lambda runs, _: _saves(runs),
    "metric_values": lambda runs, _: _metric_values(runs),
    "windows": lambda _, __: _windows(),
}


#: The column of ``events`` that says whether a resume rolled the event back.

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
    if "run_summary" in views:
        tables["run_events"] = _run_events(runs)
    if "all_events" in views:
        tables["event_tails"] = _event_tails(runs)
    if "all_samples" in views:
        tables["sample_tails"] = _sample_tails(runs)
    if "all_vectors" in views:
        tables["vector_tails"] = _vector_tails(runs)
    if "long_values" in views:
        tables["metric_tails"] = _metric_tails(runs)
    if "metric_values" in views:
        tables["metric_columns"] = _metric_columns(runs.columns)
    if runs.has_cuts:
        tables["lineage_cuts"] = _lineage_cuts(runs)
    return tables


_METRIC_SUMMARY: Final = pa.struct(
    [
        ("count", pa.int64()),
        ("last", pa.float64()),
        ("last_step", pa.int64()),
        ("least", pa.float64()),
        ("least_step", pa.int64()),
        ("greatest", pa.float64()),
        ("greatest_step", pa.int64()),
        ("nonfinite", pa.int64()),
        ("first_nonfinite_step", pa.int64()),
    ]
)

_RUN_EVENTS_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("fired", pa.list_(pa.string())),
        ("health", pa.string()),
        ("metrics", pa.map_(pa.string(), _METRIC_SUMMARY)),
    ]
)


def _run_events(runs: ViewedRuns) -> pa.Table:
    """Return the metric summaries, fired rules and health of each run."""
    rows = []
    for run in runs.runs:
        entry = run.source if isinstance(run.source, Entry) else None
        found = run.source.summary if isinstance(run.source, Snapshot) else run.source
        firings = found.firings if isinstance(found, Entry) else found.firings(run.summary.status)
        fired = list(dict.fromkeys(one.controller for one in firings))
        metrics = [(metric, summary._asdict()) for metric, summary in found.metrics.items()]
        health = None if entry is None else entry.health
        rows.append({"run_id": run.summary.run_id, "fired": fired, "health": health, "metrics": metrics})
    return pa.Table.from_pylist(rows, schema=_RUN_EVENTS_SCHEMA)


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
