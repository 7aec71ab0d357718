"""A process that seals what it is told to: one JSON object a line in, ``done`` or ``failed`` a line out.

``{"folders": [...], "is_quiet": false}`` names run folders; with ``is_quiet`` nothing is said of those that cannot be
sealed. It ends with its input, which is when the process that started it has ended, in whatever way.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys


def main() -> None:
    """Serve until the input ends."""
    # Ctrl-C is sent to a terminal's whole process group; it is the training that it is meant for.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        # Only now, because it loads pyarrow: a short run needs that at its end alone.
        from .sealing import main as seal_all

        request = json.loads(line)
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stderr(nowhere if request["is_quiet"] else sys.stderr),
        ):
            status = seal_all(request["folders"])
        # Whoever asked may have died meanwhile; it is sealed all the same.
        with contextlib.suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), b"failed\n" if status else b"done\n")


if __name__ == "__main__":
    main()
