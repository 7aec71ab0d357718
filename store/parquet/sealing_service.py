"""Seals run folders in a process of its own: a frame with their paths in, a frame that says whether it worked out.

A request is ``{"folders": [...], "is_quiet": false}``; with ``is_quiet``, folders that cannot be sealed are not
reported. An answer is ``{"is_sealed": true}``. The process does all that it was asked, and ends with its input, also
when its parent was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from ..processes.protocol import frames, write_frame


def main() -> None:
    """Serve until the input ends."""
    # Ctrl-C is sent to a terminal's whole process group; it is the training that it is meant for.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for request in frames(sys.stdin.fileno()):
        # Only now, because it loads pyarrow: a short run needs that at its end alone.
        from .sealing import main as seal_all

        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stderr(nowhere if request.head["is_quiet"] else sys.stderr),
        ):
            status = seal_all(request.head["folders"])
        # The parent may have died meanwhile; it is sealed all the same.
        with contextlib.suppress(BrokenPipeError):
            write_frame(sys.stdout.fileno(), {"is_sealed": not status})


if __name__ == "__main__":
    main()
