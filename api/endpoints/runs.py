"""Serves ``/runs``: the runs of the store, newest first by default."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import TypeAdapter

from ...store.errors import TelemetryError
from ...store.reading.summary import RunSummary
from ...store.store import Store
from ..access import OpenStore
from ..answers import IN_EVERY_FORM, page_answer
from ..config_filters import PARAMETER
from ..models import RunPage, RunProblem, RunRow
from ..pagination import from_cursor, to_cursor
from ..problems import detail_of, hint_of, sort_of
from ..run_filters import Position, RunsQuery, admitted, after, in_order, position_of

router = APIRouter()

_LOGGER: Final = logging.getLogger("steptape.api")

#: Cursor position: the last run of a page. Runs that appear or vanish before it do not affect later pages.
_POSITION: Final = TypeAdapter(Position)


#: Links from a run of the list to its other endpoints.
_LINKS: Final = {
    operation: {"operationId": operation, "parameters": {"id": "$response.body#/items/0/run_id"}}
    for operation in ("read_run", "list_events", "list_samples", "list_decisions", "list_annotations", "annotate_run")
}


@router.get(
    "/runs",
    summary="Runs, newest first",
    response_model=RunPage,
    responses={200: {**IN_EVERY_FORM[200], "links": _LINKS}},
    openapi_extra={"parameters": [PARAMETER]},
)
def list_runs(request: Request, store: OpenStore, query: Annotated[RunsQuery, InQuery()]) -> Response:  # type: ignore[valid-type]
    """Return the runs of the store that match the filters. `problems` names the runs that cannot be read."""
    return page_answer(request, runs_page(store, query), query.format)  # type: ignore[attr-defined]


def runs_page(store: Store, query: Any) -> RunPage:
    """Return a page of runs.

    Args:
        store: The store.
        query: A ``RunsQuery``.
    """
    look = store.recent()
    ordered = admitted(in_order(look, query.sort), query)
    filters = ("runs", query.filters())
    if query.cursor is not None:
        ordered = after(ordered, query.sort, from_cursor(query.cursor, filters, _POSITION))
    page = ordered[: query.limit]
    return RunPage(
        items=[RunRow.model_validate(facts_of(entry.summary)) for entry in page],
        next=to_cursor(filters, position_of(page[-1], query.sort)) if len(ordered) > len(page) else None,
        problems=[_problem_of(folder, error, store) for folder, error in look.problems],
    )


def facts_of(summary: RunSummary) -> dict[str, Any]:
    """Return the run's row as the API shows it: times with their zone."""
    row = summary.to_row()
    return row | {"started": _in_utc(summary.started), "ended": _in_utc(summary.ended)}


def _problem_of(folder: Path, error: TelemetryError, store: Store) -> RunProblem:
    if error.__cause__ is not None:
        _LOGGER.warning("%s: %r", error, error.__cause__)
    return RunProblem(
        run=folder.name,
        code=sort_of(error).code,
        detail=detail_of(error, store.path),
        hint=hint_of(error, store.path),
    )


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(tzinfo=UTC)
