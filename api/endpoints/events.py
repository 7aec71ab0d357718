"""``/runs/{id}/events``: the log itself, page by page, as it stood when the first page was read."""

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

from ...store.event_json import event_to_line
from ...store.lineage import Cut
from ...store.parquet.rows import events_of
from ...store.reading.row_places import row_after, rows_at
from ...store.reading.snapshot import Snapshot
from ...store.reading.snapshot_parts import after, of_rank
from ...store.reading.timeline import effective_lineage, rolled_back
from ..access import RequestedRun
from ..answers import IN_EVERY_FORM, page_answer
from ..live import changes
from ..models import EventItem, EventPage
from ..pagination import from_cursor, to_cursor
from ..queries import Int32, Kind, PagedQuery, Seq

router = APIRouter()

#: What orders the events of one rank.
_ORDER: Final = ("attempt", "seq")
_Place = tuple[Int32, Seq]


class Walk(NamedTuple):
    """A walk through the log of one rank: the (attempt, seq) that it has passed, and the one that it ends with."""

    passed: _Place
    until: _Place


_WALK: Final = TypeAdapter(Walk)


class EventsQuery(PagedQuery):
    """Which events."""

    kind: Kind | None = None
    """Events of this kind only."""
    after: Seq | None = None
    """Events after this `seq` of `attempt`; where none is given, of attempt 0, with all later attempts following."""
    rank: Int32 = 0
    """Rank that wrote the events."""
    attempt: Int32 | None = None
    """Events of this attempt only."""
    wait: float = Field(default=0, ge=0, le=60)
    """Seconds to wait for an event, where there is none yet: long polling. Not beside a `cursor`."""
    attempts: Literal["effective", "all"] = "effective"
    """`effective`: what led to the newest attempt, as rules and curves see it. `all`: what resumes rolled back too."""


@router.get("/runs/{id}/events", summary="Events", response_model=EventPage, responses=IN_EVERY_FORM)
async def list_events(request: Request, run: RequestedRun, query: Annotated[EventsQuery, InQuery()]) -> Response:
    """The events of one rank in (attempt, seq) order.

    All pages of a walk show the log as it stood at the first one: a run that goes on lengthens no walk. To follow it,
    ask for what comes `after` the last event seen. A resume in the middle of a walk, though, takes what it rolls back
    out of the pages to come, unless the walk is through `all` attempts.
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
    """The first page that is not empty, or the last one when the time is over or nobody waits any more."""
    request.state.etag = None  # What was waited for is no property of the log alone.
    until_s = time.monotonic() + min(wait_s, request.app.state.limits.wait_s)
    with request.app.state.streams.place():
        async for _ in changes(folder, until_s=until_s, is_over=request.is_disconnected):
            page = await run_in_threadpool(read)
            if page.items:
                break
    return page


def events_page(snapshot: Snapshot, query: EventsQuery) -> EventPage:
    """A page of the log of one rank."""
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
    """Rows that the query lets through, one more than a page holds where there are more."""
    leaves_out = bool(cuts) and query.attempts == "effective"
    if query.kind is None and not leaves_out:
        return range(start, min(end, start + query.limit + 1))
    within = table.slice(start, end - start)
    marks = _marks(within, cuts if leaves_out else {})
    kinds = within["kind"].to_pylist()
    found = (row for row, kind in enumerate(kinds, start) if query.kind in (None, kind) and not marks[row - start])
    return list(itertools.islice(found, query.limit + 1))


def _marks(table: Any, cuts: Mapping[int, Cut]) -> list[bool]:
    """For each row, whether a resume rolled it back."""
    return rolled_back(table, cuts).to_pylist() if cuts else [False] * table.num_rows


def _place(table: Any, row: int) -> tuple[int, int]:
    return table["attempt"][row].as_py(), table["seq"][row].as_py()


def _items(page: Any, metric_of: dict[str, str], cuts: Mapping[int, Cut]) -> Iterator[EventItem]:
    return (
        EventItem.model_validate(json.loads(event_to_line(event)) | {"rolled_back": is_rolled_back})
        for event, is_rolled_back in zip(events_of(page, metric_of), _marks(page, cuts), strict=True)
    )
