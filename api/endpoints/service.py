"""Serves the endpoints about the server itself: health, readiness, version and Prometheus metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request, Response

from ...rules.policy_file.declarations import SEMANTICS_VERSION
from ...store.errors import StoreNotFound
from ...store.run_info import FORMAT
from ..access import OpenStore
from ..middleware.safety_net import Traffic
from ..models import Model
from ..problems import Busy

router = APIRouter()


class Health(Model):
    """The server is up and reaches its store."""

    status: Literal["ok"] = "ok"


class Ready(Model):
    """The server has read the list of runs."""

    status: Literal["ready"] = "ready"
    runs: int


class Version(Model):
    """Versions of the server."""

    steptape: str
    api: str
    event_format: int
    """The run format that the server reads."""
    rule_semantics: int
    """Version of the rule engine's semantics."""


@router.get("/healthz", summary="Liveness check")
async def read_health() -> Health:
    """Return 200 when the server runs. Reads nothing: a busy disk or a busy server is no reason to restart it."""
    return Health()


@router.get("/readyz", summary="Readiness check")
def read_readiness(request: Request, store: OpenStore) -> Ready:
    """Return 200 once the server has read the runs of the store; 503 until then, and while it cannot be listed."""
    if not request.app.state.is_warm:
        raise Busy("the server is still reading the runs", fix="Try again in a second")
    try:
        with os.scandir(store.path) as entries:
            next(entries, None)
    except OSError as error:
        raise StoreNotFound(f"the store cannot be listed ({error.strerror})", where=str(store.path)) from None
    return Ready(runs=len(store.recent().entries))


@router.get("/version", summary="Versions of the server")
def read_version() -> Version:
    """Return the versions of steptape, the API, the run format and the rule semantics."""
    return Version(steptape=version("steptape"), api="1", event_format=FORMAT, rule_semantics=SEMANTICS_VERSION)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def read_metrics(request: Request, store: OpenStore) -> Response:
    """Return counts of requests, queries, jobs, tails and runs in Prometheus' text format."""
    state = request.app.state
    traffic: Traffic = state.traffic
    statuses: dict[str, int] = {}
    look = store.recent()
    for entry in look.entries:
        statuses[entry.summary.status] = statuses.get(entry.summary.status, 0) + 1
    lines = [
        *traffic.lines(),
        *_gauge(
            "steptape_runs",
            "Runs in the store, by status.",
            {f'status="{name}"': n for name, n in sorted(statuses.items())},
        ),
        *_gauge("steptape_runs_unreadable", "Run folders that cannot be read.", {"": len(look.problems)}),
        *_gauge("steptape_streams", "Open live tails and long polls.", {"": state.streams.taken}),
        *_gauge(
            "steptape_jobs", "Jobs, by status.", {f'status="{name}"': n for name, n in state.jobs.counts().items()}
        ),
    ]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8")


def _gauge(name: str, help_text: str, values: Mapping[str, int]) -> list[str]:
    samples = [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in values.items()]
    return [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", *samples]
