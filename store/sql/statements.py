"""Runs a user's SQL after checking that it is one read-only statement, and translates DuckDB's errors.

Untrusted SQL runs with limits on rows, bytes, seconds and memory. The macro ``spiking_samples`` finds the samples that
drove a loss spike.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ..arrow_tables import Row, values_of
from ..errors import QueryRefused, QueryTimedOut, TelemetryError
from ..own_process import TimeBudget
from ..run_folder import retrying
from .statement_scope import StatementScope, scope_of

if TYPE_CHECKING:
    import duckdb


VIEWS: Final = (
    "runs",
    "run_summary",
    "events",
    "steps",
    "evals",
    "saves",
    "samples",
    "vectors",
    "decisions",
    "metric_values",
    "windows",
)

#: Batch size for results that may be truncated.
_BATCH_ROWS: Final = 2048


def run_query(connection: duckdb.DuckDBPyConnection, statement: str) -> pa.Table:
    """Run a user's statement and return its result.

    Raises:
        QueryRefused: It is not exactly one read-only statement, does not parse, or fails.
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
    """
    with translated(), _planned(connection, statement) as relation:
        return relation.to_arrow_table()


@contextmanager
def query_batches(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[pa.RecordBatchReader]:
    """Run a statement and yield a reader of its result batches, fetched on demand.

    Raises:
        QueryRefused, FileNotFoundError: As ``run_query``.
    """
    with translated(), _planned(connection, statement) as relation:
        yield relation.to_arrow_reader(_BATCH_ROWS)


#: DuckDB runs a PIVOT that does not list its columns as two statements. The first one creates a type.
_PIVOT_FIX: Final = (
    "PIVOT must list its columns: PIVOT t ON metric IN ('loss', 'lr') USING max(value) GROUP BY step. "
    "Or aggregate by a condition: max(value) FILTER (metric = 'loss') AS loss"
)


def names_in(statement: str) -> frozenset[str]:
    """Return the names that a statement holds outside of texts and comments, as written: what may be a column."""
    import duckdb

    if not _is_unicode(statement):
        return frozenset()
    content = statement.encode()
    kinds = (duckdb.token_type.identifier, duckdb.token_type.keyword)
    tokens = [*duckdb.tokenize(statement), (len(content), None)]
    words = [content[begin:end].decode().strip() for (begin, kind), (end, _) in pairwise(tokens) if kind in kinds]
    return frozenset(map(_unquoted, words))


def scope_in(statement: str) -> StatementScope:
    """Return the views and runs that a statement needs."""
    import duckdb

    if not statement or not _is_unicode(statement):
        return StatementScope()
    try:
        ((tree,),) = _parser().cursor().execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
    except duckdb.Error:
        return StatementScope()
    return scope_of(tree)


@functools.cache
def _parser() -> duckdb.DuckDBPyConnection:
    """Return a connection that only parses."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "enable_external_access": False})
    connection.execute("SET lock_configuration = true")
    return connection


