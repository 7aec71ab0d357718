"""Outermost ASGI middleware: counts and logs responses, sets security headers, and answers unexpected errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..problems import internal_error

_LOGGER: Final = logging.getLogger("steptape.api")
_REQUESTS: Final = logging.getLogger("steptape.api.requests")

#: Default headers of every response. Names and messages in responses are untrusted text: a browser must neither treat
#: them as a page nor run them.
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class SafetyNetMiddleware:
    """ASGI middleware that answers unexpected errors with a problem.

    Starlette's own middleware re-raises the error after its response. uvicorn then closes the connection under the
    client's next request.

    Args:
        app: The next application.
        traffic: The counter of responses.
        send_s: Timeout for a client to accept a piece of a response.
    """

    def __init__(self, app: ASGIApp, *, traffic: Traffic, send_s: float) -> None:
        self._app = app
        self._traffic = traffic
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and answer in place of the application if it fails."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0
        started_s = time.monotonic()

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            async with asyncio.timeout(self._send_s):
                await send(message)

        self._traffic.in_flight += 1
        try:
            await self._app(scope, receive, guarded_send)
        except TimeoutError:
            # The client accepts nothing; uvicorn closes the connection of an unfinished response.
            if not status:
                raise
        except Exception:
            # A failed request must neither stop the server nor reveal its internals to the client.
            if status:
                raise
            _LOGGER.exception("%s %s failed", scope["method"], scope["path"])
            await internal_error()(scope, receive, guarded_send)
        finally:
            self._traffic.in_flight -= 1
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - started_s
            self._traffic.count(method, route, status, seconds)
            if _REQUESTS.isEnabledFor(logging.INFO):
                _log(scope, status, seconds)


def _log(scope: Scope, status: int, seconds: float) -> None:
    """Log a response. Its status is 0 if the client left before it."""
    request = {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "duration_ms": round(seconds * 1e3, 3),
        "client": (scope.get("client") or ("",))[0],
    }
    _REQUESTS.info("%s %s: %d in %g ms, %s", *request.values(), extra={"request": request})


class Traffic:
    """Counter of responses. Only the event loop's thread updates it; any thread may read it."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.in_flight = 0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response.

        Args:
            method: Method of the request.
            route: Its path with parameter names in place of values.
            status: Status of the response.
            seconds: Time from the request's head to the end of the response.
        """
        self._answers[method, route, status] += 1
        self._seconds[method, route] += seconds

    def lines(self) -> Iterator[str]:
        """Yield the counts in Prometheus' text format."""
        yield "# HELP steptape_http_requests_total Requests answered."
        yield "# TYPE steptape_http_requests_total counter"
        for (method, route, status), count in sorted(self._answers.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            yield f"steptape_http_requests_total{{{labels}}} {count}"
        yield "# HELP steptape_http_request_seconds_total Time spent on answering requests."
        yield "# TYPE steptape_http_request_seconds_total counter"
        for (method, route), seconds in sorted(self._seconds.items()):
            yield f'steptape_http_request_seconds_total{{method="{method}",route="{route}"}} {seconds:.6f}'
        yield "# HELP steptape_http_requests_in_flight Requests being answered now."
        yield "# TYPE steptape_http_requests_in_flight gauge"
        yield f"steptape_http_requests_in_flight {self.in_flight}"
