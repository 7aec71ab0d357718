"""Runs a user's SQL after checking that it is one read-only statement, and translates DuckDB's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..errors import QueryRefused
from .spikes import SPIKING_SAMPLES

if TYPE_CHECKING:
    import duckdb

VIEWS: Final = ("runs", "events", "steps", "evals", "saves", "samples", "decisions", "windows")

#: Batch size for results that may be truncated.
_BATCH_ROWS: Final = 2048


def run_query(connection: duckdb.DuckDBPyConnection, statement: str) -> pa.Table:
    """Run a user's statement and return its result.

    Raises:
        QueryRefused: It is not exactly one read-only statement, does not parse, or fails.
        FileNotFoundError: A Parquet file was merged away meanwhile; take a new snapshot.
    """
    with translated(), _planned(connection, statement) as relation:
        return _with_distinct_columns(relation.to_arrow_table(), statement)


@contextmanager
def query_batches(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[pa.RecordBatchReader]:
    """Run a statement and yield a reader of its result batches, fetched on demand.

    Raises:
        QueryRefused, FileNotFoundError: As ``run_query``.
    """
    with translated(), _planned(connection, statement) as relation:
        reader = relation.to_arrow_reader(_BATCH_ROWS)
        _with_distinct_columns(reader.schema.empty_table(), statement)
        yield reader


@contextmanager
def _planned(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[duckdb.DuckDBPyRelation]:
    """Plan the statement, after checking that it is a single read-only one."""
    import duckdb  # Already loaded by the code that made the connection.

    if not _is_unicode(statement):
        raise QueryRefused("a query must be valid Unicode text", got=statement)
    statements = duckdb.extract_statements(statement)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise QueryRefused("a query must be one read-only statement (SELECT, FROM, DESCRIBE, SHOW)", got=statement)
    if "spiking_samples" in statement.casefold():
        connection.execute(SPIKING_SAMPLES)
    try:
        yield connection.sql(statements[0])
    except duckdb.PermissionException as error:
        _check_files(connection, str(error))
        raise


def _with_distinct_columns(result: pa.Table, statement: str) -> pa.Table:
    """Return the result; raise QueryRefused if two columns share a name: rows as dictionaries would lose one."""
    names = result.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        fix = f"Rename one of the columns called {twice!r} with AS"
        raise QueryRefused("two columns of the result have the same name", got=statement, fix=fix)
    return result


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
    r"""\bfile ['"](?P<path>[^'"]*\.parquet)['"]|TProtocolException|^don't know what type"""
)


@contextmanager
def translated() -> Iterator[None]:
    """Translate DuckDB's errors to QueryRefused; a missing file to FileNotFoundError, on which readers retry."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        raise FileNotFoundError(str(error)) from None
    except duckdb.Error as error:
        damaged = _DAMAGED_FILE.search(str(error))
        if damaged is not None:
            fix = "Restore it, or move it away; 'steptape doctor' names the file and what is lost"
            raise QueryRefused(DAMAGED_FILE, where=damaged["path"] or "", fix=fix) from None
        raise QueryRefused(f"the query failed: {error}", fix=f"Views: {', '.join(VIEWS)}") from None


def _is_unicode(text: str) -> bool:
    """Whether the text can be encoded: Python alone accepts a lone surrogate as text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
