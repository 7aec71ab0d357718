"""Pushes the runs of this program to another place, each in a child process: the training thread never waits for it.

The process starts with the run and reads its folder. The program's exit waits for the rest, for a limited time.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Final, NamedTuple

from ...store.child_process import ChildProcess, import_path
from ...store.child_protocol import BrokenFrame
from ...store.errors import TelemetryError
from .locking import forkable_lock

logger = logging.getLogger("steptape")


class PushSettings(NamedTuple):
    """Where a recorder pushes its run, and how long the program's exit waits for it."""

    target: str
    wait_s: float


def fetch_run(store: str, run_id: str, settings: PushSettings) -> str:
    """Copy a run that a store lacks from the target, if the target has it.

    Returns:
        Why the target could not be asked; empty if it was, whether or not it has the run.

    Raises:
        TelemetryError: The run still has a writer there.
    """
    arguments = (os.path.abspath(store), run_id, settings.target, str(settings.wait_s))
    environment = {**os.environ, "PYTHONPATH": import_path()}
    try:
        process = ChildProcess(
            "steptape.shipping.run_fetch", *arguments, environment=environment, shows_errors=True, is_bound=True
        )
    except OSError as error:
        return str(error)
    try:
        answer = process.receive().head
    except (EOFError, BrokenFrame):
        return "the process that asks it was killed"
    finally:
        process.end()
    if answer["is_live"]:
        what = "the run is still being written; an attempt must end before the next can begin"
        raise TelemetryError(what, where=settings.target, got=run_id, fix="Wait until its process ends, or end it")
    return str(answer["why"])


class BackgroundPushing:
    """The pushing processes of this program, by the folders of their runs. Threads may share it."""

    def __init__(self) -> None:
        self._lock = forkable_lock()
        self._processes: dict[str, tuple[ChildProcess, PushSettings]] = {}
        self._waits = False

    def start(self, folder: str, settings: PushSettings, rank: int | None) -> None:
        """Push a run from now on, unless a process does already. A failure is logged.

        Exit handlers run in reverse order, so a recorder calls this before it registers its own.
        """
        with self._lock:
            if not self._waits:
                atexit.register(self._finish)
                self._waits = True
            if folder in self._processes and self._processes[folder][0].poll() is None:
                return
            if find_spec("numpy") is None:
                logger.warning("numpy is not installed, so the run is not pushed. %s", _how_to_push(folder, settings))
                return
            environment = {**os.environ, "PYTHONPATH": import_path()}
            arguments = (folder, settings.target, "-" if rank is None else str(rank), str(settings.wait_s))
            try:
                process = ChildProcess(
                    "steptape.shipping.push_service", *arguments, environment=environment, shows_errors=True
                )
            except OSError as error:
                logger.warning("the run is not pushed (%s). %s", error, _how_to_push(folder, settings))
                return
            self._processes[folder] = (process, settings)

    def end(self, folder: str) -> None:
        """Note that a run does not continue: its process ends when everything is pushed. Does not wait."""
        with self._lock, suppress(KeyError, OSError):
            self._processes[folder][0].send({"end": True}, until_s=time.monotonic())

    def drop(self, folder: str) -> None:
        """End the push of a run that is taken back."""
        with self._lock:
            process, _ = self._processes.pop(folder, (None, None))
        if process is not None:
            process.end()

    def _finish(self) -> None:
        """Wait for all pushes at the program's exit, and log how to push the rest."""
        with self._lock:
            waiting, self._processes = self._processes, {}
        began_s = time.monotonic()
        for folder, (process, settings) in waiting.items():
            try:
                self._wait(folder, process, settings, began_s + settings.wait_s)
            except KeyboardInterrupt:
                logger.warning("Ctrl-C ended the wait for a push. %s", _how_to_push(folder, settings))
            process.end()

    def _wait(self, folder: str, process: ChildProcess, settings: PushSettings, until_s: float) -> None:
        if not process.has_answered(within_s=until_s - time.monotonic()):
            what = f"the run was not pushed to {settings.target} within {settings.wait_s:g} s (Push.wait_s)"
            logger.warning("%s. %s", what, _how_to_push(folder, settings))
            return
        try:
            why = process.receive().head["why"]
        except (EOFError, BrokenFrame):
            why = "the pushing process was killed"
        if why:
            logger.warning("the run was not pushed to %s: %s. %s", settings.target, why, _how_to_push(folder, settings))

    def after_fork_in_child(self) -> None:
        """Close the copies of the pipes: a process learns from its pipe that the program has ended."""
        for process, _ in self._processes.values():
            process.abandon()
        self._processes, self._waits = {}, False


def _how_to_push(folder: str, settings: PushSettings) -> str:
    command = f"steptape push {shlex.quote(folder)} {shlex.quote(settings.target)}"
    return f"It is kept in {folder}. To push it: {command}"


#: The pushing of this program.
PUSHING: Final = BackgroundPushing()

os.register_at_fork(after_in_child=PUSHING.after_fork_in_child)
