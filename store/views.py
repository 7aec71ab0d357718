"""The one maker of DuckDB connections, and the views that people, HTTP and reports query.

A connection sees the files of the snapshots it was made for, by explicit paths (a glob over 1,000 runs costs 23 ms a
query, a path 0.8 ms), and the live tails as they were then. It is locked before any statement of a user runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from .columns import Columns
from .errors import QueryRefused
from .events import LOOP_KINDS
from .snapshot import Snapshot
from .summary import RUNS_SCHEMA, summarize
from .tables import EVENT_FIELDS, SAMPLES_SCHEMA, events_schema, events_table, samples_table

#: Metrics that store-wide views have as columns: the commonest over all runs. ``series(name)`` reaches every one.
METRIC_COLUMNS: Final = 256

VIEWS: Final = ("runs", "events", "steps", "evals", "saves", "samples", "decisions", "windows")

#: What a user's own statement may cost.
MEMORY_LIMIT: Final = "2GB"


def connect(snapshots: Sequence[Snapshot]) -> duckdb.DuckDBPyConnection:
    """A locked in-memory connection with the views over these runs.

    Views: ``runs`` (one row a run), ``events`` (envelope, one column a metric, attrs), ``steps``, ``evals`` and
        ``saves``
    (the events of one kind), ``samples`` (per-sample losses), ``decisions`` (what rules did), ``windows`` (rolling
    mean, min, max and std of every series over its last 10 and 100 values). Table macros: ``series(metric)``,
    ``rolling(n)``.

    It can read the snapshots' Parquet files and nothing else, and can write nothing, not even what does not fit into
    memory.

    Raises:
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
        QueryRefused: A Parquet file is damaged.
    """
    connection = duckdb.connect(config={"python_enable_replacements": False, "autoinstall_known_extensions": False})
    with _translated():
        _create_views(connection, snapshots)
    paths = [file.path for snapshot in snapshots for file in snapshot.listing.sealed]
    # The pattern is checked when a statement is planned, the path when the file is opened.
    allowed = sorted({str(path) for path in paths} | {_pattern(path) for path in paths})
    connection.execute("SET memory_limit = ?", [MEMORY_LIMIT])
    connection.execute("SET temp_directory = ''")
    connection.execute(f"SET allowed_paths = {_sql_list(allowed)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def run_query(connection: duckdb.DuckDBPyConnection, statement: str) -> pa.Table:
    """The result of a user's statement.

    Raises:
        QueryRefused: It is not exactly one read-only statement, does not parse, or fails.
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
    """
    if not _is_unicode(statement):
        raise QueryRefused("a query is Unicode text", got=statement)
    with _translated():
        statements = duckdb.extract_statements(statement)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryRefused("a query is one read-only statement (SELECT, FROM, DESCRIBE, SHOW)", got=statement)
        return connection.sql(statements[0]).to_arrow_table()


@contextmanager
def _translated() -> Iterator[None]:
    """DuckDB's errors as ours; a missing file as Python's, which makes readers look again."""
    try:
        yield
    except duckdb.IOException as error:
        raise FileNotFoundError(str(error)) from None
    except duckdb.Error as error:
        raise QueryRefused(f"the query failed: {error}", fix=f"Views: {', '.join(VIEWS)}") from None


def _is_unicode(text: str) -> bool:
    """Whether the text can be encoded: half a surrogate pair is text to Python alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _create_views(connection: duckdb.DuckDBPyConnection, snapshots: Sequence[Snapshot]) -> None:
    runs = pa.Table.from_pylist([summarize(snapshot).to_row() for snapshot in snapshots], schema=RUNS_SCHEMA)
    connection.register("runs", runs)
    columns = _shared_columns(snapshot.columns for snapshot in snapshots)
    tails = [events_table(s.info.run_id, [r.event for r in s.tail], columns) for s in snapshots if s.tail]
    connection.register("event_tails", pa.concat_tables([events_schema(columns).empty_table(), *tails]))
    tails = [samples_table(s.info.run_id, s.tail_samples) for s in snapshots]
    connection.register("sample_tails", pa.concat_tables([SAMPLES_SCHEMA.empty_table(), *tails]))
    names = pa.table({"column_name": columns.by_metric.values(), "metric": columns.by_metric}, schema=_NAMES_SCHEMA)
    connection.register("metric_columns", names)

    metrics = [_quoted(column) for column in columns.by_metric.values()]
    as_named = [f"{column} AS {column}" for column in metrics]  # The file's own spelling may differ in case.
    union = " UNION ALL BY NAME ".join(_event_sources(snapshots, columns))
    connection.execute(f"CREATE VIEW all_events AS SELECT {', '.join([_ENVELOPE, *as_named, 'attrs'])} FROM ({union})")
    exposed = ", ".join([_ENVELOPE, *metrics[:METRIC_COLUMNS], "attrs::JSON AS attrs"])
    connection.execute(f"CREATE VIEW events AS SELECT {exposed} FROM all_events")
    samples = [file.path for snapshot in snapshots for file in snapshot.listing.table("samples")]
    sources = ["SELECT * FROM sample_tails", *([f"SELECT * FROM {_parquet(samples)}"] if samples else [])]
    connection.execute(f"CREATE VIEW samples AS {' UNION ALL BY NAME '.join(sources)}")
    for view, kind in (("steps", "step_end"), ("evals", "evaluate")):
        connection.execute(f"CREATE VIEW {view} AS SELECT * EXCLUDE (kind) FROM events WHERE kind = '{kind}'")
    connection.execute(_SAVES)
    connection.execute(_DECISIONS)
    unpivoted = (
        f"UNPIVOT (SELECT * EXCLUDE (attrs) FROM all_events) ON {', '.join(metrics)} INTO NAME column_name VALUE value"
        if metrics
        else "SELECT *, NULL::VARCHAR AS column_name, NULL::DOUBLE AS value FROM all_events LIMIT 0"
    )
    connection.execute(_SERIES_VALUES.format(source=f"({unpivoted})"))
    connection.execute("CREATE MACRO series(name) AS TABLE SELECT * FROM series_values WHERE metric = name")
    connection.execute(f"CREATE VIEW windows AS SELECT *, {_rolling('10')}, {_rolling('100')} FROM series_values")
    connection.execute(f"CREATE MACRO rolling(n) AS TABLE SELECT *, {_rolling('n', suffix='')} FROM series_values")


