"""Serves ``/query``: read-only SQL over the views, within limits; its address alone reads a short statement."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field

from ...store.arrow_tables import from_arrow_stream, to_plain_rows
from ...store.event_json import encoded
from ..answers import IN_EVERY_FORM, JSON, MEDIA_TYPES, answer, form_of, table_bytes
from ..models import Form, FormedQuery, Model, RequestModel
from ..workers.pool import Answer, QueryWorkers

router = APIRouter()

#: Header that marks a truncated result in CSV, Arrow or Parquet.
_TRUNCATED: Final = "Steptape-Truncated"


#: Longest statement in an address. Each character may take three there, and a request's head has at most 32 KiB.
_MOST_IN_ADDRESS: Final = 8000


class SqlRequest(RequestModel):
    """An SQL query."""

    sql: str = Field(min_length=1, max_length=100_000)
    """One statement that reads: SELECT, FROM, WITH, DESCRIBE, SHOW. Views: `runs`, `run_summary`, `events`, `steps`,
    `evals`, `saves`, `samples`, `vectors`, `decisions`, `metric_values`, `windows`; table macros: `series(metric)`,
    `rolling(n)`, `spiking_samples(step)`."""
    run: str | None = Field(default=None, max_length=1000)
    """Query only this run: its id, or its name. Of several with that name, the newest."""


class SqlQuery(FormedQuery):
    """An SQL query as parameters of an address."""

    sql: str = Field(min_length=1, max_length=_MOST_IN_ADDRESS)
    """The statement, as in the body of a POST, which may be longer."""
    run: str | None = Field(default=None, max_length=1000)
    """As in the body of a POST."""


class Column(Model):
    """A column of a result."""

    name: str
    type: str
    """Arrow type."""


class QueryAnswer(Model):
    """The rows of a result, up to the row limit."""

    columns: list[Column]
    rows: list[list[Any]]
    """Values that JSON cannot represent are text: times, intervals, non-finite or too large numbers, bytes (base64)."""
    n_rows: int
    truncated: bool
    """Whether the result has more rows than one response holds."""
    row_limit: int
    elapsed_s: float


@router.get("/query", summary="SQL, by its address", response_model=QueryAnswer, responses=IN_EVERY_FORM)
async def read_sql(request: Request, query: Annotated[SqlQuery, InQuery()]) -> Response:
    """Run a statement as `POST /query` does, with the same answers, for programs that read an address.

    pandas reads `format=csv`, and data sources of Grafana read `format=rows`.
    """
    return await _answered(request, query.sql, query.run, form_of(request, query.format))


@router.post("/query", summary="SQL", response_model=QueryAnswer, responses=IN_EVERY_FORM)
async def run_sql(request: Request, body: SqlRequest, query: Annotated[FormedQuery, InQuery()]) -> Response:
    """Run one read-only SQL statement over the views of all runs, or of one run.

    It can read only the runs of this store, and is stopped when it exceeds the limits on time or memory. Outside of
    JSON and NDJSON, the header `Steptape-Truncated` says whether there are more rows than the server returns.
    """
    return await _answered(request, body.sql, body.run, form_of(request, query.format))


async def _answered(request: Request, sql: str, run: str | None, form: Form) -> Response:
    workers: QueryWorkers = request.app.state.query_workers
    found = await to_thread.run_sync(workers.run_sql, sql, run, limiter=workers.threads)
    limit: int = request.app.state.limits.query.rows
    return await to_thread.run_sync(_rendered, request, found, form, limit, limiter=workers.threads)


def _rendered(request: Request, found: Answer, form: Form, limit: int) -> Response:
    headers = {_TRUNCATED: "true" if found.truncated else "false", "Cache-Control": "no-store"}
    if form is Form.ARROW:
        return answer(request, found.rows, MEDIA_TYPES[form], headers)
    table = from_arrow_stream(found.rows)
    if form in (Form.ROWS, Form.CSV, Form.PARQUET):
        return answer(request, table_bytes(table, form), MEDIA_TYPES[form], headers)
    rows = to_plain_rows(table)
    if form is Form.NDJSON:
        names = table.column_names
        trailer = {"items": len(rows), "truncated": found.truncated, "elapsed_s": found.elapsed_s}
        lines = [*(dict(zip(names, row, strict=True)) for row in rows), {"trailer": trailer}]
        text = "".join(json.dumps(encoded(line), ensure_ascii=False) + "\n" for line in lines)
        return answer(request, text.encode(), MEDIA_TYPES[form], headers)
    document = QueryAnswer(
        columns=[Column(name=field.name, type=str(field.type)) for field in table.schema],
        rows=rows,
        n_rows=len(rows),
        truncated=found.truncated,
        row_limit=limit,
        elapsed_s=found.elapsed_s,
    )
    return answer(request, document.model_dump_json().encode(), JSON, headers)
