"""Runs in a worker's process: answers the requests of one service, one after another, within limits.

A request is a frame. Its answer is one too: an ``error``, or what the service makes of the request. Frames with the
number of runs done as ``progress`` precede it: the first has 0, and the request is timed from then on. The parent can
kill a worker at any time: services only read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from ...store.child_protocol import error_to_json, frames, write_frame
from ...store.errors import TelemetryError
from ...store.own_process import claim_stdout, end_with_parent


class Service(Protocol):
    """A module of this package that answers requests."""

    def limit(self, memory_bytes: int) -> None:
        """Limit this process."""

    def answer(self, request: Mapping[str, Any], tell: Callable[[int], object]) -> tuple[Mapping[str, Any], bytes]:
        """Return the head and the body of the answer to a request; tell how many runs are done.

        Raises:
            TelemetryError: It is the answer.
        """


def main() -> None:
    """``python -m steptape.api.workers.worker SERVICE BYTES``: answer requests within this much memory."""
    end_with_parent()
    answers = claim_stdout()
    service = cast("Service", import_module(f".{sys.argv[1]}", __package__))
    service.limit(int(sys.argv[2]))
    for request in frames(sys.stdin.fileno()):
        write_frame(answers, {"progress": 0})
        try:
            head, body = service.answer(request.head, lambda done: write_frame(answers, {"progress": done}))
        except TelemetryError as error:
            head, body = {"error": error_to_json(error)}, b""
        write_frame(answers, head, body)


if __name__ == "__main__":
    main()
