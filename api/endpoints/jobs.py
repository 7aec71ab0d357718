"""Serves backtests, sweeps, recommendations and verifications as jobs: start one, follow it, read it, cancel it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from ...rules.policy_file.declarations import SEMANTICS_VERSION
from ...rules.policy_file.sentences import choices_in, is_sentence, rule_file_of, sentences_in
from ...store.events import JsonObject
from ...store.run_folder import ANNOTATIONS
from ...store.store import Store
from ..access import OpenStore, RunAccess, file_stamp, find_run, policy_named
from ..answers import JSON, answer
from ..models import Model, Page
from ..problems import InvalidRequest, JobNotDone, NotModified
from ..workers.job_queue import Job, JobQueue
from ..workers.job_requests import (
    BacktestRequest,
    JobOrder,
    JobRequest,
    PolicyJobRequest,
    RecommendationRequest,
    SweepRequest,
    VerificationRequest,
)
from ..workers.pool import RuleWorkers
from ..workers.worker_requests import JobTrial

router = APIRouter()

#: Content security policy of a report: it runs its inline scripts and styles, and loads nothing.
_REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

JobId = Annotated[str, InPath(alias="id", pattern="^[a-z]+-[0-9a-f]{24}$", description="The job's id.")]


class JobItem(Model):
    """A job and its progress."""

    id: str
    """Id of the job; equal for equal requests about the same logs."""
    kind: Literal["backtest", "sweep", "recommendation", "verification"]
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    runs: int
    """Number of runs that the job covers."""
    runs_done: int
    """Number of runs that are done."""
    error: str | None
    """Why the job failed."""
    owner: str
    """Name of the token that started the job."""
    created: datetime
    started: datetime | None
    ended: datetime | None
    result: str | None
    """Path of the result, once it exists."""
    report: str | None
    """Path of the report as a page; backtests only."""


class JobPage(Page):
    """Jobs, newest first."""

    items: list[JobItem]


_ACCEPTED: Final[dict[int | str, JsonObject]] = {
    202: {
        "headers": {"Location": {"description": "The job.", "schema": {"type": "string"}}},
        "links": {
            "job": {"operationId": "read_job", "parameters": {"id": "$response.body#/id"}},
            "result": {"operationId": "read_job_result", "parameters": {"id": "$response.body#/id"}},
            "cancel": {"operationId": "cancel_job", "parameters": {"id": "$response.body#/id"}},
        },
    }
}


@router.post("/backtests", summary="Start a backtest", status_code=202, responses=_ACCEPTED)
async def start_backtest(request: Request, response: Response, store: OpenStore, body: BacktestRequest) -> JobItem:
    """Start a backtest, which reports what a rule file would have saved and cost in recorded runs.

    The same request about unchanged logs returns the same job.
    """
    if body.baselines:
        await run_in_threadpool(_check_baselines, body.baselines)
    return await _started(request, response, store, body)


@router.post("/sweeps", summary="Start a sweep", status_code=202, responses=_ACCEPTED)
async def start_sweep(request: Request, response: Response, store: OpenStore, body: SweepRequest) -> JobItem:
    """Start a sweep, which backtests all combinations of some params' values, at most 100,000, on recorded runs.

    Values that the rule file refuses are reported at once, with their axis. Values are checked for a few seconds only:
    of thousands, some may be left for the job to refuse.
    """
    return await _started(request, response, store, body)


@router.post("/recommendations", summary="Start a recommendation", status_code=202, responses=_ACCEPTED)
async def start_recommendation(
    request: Request, response: Response, store: OpenStore, body: RecommendationRequest
) -> JobItem:
    """Start a recommendation, which says which rule is worth arming, what it saves and what it risks.

    The result has the rule file and its certificate as text and JSON; nothing is written. Where the runs are too few to
    promise anything, the rule only records what it would do.
    """
    return await _started(request, response, store, body)


@router.post("/verifications", summary="Start a verification", status_code=202, responses=_ACCEPTED)
async def start_verification(
    request: Request, response: Response, store: OpenStore, body: VerificationRequest
) -> JobItem:
    """Start a verification that a replay repeats the live decisions, and that the logs are as they were written."""
    return await _started(request, response, store, body)


@router.get("/jobs", summary="Jobs")
def list_jobs(request: Request) -> JobPage:
    """Return the jobs that the server keeps, newest first."""
    return JobPage(items=[_item(job) for job in _queue(request).jobs()], next=None)


@router.get("/jobs/{id}", summary="Status of a job")
def read_job(request: Request, job_id: JobId) -> JobItem:
    """Return a job and its progress."""
    return _item(_queue(request).job(job_id))


@router.get(
    "/jobs/{id}/result",
    summary="Result of a job",
    responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}},
    response_class=Response,
)
def read_job_result(request: Request, job_id: JobId) -> Response:
    """Return the job's result, with the numbers that the command of the same name prints with `--json`."""
    job = _finished(request, job_id)
    assert job.result is not None
    return answer(request, job.result.encode(), JSON)


