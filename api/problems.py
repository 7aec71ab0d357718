"""Defines the errors of requests, and converts every error to ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass
from starlette.exceptions import HTTPException

from ..rules.errors import PolicyError
from ..shipping.push_protocol import BadFrames, ForeignRun, IntakeBusy, OutOfStep, QuotaExceeded, RunConflict
from ..store.errors import (
    DamagedLog,
    InvalidEvent,
    NotARun,
    NotRunning,
    NotWritten,
    QueryRefused,
    QueryTimedOut,
    QuestionRefused,
    RunChanging,
    RunNotFound,
    StoreNotFound,
    TelemetryError,
    UnsupportedVersion,
    shortened,
)

MEDIA_TYPE: Final = "application/problem+json"

#: Error statuses that the OpenAPI document lists for every request.
STATUSES: Final = (400, 401, 403, 404, 406, 408, 409, 413, 415, 421, 422, 431, 500, 503)

#: Hint for an unknown path below a run.
_SLASH_HINT: Final = "If the run's name contains a slash, use its id, or write the slash as %2F"

_LOGGER: Final = logging.getLogger("steptape.api")


class InvalidCursor(TelemetryError):
    """A cursor that no page of this query returned."""


class InvalidRequest(TelemetryError):
    """A well-formed request that asks for the impossible."""


class MetricNotFound(TelemetryError):
    """No event of the run carries the metric."""


class StepNotFound(TelemetryError):
    """The run has no such step."""


class PolicyNotFound(TelemetryError):
    """No policy of that name is known to the server."""


class NameTaken(TelemetryError):
    """A rule file of that name is there."""


class NotSaved(TelemetryError):
    """A rule file cannot be saved here."""


class JobNotFound(TelemetryError):
    """No job has that id, or the job is no longer kept."""


class JobNotDone(TelemetryError):
    """The job has no result, or none yet."""


class NotYours(TelemetryError):
    """The job belongs to another token."""


class NotAcceptable(TelemetryError):
    """The client accepts none of the available formats."""


class Busy(TelemetryError):
    """All places are taken."""


class NotModified(Exception):
    """The client already has the response."""

    def __init__(self, etag: str) -> None:
        super().__init__(etag)
        self.etag = etag


#: For dataclasses whose schema is made once. FastAPI asks for it 571 times, at each answer of each route, and would
#: parse the source of a plain dataclass for its docstrings each time: 6.4 s of processor time before the first page.
_DOCUMENTED: Final = ConfigDict(use_attribute_docstrings=True)


@pydantic_dataclass(frozen=True, slots=True, config=_DOCUMENTED)
class ParameterError:
    """One error in a request."""

    where: str
    """Location and name of the parameter, such as `query.limit`."""
    what: str
    got: str | None = None


@pydantic_dataclass(frozen=True, slots=True, config=_DOCUMENTED)
class Problem:
    """Problem details (RFC 9457)."""

    type: str
    """URI of the problem type; equivalent to `code`."""
    title: str
    status: int
    detail: str
    """The problem with this request, in a sentence."""
    code: str
    """Stable code of the problem type, for programs."""
    hint: str | None = None
    """How to fix the request."""
    errors: list[ParameterError] | None = None
    """Every refused parameter, if any were refused."""


class Sort(NamedTuple):
    """A problem type: its HTTP status, its code for programs and its title for people."""

    status: int
    code: str
    title: str


_CHANGING: Final = Sort(503, "run-changing", "The run is changing too fast")
_SORTS: Final[dict[type[TelemetryError], Sort]] = {
    RunNotFound: Sort(404, "run-not-found", "No such run"),
    NotARun: Sort(404, "not-a-run", "Not a run"),
    MetricNotFound: Sort(404, "metric-not-found", "No such metric"),
    StepNotFound: Sort(404, "step-not-found", "No such step"),
    PolicyNotFound: Sort(404, "policy-not-found", "No such rule file"),
    NameTaken: Sort(409, "name-taken", "The name is taken"),
    NotSaved: Sort(409, "not-saved", "The rule file was not saved"),
    JobNotFound: Sort(404, "job-not-found", "No such job"),
    NotRunning: Sort(409, "run-not-running", "The run is not running"),
    JobNotDone: Sort(409, "job-not-done", "The job has no result"),
    NotYours: Sort(403, "not-yours", "Started with another token"),
    NotAcceptable: Sort(406, "not-acceptable", "No accepted format"),
    InvalidCursor: Sort(422, "invalid-cursor", "Invalid cursor"),
    InvalidRequest: Sort(422, "invalid-request", "Invalid request"),
    InvalidEvent: Sort(422, "invalid-event", "Invalid event"),
    PolicyError: Sort(422, "invalid-policy", "The rules do not load"),
    QueryRefused: Sort(422, "query-refused", "The query was refused"),
    QueryTimedOut: Sort(422, "query-timed-out", "The query took too long"),
    QuestionRefused: Sort(422, "invalid-question", "Invalid question"),
    BadFrames: Sort(422, "bad-frames", "What was sent is not a part of the run"),
    OutOfStep: Sort(409, "out-of-step", "Earlier events are missing"),
    RunConflict: Sort(409, "run-conflict", "Another run has this id"),
    ForeignRun: Sort(403, "foreign-run", "Begun with another token"),
    QuotaExceeded: Sort(507, "quota-exceeded", "The quota is full"),
    IntakeBusy: Sort(503, "intake-busy", "Another process writes to the run"),
    Busy: Sort(503, "busy", "The server is busy"),
    RunChanging: _CHANGING,
    DamagedLog: Sort(500, "damaged-log", "The run's log is damaged"),
    UnsupportedVersion: Sort(500, "unsupported-version", "The run has another version of the format"),
    NotWritten: Sort(503, "not-written", "The store cannot be written"),
    StoreNotFound: Sort(503, "store-not-found", "The store cannot be reached"),
    TelemetryError: Sort(500, "telemetry-error", "The run cannot be read"),
}
_INVALID: Final = Sort(422, "invalid-parameter", "Invalid parameter")
_INTERNAL: Final = Sort(500, "internal-error", "Internal server error")


def sort_of(error: TelemetryError) -> Sort:
    """Return the problem type of an error, by its nearest class."""
    return next(_SORTS[kind] for kind in type(error).__mro__ if kind in _SORTS)


def detail_of(error: TelemetryError, store: Path) -> str:
    """Return the error's message without its hint, with file paths relative to the store."""
    if isinstance(error, PolicyError):
        return without_path(str(error), store)  # All its problems, one per line.
    return without_path(str(TelemetryError(error.what, where=error.where, got=error.got)), store)


