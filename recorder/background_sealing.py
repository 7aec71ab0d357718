"""Seals journals to Parquet in a child process while training continues, because a thread stalls the loop by 7 ms.

The sealer starts with the recorder, because starting it during training also stalls the loop: by 0.4 ms, and by 60 ms
on a busy machine. It reads requests from a pipe. Until the first request it idles, without importing the libraries that
it will need.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ..store.processes.child_process import ChildProcess
from ..store.processes.protocol import BrokenFrame
from ..store.run_folder import folders_with_journals
from .process_activity import LOOK_EVERY_S, Standstill

logger = logging.getLogger("steptape")

#: Maximum number of dead runs of the same store that one recorder asks to be sealed: as many as a pipe takes at once.
_MOST_OTHERS: Final = 100


class BackgroundSealing:
    """The sealer of one recorder. It first seals the journals that dead runs left in the same store.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = 0
        self._process: ChildProcess | None = None
        self._is_possible = find_spec("pyarrow") is not None
        if not self._is_possible:
            logger.warning(
                "pyarrow is not installed: %s stays a journal. To convert it to Parquet, run 'steptape seal' in a full "
                "installation",
                folder,
            )
            return
        self._begin()
        _open_sealings.add(self)
        others = [other for other in folders_with_journals(folder.parent) if other != folder]
        if others:
            self._ask(others[:_MOST_OTHERS], is_quiet=True)

    def start(self) -> None:
        """Request sealing of the finished segments, unless a request is pending."""
        process = self._process
        if process is None:
            return
        while self._asked and process.has_answered(within_s=0):
            self._answer(process)
        if not self._asked:
            self._ask([self._folder])

    def finish(self) -> None:
        """Seal everything, waiting as long as the sealer makes progress. Warn if the journal stays unsealed."""
        if not self._is_possible:
            return
        try:
            is_sealed = self._finish()
            if is_sealed is None:  # The sealer was killed, perhaps only just now.
                self.stop()
                self._begin()
                is_sealed = self._finish()
            why = "" if is_sealed else "could not be sealed"
        except _StandsStill:
            why = "could not be sealed: the sealing process is stalled (stopped, or waiting for a disk or lock)"
        self.stop()
        if why:
            logger.warning(
                "the journal of %s %s. It is kept, and stays readable. The next recorder of this store, or "
                "'steptape seal', will try again",
                self._folder,
                why,
            )

    def stop(self) -> None:
        """Let the sealer exit. Kill it if it stalls, so that other sealers can finish its work."""
        process, self._process = self._process, None
        self._asked = 0
        if process is None:
            return
        process.requests.close()
        with process.answers:
            while not _has_ended(process):
                if self._standstill.is_reached():
                    process.kill()
                    # A process blocked in the kernel, as on a lost disk, survives even SIGKILL. Do not wait for it.
                    _has_ended(process)
                    return

    def close_inherited_pipes(self) -> None:
        """Close a forked child's copies of the pipes. The sealer exits when its input pipe reaches end of file."""
        if self._process is not None:
            self._process.close_pipes()

    def _begin(self) -> None:
        self._process = _start()
        if self._process is not None:
            self._standstill = Standstill(self._process.pid)

    def _finish(self) -> bool | None:
        """Seal everything and return whether that succeeded; None if no sealer is running.

        Raises:
            _StandsStill: The sealer is stalled.
        """
        self._ask([self._folder])
        answer = None
        while self._asked and self._process is not None:
            if self._process.has_answered(within_s=LOOK_EVERY_S):
                answer = self._answer(self._process)
            elif self._standstill.is_reached():
                raise _StandsStill
        return answer

    def _ask(self, folders: Sequence[Path], *, is_quiet: bool = False) -> None:
        if self._process is None:
            return
        try:
            self._process.send({"folders": [os.path.abspath(folder) for folder in folders], "is_quiet": is_quiet})
            self._asked += 1
        except OSError:
            # The sealer was killed, by a terminal's hangup or for memory. ``finish`` starts a new one.
            self._asked = 0

    def _answer(self, process: ChildProcess) -> bool | None:
        """Wait for the next answer. Return whether sealing succeeded; None if no answer will come."""
        try:
            is_sealed: bool = process.receive().head["is_sealed"]
        except (EOFError, BrokenFrame):
            self._asked = 0
            return None
        self._asked -= 1
        return is_sealed


class _StandsStill(Exception):
    """The sealer is stalled."""


def _start() -> ChildProcess | None:
    environment = {**os.environ, "PYTHONPATH": _import_path()}
    try:
        return ChildProcess("steptape.store.parquet.sealing_service", environment=environment, shows_errors=True)
    except OSError as error:
        logger.warning("journals stay unsealed: the sealing process could not be started (%s)", error)
        return None


def _has_ended(process: ChildProcess) -> bool:
    """Whether the process ends before the next look. It then closes its end of the pipe."""
    while process.has_answered(within_s=LOOK_EVERY_S):
        if not os.read(process.answers.fileno(), 1 << 12):
            process.wait()
            break
    return process.poll() is not None


def _import_path() -> str:
    """Join the entries of ``sys.path``. Skip empty ones and, as Python itself does, those that are not text."""
    return os.pathsep.join(path for path in sys.path if path and isinstance(path, str))


_open_sealings: weakref.WeakSet[BackgroundSealing] = weakref.WeakSet()


def _let_go_of_inherited_pipes() -> None:
    for sealing in list(_open_sealings):
        sealing.close_inherited_pipes()


os.register_at_fork(after_in_child=_let_go_of_inherited_pipes)
