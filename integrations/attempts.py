"""Keeps the recorder of one training at a time, for frameworks whose callbacks do not learn that a training failed.

The begin and the end of a training in, an open recorder out. A training that did not reach its end is a failed run.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from ..recorder.advice import Advice
from ..recorder.arguments import completed
from ..recorder.process.termination import Terminated
from ..recorder.recorder import Recorder
from ..store.errors import TelemetryError
from ..store.plan import Plan
from .guard import Guard, State

_Callback = TypeVar("_Callback")

#: The trainings whose runs have not ended, by the model that they train.
_OPEN: Final[weakref.WeakKeyDictionary[Any, Attempts]] = weakref.WeakKeyDictionary()


class Attempts:
    """The attempts that one callback records, one after the other.

    Args:
        store: Folder of runs.
        arguments: Further arguments of ``Recorder``.
        advice: The calls that warnings name.
        call: The call that trains, for the reason of a run that did not reach its end.
        save_to: Folder of the checkpoints that rules order, where ``save`` writes them.
        keep: How many of these to leave; None keeps all.

    Attributes:
        guard: Keeps failures out of the training.
        recorder: The recorder of the current training, or of the latest; None before.

    Raises:
        TelemetryError: ``keep`` is no whole number from 1.
    """

    def __init__(
        self,
        store: str | Path,
        arguments: Mapping[str, Any],
        *,
        advice: Advice,
        call: str,
        save_to: str | Path = "",
        keep: int | None = None,
    ) -> None:
        if keep is not None and not (type(keep) is int and keep > 0):
            raise TelemetryError("keep must be a whole number from 1", got=keep)
        self.guard = Guard(strict=bool(arguments.get("strict")), advice=advice)
        self.recorder: Recorder | None = None
        self._store, self._arguments, self._call = store, arguments, call
        self._folder, self._keep, self._ordered = Path(save_to), keep, list[Path]()
        self._ending: tuple[str | None, str | None] = (None, None)

    @property
    def live(self) -> Recorder | None:
        """The recorder while a training runs; else None."""
        return None if self.recorder is None or self.recorder.is_closed else self.recorder

    def begin(self, model: Any, resume: State | None, plan: Mapping[str, Any], config: Mapping[str, Any]) -> Recorder:
        """Open the run of a training, or the next attempt of the run that a state names.

        An attempt of the same model that is still open has failed.

        Args:
            model: What is trained.
            resume: The state that a checkpoint keeps; None without one.
            plan: The planned length, as fields of ``Plan``, unless the caller has given them.
            config: Hyper-parameters, to which the caller's own are added.
        """
        earlier = _OPEN.get(model)
        if earlier not in (None, self) and earlier.live is not None:
            self.guard.warn(f"an earlier callback still records this model into {earlier._store}; its run ends")
            earlier.end()
        own = self._arguments.get("config")
        merged = {**config, **own} if isinstance(own, Mapping) else own or config
        rec = self.open(resume, completed({**self._arguments, "config": merged}, Plan, **plan))
        _OPEN[model] = self
        return rec

    def open(
        self, resume: Mapping[str, Any] | None, arguments: Mapping[str, Any], anew: Mapping[str, Any] | None = None
    ) -> Recorder:
        """Open a run or the next attempt of one, as ``Guard.opened``. An attempt that is still open ends before."""
        self.end()
        self.recorder = self.guard.opened(self._store, resume, arguments, anew=anew)
        self._ending = ("failed", f"{self._call} did not reach its end")
        atexit.register(self._end_at_exit)
        return self.recorder

    def reach_end(self, status: str | None = None, reason: str | None = None) -> None:
        """Note that the training has reached its end, and how. Its run may end later."""
        self._ending = (status, reason)

    def end(self) -> None:
        """End the run of the current training: as failed, unless the training has reached its end. Idempotent."""
        atexit.unregister(self._end_at_exit)
        if (rec := self.live) is not None:
            status, reason = self._ending
            rec.close(status=status, reason=reason)

    @contextlib.contextmanager
    def training(self, callback: _Callback, leave: Callable[[], object]) -> Iterator[_Callback]:
        """End the run with the block, as failed or interrupted if it raises, and leave what is trained as it was."""
        try:
            yield callback
        except BaseException as error:
            if (rec := self.live) is not None:
                rec.fail(error)
            raise
        finally:
            try:
                leave()
            finally:
                self.end()

    def save(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a checkpoint that rules ordered, and delete older ones.

        A file of this name that another run has left stays: the run's id is added to the new one.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / name
        if path.exists() and path not in self._ordered and self.recorder is not None:
            path = path.with_name(f"{path.stem}-{self.recorder.run_id}{path.suffix}")
        write(path)
        self.leave_newest(path, _delete)

    def leave_newest(self, newest: Path, delete: Callable[[Path], object]) -> None:
        """Add an ordered checkpoint, and delete those that were added before the newest ``keep``."""
        self._ordered = [*(each for each in self._ordered if each != newest), newest]
        while self._keep is not None and len(self._ordered) > self._keep:
            delete(self._ordered.pop(0))

    def _end_at_exit(self) -> None:
        """End a run that failed with an exception that the program has caught: the recorder knows of others alone."""
        if Terminated.latest is None and getattr(sys, "last_value", None) is None:
            self.end()


def _delete(checkpoint: Path) -> None:
    for each in (checkpoint, state_file(checkpoint)):
        each.unlink(missing_ok=True)


def state_file(checkpoint: str | Path) -> Path:
    """Return the file beside a checkpoint that keeps the recorder's state, where the checkpoint itself cannot."""
    return Path(f"{checkpoint}.steptape.json")
