"""What the server has answered: counts and seconds, by method, route and status."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator


class Traffic:
    """Counts answers. Used from the event loop's thread alone, and read from anywhere."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.in_flight = 0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note an answer.

        Args:
            method: Of the request.
            route: Its path with names of parameters in it, not their values.
            status: Of the answer.
            seconds: From the request's head to the answer's end.
        """
        self._answers[method, route, status] += 1
        self._seconds[method, route] += seconds

    def lines(self) -> Iterator[str]:
        """The counts in the text format of Prometheus."""
        yield "# HELP steptape_http_requests_total Requests that were answered."
        yield "# TYPE steptape_http_requests_total counter"
        for (method, route, status), count in sorted(self._answers.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            yield f"steptape_http_requests_total{{{labels}}} {count}"
        yield "# HELP steptape_http_request_seconds_total Time that answers took."
        yield "# TYPE steptape_http_request_seconds_total counter"
        for (method, route), seconds in sorted(self._seconds.items()):
            yield f'steptape_http_request_seconds_total{{method="{method}",route="{route}"}} {seconds:.6f}'
        yield "# HELP steptape_http_requests_in_flight Requests that are being answered."
        yield "# TYPE steptape_http_requests_in_flight gauge"
        yield f"steptape_http_requests_in_flight {self.in_flight}"
