"""Whether another process still gets on: its id in, and at each look whether it has stood still for too long.

It gets on as long as it computes, reads or writes, however slowly; waiting for a lock, for a disk that is gone or to be
continued after a stop it does none of that.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

#: Seconds between two looks.
LOOK_EVERY_S: Final = 1.0

#: Looks in a row at which nothing had moved, after which nothing is expected any more. A slow disk that has half a
#: gigabyte to write before it says so needs five seconds; batch systems kill 30 s after they have asked for an end.
MOST_QUIET_LOOKS: Final = 20


class Standstill:
    """What is known of the course of a process that is waited for.

    Looks are counted and not seconds: while the process that waits is stopped itself, as by Ctrl-Z, nothing is meant to
    move.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen = b""
        self._quiet_looks = 0

    def is_reached(self) -> bool:
        """Look again. Whether nothing has moved for too long."""
        seen = _activity(self._pid)
        self._quiet_looks = self._quiet_looks + 1 if seen == self._seen else 0
        self._seen = seen
        return self._quiet_looks >= MOST_QUIET_LOOKS


def _activity(pid: int) -> bytes:
    """What a process has computed, read and written so far, to be compared; nothing where that cannot be found out."""
    process = Path("/proc", str(pid))
    try:
        # Behind the name, which may hold anything, and eleven more fields: CPU time in user and in system mode.
        computed = (process / "stat").read_bytes().rpartition(b")")[2].split()[11:13]
        return b" ".join((*computed, (process / "io").read_bytes()))
    except OSError:  # Not every system shows processes as files.
        return _cpu_time(pid)


def _cpu_time(pid: int) -> bytes:
    try:
        return subprocess.run(("ps", "-o", "time=", "-p", str(pid)), capture_output=True, check=False).stdout
    except OSError:
        return b""
