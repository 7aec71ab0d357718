"""Builds the FastAPI application: endpoints, middleware, errors as problem details, and the OpenAPI document.

``python -m steptape.api.app`` writes the document to ``openapi.json`` next to this file.
"""

from __future__ import annotations

import gc
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from ..store.errors import StoreNotFound, TelemetryError
from ..store.events import JsonObject
from ..store.store import local_folder, open_store
from .answers import JSON
from .endpoints import (
    decisions,
    events,
    health,
    intake,
    jobs,
    notes,
    policies,
    query,
    run_groups,
    runs,
    samples,
    series,
    service,
)
from .feeds import Feeds, FollowerSlots
from .limits import DEFAULT_LIMITS, Limits
from .middleware.bodies import BodyLimitMiddleware
from .middleware.gate import LOOPBACK_NAMES, HostAndTokenMiddleware, Tokens
from .middleware.paths import HeadMiddleware, RootPathMiddleware, SlashedNameMiddleware, checked_root
from .middleware.safety_net import SafetyNetMiddleware, Traffic
from .pages import backtest as page_backtest
from .pages import compare as page_compare
from .pages import docs as page_docs
from .pages import files as page_files
from .pages import login as page_login
from .pages import run as page_run
from .pages import runs as page_runs
from .pages import sql as page_sql
from .pages.layout import show_lost
from .pages.login import Session
from .problems import MEDIA_TYPE, STATUSES, Problem, install_handlers
from .server_sealing import IntakeService
from .workers.job_queue import JobQueue
from .workers.pool import HealthWorkers, QueryWorkers, RuleWorkers

#: Version of the API, not of steptape; it changes with every change that breaks a client.
API_VERSION: Final = "1"
PREFIX: Final = "/api/v1"

#: The agreed OpenAPI document; a test compares the application with it.
OPENAPI_FILE: Final = Path(__file__).with_name("openapi.json")

#: Schema of the rows of a table in JSON.
_ROWS: Final[JsonObject] = {"type": "array", "items": {"type": "object"}, "title": "Rows"}

#: Most requests that are answered in threads at a time. Each thread that computes delays the event loop, and with it
#: the answer to a health check, by Python's switch interval of 5 ms.
_THREADS: Final = 6

_ENDPOINTS: Final = (
    runs, health, series, run_groups, events, samples, decisions, notes, policies, query, jobs, intake,
)  # fmt: skip
_PAGES: Final = (page_files, page_login, page_runs, page_run, page_compare, page_backtest, page_sql, page_docs)


def create_app(
    store_path: str | Path,
    *,
    tokens: Tokens | None = None,
    allowed_hosts: Collection[str] = (),
    policies_path: str | Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    root_path: str = "",
    gauges: Sequence[str] = (),
) -> FastAPI:
    """Build the HTTP application over a store. It reads runs, writes notes, and takes the runs that pushers bring.

    Args:
        store_path: A folder of runs, or ``s3://BUCKET[/PREFIX]``, which is only read.
        tokens: The known tokens; None lets every client that reaches the server do everything.
        allowed_hosts: Names of the server, in addition to those of this machine.
        policies_path: A folder of rule files that clients can name, in addition to the shipped ones.
        limits: Limits on the cost of requests.
        root_path: The path under which a reverse proxy serves the application, such as ``/steptape``; the proxy may
            remove it from requests.
        gauges: Metrics of running runs that ``/metrics`` has.

    Raises:
        StoreNotFound: There is no such folder.
        TelemetryError: There is no such folder of rule files, or the root path is none.
    """
    store = open_store(local_folder(store_path).absolute())
    if policies_path is not None and not Path(policies_path).is_dir():
        raise TelemetryError("no such folder of rule files", where=str(policies_path))
    app = _Application(
        title="steptape",
        summary="The recorded training runs of one store",
        version=API_VERSION,
        openapi_url=f"{PREFIX}/openapi.json",
        # FastAPI's documentation pages load scripts from another host.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        lifespan=_lifespan,
    )
    app.state.root_path = checked_root(root_path)
    app.state.store_path = store.path
    app.state.policies = None if policies_path is None else Path(policies_path).absolute()
    app.state.tokens = tokens
    app.state.gauges = tuple(dict.fromkeys(gauges))
    _set_up_work(app.state, limits)
    install_handlers(app)
    app.add_exception_handler(HTTPException, show_lost)
    _add_middleware(app, {*LOOPBACK_NAMES, *(host.lower() for host in allowed_hosts)})
    _add_endpoints(app)
    return app


