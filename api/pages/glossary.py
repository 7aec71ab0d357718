"""Serves ``/glossary``: the words of the pages and reports, each explained."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ...replay.reports.glossary import glossary
from .layout import PageRoute, page

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/glossary")
def show_glossary(request: Request) -> Response:
    """Return the page."""
    return page(request, "glossary.html", terms=glossary())