@router.get(
    "/jobs/{id}/report",
    summary="Report of a backtest",
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
def read_job_report(request: Request, job_id: JobId) -> Response:
    """Return the report as one self-contained page."""
    job = _finished(request, job_id)
    if job.page is None:
        raise JobNotDone("only backtests have a report", got=job_id)
    headers = {"Content-Security-Policy": _REPORT_POLICY}
    return answer(request, job.page.encode(), "text/html; charset=utf-8", headers)


@router.delete("/jobs/{id}", summary="Cancel a job")
def cancel_job(request: Request, job_id: JobId) -> JobItem:
    """Cancel a waiting or running job; a finished one stays as it is. Jobs of other tokens need the scope `admin`."""
    return _item(_queue(request).cancel(job_id, request.state.holder))


def _queue(request: Request) -> JobQueue:
    queue: JobQueue = request.app.state.jobs
    return queue


def _finished(request: Request, job_id: str) -> Job:
    job = _queue(request).job(job_id)
    if job.status != "done":
        raise JobNotDone(f"the job is {job.status}", got=job_id, fix=job.error or "The job itself shows its status")
    request.state.etag = f'"{job_id}"'
    if request.headers.get("if-none-match") == request.state.etag:
        raise NotModified(request.state.etag)
    return job


def _check_baselines(names: Sequence[str]) -> None:
    # Loaded late: with the rule engine, they would take a tenth of the time that the server takes to start.
    from ...replay.backtests.baselines import BASELINES

    unknown = [name for name in names if name not in (*BASELINES, "all")]
    if unknown:
        raise InvalidRequest("no such baseline", got=unknown[0], fix=f"Known: all, {', '.join(BASELINES)}")


async def _started(request: Request, response: Response, store: Store, body: JobRequest) -> JobItem:
    """Queue a job, or return the known one.

    Raises:
        PolicyError: The policy does not load with these values; the error has all its problems.
        InvalidRequest: The check takes too long, or there are too many combinations of values.
    """
    text, source = "", ""
    if isinstance(body, PolicyJobRequest):
        text, source = await run_in_threadpool(_policy_text, request, body)
        if isinstance(body, SweepRequest) and is_sentence(source):
            text, body = await run_in_threadpool(_with_choices, source, body)
        params = body.params if isinstance(body, BacktestRequest) else {}
        axes = body.axes if isinstance(body, SweepRequest) else {}
        workers: RuleWorkers = request.app.state.rule_workers
        await workers.run_trial(JobTrial(text, source, params, axes, request.app.state.limits.rules_s / 2))
    queued = await run_in_threadpool(_queued, request, store, body, text, source)
    response.headers["Location"] = f"{request.app.state.root_path}/api/v1/jobs/{queued.id}"
    return _item(queued)


def _queued(request: Request, store: Store, body: JobRequest, text: str, source: str) -> Job:
    runs = _runs(store, body)
    names = [run.folder.name for run in runs]
    order = JobOrder(body.kind, str(store.path), body.model_dump(), names, text, source)
    return _queue(request).submit(Job(f"{order.kind}-{_digest(order, runs)}", order, request.state.holder.name))


def _with_choices(sentences: str, body: SweepRequest) -> tuple[str, SweepRequest]:
    """Return the rule file of sentences, and the request with the values to try that they have in braces."""
    found = choices_in(sentences_in(sentences))
    axes = {**found.values, **body.axes}
    if not axes:
        fix = "Write them in braces, such as {1, 2, 3} or {1..20}"
        raise InvalidRequest("the sentence has no values to try", where="body.policy", got=sentences, fix=fix)
    try:
        swept = SweepRequest.model_validate(body.model_dump() | {"axes": axes})
    except ValidationError as error:
        raise InvalidRequest(error.errors()[0]["msg"], where="body.policy", got=sentences) from None
    return rule_file_of(found.sentences, found.params), swept


def _policy_text(request: Request, body: PolicyJobRequest) -> tuple[str, str]:
    if body.policy_text is not None:
        return body.policy_text, "policy"
    assert body.policy is not None
    if is_sentence(body.policy):
        return rule_file_of(sentences_in(body.policy)), body.policy
    path = policy_named(body.policy, request.app.state.policies)
    return path.read_text(encoding="utf-8"), body.policy


def _runs(store: Store, body: JobRequest) -> list[RunAccess]:
    if body.runs is None:
        return [RunAccess(store, entry.folder) for entry in store.catalog.look().entries]
    return [find_run(store, key) for key in dict.fromkeys(body.runs)]


def _digest(order: JobOrder, runs: Sequence[RunAccess]) -> str:
    """Return the digest of the request and the current state of the runs' logs and annotations."""
    asked = {**order._asdict(), "request": {**order.request, "runs": None}, "semantics": SEMANTICS_VERSION}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for run in runs:
        entry = run.entry()
        listing = entry.listing
        # Journals and annotations are appended to. Verifications must also notice files edited in place.
        files = [file.path for file in listing.sealed] + [journal.path for journal in listing.journals]
        stamps = [(path.name, *file_stamp(path)) for path in (*files, run.folder / ANNOTATIONS)]
        digest.update(repr((entry.stamp, stamps)).encode())
    return digest.hexdigest()[:24]


def _item(job: Job) -> JobItem:
    path = f"/api/v1/jobs/{job.id}"
    return JobItem(
        id=job.id,
        kind=job.order.kind,
        status=job.status,
        runs=len(job.order.runs),
        runs_done=job.runs_done,
        error=job.error or None,
        owner=job.owner,
        created=job.created,
        started=job.started,
        ended=job.ended,
        result=f"{path}/result" if job.status == "done" else None,
        report=f"{path}/report" if job.page is not None else None,
    )
