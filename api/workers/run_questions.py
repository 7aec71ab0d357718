"""Questions about one run that may touch all of its log: asked as users' SQL is, in processes with limits."""

from __future__ import annotations

from typing import Any, NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from ...store.errors import DamagedLog, QueryRefused, QueryTimedOut
from ...store.parquet.formats import from_arrow_stream
from ...store.sql.statements import DAMAGED_FILE
from ..access import RunAccess
from .query_workers import Answer, QueryWorkers


class Found(NamedTuple):
    """What a question came to: an Arrow table, and whether it lacks rows that would have been too large together."""

    table: Any
    is_cut_short: bool


async def ask_run(request: Request, run: RunAccess, statement: str, *, rows: int) -> Found:
    """The answer to SQL over the views of a run.

    Args:
        request: What is answered.
        run: The run.
        statement: One statement of the server's own.
        rows: The most rows that it can come to.

    Raises:
        QueryRefused, QueryTimedOut: It takes more than a question may; the statement is not shown.
        DamagedLog: A file of the run is damaged.
        Busy: Too many questions are waiting.
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
        raise type(error)(error.what, where=run.folder.name, fix=error.fix) from None
    return Found(from_arrow_stream(answer.rows), answer.truncated)
