"""A stranger's SQL over the views of runs: one statement, so many rows, so many seconds, and no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import QueryTimedOut
from ..reading.snapshot import Snapshot, retrying
from .statements import query_batches
from .views import connect

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one statement may cost.

    Attributes:
        rows: Rows of the result that are handed out.
        result_bytes: What they may take in memory; further ones are left out.
        seconds: Until it is interrupted, the making of the views included.
        memory: Of DuckDB, in its own notation.
        threads: Of DuckDB.
    """

    rows: int = 10_000
    result_bytes: int = 64 << 20
    seconds: float = 10.0
    memory: str = "1GB"
    threads: int = 2


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a statement came to.

    Attributes:
        table: The rows.
        truncated: Whether there were more.
        elapsed_s: How long it took.
    """

    table: pa.Table
    truncated: bool
    elapsed_s: float


def run_bounded(snapshots: Sequence[Snapshot], statement: str, limits: QueryLimits) -> QueryResult:
    """The result of one read-only statement over the views of these runs, within limits.

    It runs in a connection of its own that is closed afterwards, so that nothing of it lasts.

    Raises:
        QueryRefused: It is not one read-only statement, or fails.
        QueryTimedOut: It took too long.
    """
    started_s = time.monotonic()

    def ask() -> QueryResult:
        left_s = max(0.001, limits.seconds - (time.monotonic() - started_s))
        connection = connect(snapshots, memory_limit=limits.memory, threads=limits.threads)
        try:
            with _interrupted_after(connection, left_s, statement):
                table, truncated = _read(connection, statement, limits)
        finally:
            connection.close()
        return QueryResult(table, truncated, time.monotonic() - started_s)

    return retrying(ask)


def _read(connection: duckdb.DuckDBPyConnection, statement: str, limits: QueryLimits) -> tuple[pa.Table, bool]:
    """The first rows of the result, and whether there are more."""
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
    """Interrupt the connection once the time is over, and say so instead of how DuckDB puts it."""
    is_done, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        # An interrupt between two statements is forgotten, so it is repeated until it has been heard.
        if not is_done.wait(seconds):
            is_late.set()
        while not is_done.wait(0.02):
            connection.interrupt()

    watcher = threading.Thread(target=watch, name="query-limit", daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        # Whatever an interrupt comes out as, the time limit is what the asker has to know.
        if is_late.is_set():
            raise QueryTimedOut(
                "the query took too long, and was interrupted", got=statement, fix="Ask for less, or for one run"
            ) from None
        raise
    finally:
        is_done.set()
        watcher.join()
