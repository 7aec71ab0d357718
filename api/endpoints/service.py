"""Serves the endpoints about the server itself: health, readiness, version and Prometheus metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from math import isfinite
from typing import Final, Literal

from fastapi import APIRouter, Request, Response

from ...rules.policy_file.declarations import SEMANTICS_VERSION
from ...store.errors import StoreNotFound, in_unicode
from ...store.reading.summary import Entry
from ...store.run_info import FORMAT
from ..access import OpenStore
from ..middleware.safety_net import Traffic
from ..models import Model
from ..problems import Busy

router = APIRouter()

#: Most running runs with gauges of their own: Prometheus keeps a time series for each run and gauge.
MOST_GAUGED: Final = 100

_LIVE: Final = frozenset({"running", "stalled"})


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
    """Return counts of requests, jobs, tails and runs, and gauges of running runs, in Prometheus' text format.

    Running and stalled runs have gauges: the age of the last event, steps, speed, whether it is stalled, and the last
    value of each metric that the server was started with (`--gauge`). Stalled and newer runs come first;
    `steptape_runs_without_gauges` counts those beyond 100.
    """
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
        *_gauges_of_runs([entry for entry in look.newest_first if entry.summary.status in _LIVE], state.gauges),
    ]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8")


def _gauges_of_runs(live: Sequence[Entry], metrics: Sequence[str]) -> list[str]:
    """Return the gauges of running runs, by run; a run whose speed or metric is unknown has none of it."""
    shown = sorted(live, key=lambda entry: entry.summary.status != "stalled")[:MOST_GAUGED]
    runs = [(_labels(run_id=entry.summary.run_id, name=entry.summary.name), entry) for entry in shown]
    rows = [(labels, entry.summary) for labels, entry in runs]
    values = {
        f"{labels},{_labels(metric=metric)}": found.last
        for metric in metrics
        for labels, entry in runs
        if (found := entry.metric(metric)) is not None
    }
    return [
        *_gauge(
            "steptape_run_last_event_age_seconds",
            "Seconds since the last event of a running run.",
            {labels: time.time() - _unix_s(run.last_event) for labels, run in rows if run.last_event is not None},
        ),
        *_gauge(
            "steptape_run_stalled",
            "1 if a running run is silent for longer than its pace allows, else 0.",
            {labels: int(run.status == "stalled") for labels, run in rows},
        ),
        *_gauge(
            "steptape_run_steps", "Updates that a running run has made.", {labels: run.steps for labels, run in rows}
        ),
        *_gauge(
            "steptape_run_steps_per_second",
            "Updates per second over the newest 100; 0 for a stalled run.",
            {
                labels: 0 if run.status == "stalled" else run.steps_per_s
                for labels, run in rows
                if run.steps_per_s is not None
            },
        ),
        *_gauge("steptape_run_metric", "Last value of a metric of a running run.", values),
        *_gauge(
            "steptape_runs_without_gauges",
            "Running runs beyond those with gauges of their own.",
            {"": len(live) - len(shown)},
        ),
    ]


_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _unix_s(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


def _labels(**labels: str) -> str:
    r"""Return labels with their values escaped.

    >>> print(_labels(name='a "b"'))
    name="a \"b\""
    """
    escaped = {key: in_unicode(text.translate(_ESCAPES)) for key, text in labels.items()}
    return ",".join(f'{key}="{text}"' for key, text in escaped.items())


def _number(value: float) -> str:
    """Return a value as Prometheus writes it.

    >>> _number(3), _number(0.5), _number(float("-inf"))
    ('3', '0.5', '-Inf')
    """
    if isfinite(value):
        return repr(value)
    return str(value).replace("nan", "NaN").replace("inf", "Inf").replace("Inf", "+Inf" if value > 0 else "Inf")


def _gauge(name: str, help_text: str, values: Mapping[str, float]) -> list[str]:
    texts = {labels: _number(value) for labels, value in values.items()}
    samples = [f"{name}{{{labels}}} {text}" if labels else f"{name} {text}" for labels, text in texts.items()]
    return [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", *samples]
