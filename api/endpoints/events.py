"""Serves ``/runs/{id}/events``, the log of a run page by page, and ``/runs/{id}/tail``, new events as a stream."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Header, Request, Response
from fastapi import Query as InQuery
from fastapi.responses import StreamingResponse
from pydantic import Field, PrivateAttr, TypeAdapter
from starlette.concurrency import run_in_threadpool

from ...store.arrow_tables import row_after, rows_at
from ...store.event_json import event_to_line
from ...store.events import JsonObject
from ...store.lineage import Cut
from ...store.parquet.event_rows import EventRows
from ...store.reading.snapshot import PLACE, Snapshot, effective_lineage, of_rank, rolled_back, snapshot_after
from ..access import RequestedRun, RunAccess
from ..answers import IN_EVERY_FORM, from_cursor, page_answer, to_cursor
from ..feeds import Feeds, Place, changes
from ..models import Int32, Kind, Model, Number, Page, PagedQuery, RequestModel, Seq
from ..problems import InvalidRequest

router = APIRouter()

#: Sort key of the events of one rank.
_ORDER: Final = ("attempt", "seq")
_Place = tuple[Int32, Seq]

_EVENT_ID: Final = re.compile(r"(\d{1,9})\.(-1|\d{1,18})")

#: Seconds after which a client that has gone is noticed.
_PRESENT_S: Final = 5.0


class EventItem(Model):
    """One event, as in the JSON lines of `steptape export`, and whether it was rolled back."""

    event: str
    """Kind of the event."""
    step: int
    epoch: Number | None
    attempt: int
    rank: int
    seq: int
    """Position within (attempt, rank), gap-free from 0."""
    micro_step: int
    time_ns: int
    elapsed_ns: int
    value_lag: int
    metrics: dict[str, Number]
    attrs: JsonObject
    rolled_back: bool
    """Whether a resume discarded the event: it was recorded after the checkpoint where the run resumed."""


class EventPage(Page):
    """Events, in (attempt, seq) order."""

    items: list[EventItem]
    _plans: list[str] = PrivateAttr(default_factory=list)
    """Lines with what attempts declared at their start, where the page begins a log."""


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

    NDJSON begins with a `plan` line of `seq` -1 for each attempt: what the loop declared at its start.
    `steptape replay` reads the pages of a walk, one after the other, as it reads the lines of `steptape export`.
    """

    def read() -> EventPage:
        return run.read(lambda snapshot: events_page(snapshot, query))

    page = await run_in_threadpool(read)
    if query.wait and not page.items and query.cursor is None:
        page = await _waited(request, run.folder, read, page, query.wait)
    return await run_in_threadpool(page_answer, request, page, query.format, head=page._plans)


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
    part = snapshot_after(of_rank(snapshot, query.rank, query.attempt), passed)
    # What to answer is decided without the metrics: there may be a hundred thousand.
    table = part.events_table((*PLACE, "kind"))
    end = row_after(table, _ORDER, walk.until) if walk else table.num_rows
    cuts = effective_lineage(snapshot).cuts
    rows = _rows(table, row_after(table, _ORDER, passed), end, query, cuts)
    page = rows_at(part.events_table(), rows[: query.limit]) if rows else None
    following = Walk(_place(table, rows[query.limit - 1]), _place(table, end - 1)) if len(rows) > query.limit else None
    answer = EventPage(
        items=list(_items(page, snapshot.columns.by_column(), cuts)) if page else [],
        next=to_cursor(filters, following) if following else None,
    )
    if walk is None and query.after is None and query.kind is None:
        answer._plans = [event_to_line(event) for event in snapshot.info.plan_events()]
    return answer


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


class TailQuery(RequestModel):
    """Selects events."""

    rank: Int32 = 0
    """Rank that writes the events."""
    kind: Kind | None = None
    """Only events of this kind."""
    after: str | None = Field(default=None, pattern=f"^{_EVENT_ID.pattern}$")
    """Only events after this one, written `ATTEMPT.SEQ`; `0.-1` for all. By default only new events."""


@router.get(
    "/runs/{id}/tail",
    summary="Events of a live run, as a stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def tail_run(
    request: Request,
    run: RequestedRun,
    query: Annotated[TailQuery, InQuery()],
    last_event_id: Annotated[
        str | None, Header(description="`id` of the last event seen; the stream resumes after it.")
    ] = None,
) -> StreamingResponse:
    """Stream server-sent events: `data` is an event as in `events`, `id` its `ATTEMPT.SEQ`, to resume from.

    A final event named `end` holds the run's status once it has ended, or `gone` if it was deleted or is damaged.
    Events that a resume rolls back are also sent.
    """
    asked = last_event_id or query.after
    end = await run_in_threadpool(run.read, lambda snapshot: _end_of(snapshot, query.rank))
    passed = end
    if asked is not None:
        match = _EVENT_ID.fullmatch(asked)
        if match is None:
            raise InvalidRequest(
                "an event's id must have the form ATTEMPT.SEQ", where="header.last-event-id", got=asked
            )
        passed = int(match[1]), int(match[2])
    held = ExitStack()
    held.enter_context(request.app.state.streams.place())
    stream = _stream(request, run, query, passed, end, held)
    # Caches and proxies must neither store nor buffer the stream.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def _stream(
    request: Request, run: RunAccess, query: TailQuery, passed: Place, end: Place, held: ExitStack
) -> AsyncIterator[str]:
    feeds: Feeds = request.app.state.feeds
    beat_s = request.app.state.limits.heartbeat_s
    with held:
        async with feeds.follow(run, query.rank, end) as feed:
            yield "retry: 1000\n\n"
            beaten_s = time.monotonic()
            while not await request.is_disconnected():
                lines, status = await feed.next(passed)
                passed = lines[-1].place if lines else passed
                text = "".join(line.text for line in lines if query.kind in (None, line.kind))
                if text:
                    yield text
                    beaten_s = time.monotonic()
                elif time.monotonic() - beaten_s >= beat_s:
                    yield ": still here\n\n"
                    beaten_s = time.monotonic()
                if status != "running":
                    yield f"event: end\ndata: {json.dumps({'status': status})}\n\n"
                    return
                if not lines:
                    await feed.wait(min(beat_s, _PRESENT_S))


def _end_of(snapshot: Snapshot, rank: int) -> Place:
    """Return the (attempt, seq) of a rank's last event, or the position before the first."""
    listing = snapshot.listing
    places = [(file.attempt, file.last) for file in listing.table("events") if file.rank == rank]
    places += [
        (segment.stream[0], int(segment.seq[-1]))
        for segment in snapshot.tail.segments
        if segment.stream[1] == rank and len(segment)
    ]
    return max(places, default=(0, -1))
