"""The one maker of DuckDB connections, and the views that people, HTTP and reports query.

A connection sees the files of the snapshots it was made for, by explicit paths (a glob over 1,000 runs costs 23 ms a
query, a path 0.8 ms), and the live tails as they were then. It is locked before any statement of a user runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ..columns import Columns
from ..events import LOOP_KINDS
from ..lineage import DECIDING_RANK, Cut
from ..parquet.schemas import EVENT_FIELDS, METRICS_SCHEMA, SAMPLES_SCHEMA, events_schema
from ..reading.snapshot import Snapshot
from ..reading.summary import RUNS_SCHEMA, summarize
from ..reading.timeline import effective_lineage, rolled_back
from .sql_text import parquet_source, path_pattern, quoted_name, text_list, text_literal
from .statements import translated

if TYPE_CHECKING:
    import duckdb

#: Metrics that store-wide views have as columns: the commonest over all runs. ``series(name)`` reaches every one.
METRIC_COLUMNS: Final = 256

#: The column of ``events`` that says whether a resume rolled the event back.
ROLLED_BACK: Final = "rolled_back"

#: What a user's own statement may cost.
MEMORY_LIMIT: Final = "2GB"


def connect(
    snapshots: Sequence[Snapshot], *, memory_limit: str = MEMORY_LIMIT, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A locked in-memory connection with the views over these runs.

    Views: ``runs`` (one row a run), ``events`` (envelope, one column a metric, attrs, ``rolled_back``), ``steps``,
    ``evals`` and ``saves`` (the events of one kind), ``samples`` (per-sample losses), ``decisions`` (what rules did),
    ``windows`` (rolling mean, min, max and std of every series over its last 10 and 100 values). Table macros:
    ``series(metric)``, ``rolling(n)``, ``spiking_samples(step)``.

    ``events`` holds everything, and all others what counts: not what a resume rolled back. ``all_samples`` holds that
    too, with the same column ``rolled_back``.

    It can read the snapshots' Parquet files and nothing else, and can write nothing, not even what does not fit into
    memory.

    Raises:
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
        QueryRefused: A Parquet file is damaged.
    """
    import duckdb  # 50 ms to load, and a server asks its queries in processes of their own.

    connection = duckdb.connect(config={"python_enable_replacements": False, "autoinstall_known_extensions": False})
    with translated():
        _create_views(connection, snapshots)
    paths = [file.path for snapshot in snapshots for file in snapshot.listing.sealed]
    # The pattern is checked when a statement is planned, the path when the file is opened.
    allowed = sorted({str(path) for path in paths} | {path_pattern(path) for path in paths})
    connection.execute("SET memory_limit = ?", [memory_limit])
    if threads is not None:
        connection.execute("SET threads = ?", [threads])
    connection.execute("SET temp_directory = ''")
    connection.execute(f"SET allowed_paths = {text_list(allowed)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _create_views(connection: duckdb.DuckDBPyConnection, snapshots: Sequence[Snapshot]) -> None:
    runs = pa.Table.from_pylist([summarize(snapshot).to_row() for snapshot in snapshots], schema=RUNS_SCHEMA)
    connection.register("runs", runs)
    columns = _shared_columns(snapshot.columns.wide() for snapshot in snapshots)
    cuts = [effective_lineage(snapshot).cuts for snapshot in snapshots]
    if any(cuts):
        connection.register("lineage_cuts", _cuts_table(snapshots, cuts))
    tails = [
        _marked(s.tail.events_table(s.info.run_id, columns.without(s.columns.long())), own)
        for s, own in zip(snapshots, cuts, strict=True)
        if s.tail
    ]
    connection.register("event_tails", _joined([_marked(events_schema(columns).empty_table(), {}), *tails]))
    tails = [_marked(s.tail_samples.samples_table(s.info.run_id), own) for s, own in zip(snapshots, cuts, strict=True)]
    connection.register("sample_tails", pa.concat_tables([_marked(SAMPLES_SCHEMA.empty_table(), {}), *tails]))
    names = pa.table({"column_name": columns.by_metric.values(), "metric": columns.by_metric}, schema=_NAMES_SCHEMA)
    connection.register("metric_columns", names)

    metrics = [quoted_name(column) for column in columns.by_metric.values()]
    as_named = [f"{column} AS {column}" for column in metrics]  # The file's own spelling may differ in case.
    union = " UNION ALL BY NAME ".join(_event_sources(snapshots, cuts, columns))
    named = ", ".join([_ENVELOPE, *as_named, "attrs", ROLLED_BACK])
    connection.execute(f"CREATE VIEW all_events AS SELECT {named} FROM ({union})")
    connection.execute(f"CREATE VIEW long_values AS {_long_source(connection, snapshots)}")
    connection.execute(f"CREATE VIEW events AS {_exposed(columns, {m for s in snapshots for m in s.columns.long()})}")
    counts = f"NOT {ROLLED_BACK}" if any(cuts) else "true"
    union = " UNION ALL BY NAME ".join(_sample_sources(snapshots, cuts))
    connection.execute(f"CREATE VIEW all_samples AS {union}")
    connection.execute(f"CREATE VIEW samples AS SELECT * EXCLUDE ({ROLLED_BACK}) FROM all_samples WHERE {counts}")
    held = f"SELECT * EXCLUDE ({ROLLED_BACK}) FROM ({ALL_DECISIONS}) WHERE {counts}"
    connection.execute(f"CREATE VIEW decisions AS {held}")
    for view, kind in (("steps", "step_end"), ("evals", "evaluate")):
        held = f"FROM events WHERE kind = '{kind}' AND {counts}"
        connection.execute(f"CREATE VIEW {view} AS SELECT * EXCLUDE (kind, {ROLLED_BACK}) {held}")
    connection.execute(_SAVES.format(counts=counts))
    held = f"SELECT * EXCLUDE (attrs, {ROLLED_BACK}) FROM all_events WHERE {counts}"
    unpivoted = (
        f"UNPIVOT ({held}) ON {', '.join(metrics)} INTO NAME column_name VALUE value"
        if metrics
        else f"SELECT *, NULL::VARCHAR AS column_name, NULL::DOUBLE AS value FROM ({held}) LIMIT 0"
    )
    values = f"SELECT * FROM ({unpivoted}) JOIN metric_columns USING (column_name)"
    if any(snapshot.columns.long() for snapshot in snapshots):
        clocks = f"(SELECT {_ENVELOPE} FROM all_events WHERE {counts})"
        values += f" UNION ALL BY NAME SELECT * FROM {clocks} JOIN long_values USING (run_id, attempt, rank, seq)"
    connection.execute(_SERIES_VALUES.format(source=f"({values})"))
    name, n = (_free(parameter, columns) for parameter in ("name", "n"))
    connection.execute(f"CREATE MACRO series({name}) AS TABLE SELECT * FROM series_values WHERE metric = {name}")
    connection.execute(f"CREATE VIEW windows AS SELECT *, {_rolling('10')}, {_rolling('100')} FROM series_values")
    connection.execute(f"CREATE MACRO rolling({n}) AS TABLE SELECT *, {_rolling(n, suffix='')} FROM series_values")


_ENVELOPE: Final = ", ".join(field.name for field in EVENT_FIELDS)

_NAMES_SCHEMA: Final = pa.schema([("column_name", pa.string()), ("metric", pa.string())])

_SAVES: Final = """
CREATE VIEW saves AS
SELECT * EXCLUDE (kind, attrs, rolled_back), attrs->>'path' AS path,
       TRY_CAST(attrs->>'size_bytes' AS BIGINT) AS size_bytes, attrs
FROM events WHERE kind = 'save' AND {counts}
"""

#: Decisions, those included that a resume rolled back. No view, since making one costs 2 ms.
ALL_DECISIONS: Final = """
SELECT run_id, attempt, rank, seq, TRY_CAST(attrs->>'event_seq' AS BIGINT) AS event_seq,
       step, epoch, time_ns, elapsed_ns,
       attrs->>'controller' AS controller, attrs->>'trigger' AS trigger,
       TRY_CAST(attrs->'operations' AS VARCHAR[]) AS operations, attrs->'values' AS values,
       coalesce(attrs->>'mode', 'act') AS mode, attrs->>'severity' AS severity, attrs->>'message' AS message,
       rolled_back
FROM events WHERE kind = 'decision'
"""

_SERIES_VALUES: Final = f"""
CREATE VIEW series_values AS
SELECT run_id, attempt, rank, kind, metric, seq, step, epoch, time_ns, elapsed_ns, value
FROM {{source}}
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

    Of a single run these are its own columns, but for a metric that is called as ``ROLLED_BACK`` is.
    """
    counts: Counter[str] = Counter()
    for columns in all_columns:
        counts.update(columns.by_metric.keys())
    shared = Columns({"": ROLLED_BACK})  # A column that is taken, ...
    del shared.by_metric[""]  # ... and no metric's.
    shared.extend(metric for metric, _ in counts.most_common())
    return shared


_Cuts = Sequence[Mapping[int, Cut]]

_CUTS_SCHEMA: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("attempt", pa.int32()),
        ("last_seq", pa.int64()),
        ("last_step", pa.int64()),
        ("last_step_elsewhere", pa.int64()),
    ]
)


