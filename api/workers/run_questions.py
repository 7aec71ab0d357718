"""Runs the server's own SQL about one run in the query workers, since it may read the whole log."""

from __future__ import annotations

from typing import Any, NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from ...store.arrow_tables import from_arrow_stream
from ...store.errors import DamagedLog, QueryRefused, QueryTimedOut
from ...store.sql.statements import DAMAGED_FILE
from ..access import RunAccess
from .query_workers import Answer, QueryWorkers


class Found(NamedTuple):
    """The result of a query: an Arrow table, and whether rows are missing because the result was too large."""

    table: Any
    is_cut_short: bool


async def query_run(request: Request, run: RunAccess, statement: str, *, rows: int) -> Found:
    """Run SQL over the views of one run.

    Args:
        request: The request to answer.
        run: The run.
        statement: One statement, written by the server.
        rows: Most rows that it can return.

    Raises:
        QueryRefused, QueryTimedOut: The query exceeds its limits; the message omits the statement.
        DamagedLog: A file of the run is damaged.
        Busy: Too many queries are waiting.
    """
    workers: QueryWorkers = request.app.state.query_workers
    limiter: CapacityLimiter = request.app.state.query_threads

    def ask() -> Answer:
        return workers.ask(statement, run.folder.name, rows=rows)

    try:
        answer = await to_thread.run_sync(ask, limiter=limiter)
    except (QueryRefused, QueryTimedOut) as error:
        if error.what == DAMAGED_FILE:
            raise DamagedLog(error.what, where=error.where or run.folder.name, fix=error.fix) from None
        raise type(error)(error.what, where=run.folder.name, got=error.got, fix=error.fix) from None
    return Found(from_arrow_stream(answer.rows), answer.truncated)
