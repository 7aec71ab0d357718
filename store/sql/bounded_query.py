"""Runs untrusted SQL over the views of runs: one statement, with limits on rows, bytes, seconds and memory."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ..errors import QueryRefused, QueryTimedOut
from ..reading.snapshot import retrying
from .statements import query_batches

if TYPE_CHECKING:
    import duckdb

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
        seconds: Time until it is interrupted, including the time to create the views.
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
    started_s = time.monotonic()
    internal = _INTERNALS.search(statement)
    if internal is not None:
        what = f"a query over HTTP cannot use {internal[1]!r}: it may reveal paths of the server"
        raise QueryRefused(what, got=statement, fix="DESCRIBE and SHOW list views and their columns")

    def ask() -> QueryResult:
        left_s = max(0.001, limits.seconds - (time.monotonic() - started_s))
        with connect(statement) as connection, _interrupted_after(connection, left_s, statement):
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
    if size > limits.result_bytes:
        kept = min(limits.rows, max(1, table.num_rows * limits.result_bytes // size))
        return table.slice(0, kept), True
    return table.slice(0, limits.rows), table.num_rows > limits.rows


@contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, seconds: float, statement: str) -> Iterator[None]:
    """Interrupt the connection at the time limit, and raise QueryTimedOut in place of DuckDB's error."""
    is_done, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        # DuckDB drops an interrupt between two statements, so it is repeated until it takes effect.
        if not is_done.wait(seconds):
            is_late.set()
        while not is_done.wait(0.02):
            connection.interrupt()

    watcher = threading.Thread(target=watch, name="query-limit", daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        # Whatever error the interrupt caused, the user needs to see the time limit.
        if is_late.is_set():
            raise QueryTimedOut(
                "the query exceeded its time limit and was interrupted",
                got=statement,
                fix="Query less, or a single run",
            ) from None
        raise
    finally:
        is_done.set()
        watcher.join()
