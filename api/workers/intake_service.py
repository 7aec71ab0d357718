"""Runs a server's intake: seals what ended in a child process, and releases runs whose pushers fell silent."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from pathlib import Path
from typing import Final

from ...shipping.intake import Intake, IntakeLimits
from ...store.child_process import ChildProcess
from ...store.child_protocol import BrokenFrame

#: Seconds between two checks of leases.
_LOOK_EVERY_S: Final = 5.0

_LOGGER: Final = logging.getLogger("steptape.api")


class IntakeService:
    """The intake of a server, with the thread that seals.

    Args:
        store: The server's store.
        limits: Limits on what it takes.

    Attributes:
        intake: Takes what pushers send.
    """

    def __init__(self, store: Path, limits: IntakeLimits) -> None:
        self.intake = Intake(store, self._request, limits)
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: set[Path] = set()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._work, name="steptape-intake", daemon=True).start()

    def close(self) -> None:
        """Release all runs, and end the thread after the run that it seals."""
        self._waiting.put(None)
        self.intake.close()

    def _request(self, folder: Path) -> None:
        with self._lock:
            if folder not in self._pending:
                self._pending.add(folder)
                self._waiting.put(folder)

    def _work(self) -> None:
        while True:
            try:
                folder = self._waiting.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                self.intake.release_silent()
                continue
            if folder is None:
                return
            with self._lock:
                self._pending.discard(folder)
            self._seal(folder)
            self.intake.release_silent()

    def _seal(self, folder: Path) -> None:
        """Seal one run. On failure its journals stay, which all readers read; the pusher asks again."""
        with contextlib.suppress(OSError):
            process = ChildProcess("steptape.store.parquet.sealing_service")
            try:
                process.send({"folder": str(folder), "other_hosts": True})
                process.requests.close()  # It ends when it is done, even if this server has ended.
                if why := process.receive().head["why"]:
                    _LOGGER.warning("%s could not be sealed: %s", folder.name, why)
            except (EOFError, BrokenFrame):
                _LOGGER.warning("%s could not be sealed: the sealing process ended", folder.name)
            process.wait()
            process.close_pipes()
