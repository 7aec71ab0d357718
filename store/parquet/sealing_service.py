"""Serves requests to seal runs, in its own process: takes frames with paths, answers why a run could not be sealed.

A request is ``{"folder": ...}``, answered with ``{"folder": ..., "why": ""}``. With ``"other_hosts": true`` journals of
other machines are sealed too. ``{"store": ...}`` asks for all runs of a store that have a journal; it has no answer and
comes after all requests for single runs. The process finishes all
requests and ends with its input, even if its parent was killed.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast

from ..child_protocol import frames, write_frame
from ..run_folder import folders_with_journals, has_journal


class SealRequest(TypedDict, total=False):
    """A run's folder, and whether to seal what other machines wrote; or a store."""

    folder: str
    other_hosts: bool
    store: str


def main() -> None:
    """Serve until the input ends."""
    # A terminal sends Ctrl-C to the whole process group; it is meant for the training.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: queue.SimpleQueue[SealRequest | None] = queue.SimpleQueue()
    # A thread of its own, so that the pipe never fills: a program may close runs faster than they can be sealed.
    threading.Thread(target=_queue_requests, args=(requests,), daemon=True).start()
    stores: list[Iterator[Path]] = []
    goes_on = True
    while goes_on or stores:
        try:
            request = requests.get(block=not stores)
        except queue.Empty:
            _seal_next(stores)
            continue
        if request is None:
            goes_on = False
        elif "store" in request:
            stores.append(iter(folders_with_journals(Path(request["store"]))))
        else:
            why = _seal(Path(request["folder"]), other_hosts=request.get("other_hosts", False))
            with suppress(BrokenPipeError):  # The parent may have died meanwhile.
                write_frame(sys.stdout.fileno(), {"folder": request["folder"], "why": why})
    os._exit(0)


def _queue_requests(requests: queue.SimpleQueue[SealRequest | None]) -> None:
    for request in frames(sys.stdin.fileno()):
        requests.put(cast(SealRequest, request.head))
    requests.put(None)


def _seal_next(stores: list[Iterator[Path]]) -> None:
    """Seal one run of the first of these stores."""
    folder = next(stores[0], None)
    if folder is None:
        del stores[0]
    else:
        _seal(folder)


def _seal(folder: Path, *, other_hosts: bool = False) -> str:
    """Seal a run; return why that failed, or an empty text."""
    try:
        # Imported late because it loads pyarrow, which a store without journals does not need.
        from .sealing import complaints

        why = "; ".join(complaints(folder, other_hosts=other_hosts))
    except Exception as error:  # The process must survive for the runs that follow, whatever is wrong with this one.
        why = repr(error)
    return why if why and has_journal(folder) else ""  # A deleted run needs no sealing.


if __name__ == "__main__":
    main()