def _unquoted(name: str) -> str:
    """Return the name that SQL text stands for."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


@contextmanager
def _planned(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[duckdb.DuckDBPyRelation]:
    """Plan the statement, after checking that it is a single read-only one."""
    import duckdb  # Already loaded by the code that made the connection.

    if not _is_unicode(statement):
        raise QueryRefused("a query must be valid Unicode text", got=statement)
    statements = duckdb.extract_statements(statement)
    if len(statements) != 1 or not _is_select(statements[0]):
        fix = _PIVOT_FIX if re.search(r"\bpivot", statement, re.IGNORECASE) else ""
        what = "a query must be one read-only statement (SELECT, FROM, DESCRIBE, SHOW)"
        raise QueryRefused(what, got=statement, fix=fix)
    if "spiking_samples" in statement.casefold():
        connection.execute(SPIKING_SAMPLES)
    try:
        try:
            relation = connection.sql(statements[0])
        except (duckdb.BinderException, duckdb.CatalogException):
            connection.execute(statement)  # Fails as well; its error has the line and the place within it.
            raise
        yield _with_counterparts(relation, statement)
    except duckdb.PermissionException as error:
        _check_files(connection, str(error))
        raise


def _is_select(statement: duckdb.Statement) -> bool:
    import duckdb

    try:
        return bool(statement.type == duckdb.StatementType.SELECT)
    except ValueError:  # DuckDB's parser knows kinds of statements that its Python package does not.
        return False


def _with_counterparts(relation: duckdb.DuckDBPyRelation, statement: str) -> duckdb.DuckDBPyRelation:
    """Cast the columns that have no exact counterpart in Arrow, Parquet and JSON: arrays to lists, others to text.

    Raises:
        QueryRefused: Two columns share a name: rows as dictionaries would lose one.
    """
    names = relation.columns
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        fix = f"Rename one of the columns called {twice!r} with AS"
        raise QueryRefused("two columns of the result have the same name", got=statement, fix=fix)
    counterparts = [_counterpart(type_) for type_ in relation.types]
    if not any(counterparts):
        return relation
    # By position, since DuckDB takes two names that differ in case for one.
    cells = [f"CAST(#{place} AS {kind})" if kind else f"#{place}" for place, kind in enumerate(counterparts, start=1)]
    return relation.project(
        ", ".join(f"{cell} AS {quoted_name(name)}" for cell, name in zip(cells, names, strict=True))
    )


#: Matches the length of an array in the text of a type. Quoted names and texts match first: they may hold a length.
_LENGTH: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[0-9]+\]""")


def _counterpart(type_: Any) -> str | None:
    """Return the type to cast a column to, or None if its own is exact in Arrow, Parquet and JSON.

    Arrays become lists: pyarrow before 26 cannot read an array with a null from Parquet.
    """
    if _lacks_counterpart(type_):
        return "VARCHAR"
    text = str(type_)
    lists = _LENGTH.sub(lambda match: "[]" if match[0].startswith("[") else match[0], text)
    return lists if lists != text else None


#: DuckDB's types, by id, without an exact counterpart: Arrow lacks or truncates them, or Parquet cannot hold them.
_TEXTS: Final = frozenset(
    ("bignum", "bit", "geometry", "interval", "time with time zone", "type", "uhugeint", "union", "variant")
)


def _lacks_counterpart(type_: Any) -> bool:
    """Whether a type of DuckDB, or a part of it, is one of ``_TEXTS`` or a struct without fields."""
    if type_.id in _TEXTS:
        return True
    if type_.id not in ("list", "array", "map", "struct", "tuple"):
        return False
    # The children of an array are its elements' type and its length.
    parts = [part for _, part in type_.children if not isinstance(part, int)]
    return not parts or any(map(_lacks_counterpart, parts))


def _check_files(connection: duckdb.DuckDBPyConnection, refusal: str) -> None:
    """Raise FileNotFoundError if DuckDB refused a file that queries may read: that file has vanished.

    DuckDB treats the path of a missing file as a folder and tries to list it. No query may list a folder.
    """
    refused = _REFUSED_FOLDER.search(refusal)
    allowed = connection.execute("SELECT current_setting('allowed_paths')").fetchall()[0][0]
    if refused is not None and refused[1] in allowed:
        raise FileNotFoundError(refused[1])


_REFUSED_FOLDER: Final = re.compile(r'Cannot access file "(.*)/\*\*/\*\.parquet"')


#: The message of a refusal when a run's file is damaged, so that no query on the run can be answered.
DAMAGED_FILE: Final = "a file of a run is damaged"

#: Matches DuckDB's messages for a Parquet file that it cannot parse: with the file's name, or in the words of its
#: Thrift library.
_DAMAGED_FILE: Final = re.compile(
    r"""(?<!content of )\bfile ['"](?P<path>[^'"]*\.parquet)['"]|TProtocolException|^don't know what type"""
)


