"""Serves ``/sql``: a box for a statement, and what the API answers to it as a table and a chart."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery

from ...store.questions import fields_of
from ...store.reading.summary import leading_metric
from ...store.sql.statements import VIEWS, text_literal
from ..access import OpenStore
from .layout import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Statements to begin with, each with what it answers; ``{metric}`` is a metric of the store.
_EXAMPLES: Final = (
    (
        "Curves of the newest runs",
        """SELECT r.name, v.step, v.mean_10 AS smoothed
FROM windows v JOIN (FROM runs ORDER BY started DESC LIMIT 5) r USING (run_id)
WHERE v.metric = {metric} AND v.rank = 0
ORDER BY r.name, v.step""",
    ),
    (
        "Best value of each run, and where",
        """SELECT run_id, name, status, min(value) AS best, arg_min(step, value) AS at_step
FROM metric_values JOIN runs USING (run_id)
WHERE metric = {metric} AND isfinite(value)
GROUP BY ALL
ORDER BY best""",
    ),
    (
        "What rules did",
        """SELECT run_id, controller, mode, count(*) AS firings, min(step) AS first_step, max(step) AS last_step
FROM decisions
GROUP BY ALL
ORDER BY firings DESC""",
    ),
)


@router.get("/sql")
def show_sql(request: Request, store: OpenStore, q: Annotated[str, InQuery(max_length=100_000)] = "") -> Response:
    """Return the page. Its script runs the statement in the address."""
    metrics = [facts.name for facts in fields_of(store.recent()) if facts.kind == "metric"]
    metric = text_literal(leading_metric(metrics) or "loss")
    examples = [(title, text.replace("{metric}", metric)) for title, text in _EXAMPLES]
    return render_page(request, "sql.html", statement=q, examples=examples, data={"views": VIEWS})
