"""Serves ``/runs/{id}/tail``: streams a run's events as they are written, as server-sent events."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi import Query as InQuery
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ...store.errors import TelemetryError
from ...store.event_json import event_to_line
from ...store.events import Event
from ...store.reading.snapshot import Snapshot
from ...store.reading.snapshot_parts import after, of_rank
from ..access import RequestedRun, RunAccess
from ..errors import InvalidRequest
from ..live import changes
from ..queries import Int32, Kind, Query

router = APIRouter()

_PLACE: Final = re.compile(r"(\d{1,9})\.(-1|\d{1,18})")

#: Most events sent per poll; a client further behind catches up over several polls.
_MOST_AT_ONCE: Final = 5000

_Place = tuple[int, int]


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
    passed = await run_in_threadpool(run.read, lambda snapshot: _end_of(snapshot, query.rank))
    if asked is not None:
        match = _PLACE.fullmatch(asked)
        if match is None:
            raise InvalidRequest(
                "an event's id must have the form ATTEMPT.SEQ", where="header.last-event-id", got=asked
            )
        passed = int(match[1]), int(match[2])
    held = ExitStack()
    held.enter_context(request.app.state.streams.place())
    stream = _stream(request, run, query, passed, held)
    # Caches and proxies must neither store nor buffer the stream.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def _stream(
    request: Request, run: RunAccess, query: TailQuery, passed: _Place, held: ExitStack
) -> AsyncIterator[str]:
    with held:
        yield "retry: 1000\n\n"
        beat_s = request.app.state.limits.heartbeat_s
        async for is_change in changes(run.folder, until_s=math.inf, is_over=request.is_disconnected, beat_s=beat_s):
            if not is_change:
                yield ": still here\n\n"
                continue
            while True:
                try:
                    events, status = await run_in_threadpool(_look, run, query.rank, passed)
                except TelemetryError:
                    # The response has started: a browser would retry a broken stream for ever.
                    events, status = [], "gone"
                for event in events:
                    passed = event.attempt, event.seq
                    if query.kind in (None, event.kind):
                        yield f"id: {event.attempt}.{event.seq}\ndata: {event_to_line(event)}\n\n"
                if len(events) < _MOST_AT_ONCE:
                    break
            if status != "running":
                yield f"event: end\ndata: {json.dumps({'status': status})}\n\n"
                return


def _look(run: RunAccess, rank: int, passed: _Place) -> tuple[list[Event], str]:
    """Return the next events after a position, and the run's status."""

    def read(snapshot: Snapshot) -> tuple[list[Event], str]:
        later = after(of_rank(snapshot, rank), passed).events(rank)
        found = [event for event in later if (event.attempt, event.seq) > passed]
        return found[:_MOST_AT_ONCE], snapshot.status

    return run.read(read)


def _end_of(snapshot: Snapshot, rank: int) -> _Place:
    """Return the (attempt, seq) of a rank's last event, or the position before the first."""
    listing = snapshot.listing
    places = [(file.attempt, file.last) for file in listing.table("events") if file.rank == rank]
    places += [
        (segment.attempt, int(segment.seq[-1]))
        for segment in snapshot.tail.segments
        if segment.rank == rank and len(segment)
    ]
    return max(places, default=(0, -1))