def hint_of(error: TelemetryError, store: Path) -> str | None:
    """Return the error's hint; None when it has none."""
    return without_path(error.fix, store) or None


def hint_at(path: str) -> str | None:
    """Return a hint for an unknown path; None where there is none."""
    return _SLASH_HINT if "/runs/" in path else None


def without_path(text: str, store: Path) -> str:
    """Remove the store's absolute path from a text: clients must not see it.

    >>> without_path("/data/runs/7f3a/run.json: cannot be read", Path("/data/runs"))
    '7f3a/run.json: cannot be read'
    >>> without_path("/data/runs: no such store", Path("/data/runs"))
    'no such store'

    """
    if store == Path(store.anchor):
        return text
    return text.removeprefix(f"{store}: ").replace(f"{store}/", "").replace(str(store), "the store")


def install_handlers(app: FastAPI) -> None:
    """Register the handlers that answer every error with problem details."""
    app.add_exception_handler(TelemetryError, _on_telemetry_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(FileNotFoundError, _on_vanished_file)
    app.add_exception_handler(NotModified, _on_not_modified)


def internal_error() -> Response:
    """Return the response to an unexpected error; it reveals nothing about the cause."""
    return _response(_INTERNAL, "The server failed to answer this request; its log has the reason")


def refusal(sort: Sort, detail: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response to a request that middleware refuses."""
    return _response(sort, detail, headers=headers)


async def _on_telemetry_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TelemetryError)
    store: Path = request.app.state.store_path
    sort = sort_of(error)
    if sort.status == 500:
        _LOGGER.error("%s %s: %s", request.method, request.url.path, error)
    headers = {"Retry-After": "1"} if isinstance(error, (Busy, RunChanging)) else None
    return _response(sort, detail_of(error, store), hint=hint_of(error, store), headers=headers)


async def _on_invalid_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [_parameter_error(entry) for entry in error.errors()]
    detail = ". ".join(f"{e.where}: {e.what}" + (f"; got {e.got}" if e.got else "") for e in errors)
    return _response(_INVALID, detail, errors=errors)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer a path without an endpoint, or an endpoint without the method."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    sort = Sort(error.status_code, phrase.lower().replace(" ", "-"), phrase)
    if error.headers and "GET" in error.headers.get("allow", error.headers.get("Allow", "")):
        error.headers = {"Allow": f"{error.headers.get('Allow')}, HEAD"}
    hint = hint_at(request.url.path) if error.status_code == 404 else None
    detail = f"{request.method} {shortened(request.url.path)}: {error.detail}"
    return _response(sort, detail, hint=hint, headers=error.headers)


async def _on_vanished_file(request: Request, error: Exception) -> Response:
    # A file was sealed or merged away before it was read.
    _LOGGER.warning("%s %s: %s", request.method, request.url.path, error)
    detail = "Files of the run were replaced while they were read"
    return _response(_CHANGING, detail, hint="Try again", headers={"Retry-After": "1"})


async def _on_not_modified(_: Request, error: Exception) -> Response:
    assert isinstance(error, NotModified)
    return Response(status_code=304, headers={"ETag": error.etag, "Vary": "Accept", "Cache-Control": "no-cache"})


def _parameter_error(entry: Mapping[str, Any]) -> ParameterError:
    where = ".".join(str(part) for part in entry["loc"])
    if entry["type"] == "missing":
        return ParameterError(where=where, what="this parameter is required")
    what = "unknown parameter" if entry["type"] == "extra_forbidden" else entry["msg"]
    return ParameterError(where=where, what=what, got=shortened(repr(entry["input"])))


def _present(fields: Iterable[tuple[str, object]]) -> dict[str, object]:
    return {name: value for name, value in fields if value is not None}


def _response(
    sort: Sort,
    detail: str,
    *,
    hint: str | None = None,
    errors: Sequence[ParameterError] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    problem = Problem(
        type=f"urn:steptape:problem:{sort.code}",
        title=sort.title,
        status=sort.status,
        detail=detail,
        code=sort.code,
        hint=hint,
        errors=None if errors is None else list(errors),
    )
    # The text may quote the request, and half a surrogate pair is valid in Python strings only.
    text = json.dumps(asdict(problem, dict_factory=_present), ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), sort.status, headers, MEDIA_TYPE)
