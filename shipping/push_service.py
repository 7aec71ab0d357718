"""Pushes one run of a recorder, in a process of its own: ``python -m steptape.shipping.push_service``.

Its arguments are the run's folder, the target, the rank (``-`` for all) and the seconds that it may go on without its
parent. The request ``{"end": true}`` says that the run does not continue. Once everything is pushed, the process
answers ``{"why": ""}``, or why the run was refused, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ..store.child_protocol import frames, write_frame
from ..store.errors import RunChanging, TelemetryError
from .push_protocol import PushRefused, TargetAway
from .store_push import LOOK_EVERY_S, Backoff, environments_token, push_of, target_of

#: Longest pause once the run has ended, because the program waits.
_MOST_PAUSE_AT_END_S: Final = 1.0


class _Parent:
    """The recorder's process: whether it has ended the run, and when it ended itself."""

    def __init__(self) -> None:
        self.has_ended_run = threading.Event()
        self.gone_s: float | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for _ in frames(sys.stdin.fileno()):
            self.has_ended_run.set()
        self.gone_s = time.monotonic()
        self.has_ended_run.set()

    def sleep(self, seconds: float) -> None:
        """Sleep; the end of the run wakes it."""
        if self.has_ended_run.is_set():
            time.sleep(min(seconds, _MOST_PAUSE_AT_END_S))
        else:
            self.has_ended_run.wait(seconds)


def main() -> None:
    """Push until the run has ended and the target has all of it."""
    # Terminals and batch systems send these to all processes of a job; the run's last events are still to come.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder, address, rank, wait_s = sys.argv[1:]
    try:
        why = _push(Path(folder), address, None if rank == "-" else int(rank), float(wait_s))
    except TelemetryError as error:
        why = str(error)
    if why:  # The program reports it at its end, which may be days away.
        say(f"the run is not pushed: {why}")
    with suppress(BrokenPipeError):
        write_frame(sys.stdout.fileno(), {"why": why})
    os._exit(0)


def _push(folder: Path, address: str, rank: int | None, wait_s: float) -> str:
    """Push a run to its end; return why it was not pushed, or an empty text."""
    parent = _Parent()
    backoff = Backoff(say, float("inf"), sleep=parent.sleep)
    with closing(target_of(address, environments_token())) as target:
        push = push_of(folder, target, rank)
        while parent.gone_s is None or time.monotonic() < parent.gone_s + wait_s:
            may_end, began_s = parent.has_ended_run.is_set(), time.monotonic()
            try:
                progress = push.look()
            except PushRefused as error:
                return str(error)
            except (TargetAway, RunChanging) as error:
                backoff.wait(error, began_s)
                continue
            backoff.end()
            if progress.is_done and may_end:
                return ""
            parent.sleep(LOOK_EVERY_S)
    return "the program has ended"


def say(text: str) -> None:
    """Print a line on stderr, if that is open."""
    with suppress(OSError, ValueError):
        print(f"steptape: push: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