#: Matches DuckDB's message for DESCRIBE of a table macro, which is a syntax error.
_DESCRIBED_MACRO: Final = re.compile(r"LINE 1: DESC(RIBE)?\s+\w+\s*\(", re.IGNORECASE)

_MACRO_FIX: Final = "The columns of a macro: DESCRIBE SELECT * FROM spiking_samples(5)"


@contextmanager
def translated() -> Iterator[None]:
    """Translate DuckDB's errors to QueryRefused; a missing file to FileNotFoundError, on which readers retry."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        raise FileNotFoundError(str(error)) from None
    except duckdb.Error as error:
        # A refusal may name a file that the statement asked for, sound or not.
        is_refused = isinstance(error, duckdb.PermissionException)
        damaged = None if is_refused else _DAMAGED_FILE.search(str(error))
        if damaged is not None:
            fix = "Restore it, or move it away; 'steptape doctor' names the file and what is lost"
            raise QueryRefused(DAMAGED_FILE, where=damaged["path"] or "", fix=fix) from None
        fix = _MACRO_FIX if _DESCRIBED_MACRO.search(str(error)) else f"Views: {', '.join(VIEWS)}"
        raise QueryRefused(f"the query failed: {error}", fix=fix) from None


def _is_unicode(text: str) -> bool:
    """Whether the text can be encoded: Python alone accepts a lone surrogate as text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table as dictionaries. A date or time that Python cannot hold becomes its text."""
    columns = [values_of(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def parquet_source(paths: Sequence[Path], *, is_uniform: bool = False) -> str:
    """Return a table function that reads these files and parses no data from their paths.

    Args:
        paths: The files.
        is_uniform: Whether all have the same columns. If so, planning a query opens only the first file, otherwise
            every one: for 1,000 files that takes 0.3 s each time a view on them is planned.
    """
    files = text_list([path_pattern(path) for path in paths])
    by_name = "" if is_uniform else ", union_by_name = true"
    return f"read_parquet({files}{by_name}, hive_partitioning = false)"


def path_pattern(path: Path) -> str:
    """Return a pattern that matches only this path: DuckDB treats every path as a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(path))


def text_list(values: Sequence[str]) -> str:
    """Return a SQL list of texts."""
    return f"[{', '.join(map(text_literal, values))}]"


