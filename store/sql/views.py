"""Creates all DuckDB connections, with the views that people, HTTP and reports query.

A connection sees the files and tails of the given snapshots. It reads files by explicit path: a glob over 1,000 runs
costs 23 ms a query, a path 0.8 ms. It is locked before any user statement runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final

from ..columns import Columns
from ..events import CUSTOM, LOOP_KINDS
from ..objects.access import fetch
from ..parquet.schemas import EVENT_FIELDS
from ..reading.snapshot import Snapshot
from .sql_text import parquet_source, path_pattern, quoted_name, text_list, text_literal
from .statement_scope import SOURCES
from .statements import names_in, scope_in, translated
from .view_sources import (
    ENVELOPE,
    ROLLED_BACK,
    ViewedRuns,
    event_sources,
    sample_sources,
    vector_sources,
    view_tables,
    viewed_runs,
    viewed_snapshot,
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

    Views: ``runs`` (one row per run), ``events`` (envelope, a column for each of the ``METRIC_COLUMNS`` commonest
    metrics and of those that the statement names, attrs, ``rolled_back``), ``steps``,
    ``evals`` and ``saves`` (the events of one kind), ``samples`` (per-sample losses), ``vectors``, ``decisions`` (of
    rules), ``windows`` (rolling mean, min, max and std of every series over its last 10 and 100 values). Table macros:
    ``series(metric)``, ``rolling(n)``, ``spiking_samples(step)``.

    ``events`` holds all events, the other views only effective ones. ``all_samples`` and ``all_vectors`` also hold
    rolled-back rows, marked by the same column ``rolled_back``.

    The connection can read only the snapshots' Parquet files. It can write nothing and does not spill to disk.

    Raises:
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
        QueryRefused: A Parquet file is damaged.
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
    paths = [file.path for table, view in _VIEW_OF_FILES.items() if view in wanted for file in runs.files(table)]
    fetch(paths)
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
        "series": (f"series({name})", f"SELECT * FROM series_values WHERE metric = {name}"),
        "rolling": (f"rolling({n})", f"SELECT *, {_rolling(n, suffix='')} FROM series_values"),
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
    """
    every = {**runs.columns.by_metric, **runs.beyond}
    common = set(list(runs.columns.by_metric)[:METRIC_COLUMNS])
    return {metric: column for metric, column in every.items() if metric in common or column.casefold() in names}


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


def _series_values(runs: ViewedRuns) -> str:
    """One row for each value of each metric at the events of the loop."""
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
WHERE kind IN ({", ".join(f"'{kind}'" for kind in LOOP_KINDS)}) OR starts_with(kind, '{CUSTOM}')
"""


def _windows() -> str:
    return f"SELECT *, {_rolling('10')}, {_rolling('100')} FROM series_values"


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
    "series_values": lambda runs, _: _series_values(runs),
    "windows": lambda _, __: _windows(),
}
