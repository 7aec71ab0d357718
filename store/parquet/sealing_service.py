"""Serves requests to seal run folders, in its own process: takes frames with paths, answers whether sealing succeeded.

A request is ``{"folders": [...], "is_quiet": false}``; with ``is_quiet``, folders that cannot be sealed are not
reported. An answer is ``{"is_sealed": true}``. The process finishes all requests and ends with its input, even if its
parent was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from ..processes.protocol import frames, write_frame


def main() -> None:
    """Serve until the input ends."""
    # A terminal sends Ctrl-C to the whole process group; it is meant for the training.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for request in frames(sys.stdin.fileno()):
        # Imported late because it loads pyarrow, which a short run needs only at its end.
        from .sealing import main as seal_all

        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stderr(nowhere if request.head["is_quiet"] else sys.stderr),
        ):
            status = seal_all(request.head["folders"])
        # The parent may have died meanwhile; the run is sealed all the same.
        with contextlib.suppress(BrokenPipeError):
            write_frame(sys.stdout.fileno(), {"is_sealed": not status})


if __name__ == "__main__":
    main()