def text_literal(value: str) -> str:
    """Return a text as a SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """Return a column name, quoted whatever it contains."""
    return '"' + name.replace('"', '""') + '"'


#: Makes a connection with the views that a statement needs.
Connect: TypeAlias = "Callable[[str], AbstractContextManager[duckdb.DuckDBPyConnection]]"

#: DuckDB's functions and tables that reveal paths of this machine: settings, definitions of views, secrets, extensions;
#: and functions that run SQL which a text holds, and so may name the others.
_INTERNALS: Final = re.compile(
    r"""
    \b(
        current_setting | duckdb_(?:settings|views|secrets|extensions) | which_secret | view_definition
        | information_schema\W+views | pg_views | sqlite_(?:master|schema|temp_master|temp_schema)
        | json_execute_serialized_sql | query(?:_table)? (?= "? (?: \s | /\*.*?\*/ | --[^\n]*\n )* \( )
    )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The limits of one statement.

    Attributes:
        rows: Maximum rows of the result; further ones are left out.
        result_bytes: Maximum size of these rows in memory; further ones are left out.
        seconds: Processor time until it is interrupted, of all its threads, including the time to create the views.
        memory: DuckDB's memory limit, in its own notation.
        threads: DuckDB's thread count.
    """

    rows: int = 10_000
    result_bytes: int = 64 << 20
    seconds: float = 10.0
    memory: str = "1GB"
    threads: int = 2


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a statement.

    Attributes:
        table: The rows.
        truncated: Whether there were more rows.
        elapsed_s: Duration in seconds.
    """

    table: pa.Table
    truncated: bool
    elapsed_s: float


def run_bounded(connect: Connect, statement: str, limits: QueryLimits) -> QueryResult:
    """Run one read-only statement within limits.

    DuckDB's own settings and definitions are out of reach, since they hold absolute paths.

    Args:
        connect: Makes a connection with the views for a statement. It is called again if files were replaced.
        statement: The statement.
        limits: The limits. Those on memory and threads are the connection's.

    Raises:
        QueryRefused: The statement is not one read-only statement, or fails.
        QueryTimedOut: It took too long.
    """
    started_s, budget = time.monotonic(), TimeBudget(limits.seconds)
    internal = _INTERNALS.search(statement)
    if internal is not None:
        what = f"a query over HTTP cannot use {internal[1]!r}: it may reveal paths of the server"
        raise QueryRefused(what, got=statement, fix="DESCRIBE and SHOW list views and their columns")

    def ask() -> QueryResult:
        with connect(statement) as connection, _interrupted_after(connection, budget, statement):
            table, truncated = _read(connection, statement, limits)
        return QueryResult(table, truncated, time.monotonic() - started_s)

    return retrying(ask)


def _read(connection: duckdb.DuckDBPyConnection, statement: str, limits: QueryLimits) -> tuple[pa.Table, bool]:
    """Return the first rows of the result, and whether there are more."""
    with query_batches(connection, statement) as reader:
        batches: list[Any] = []
        rows = size = 0
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows > limits.rows or size > limits.result_bytes:
                break
        table = pa.Table.from_batches(batches, reader.schema)
        kept = limits.rows
        if size > limits.result_bytes:
            kept = min(limits.rows, max(1, table.num_rows * limits.result_bytes // size))
        # Only a result of one large row is read on, to know whether that is all.
        return table.slice(0, kept), table.num_rows > kept or any(batch.num_rows for batch in reader)


@contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, budget: TimeBudget, statement: str) -> Iterator[None]:
    """Interrupt the connection once the time is spent, and raise QueryTimedOut in place of DuckDB's error."""
    is_done, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        # DuckDB drops an interrupt between two statements, so it is repeated until it takes effect.
        while not is_done.wait(0.02):
            if budget.is_spent:
                is_late.set()
                connection.interrupt()

    watcher = threading.Thread(target=watch, name="query-limit", daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        # Whatever error the interrupt caused, the user needs to see the time limit.
        if is_late.is_set():
            raise QueryTimedOut(
                "the query exceeded its limit of processor time and was interrupted",
                got=statement,
                fix="Query less, or a single run",
            ) from None
        raise
    finally:
        is_done.set()
        watcher.join()


#: Number of updates before a spike that define a normal sample loss. A few hundred losses suffice for their median, and
#: more would reach back to where the model was worse.
SPIKE_BASELINE: Final = 50

#: Default number of samples shown.
MOST_SPIKING: Final = 50

SPIKE_COLUMNS: Final = (
    "step", "attempt", "rank", "position", "sample_id", "loss", "typical", "excess", "share", "seen", "earlier_loss",
    "tokens",
)  # fmt: skip

#: The table macro over the view ``samples``: computes ``spiking_samples`` for every run separately. It is created only
#: for statements that name it, since creating it takes 2 ms, which every other query would pay.
SPIKING_SAMPLES: Final = f"""
CREATE MACRO IF NOT EXISTS spiking_samples(spike, radius := 0, top := {MOST_SPIKING}, baseline := {SPIKE_BASELINE})
AS TABLE
WITH around AS (
    SELECT *, isnan(loss) OR loss = 'Infinity' AS is_broken FROM samples
    WHERE step BETWEEN spike - radius AND spike + radius
), before AS (
    SELECT run_id, step FROM (SELECT DISTINCT run_id, step FROM samples WHERE step < spike - radius)
    QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY step DESC) <= baseline
), normal AS (
    SELECT run_id, median(loss::DOUBLE) AS typical FROM samples SEMI JOIN before USING (run_id, step)
    WHERE isfinite(loss) GROUP BY run_id
), own AS (
    SELECT run_id, median(loss::DOUBLE) AS typical FROM around WHERE isfinite(loss) GROUP BY run_id
), measured AS (
    SELECT around.*, coalesce(normal.typical, own.typical) AS typical,
           CASE WHEN isfinite(loss) THEN loss - coalesce(normal.typical, own.typical) ELSE loss::DOUBLE END AS excess
    FROM around LEFT JOIN normal USING (run_id) LEFT JOIN own USING (run_id)
), shared AS (
    SELECT *, CASE WHEN bool_or(is_broken) OVER run THEN is_broken::INTEGER / count_if(is_broken) OVER run
                   ELSE coalesce(greatest(excess, 0) / nullif(sum(greatest(excess, 0)) OVER run, 0), 0) END AS share,
           row_number() OVER (
               PARTITION BY run_id ORDER BY isnan(loss) DESC, loss DESC, attempt, rank, seq, position
           ) AS place
    FROM measured WINDOW run AS (PARTITION BY run_id)
    QUALIFY place <= top
), earlier AS (
    SELECT run_id, sample_id, count(*) AS times, avg(loss::DOUBLE) FILTER (isfinite(loss)) AS earlier_loss
    FROM samples SEMI JOIN shared USING (run_id, sample_id)
    WHERE step < spike - radius GROUP BY run_id, sample_id
)
SELECT run_id, name, step, attempt, rank, position, sample_id, loss, typical, excess, share,
       CASE WHEN sample_id IS NOT NULL THEN coalesce(times, 0) END AS seen, earlier_loss, tokens
FROM shared LEFT JOIN earlier USING (run_id, sample_id) JOIN (SELECT run_id, name FROM runs) USING (run_id)
ORDER BY run_id, place
"""


def spiking_samples(
    query: Callable[[str], pa.Table], run_id: str, step: int, *, radius: int, top: int, baseline: int
) -> pa.Table:
    """Return the samples of a run that pushed the loss above normal at a step, and their excess.

    Args:
        query: Runs SQL over the views of the run.
        run_id: The run, for messages.
        step: The update with the spike.
        radius: Updates before and after it that belong to the spike.
        top: Maximum number of samples.
        baseline: The number of updates before the spike that define a normal loss. Updates without samples do not
            count.

    Returns:
        ``SPIKE_COLUMNS``, one row per sample; NaN losses first, then the highest. ``typical`` is the median of the
            finite losses of the baseline or, without any, around the spike. ``excess`` is the loss minus ``typical``.
            ``share`` is the fraction of all positive excess around the spike; where losses are NaN or infinite, they
            split all of it equally. ``seen`` counts how often the sample was recorded before the spike, and
            ``earlier_loss`` is the mean of its finite losses then. Both are null without an id; the mean is also null
            for a sample never seen. No rows when no sample was recorded around the spike.

    Raises:
        TelemetryError: The run has no such step, or a number is out of range.
    """
    for name, number, least in (("radius", radius, 0), ("top", top, 1), ("baseline", baseline, 1)):
        if number < least:
            raise TelemetryError(f"{name} must be at least {least}", got=number)
    counted = "FROM events WHERE NOT rolled_back"
    (found,) = query(f"SELECT count_if(step = {step}) AS n, min(step) AS lo, max(step) AS hi {counted}").to_pylist()
    if not found["n"]:
        fix = "It has no events" if found["lo"] is None else f"Its steps are {found['lo']} to {found['hi']}"
        raise TelemetryError("the run has no such step", where=run_id, got=step, fix=fix)
    source = f"spiking_samples({step}, radius := {radius}, top := {top}, baseline := {baseline})"
    return query(f"SELECT {', '.join(SPIKE_COLUMNS)} FROM {source}")