def _cuts_table(snapshots: Sequence[Snapshot], cuts: _Cuts) -> pa.Table:
    """What counts of each attempt that some resume left behind."""
    rows = [
        {"run_id": snapshot.info.run_id, "attempt": attempt, **cut._asdict()}
        for snapshot, own in zip(snapshots, cuts, strict=True)
        for attempt, cut in own.items()
    ]
    return pa.Table.from_pylist(rows, schema=_CUTS_SCHEMA)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables of which the first has all columns; what another one lacks is null."""
    return pa.concat_tables(tables, promote_options="default")


def _marked(table: pa.Table, cuts: Mapping[int, Cut]) -> pa.Table:
    """The rows with the column ``ROLLED_BACK``."""
    marks = rolled_back(table, cuts) if cuts else pa.repeat(pa.scalar(False), table.num_rows)
    return table.append_column(ROLLED_BACK, marks)


def _event_sources(snapshots: Sequence[Snapshot], cuts: _Cuts, columns: Columns) -> Iterator[str]:
    """SELECTs of all events: the tails, the files of most runs in one go, and runs that name their columns differently.

    Such a run logged names that differ by case only, or in another order than others did: its ``loss`` may be the
    ``Loss`` of the others. Read together with them, one metric would pass for the other.

    Files of attempts that a resume left behind are read apart too: only they are compared with where they are cut.
    """
    yield "SELECT * FROM event_tails"
    plain: list[Path] = []
    plain_cut: list[Path] = []
    uniform: dict[tuple[str, ...], list[Path]] = {}
    for snapshot, own_cuts in zip(snapshots, cuts, strict=True):
        own = snapshot.columns.wide().by_metric
        files = snapshot.listing.table("events")
        whole = [file.path for file in files if file.attempt not in own_cuts]
        cut = [file.path for file in files if file.attempt in own_cuts]
        if files and any(columns.by_metric[metric] != column for metric, column in own.items()):
            shared = columns.by_metric
            renamed = [f"{quoted_name(column)} AS {quoted_name(shared[metric])}" for metric, column in own.items()]
            yield from _sources(", ".join([_ENVELOPE, *renamed, "attrs"]), whole, cut, own.values())
        elif len(files) == len(whole) == 1 and not snapshot.tail:
            # The one file of a run has all of the run's columns.
            uniform.setdefault(tuple(sorted(own.values())), []).append(files[0].path)
        else:
            plain += whole
            plain_cut += cut
    for alike in uniform.values():
        yield f"SELECT *, false AS {ROLLED_BACK} FROM {parquet_source(alike, is_uniform=True)}"
    yield from _sources("*", plain, plain_cut)


def _long_source(connection: duckdb.DuckDBPyConnection, snapshots: Sequence[Snapshot]) -> str:
    """A SELECT of the metrics that are no columns of their run: tails and files."""
    tails = [s.tail_metrics.metrics_table(s.info.run_id, s.columns.long()) for s in snapshots]
    connection.register("metric_tails", pa.concat_tables([METRICS_SCHEMA.empty_table(), *tails]))
    paths = [file.path for snapshot in snapshots for file in snapshot.listing.table("metrics")]
    return "SELECT * FROM metric_tails" + (f" UNION ALL BY NAME SELECT * FROM {parquet_source(paths)}" if paths else "")


def _exposed(columns: Columns, long: Collection[str]) -> str:
    """A SELECT of the events with the commonest metrics, those included that are no columns of some run."""
    exposed = dict(list(columns.by_metric.items())[:METRIC_COLUMNS])
    split = {metric: column for metric, column in exposed.items() if metric in long}
    if not split:
        named = ", ".join([_ENVELOPE, *map(quoted_name, exposed.values()), "attrs::JSON AS attrs", ROLLED_BACK])
        return f"SELECT {named} FROM all_events"
    picked = ", ".join(
        f"any_value(value) FILTER (metric = {text_literal(metric)}) AS {quoted_name(column)}"
        for metric, column in split.items()
    )
    within = ", ".join(map(text_literal, split))
    envelope = ", ".join(f"e.{field.name}" for field in EVENT_FIELDS)
    values = [
        f"coalesce(e.{quoted_name(column)}, l.{quoted_name(column)}) AS {quoted_name(column)}"
        if metric in split
        else f"e.{quoted_name(column)}"
        for metric, column in exposed.items()
    ]
    same = " AND ".join(f"e.{name} = l.{name}" for name in ("run_id", "attempt", "rank", "seq"))
    return (
        f"SELECT {', '.join([envelope, *values, 'e.attrs::JSON AS attrs', f'e.{ROLLED_BACK}'])} FROM all_events e "
        f"LEFT JOIN (SELECT run_id, attempt, rank, seq, {picked} FROM long_values WHERE metric IN ({within}) "
        f"GROUP BY run_id, attempt, rank, seq) l ON {same}"
    )


def _sample_sources(snapshots: Sequence[Snapshot], cuts: _Cuts) -> Iterator[str]:
    """SELECTs of all sample losses."""
    yield "SELECT * FROM sample_tails"
    files = [(f, own) for s, own in zip(snapshots, cuts, strict=True) for f in s.listing.table("samples")]
    whole = [file.path for file, own in files if file.attempt not in own]
    yield from _sources("*", whole, [file.path for file, own in files if file.attempt in own])


def _sources(selected: str, whole: Sequence[Path], cut: Sequence[Path], metrics: Collection[str] = ()) -> Iterator[str]:
    """SELECTs of those columns of files, and of whether a row was rolled back: of whole files none was.

    ``rank`` and the like are qualified: a metric may be called as a column of the cuts is. Columns of ``metrics`` are
    there, null, even where no file has them.
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


def _free(parameter: str, columns: Columns) -> str:
    """A name for a macro's parameter that no column has: DuckDB takes them for each other, whatever their case."""
    taken = {column.casefold() for column in columns.by_metric.values()}
    while parameter in taken:
        parameter += "_"
    return parameter
