"""Counts responses by method, route and status, and their seconds by method and route, for Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator


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
