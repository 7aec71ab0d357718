"""Calls ``fsync`` on journal segments at an interval, in a thread apart from the training thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from ..run_folder import sync_folder


class Syncer:
    """A thread that syncs the segments of one journal.

    It reopens segments by path, so it shares neither a descriptor nor a lock with the writer. A segment that was sealed
    meanwhile, and so made durable, no longer exists and is skipped.

    Args:
        every_s: Seconds between two syncs.
        on_failure: Called in this thread with the error of a failed sync. Must not raise.
    """

    def __init__(self, every_s: float, on_failure: Callable[[OSError], None] | None) -> None:
        self._every_s = every_s
        self._on_failure = on_failure
        self._segments: list[Path] = []
        self._listed: Path | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="steptape-sync", daemon=True)
        self._thread.start()

    def follow(self, segment: Path) -> None:
        """Sync this segment from now on, and earlier ones once more."""
        self._segments.append(segment)

    def stop(self) -> None:
        """Sync once more and stop the thread."""
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._sync()
        self._sync()

    def _sync(self) -> None:
        segments = list(self._segments)  # The writer may append meanwhile; append and copy are atomic.
        for segment in segments:
            try:
                _sync_file(segment)
                if segment is segments[-1] and segment != self._listed:
                    sync_folder(segment.parent)
                    self._listed = segment
            except FileNotFoundError:
                continue
            except OSError as error:
                if self._on_failure is not None:
                    self._on_failure(error)
        del self._segments[: len(segments) - 1]


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
