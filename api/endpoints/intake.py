"""Serves ``/intake/{id}``: receives a run that a pusher brings, frame by frame. Needs the scope ``record``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ...shipping.intake import Intake
from ...shipping.push_protocol import RunPapers
from ..models import Model, RequestModel
from ..problems import Problem

router = APIRouter(responses={507: {"model": Problem}})

RunId = Annotated[str, InPath(alias="id", description="The run's id; a name is not enough.")]


class StreamPosition(Model):
    """How far a stream has arrived."""

    attempt: int
    rank: int
    next_seq: int
    """`seq` of the next event that is missing; all events before it are there."""


class StreamDigestItem(Model):
    """The log digest of a stream that is sealed."""

    attempt: int
    rank: int
    last_seq: int
    sha256: str
    format: int
    """Format of the digest."""


class ReceivedAttempt(Model):
    """An attempt that `run.json` names."""

    attempt: int
    recording: str
    """Its identity: start, process and host, or the log it was imported from. A pusher of another one sends nothing."""
    has_ended: bool


class IntakeState(Model):
    """How much of a run is there."""

    streams: list[StreamPosition]
    run_sha256: str
    """SHA-256 of its `run.json`; empty without one."""
    attempts: list[ReceivedAttempt]
    digests: list[StreamDigestItem]
    is_live: bool
    """Whether a writer was heard of lately."""
    files: list[str]
    """The names of its files."""


class NewPapers(RequestModel):
    """The files of a run that are not its log."""

    run: str = ""
    """The text of `run.json`; empty to leave it as it is."""
    columns: list[str] = Field(default_factory=list)
    """The metrics of `columns.json`, in order."""
    notes: list[str] = Field(default_factory=list)
    """Lines of `annotations.jsonl`. Those that are there already are ignored."""


class StreamName(RequestModel):
    """One stream."""

    attempt: int = Field(ge=0)
    rank: int = Field(ge=0)


class EndedStreams(RequestModel):
    """Streams whose writers are gone."""

    streams: list[StreamName]


@router.get("/intake/{id}", summary="How much of a pushed run is there")
def intake_state(request: Request, run_id: RunId) -> IntakeState:
    """Return the position of each stream, from which a pusher continues, and the digests of those that are sealed."""
    return IntakeState.model_validate(_intake(request).state(run_id, _owner(request)).to_json())


@router.get(
    "/intake/{id}/files/{name}/{offset}",
    summary="A piece of a file of a pushed run",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def intake_file(
    request: Request,
    run_id: RunId,
    name: Annotated[str, InPath(description="One of the state's `files`.")],
    offset: Annotated[int, InPath(ge=0, le=2**63 - 1, description="The first byte.")],
) -> Response:
    """Return 4 MiB of a file from this byte on; less is the end of the file.

    So a machine that lacks the run continues it. Only the token that began the run reads it.
    """
    content = _intake(request).piece(run_id, _owner(request), name, offset)
    return Response(content, media_type="application/octet-stream")


@router.put("/intake/{id}/papers", summary="Replace a pushed run's run.json")
def put_papers(request: Request, run_id: RunId, body: NewPapers) -> IntakeState:
    """Replace `run.json`, and add columns and notes. The first `run.json` of a run makes its token the owner.

    Returns how much of the run is there.
    """
    _intake(request).take_papers(run_id, _owner(request), RunPapers(body.run, tuple(body.columns), tuple(body.notes)))
    return intake_state(request, run_id)


@router.post(
    "/intake/{id}/frames",
    summary="Append events to a pushed run",
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {}}}}},
)
async def post_frames(request: Request, run_id: RunId) -> StreamPosition:
    """Append the events of a chunk that are missing. A chunk that was sent before changes nothing.

    A chunk of another recording with the same id is refused, and so are events behind the end of an attempt.

    A chunk is a small journal segment; the store format describes it.
    """
    content = await request.body()
    return await run_in_threadpool(_take_chunk, request, run_id, content)


@router.post("/intake/{id}/end", summary="Say that a pushed run's writers are gone")
def end_intake(request: Request, run_id: RunId, body: EndedStreams) -> IntakeState:
    """Release the streams and have them sealed. The state has their digests once that is done.

    Returns how much of the run is there.
    """
    _intake(request).end(run_id, _owner(request), [(stream.attempt, stream.rank) for stream in body.streams])
    return intake_state(request, run_id)


def _take_chunk(request: Request, run_id: str, content: bytes) -> StreamPosition:
    (attempt, rank), number = _intake(request).take_chunk(run_id, _owner(request), content)
    return StreamPosition(attempt=attempt, rank=rank, next_seq=number)


def _intake(request: Request) -> Intake:
    intake: Intake = request.app.state.intake
    return intake


def _owner(request: Request) -> str:
    name: str = request.state.holder.name
    return name
