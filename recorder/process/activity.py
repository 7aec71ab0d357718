"""Detects a stalled process by sampling its CPU time and I/O.

A process is active while it computes, reads or writes, however slowly. It does none of these while it waits for a lock
or for a lost disk, or is stopped.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

#: Seconds between two samples.
LOOK_EVERY_S: Final = 1.0

#: Consecutive samples without activity after which a process counts as stalled. A slow disk with half a gigabyte to
#: write needs five seconds before activity shows; batch systems kill a job 30 s after they ask it to end.
MOST_QUIET_LOOKS: Final = 20


class Standstill:
    """A counter of consecutive samples at which a process showed no activity.

    It counts samples, not seconds. While the waiting process is itself stopped, as by Ctrl-Z, no activity is expected.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen = b""
        self._quiet_looks = 0

    def is_reached(self) -> bool:
        """Sample once more and return whether the process is stalled."""
        seen = _activity(self._pid)
        self._quiet_looks = self._quiet_looks + 1 if seen == self._seen else 0
        self._seen = seen
        return self._quiet_looks >= MOST_QUIET_LOOKS


def _activity(pid: int) -> bytes:
    """Return the CPU time and I/O counters of a process, for comparison; empty if they cannot be read."""
    process = Path("/proc", str(pid))
    try:
        # After the name, which may hold anything, and eleven more fields: CPU time in user and in system mode.
        computed = (process / "stat").read_bytes().rpartition(b")")[2].split()[11:13]
        return b" ".join((*computed, (process / "io").read_bytes()))
    except OSError:  # Not every system has /proc.
        return _cpu_time(pid)


def _cpu_time(pid: int) -> bytes:
    try:
        return subprocess.run(("ps", "-o", "time=", "-p", str(pid)), capture_output=True, check=False).stdout
    except OSError:
        return b""
