"""Records what a script writes for TensorBoard: ``from steptape.integrations.tensorboard import SummaryWriter``.

Scalars become events of a run. What has no meaning here is left out with one warning. ``SummaryWriter(tee=True)`` also
writes the event files.
"""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..recorder.advice import TENSORBOARD, advising
from ..recorder.arguments import Ranks, completed
from ..recorder.recorder import Recorder
from . import wandb
from .step_rows import StepRows, step_of, warn_once

#: The newest writer of each folder.
_WRITERS: Final[weakref.WeakValueDictionary[str, SummaryWriter]] = weakref.WeakValueDictionary()


class SummaryWriter:
    """A run with the methods of TensorBoard's writer.

    The values of one step are one event, and those of tags such as ``Loss/val`` an evaluation. They are recorded when a
    value of another step comes, or the same tag again.
    A second writer for the same folder begins another run. The first run ends, and its writer records into the second.
    After ``wandb.init(sync_tensorboard=True)`` of ``steptape.integrations.wandb``, the writer writes into that run.

    Args:
        log_dir: A folder for files of the script, after which the run is named.
        comment: A suffix of the name.
        purge_step, max_queue, flush_secs, filename_suffix: For ``tee``.
        store: The store; by default ``STEPTAPE_STORE`` or ``runs``.
        tee: A real writer that also gets every call; True makes one for ``log_dir``.
        **own: Arguments of ``Recorder``, such as ``rules``.

    Attributes:
        recorder: The recorder of the run.
        log_dir: As given; else the run's folder.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
        *,
        store: str | os.PathLike[str] | None = None,
        tee: Any = None,
        **own: Any,
    ) -> None:
        if tee is True:
            from torch.utils.tensorboard import SummaryWriter as RealWriter

            make: Any = RealWriter  # It has no annotations.
            tee = make(log_dir, comment, purge_step, max_queue, flush_secs, filename_suffix)
        parts = [] if log_dir is None else [part for part in Path(log_dir).parts[-2:] if part not in ("runs", os.sep)]
        shared = wandb.run if wandb.run is not None and wandb.run.syncs_tensorboard else None
        self._has_own_run = shared is None
        if shared is not None:
            self.recorder = shared.recorder
        else:
            # A rank of its own: a writer belongs to one process, and scripts make it on rank 0 alone.
            own = completed({"name": f"{'/'.join(parts)}{comment}" or None, **own}, Ranks, rank=0)
            with advising(TENSORBOARD):
                self.recorder = Recorder(Path(store or os.environ.get("STEPTAPE_STORE", "runs")), **own)
        if log_dir is not None:
            os.makedirs(log_dir, exist_ok=True)
        self.log_dir = str(self.recorder.folder if log_dir is None else log_dir)
        self._tee = tee
        self._rows = StepRows(self.recorder, self.recorder.progress.updates)
        atexit.register(self._rows.commit)
        earlier = _WRITERS.get(os.path.abspath(self.log_dir))
        _WRITERS[os.path.abspath(self.log_dir)] = self
        if earlier is not None:
            earlier._continue_in(self)

    @property
    def control(self) -> Any:
        """The control flags. To read them records the current event, so that rules have judged it."""
        self._rows.commit()
        return self.recorder.control

    def get_logdir(self) -> str:
        """Return ``log_dir``."""
        return self.log_dir

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, *more: Any, **named: Any) -> None:
        """Add a value to the event of its step; without a step, to that of the newest."""
        if self._tee is not None:
            self._tee.add_scalar(tag, scalar_value, global_step, *more, **named)
        self._add({tag: scalar_value}, global_step)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None, *more: Any
    ) -> None:
        """Add several values, as ``MAIN_TAG/TAG``."""
        if self._tee is not None:
            self._tee.add_scalars(main_tag, tag_scalar_dict, global_step, *more)
        self._add({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step)

    def add_text(self, tag: str, text_string: str, *more: Any, **named: Any) -> None:
        """Record a note."""
        if self._tee is not None:
            self._tee.add_text(tag, text_string, *more, **named)
        self.recorder.annotate(text_string, tag=tag)

    def add_hparams(
        self, hparam_dict: Mapping[str, Any], metric_dict: Mapping[str, Any], *more: Any, **named: Any
    ) -> None:
        """Declare hyper-parameters as the run's config, and add values."""
        if self._tee is not None:
            self._tee.add_hparams(hparam_dict, metric_dict, *more, **named)
        self.recorder.declare(config=dict(hparam_dict))
        self._add(metric_dict, None)

    def flush(self) -> None:
        """Flush ``tee``. The current event stays open: the values of its step may follow."""
        if self._tee is not None:
            self._tee.flush()

    def close(self) -> None:
        """Record the last event and end the run."""
        self._end_run()
        if self._tee is not None:
            self._tee.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._has_own_run:
            self._rows.commit()
            self.recorder.fail(error)
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("add_"):
            return functools.partial(self._leave_out, name)
        raise AttributeError(f"steptape's SummaryWriter has no {name!r}")

    def _continue_in(self, other: SummaryWriter) -> None:
        """End the run, and write what may still come into that of another writer."""
        if self._has_own_run and not self.recorder.is_closed:
            warn_once(
                f"a second writer for {self.log_dir}: the run of the first ends, and both write into the second's"
            )
            self._end_run()
            self.recorder, self._rows, self._has_own_run = other.recorder, other._rows, False

    def _end_run(self) -> None:
        atexit.unregister(self._rows.commit)
        self._rows.commit()
        if self._has_own_run:
            self.recorder.close()

    def _leave_out(self, name: str, *given: Any, **named: Any) -> None:
        if self._tee is not None:
            getattr(self._tee, name)(*given, **named)
        else:
            warn_once(
                f"{name} is left out: steptape records numbers, text and notes. SummaryWriter(tee=True) writes it"
            )

    def _add(self, values: Mapping[str, Any], step: Any) -> None:
        if self._rows.row and not self._rows.row.keys().isdisjoint(values):
            self._rows.commit()
        self._rows.add(values, step_of(step, self._rows.step))
