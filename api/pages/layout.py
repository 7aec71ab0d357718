"""Renders pages: templates and their filters, response headers, and errors as pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from datetime import datetime
from http import HTTPStatus
from math import isfinite
from pathlib import Path
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from markupsafe import Markup
from starlette.exceptions import HTTPException as StarletteHTTPException

from ...replay.reports.html import html_environment
from ...store.amounts import with_pause
from ...store.errors import TelemetryError, shortened
from ...store.reading.summary import RunSummary
from ..problems import detail_of, hint_at, hint_of, on_http_exception, sort_of
from .files import address_of, plotter_names

#: Blocks other hosts, inline scripts and styles, and framing by other sites.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_DASH: Final = "\N{EN DASH}"

#: Cookie that a signed-in browser sends.
COOKIE: Final = "steptape_token"

HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Render a page from a template. Every value is escaped.

    Args:
        request: The request to answer.
        template: Its file in ``templates/``.
        status: Status of the response.
        **values: Values by their names in the template.
    """
    own = {"path": request.url.path, "root": request.app.state.root_path, "is_signed_in": COOKIE in request.cookies}
    text = _ENVIRONMENT.get_template(template).render(own, **values)
    return HTMLResponse(text, status, HEADERS)


class PageRoute(APIRoute):
    """A route that answers errors with pages, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, with errors turned into pages that explain the error and how to proceed."""
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            store: Path = request.app.state.store_path
            try:
                return await handle(request)
            except TelemetryError as error:
                sort = sort_of(error)
                # The page of a lost run has a link to all runs, where a terminal names the command that lists them.
                hint = None if sort.status == HTTPStatus.NOT_FOUND else hint_of(error, store)
                return error_page(request, sort.status, sort.title, detail_of(error, store), hint)
            except RequestValidationError as error:
                wrong = "; ".join(f"{entry['loc'][-1]}: {entry['msg']}" for entry in error.errors())
                return error_page(request, 422, "The address is not valid", wrong, None)
            except HTTPException as error:
                phrase = HTTPStatus(error.status_code).phrase
                return error_page(request, error.status_code, phrase, str(error.detail), None)

        return handle_page


async def show_lost(request: Request, error: Exception) -> Response:
    """Answer a path without an endpoint: with a page if a person mistyped an address, else with a problem."""
    assert isinstance(error, StarletteHTTPException)
    path = request.url.path
    is_person = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if error.status_code == 404 and is_person and not path.startswith("/api/"):
        return error_page(request, 404, "No such page", shortened(path), hint_at(path))
    return await on_http_exception(request, error)


def error_page(request: Request, status: int, title: str, detail: str, hint: str | None) -> Response:
    """Return a page that describes an error."""
    sentence = detail[:1].upper() + detail[1:]
    return render_page(request, "error.html", status=status, title=title, detail=sentence, hint=hint)


def number(value: object) -> str:
    """Format a number for a table; a dash for None.

    >>> number(0.123456789), number(1234.567), number(1205612.3), number(float("nan"))
    ('0.12346', '1,234.6', '1,205,612', 'NaN')

    """
    if value is None:
        return _DASH
    if isinstance(value, float):
        if not isfinite(value):
            return str(value).replace("nan", "NaN").replace("inf", "Infinity")
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:,.5g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def moment(value: datetime | None) -> str:
    """Format a UTC time to the minute; a dash for None."""
    return _DASH if value is None else f"{value:%Y-%m-%d %H:%M}"


def time_taken(run: RunSummary) -> str:
    """Format the time that a run trained, and that it paused; a dash where it has no clock."""
    is_unknown = run.started is None and not run.duration_s
    return _DASH if is_unknown else with_pause(run.duration_s, run.paused_s)


def share_done(run: RunSummary) -> int | None:
    """Return the percentage of planned updates that are done; None without a plan."""
    return min(100, round(100 * run.steps / run.planned_steps)) if run.planned_steps else None


def compact(value: object) -> str:
    """Format a JSON value on one line; text stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _data_block(value: Any) -> Markup:
    """Encode JSON for a data block, so that nothing in it can end the block or begin another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


_ENVIRONMENT: Final = html_environment(
    Path(__file__).with_name("templates"),
    {
        "compact": compact,
        "data_block": _data_block,
        "moment": moment,
        "number": number,
        "time_taken": time_taken,
    },
)
_ENVIRONMENT.globals["static"] = address_of
_ENVIRONMENT.globals["plotter"] = plotter_names
