"""Seals runs in child processes: what pushers ended, and what dead runs left in the store.

The service of the intake also releases runs whose pushers fell silent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..shipping.intake import Intake, IntakeLimits
from ..store.child_process import ChildProcess
from ..store.child_protocol import BrokenFrame
from ..store.user_cache import is_mirror

#: Seconds between two checks of leases.
_LOOK_EVERY_S: Final = 5.0

#: Seconds between two searches for journals of dead runs. Recorders seal what they find, too.
_EVERY_S: Final = 3600.0

#: The first pages have priority: looking for journals in 50,000 runs takes 0.6 s.
_NICENESS: Final = 10

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


@contextlib.contextmanager
def sealing_store(store: Path) -> Iterator[None]:
    """Seal a store's dead runs until the block ends, if this process may write to the store."""
    if not os.access(store, os.W_OK) or is_mirror(store):
        yield
        return
    stopped = threading.Event()
    threading.Thread(target=_seal, args=(store, stopped), name="steptape-seal", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


def _seal(store: Path, stopped: threading.Event) -> None:
    while not stopped.is_set():
        # Without a process or memory for one, journals stay journals, which all readers read.
        with contextlib.suppress(OSError):
            process = ChildProcess("steptape.store.parquet.sealing_service")
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            process.send({"store": str(store.absolute())})
            process.requests.close()  # It ends when it is done, even if this server has ended.
            process.wait()
            process.close_pipes()
        stopped.wait(_EVERY_S)
