"""Records what Accelerate logs: a tracker over a recorder, which the loop asks for the control flags.

Values of ``Accelerator.log`` in, calls of a ``Recorder`` out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, Self

from ..importers.rows import split_row
from ..recorder.recorder import Recorder
from ..store.errors import TelemetryError

try:
    from accelerate.state import GradientState, PartialState
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError("Accelerate is not installed. Run pip install 'steptape[accelerate]'") from error

logger = logging.getLogger("steptape")


class SteptapeTracker(GeneralTracker):
    """Records what ``accelerator.log`` is given.

        accelerator = Accelerator()
        rec = Recorder("runs", rules="policy.yaml")
        SteptapeTracker(rec, on_log="auto").attach(accelerator)
        accelerator.init_trackers("project", config={"lr": 0.1})

    Without skipped updates, ``Accelerator(log_with=SteptapeTracker(rec))`` does as well.

    Accelerate logs on the main process alone. In a job of several, call ``rec.step`` on each, and keep
    ``on_log="log"``.

    Args:
        recorder: The recorder. Construct it after the ``Accelerator``, which makes the process group.
        step_key: The name among the logged values that holds the step, which is the number of finished updates. If not
            given: the ``step`` of ``log``.
        on_log: What a call records: ``log`` (default) a ``log`` event; ``auto`` an evaluation of the values whose names
            say so, such as ``eval_loss``, as in imports, and an update of the others. While gradients are accumulated,
            the values of micro-batches are averaged into those of their update.
    """

    name = "steptape"
    requires_logging_directory = False

    def __init__(
        self, recorder: Recorder, *, step_key: str | None = None, on_log: Literal["log", "auto"] = "log"
    ) -> None:
        super().__init__()
        if on_log not in ("log", "auto"):
            raise TelemetryError("on_log must be 'log' or 'auto'", got=on_log)
        self._recorder, self._step_key, self._on_log = recorder, step_key, on_log
        self._accelerator: Any = None
        self._micro_batches: list[Mapping[str, Any]] = []

    @property
    def tracker(self) -> Recorder:
        """The recorder."""
        return self._recorder

    def attach(self, accelerator: Any) -> Self:
        """Have an accelerator log here, and record the updates that its gradient scaler skips. Idempotent.

        It takes the place of an earlier tracker of the same store, whose run ends: a cell of a notebook may run twice.
        """
        for earlier in [each for each in accelerator.log_with if isinstance(each, SteptapeTracker)]:
            if earlier is not self and earlier._recorder.folder.parent == self._recorder.folder.parent:
                earlier._detach(accelerator, keeps=self._recorder)
        self._accelerator = accelerator
        if self not in accelerator.log_with:
            accelerator.log_with.append(self)
        return self

    def _detach(self, accelerator: Any, keeps: Recorder) -> None:
        """Leave an accelerator: its log, and its checkpoints, which could not be loaded without this recorder."""
        listed = (accelerator.log_with, accelerator.trackers, accelerator._custom_objects)
        for each in listed:
            each[:] = [one for one in each if one is not self and (one is keeps or one is not self._recorder)]
        if self._recorder is not keeps:
            what = "attach: an earlier tracker of this accelerator recorded into the same store"
            logger.warning("%s; its run %s ends", what, self._recorder.run_id)
            self.finish()

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the config of ``init_trackers``, and what the accelerator was given. A state can still be loaded."""
        names = ("mixed_precision", "gradient_accumulation_steps") if self._accelerator is not None else ()
        own = {f"accelerator.{name}": getattr(self._accelerator, name, None) for name in names}
        self._recorder.declare(config={**values, **own})
        if self._on_log != "log" and PartialState().num_processes > 1:
            what = "Accelerate logs on the main process alone: on_log='auto' counts no steps elsewhere"
            logger.warning("%s. Call rec.step on every process, and keep on_log='log'", what)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Record values, as ``on_log`` says."""
        rec = self._recorder
        if self._step_key is not None:
            values = dict(values)
            step = values.pop(self._step_key, step)
        for kind, part in split_row(values) if self._on_log == "auto" else [(self._on_log, values)]:
            if kind == "evaluate":
                rec.evaluate(part)
            elif kind == "log":
                rec.log(part)
            else:
                self._micro_batches.append(part)
                if GradientState().sync_gradients:
                    group, self._micro_batches = self._micro_batches, []
                    skipped = getattr(self._accelerator, "optimizer_step_was_skipped", False)
                    rec.step(_mean(group), step=step, micro_step=len(group), applied=not skipped)

    def finish(self) -> None:
        """End the run. Micro-batches that no update followed are a ``log`` event."""
        if self._micro_batches:
            self._recorder.log(_mean(self._micro_batches))
            self._micro_batches = []
        self._recorder.close()


def _mean(group: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the means of values that micro-batches have given, and the newest of what is no number."""
    if len(group) == 1:
        return group[0]
    means = {}
    for name in dict.fromkeys(name for values in group for name in values):
        given = [values[name] for values in group if name in values]
        try:
            means[name] = sum(given) / len(given)
        except Exception:  # Values of any type: text, tensors of different shapes.
            means[name] = given[-1]
    return means
