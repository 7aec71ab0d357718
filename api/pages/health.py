"""Serves ``/runs/{id}/health``: the health of a run, as a part of its page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..access import RequestedRun
from ..endpoints.health import DEFAULT_POLICY, run_health
from .layout import PageRoute, page

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/runs/{id}/health")
async def show_health(request: Request, run: RequestedRun) -> Response:
    """Return the table of groups that can be evaluated, the worst first, and the diagnoses that hold."""
    found = await run_health(request, run, DEFAULT_POLICY)
    known = [group for group in found.groups if group.state != "not evaluable"]
    return page(request, "health.html", health=found, known=known, unknown=found.groups[len(known) :])