def _set_up_work(state: State, limits: Limits) -> None:
    """Create what the endpoints share: limits, queues, worker processes and thread limits."""
    state.limits = limits
    state.is_warm = False
    state.streams = FollowerSlots(limits.streams)
    state.feeds = Feeds()
    state.traffic = Traffic()
    state.jobs = JobQueue(limits)
    state.intake_service = IntakeService(state.store_path, limits.intake)
    state.intake = state.intake_service.intake
    state.rule_workers = RuleWorkers(limits)
    state.health_workers = HealthWorkers(limits)
    state.query_workers = QueryWorkers(state.store_path, limits)


def _add_middleware(app: FastAPI, hosts: Collection[str]) -> None:
    """Add the middleware; the last one added handles a request first."""
    # Level 4 takes a third of the time of level 9, for 5 % more bytes.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)
    app.add_middleware(SlashedNameMiddleware)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(BodyLimitMiddleware, limits=app.state.limits)
    app.add_middleware(HostAndTokenMiddleware, hosts=hosts, tokens=app.state.tokens)
    app.add_middleware(Session, root_path=app.state.root_path)
    app.add_middleware(SafetyNetMiddleware, traffic=app.state.traffic, send_s=app.state.limits.send_s)
    app.add_middleware(RootPathMiddleware, root_path=app.state.root_path)


def _add_endpoints(app: FastAPI) -> None:
    problems: dict[int | str, JsonObject] = {status: {"model": Problem} for status in STATUSES}
    app.include_router(service.router, responses={s: p for s, p in problems.items() if s not in (404, 422)})
    for endpoints in _ENDPOINTS:
        app.include_router(endpoints.router, prefix=PREFIX, responses=problems)
    for pages in _PAGES:
        app.include_router(pages.router)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Read the runs in the background while the first requests are served; stop all processes with the server."""

    def warm() -> None:
        # These objects stay: repeated garbage collection over the growing heap would waste time.
        gc.disable()
        try:
            open_store(app.state.store_path).recent()
        except (StoreNotFound, OSError):
            return  # Requests report it.
        finally:
            gc.freeze()
            gc.enable()
        app.state.is_warm = True
        app.state.query_workers.warm()

    threading.Thread(target=warm, name="warm-up", daemon=True).start()
    app.state.intake_service.start()
    current_default_thread_limiter().total_tokens = _THREADS
    yield
    gc.unfreeze()
    app.state.jobs.close()
    app.state.intake_service.close()
    app.state.query_workers.close()
    app.state.health_workers.close()
    app.state.rule_workers.close()


class _Application(FastAPI):
    def openapi(self) -> JsonObject:
        """Return the OpenAPI document with what FastAPI leaves out: media type of problems, `rows`, ETags."""
        if self.openapi_schema is None:
            for name, path in super().openapi()["paths"].items():
                for method, operation in path.items():
                    _retype_problems(operation["responses"])
                    _add_rows(operation["responses"])
                    if method == "get" and ("{id}" in name or name.endswith("/series")):
                        operation["responses"]["304"] = {
                            "description": "Not modified: the client's copy is current (ETag)"
                        }
        return super().openapi()


def _retype_problems(responses: JsonObject) -> None:
    for status, response in responses.items():
        if status >= "400":
            response["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def _add_rows(responses: JsonObject) -> None:
    # A table in JSON has two shapes: the page of the model, and under `format=rows` its rows alone.
    content = responses.get("200", {}).get("content", {})
    if any("x-form" in described for described in content.values()):
        page = content[JSON]["schema"]
        content[JSON]["schema"] = {"anyOf": [*page.get("anyOf", [page]), _ROWS]}


def _operation_id(route: APIRoute) -> str:
    return route.name


def openapi_text() -> str:
    """Return the application's current OpenAPI document."""
    with tempfile.TemporaryDirectory() as store:
        return json.dumps(create_app(store).openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPENAPI_FILE.write_text(openapi_text(), encoding="utf-8")