_ENVELOPE: Final = ", ".join(field.name for field in EVENT_FIELDS)

_NAMES_SCHEMA: Final = pa.schema([("column_name", pa.string()), ("metric", pa.string())])

_SAVES: Final = """
CREATE VIEW saves AS
SELECT * EXCLUDE (kind, attrs), attrs->>'path' AS path, TRY_CAST(attrs->>'size_bytes' AS BIGINT) AS size_bytes, attrs
FROM events WHERE kind = 'save'
"""

_DECISIONS: Final = """
CREATE VIEW decisions AS
SELECT run_id, attempt, rank, seq, TRY_CAST(attrs->>'event_seq' AS BIGINT) AS event_seq, step, epoch, time_ns,
elapsed_ns,
       attrs->>'controller' AS controller, attrs->>'trigger' AS trigger,
       TRY_CAST(attrs->'operations' AS VARCHAR[]) AS operations, attrs->'values' AS values
FROM events WHERE kind = 'decision'
"""

_SERIES_VALUES: Final = f"""
CREATE VIEW series_values AS
SELECT run_id, attempt, rank, kind, metric, seq, step, epoch, time_ns, elapsed_ns, value
FROM {{source}} JOIN metric_columns USING (column_name)
WHERE kind IN ({", ".join(f"'{kind}'" for kind in LOOP_KINDS)})
"""


def _rolling(n: str, suffix: str | None = None) -> str:
    """Rolling statistics over the last ``n`` values of each series' own clock, fewer at its start.

    A window that holds a NaN yields NaN throughout, as in rules; SQL's own min would pass over it, since SQL orders NaN
    above all numbers, and its deviation of a single NaN or infinity is 0. (The deviation is the population's.)
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


def _shared_columns(all_columns: Iterable[Columns]) -> Columns:
    """One column for each metric of any run, those that most runs have first.

    Of a single run these are its own columns.
    """
    counts: Counter[str] = Counter()
    for columns in all_columns:
        counts.update(columns.by_metric.keys())
    shared = Columns()
    shared.extend(metric for metric, _ in counts.most_common())
    return shared


def _event_sources(snapshots: Sequence[Snapshot], columns: Columns) -> Iterator[str]:
    """SELECTs of all events: the tails, the files of most runs in one go, and runs that name their columns differently.

    Such a run logged names that differ by case only, or in another order than others did: its ``loss`` may be the
        ``Loss`` of
    the others. Read together with them, one metric would pass for the other.
    """
    yield "SELECT * FROM event_tails"
    plain: list[Path] = []
    for snapshot in snapshots:
        own = snapshot.columns.by_metric
        paths = [file.path for file in snapshot.listing.table("events")]
        if paths and any(columns.by_metric[metric] != column for metric, column in own.items()):
            renamed = [f"{_quoted(column)} AS {_quoted(columns.by_metric[metric])}" for metric, column in own.items()]
            yield f"SELECT {', '.join([_ENVELOPE, *renamed, 'attrs'])} FROM {_parquet(paths)}"
        else:
            plain += paths
    if plain:
        yield f"SELECT * FROM {_parquet(plain)}"


def _parquet(paths: Sequence[Path]) -> str:
    files = _sql_list([_pattern(path) for path in paths])
    return f"read_parquet({files}, union_by_name = true, hive_partitioning = false)"


def _pattern(path: Path) -> str:
    """The pattern that matches this path alone: DuckDB takes every path for a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(path))


def _sql_list(values: Sequence[str]) -> str:
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"[{quoted}]"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
