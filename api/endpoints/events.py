"""Serves ``/runs/{id}/events``: the log of a run, page by page, as of the first page."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery
from pydantic import Field, TypeAdapter
from starlette.concurrency import run_in_threadpool

from ...store.arrow_tables import row_after, rows_at
from ...store.event_json import event_to_line
from ...store.lineage import Cut
from ...store.parquet.event_rows import EventRows
from ...store.reading.snapshot import Snapshot, after, effective_lineage, of_rank, rolled_back
from ..access import RequestedRun
from ..answers import IN_EVERY_FORM, page_answer
from ..live import changes
from ..models import EventItem, EventPage
from ..pagination import from_cursor, to_cursor
from ..queries import Int32, Kind, PagedQuery, Seq

router = APIRouter()

#: Sort key of the events of one rank.
_ORDER: Final = ("attempt", "seq")
_Place = tuple[Int32, Seq]


class Walk(NamedTuple):
    """A walk through the log of one rank: the (attempt, seq) that it has passed, and the one where it ends."""

    passed: _Place
    until: _Place


_WALK: Final = TypeAdapter(Walk)


class EventsQuery(PagedQuery):
    """Selects events."""

    kind: Kind | None = None
    """Only events of this kind."""
    after: Seq | None = None
    """Only events after this `seq` of `attempt`. Without `attempt`: after this `seq` of attempt 0, and all later
    attempts."""
    rank: Int32 = 0
    """Rank that wrote the events."""
    attempt: Int32 | None = None
    """Only events of this attempt."""
    wait: float = Field(default=0, ge=0, le=60)
    """Long polling: seconds to wait for an event if there is none yet. Ignored with a `cursor`."""
    attempts: Literal["effective", "all"] = "effective"
    """`effective`: events that led to the newest attempt, as rules and curves see them. `all`: also those that resumes
    rolled back."""


@router.get("/runs/{id}/events", summary="Events", response_model=EventPage, responses=IN_EVERY_FORM)
async def list_events(request: Request, run: RequestedRun, query: Annotated[EventsQuery, InQuery()]) -> Response:
    """Return the events of one rank in (attempt, seq) order.

    All pages of a walk show the log as of its first page: later events do not lengthen the walk. To follow a live run,
    ask for the events `after` the last one seen. A resume during the walk removes the events that it rolls back from
    the remaining pages, unless the walk covers `all` attempts.
    """

    def read() -> EventPage:
        return run.read(lambda snapshot: events_page(snapshot, query))

    page = await run_in_threadpool(read)
    if query.wait and not page.items and query.cursor is None:
        page = await _waited(request, run.folder, read, page, query.wait)
    return await run_in_threadpool(page_answer, request, page, query.format)


async def _waited(
    request: Request, folder: Path, read: Callable[[], EventPage], page: EventPage, wait_s: float
) -> EventPage:
    """Return the first page that is not empty, or the last page when the time is over or the client has gone."""
    request.state.etag = None  # The response depends on more than the log: no ETag.
    until_s = time.monotonic() + min(wait_s, request.app.state.limits.wait_s)
    with request.app.state.streams.place():
        async for _ in changes(folder, until_s=until_s, is_over=request.is_disconnected):
            page = await run_in_threadpool(read)
            if page.items:
                break
    return page


def events_page(snapshot: Snapshot, query: EventsQuery) -> EventPage:
    """Return a page of the log of one rank."""
    filters = ("events", snapshot.info.run_id, query.kind, query.after, query.rank, query.attempt, query.attempts)
    walk = None if query.cursor is None else from_cursor(query.cursor, filters, _WALK)
    passed = walk.passed if walk else (query.attempt or 0, -1 if query.after is None else query.after)
    table = after(of_rank(snapshot, query.rank, query.attempt), passed).events_table()
    end = row_after(table, _ORDER, walk.until) if walk else table.num_rows
    cuts = effective_lineage(snapshot).cuts
    rows = _rows(table, row_after(table, _ORDER, passed), end, query, cuts)
    page = rows_at(table, rows[: query.limit])
    following = Walk(_place(table, rows[query.limit - 1]), _place(table, end - 1)) if len(rows) > query.limit else None
    return EventPage(
        items=list(_items(page, snapshot.columns.by_column(), cuts)),
        next=to_cursor(filters, following) if following else None,
    )


def _rows(table: Any, start: int, end: int, query: EventsQuery, cuts: Mapping[int, Cut]) -> Sequence[int]:
    """Return the rows that match the query, one more than a page holds if there are more."""
    leaves_out = bool(cuts) and query.attempts == "effective"
    if query.kind is None and not leaves_out:
        return range(start, min(end, start + query.limit + 1))
    within = table.slice(start, end - start)
    marks = _marks(within, cuts if leaves_out else {})
    kinds = within["kind"].to_pylist()
    found = (row for row, kind in enumerate(kinds, start) if query.kind in (None, kind) and not marks[row - start])
    return list(itertools.islice(found, query.limit + 1))


def _marks(table: Any, cuts: Mapping[int, Cut]) -> list[bool]:
    """Return for each row whether a resume rolled it back."""
    return rolled_back(table, cuts).to_pylist() if cuts else [False] * table.num_rows


def _place(table: Any, row: int) -> tuple[int, int]:
    return table["attempt"][row].as_py(), table["seq"][row].as_py()


def _items(page: Any, metric_of: dict[str, str], cuts: Mapping[int, Cut]) -> Iterator[EventItem]:
    return (
        EventItem.model_validate(json.loads(event_to_line(event)) | {"rolled_back": is_rolled_back})
        for event, is_rolled_back in zip(EventRows(page, metric_of), _marks(page, cuts), strict=True)
    )
