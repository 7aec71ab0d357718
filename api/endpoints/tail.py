"""Serves ``/runs/{id}/tail``: streams a run's events as they are written, as server-sent events."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi import Query as InQuery
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ...store.reading.snapshot import Snapshot
from ..access import RequestedRun, RunAccess
from ..errors import InvalidRequest
from ..feeds import Feeds, Place
from ..queries import Int32, Kind, Query

router = APIRouter()

_PLACE: Final = re.compile(r"(\d{1,9})\.(-1|\d{1,18})")

#: Seconds after which a client that has gone is noticed.
_PRESENT_S: Final = 5.0


class TailQuery(Query):
    """Selects events."""

    rank: Int32 = 0
    """Rank that writes the events."""
    kind: Kind | None = None
    """Only events of this kind."""
    after: str | None = Field(default=None, pattern=f"^{_PLACE.pattern}$")
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
        match = _PLACE.fullmatch(asked)
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
        (segment.attempt, int(segment.seq[-1]))
        for segment in snapshot.tail.segments
        if segment.rank == rank and len(segment)
    ]
    return max(places, default=(0, -1))
