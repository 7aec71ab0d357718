"""Serves ``/``: the runs of the store as a table that the server searches, sorts and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import BaseModel, ConfigDict, Field

from ...store.reading.catalog import Look
from ...store.reading.summary import Entry, RunSummary, leading_metric
from ..access import OpenStore
from ..problems import without_path
from .layout import PageRoute, page
from .sparklines import HEIGHT, WIDTH, sparkline

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Runs per page.
PAGE_SIZE: Final = 40

SortKey = Literal["started", "name", "status", "steps", "duration"]

_KEYS: Final[dict[str, Callable[[RunSummary], Any]]] = {
    "name": lambda run: (run.name.casefold(), run.run_id),
    "status": lambda run: (run.status, run.age_order),
    "steps": lambda run: run.steps,
    "duration": lambda run: run.duration_s,
}


class TableQuery(BaseModel):
    """Search, order and page of the table. Unknown parameters are ignored: a link may be stale."""

    model_config = ConfigDict(frozen=True)

    q: str = Field(default="", max_length=200)
    sort: SortKey = "started"
    order: Literal["asc", "desc"] = "desc"
    page: int = Field(default=1, ge=1, le=1_000_000)


@router.get("/")
def show_runs(request: Request, store: OpenStore, asked: Annotated[TableQuery, InQuery()]) -> Response:
    """Return the table."""
    look = store.recent()
    found = searched(ordered(look, asked.sort, asked.order), asked.q)
    last_page = max(1, -(-len(found) // PAGE_SIZE))
    number = min(asked.page, last_page)
    shown = found[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    return page(
        request,
        "runs.html",
        runs=[_row(entry) for entry in shown],
        total=len(look.entries),
        found=len(found),
        asked=asked,
        page_number=number,
        last_page=last_page,
        is_live=any(entry.summary.status == "running" for entry in shown),
        problems=[without_path(str(problem), store.path) for _, problem in look.problems],
        spark=(WIDTH, HEIGHT),
    )


def ordered(look: Look, key: SortKey, order: str) -> Sequence[Entry]:
    """Return the runs in an order; sorted once for each scan."""
    if key == "started":
        return look.newest_first if order == "desc" else look.entries

    def sort(_: Sequence[Entry]) -> list[Entry]:
        return sorted(look.entries, key=lambda entry: _KEYS[key](entry.summary), reverse=order == "desc")

    return look.ordered(f"page {key} {order}", sort)


def searched(entries: Sequence[Entry], words: str) -> Sequence[Entry]:
    """Return the runs that have every word in their name, id, group, tags or status, case-insensitively."""
    wanted = words.casefold().split()
    if not wanted:
        return entries
    return [entry for entry in entries if all(map(_text(entry.summary).__contains__, wanted))]


def _text(run: RunSummary) -> str:
    return "\n".join((run.name, run.run_id, run.group or "", *run.tags, run.status)).casefold()


def _row(entry: Entry) -> dict[str, Any]:
    summary = entry.summary
    return {
        "facts": summary,
        "progress": share_done(summary),
        "metric": leading_metric(list(entry.columns.by_metric)),
        "line": sparkline(entry),
    }


def share_done(run: RunSummary) -> int | None:
    """Return the percentage of planned updates that are done; None without a plan."""
    return min(100, round(100 * run.steps / run.planned_steps)) if run.planned_steps else None
