"""Serves ``/runs/{id}``: the page of one run, which fetches its curves, samples and health itself."""

from __future__ import annotations

import dataclasses
import time
from typing import Final

from fastapi import APIRouter, Request, Response

from ...replay.health.health_summary import DEFAULT_POLICY
from ...store.event_json import encoded
from ...store.events import JsonObject
from ...store.reading.headline import headline_of
from ...store.reading.plot_data import time_spent
from ...store.reading.snapshot import Snapshot
from ...store.reading.summary import leading_metric, summarize
from ...store.run_info import flattened
from ..access import RequestedRun
from ..endpoints.health import run_health
from ..middleware.gate import Scope
from ..workers.pool import query_run
from .layout import PageRoute, render_page, share_done

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Rows in the table of the worst samples.
WORST: Final = 25

#: Spans that are marked on the curves at most, the longest first, and profiler traces that are listed, the newest.
_MARKED: Final = 200
_TRACED: Final = 20

#: One row per sample, so that a frequent sample does not fill the table. NaN ranks above all numbers in SQL.
_WORST_SAMPLES: Final = f"""
SELECT sample_id, avg(loss) AS mean_loss, max(loss) AS max_loss, arg_max(step, loss) AS worst_step, count(*) AS seen
FROM samples WHERE sample_id IS NOT NULL GROUP BY sample_id ORDER BY mean_loss DESC, sample_id LIMIT {WORST}
"""


@router.get("/runs/{id}")
def show_run(request: Request, run: RequestedRun) -> Response:
    """Return the page of a run."""
    snapshot = run.read(lambda found: found)
    summary = summarize(snapshot)
    return render_page(
        request,
        "run.html",
        run=summary,
        info=snapshot.info,
        headline=headline_of(snapshot, time.time_ns()),
        status_of=_statuses(snapshot),
        progress=share_done(summary),
        config=encoded(flattened(snapshot.info.config)),
        environment=encoded(flattened(snapshot.info.last.environment)),
        has_samples=_has_samples(snapshot),
        has_vectors=_has_vectors(snapshot),
        phases=phase_data(snapshot),
        may_ask=request.state.holder.scope >= Scope.WRITE,
        data=run_data(snapshot),
    )


@router.get("/runs/{id}/worst-samples")
async def show_worst_samples(request: Request, run: RequestedRun) -> Response:
    """Return the samples with the highest mean loss, as a part of the run's page.

    The query reads every sample loss, so it runs like users' SQL: in a worker process, within limits.
    """
    found = await query_run(request, run.folder, _WORST_SAMPLES, rows=WORST)
    return render_page(request, "worst_samples.html", samples=found.table.to_pylist())


def run_data(snapshot: Snapshot) -> JsonObject:
    """Return the data that the page's script needs to fetch the rest."""
    metrics = list(snapshot.columns.by_metric)
    return {
        "id": snapshot.info.run_id,
        "name": snapshot.shown.name,
        "metrics": metrics,
        "leading": leading_metric(list(snapshot.columns.of_loop)),
        "live": snapshot.is_live,
        "attempts": [
            {"attempt": attempt.attempt, "from_step": attempt.from_step} for attempt in snapshot.info.attempts[1:]
        ],
    }


def phase_data(snapshot: Snapshot) -> JsonObject:
    """Return where the run spent its time: its phases, its longest spans, and its newest profiler traces."""
    spent = time_spent(snapshot)
    longest = sorted(spent.spans, key=lambda span: -span.seconds)[:_MARKED]
    traced = [span for span in spent.spans if span.trace][-_TRACED:]
    return {
        "elapsed_s": spent.elapsed_s,
        "phases": [dataclasses.asdict(phase) for phase in spent.phases],
        "spans": [{"name": span.name, "step": span.step, "seconds": span.seconds} for span in longest],
        "traces": [{"name": span.name, "step": span.step, "trace": span.trace} for span in traced],
    }


def _has_samples(snapshot: Snapshot) -> bool:
    tail = snapshot.tail_samples.segments
    return bool(snapshot.listing.table("samples")) or any(segment.has_samples() for segment in tail)


def _has_vectors(snapshot: Snapshot) -> bool:
    tail = snapshot.tail_vectors.segments
    return bool(snapshot.listing.table("vectors")) or any(segment.has_vectors() for segment in tail)


def _statuses(snapshot: Snapshot) -> dict[int, str]:
    """Return the status by attempt; an earlier attempt still marked as running has crashed."""
    attempts = snapshot.info.attempts
    earlier = {one.attempt: "crashed" if one.status == "running" else one.status for one in attempts[:-1]}
    return earlier | {attempts[-1].attempt: snapshot.status}


@router.get("/runs/{id}/health")
async def show_health(request: Request, run: RequestedRun) -> Response:
    """Return the table of groups that can be evaluated, the worst first, and the diagnoses that hold."""
    found = await run_health(request, run, DEFAULT_POLICY)
    known = [group for group in found.groups if group.state != "not evaluable"]
    return render_page(request, "health.html", health=found, known=known, unknown=found.groups[len(known) :])
