"""``/runs/{id}``: one run. The server says what is known of it; its curves and samples are fetched by the page."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from ...store.event_json import encoded
from ...store.reading.snapshot import Snapshot
from ...store.reading.summary import leading_metric, summarize
from ..access import RequestedRun
from ..workers.run_questions import ask_run
from .layout import PageRoute, flattened, page
from .runs import share_done

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Samples of the table of the worst.
WORST: Final = 25

#: One value a sample, so that a sample which is seen often does not fill the table. NaN is above all numbers in SQL.
_WORST_SAMPLES: Final = f"""
SELECT sample_id, avg(loss) AS mean_loss, max(loss) AS max_loss, arg_max(step, loss) AS worst_step, count(*) AS seen
FROM samples WHERE sample_id IS NOT NULL GROUP BY sample_id ORDER BY mean_loss DESC, sample_id LIMIT {WORST}
"""


@router.get("/runs/{id}")
def show_run(request: Request, run: RequestedRun) -> Response:
    """The page of a run."""
    snapshot = run.read(lambda found: found)
    summary = summarize(snapshot)
    return page(
        request,
        "run.html",
        run=summary,
        info=snapshot.info,
        status_of=_statuses(snapshot),
        progress=share_done(summary),
        config=encoded(flattened(snapshot.info.config)),
        environment=encoded(flattened(snapshot.info.last.environment)),
        has_samples=_has_samples(snapshot),
        data=run_data(snapshot),
    )


@router.get("/runs/{id}/worst-samples")
async def show_worst_samples(request: Request, run: RequestedRun) -> Response:
    """The samples with the highest mean loss, as a part of the run's page.

    It reads every sample loss there is, so that it is asked as users' SQL is: elsewhere, within limits.
    """
    found = await ask_run(request, run, _WORST_SAMPLES, rows=WORST)
    return page(request, "worst_samples.html", samples=found.table.to_pylist())


def run_data(snapshot: Snapshot) -> dict[str, Any]:
    """What the page's script has to know to fetch the rest."""
    metrics = list(snapshot.columns.by_metric)
    return {
        "id": snapshot.info.run_id,
        "name": snapshot.info.name,
        "metrics": metrics,
        "leading": leading_metric(metrics),
        "live": snapshot.status == "running",
        "attempts": [
            {"attempt": attempt.attempt, "from_step": attempt.from_step} for attempt in snapshot.info.attempts[1:]
        ],
    }


def _has_samples(snapshot: Snapshot) -> bool:
    return bool(snapshot.listing.table("samples") or snapshot.tail_samples.segments)


def _statuses(snapshot: Snapshot) -> dict[int, str]:
    """Status by attempt; one that still calls itself running although its writer is gone has crashed."""
    attempts = snapshot.info.attempts
    earlier = {one.attempt: "crashed" if one.status == "running" else one.status for one in attempts[:-1]}
    return earlier | {attempts[-1].attempt: snapshot.status}
