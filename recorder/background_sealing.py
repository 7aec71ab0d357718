"""Turning journals into Parquet while training goes on, in a process of its own: a thread stalls the loop by 7 ms.

The process is started with the recorder, because starting one in the middle of the training stalls the loop too: by
0.4 ms, and by 60 ms where the machine is busy. It reads what to seal from a pipe, and waits idle, without so much as
the libraries that it will need.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from ..store.processes.module_command import module_command
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
        self._process: subprocess.Popen[bytes] | None = None
        self._begin()
        _open_sealings.add(self)
        others = [other for other in folders_with_journals(folder.parent) if other != folder]
        if others:
            self._ask(others[:_MOST_OTHERS], is_quiet=True)

    def start(self) -> None:
        """Seal what is finished, unless that is being done."""
        process = self._process
        if process is None or process.stdout is None:
            return
        while self._asked and _has_answered(process.stdout, within_s=0):
            self._answer(process.stdout)
        if not self._asked:
            self._ask([self._folder])

    def finish(self) -> None:
        """Seal everything, and wait for it as long as it gets on; what is not sealed then is told of."""
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
        if process is None or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        with process.stdout:
            while not _has_ended(process, process.stdout):
                if self._standstill.is_reached():
                    process.kill()
                    # What waits in the kernel, as for a disk that is gone, outlives even that. It is not waited for.
                    _has_ended(process, process.stdout)
                    return

    def close_inherited_pipes(self) -> None:
        """In a forked child: close its copies of the pipes, by whose end the process learns that its work is done."""
        if self._process is not None and self._process.stdin is not None and self._process.stdout is not None:
            self._process.stdin.close()
            self._process.stdout.close()

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
        while self._asked and self._process is not None and self._process.stdout is not None:
            if _has_answered(self._process.stdout, within_s=LOOK_EVERY_S):
                answer = self._answer(self._process.stdout)
            elif self._standstill.is_reached():
                raise _StandsStill
        return answer

    def _ask(self, folders: Sequence[Path], *, is_quiet: bool = False) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        request = {"folders": [os.path.abspath(folder) for folder in folders], "is_quiet": is_quiet}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            self._asked += 1
        except OSError:
            # It was killed, by a terminal's hang-up or for memory. ``finish`` starts another one.
            self._asked = 0

    def _answer(self, stdout: IO[bytes]) -> bool | None:
        """The next answer: whether it could be done; None when none will come. Waits for it."""
        answer = stdout.readline()
        self._asked = self._asked - 1 if answer else 0
        return answer == b"done\n" if answer else None


class _StandsStill(Exception):
    """The process that seals does not get on."""


def _start() -> subprocess.Popen[bytes] | None:
    environment = {**os.environ, "PYTHONPATH": _import_path()}
    command = module_command("steptape.store.parquet.sealing_service")
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0)
    except OSError as error:
        logger.warning("journals stay unsealed: no process could be started (%s)", error)
        return None


def _has_answered(stdout: IO[bytes], *, within_s: float) -> bool:
    """Whether something can be read, or nothing will come any more."""
    answers = select.poll()  # select.select fails for a descriptor above 1023.
    answers.register(stdout, select.POLLIN)
    return bool(answers.poll(within_s * 1000))


def _has_ended(process: subprocess.Popen[bytes], stdout: IO[bytes]) -> bool:
    """Whether the process ends before the next look at it, which closes its end of the pipe."""
    while _has_answered(stdout, within_s=LOOK_EVERY_S):
        if not stdout.readline():
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
