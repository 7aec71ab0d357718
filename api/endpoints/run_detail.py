"""Serves ``/runs/{id}``: everything known about one run, with counts of its events."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Request, Response

from ...store.event_json import encoded
from ...store.reading.snapshot import Snapshot
from ...store.reading.summary import summarize
from ...store.run_info import RunInfo
from ..access import RequestedRun
from ..answers import model_answer
from ..models import MetricItem, RunDetail
from .runs import facts_of

router = APIRouter()


@router.get("/runs/{id}", summary="One run", response_model=RunDetail)
def read_run(request: Request, run: RequestedRun) -> Response:
    """Return the run's row, configuration, attempts (with the text of each policy), and counts of its events."""
    return model_answer(request, run.read(_detail))


def _detail(snapshot: Snapshot) -> RunDetail:
    table = snapshot.events_table()
    columns = snapshot.columns.by_metric
    counts = table.group_by("kind", use_threads=False).aggregate(
        [([], "count_all"), *((column, "count") for column in columns.values())]
    )
    kinds: list[str] = counts["kind"].to_pylist()
    return RunDetail.model_validate(
        facts_of(summarize(snapshot))
        | {
            "config": encoded(snapshot.info.config),
            "attempts": _attempts(snapshot.info, snapshot.status),
            "metrics": [
                _metric(metric, dict(zip(kinds, counts[f"{column}_count"].to_pylist(), strict=True)))
                for metric, column in columns.items()
            ],
            "events": dict(zip(kinds, counts["count_all"].to_pylist(), strict=True)),
            "ranks": sorted(table["rank"].unique().to_pylist()),
        }
    )


def _metric(name: str, counts: dict[str, int]) -> MetricItem:
    return MetricItem(name=name, kinds=[kind for kind, count in counts.items() if count], count=sum(counts.values()))


def _attempts(info: RunInfo, status: str) -> list[dict[str, Any]]:
    """Return the attempts of ``run.json``; an earlier attempt still marked as running has crashed."""
    attempts = [encoded(dataclasses.asdict(attempt)) for attempt in info.attempts]
    for attempt in attempts[:-1]:
        attempt["status"] = "crashed" if attempt["status"] == "running" else attempt["status"]
    attempts[-1]["status"] = status
    return attempts
