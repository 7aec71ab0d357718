"""Turning journals into Parquet while training goes on, in a process of its own: a thread stalls the loop by 7 ms.

The process is started with the recorder, because starting one in the middle of the training stalls the loop too: by
0.4 ms, and by 60 ms where the machine is busy. It reads what to seal from a pipe, and waits idle, without so much as
the libraries that it will need.
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

#: Dead runs of the same store that one recorder has sealed: as many as a pipe takes at once.
_MOST_OTHERS: Final = 100


class BackgroundSealing:
    """The sealer of one recorder. It begins with what dead runs have left in the same store.

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
                "pyarrow is not installed here: %s stays a journal until 'steptape seal' of a full installation turns "
                "it into Parquet",
                folder,
            )
            return
        self._begin()
        _open_sealings.add(self)
        others = [other for other in folders_with_journals(folder.parent) if other != folder]
        if others:
            self._ask(others[:_MOST_OTHERS], is_quiet=True)

    def start(self) -> None:
        """Seal what is finished, unless that is being done."""
        process = self._process
        if process is None:
            return
        while self._asked and process.has_answered(within_s=0):
            self._answer(process)
        if not self._asked:
            self._ask([self._folder])

    def finish(self) -> None:
        """Seal everything, and wait for it as long as it gets on; what is not sealed then is told of."""
        if not self._is_possible:
            return
        try:
            is_sealed = self._finish()
            if is_sealed is None:  # It was killed, maybe only just now.
                self.stop()
                self._begin()
                is_sealed = self._finish()
            why = "" if is_sealed else "could not be sealed"
        except _StandsStill:
            why = "is not sealed: the process that was to do it stands still, stopped or waiting for a disk or a lock"
        self.stop()
        if why:
            logger.warning(
                "the journal of %s %s; it is kept and readable as it is, and the next recorder of this store, or "
                "'steptape seal', tries again",
                self._folder,
                why,
            )

    def stop(self) -> None:
        """Let the process end; one that stands still is killed, after which others can finish what it was at."""
        process, self._process = self._process, None
        self._asked = 0
        if process is None:
            return
        process.requests.close()
        with process.answers:
            while not _has_ended(process):
                if self._standstill.is_reached():
                    process.kill()
                    # What waits in the kernel, as for a disk that is gone, outlives even that. It is not waited for.
                    _has_ended(process)
                    return

    def close_inherited_pipes(self) -> None:
        """In a forked child: close its copies of the pipes, by whose end the process learns that its work is done."""
        if self._process is not None:
            self._process.close_pipes()

    def _begin(self) -> None:
        self._process = _start()
        if self._process is not None:
            self._standstill = Standstill(self._process.pid)

    def _finish(self) -> bool | None:
        """Whether the process could seal everything; None when there is none to ask.

        Raises:
            _StandsStill: It does not get on.
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
            # It was killed, by a terminal's hang-up or for memory. ``finish`` starts another one.
            self._asked = 0

    def _answer(self, process: ChildProcess) -> bool | None:
        """The next answer: whether it could be sealed; None when none will come. Waits for it."""
        try:
            is_sealed: bool = process.receive().head["is_sealed"]
        except (EOFError, BrokenFrame):
            self._asked = 0
            return None
        self._asked -= 1
        return is_sealed


class _StandsStill(Exception):
    """The process that seals does not get on."""


def _start() -> ChildProcess | None:
    environment = {**os.environ, "PYTHONPATH": _import_path()}
    try:
        return ChildProcess("steptape.store.parquet.sealing_service", environment=environment, shows_errors=True)
    except OSError as error:
        logger.warning("journals stay unsealed: no process could be started (%s)", error)
        return None


def _has_ended(process: ChildProcess) -> bool:
    """Whether the process ends before the next look at it, which closes its end of the pipe."""
    while process.has_answered(within_s=LOOK_EVERY_S):
        if not os.read(process.answers.fileno(), 1 << 12):
            process.wait()
            break
    return process.poll() is not None


def _import_path() -> str:
    """Where this process finds modules. What is no text in ``sys.path`` Python itself passes over."""
    return os.pathsep.join(path for path in sys.path if path and isinstance(path, str))


_open_sealings: weakref.WeakSet[BackgroundSealing] = weakref.WeakSet()


def _let_go_of_inherited_pipes() -> None:
    for sealing in list(_open_sealings):
        sealing.close_inherited_pipes()


os.register_at_fork(after_in_child=_let_go_of_inherited_pipes)
