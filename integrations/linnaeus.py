"""The names of linnaeus' progress tracking, over steptape's counts: progress, consistency, processes, metrics.

    from steptape.integrations.linnaeus import TrainingProgress

With ``recorder=``, a ``TrainingProgress`` records its counts. ``Run.progress`` and ``steptape doctor RUN --training``
then read the same numbers.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, Final, ParamSpec, Self, TypeVar

from ..recorder.ranks.rank import this_rank
from ..recorder.recorder import Recorder
from ..rules.readings.milestone import exact, position_of
from ..store.reading.tally import DATA_ORDER, NUM_SAMPLES
from ..store.store import open_run

_Taken = ParamSpec("_Taken")
_Result = TypeVar("_Result")

logger = logging.getLogger("steptape")

QUARTERS: Final = (0.25, 0.5, 0.75)

#: What a ``TrainingProgress`` takes from its own process, not from a checkpoint.
_NOT_KEPT: Final = ("world_size", "accumulation_steps", "total_epochs", "_intervals", "_recorder")

#: Of the intervals between validations.
_UNITS: Final = ("EPOCHS", "STEPS", "FRACTION")


def get_world_size() -> int:
    """Return the number of processes that train together."""
    return this_rank().world_size


def get_rank_safely() -> int:
    """Return the rank of this process; 0 where it trains alone."""
    return this_rank().rank


@functools.lru_cache(1024)
def milestone(fraction: float | str | Fraction, total_steps: int) -> int:
    """Return the first update at which this share of all updates is finished, at least 1.

    A float counts as the decimal that it is written as: 0.07 of 100 updates are 7, not 8.

    >>> milestone(0.07, 100), milestone(0.25, 10), milestone("1/3", 9)
    (7, 3, 3)
    """
    return max(1, position_of(exact(fraction), total_steps))


class TrainingProgress:
    """Counts epochs, micro-batches, updates and samples, as the loop reports them.

    Args:
        config: Where ``TRAIN.EPOCHS`` holds the number of epochs, if not given as ``total_epochs``, and
            ``SCHEDULE.VALIDATION`` the intervals of ``should_validate``.
        world_size: Processes that train together.
        accumulation_steps: Micro-batches of an update.
        total_epochs: Epochs that the training is meant to take.
        recorder: Records epochs, updates and their samples.

    Attributes:
        epoch: The current epoch, from 1; 0 before the first.
        step: Micro-batches of this process.
        global_step: Optimizer updates. They are the same on all processes.
        samples_seen: Samples of all processes, each batch counted once for each process. ``Run.progress`` of a recorded
            run adds up what each process was given, so batches may differ.
        expected_total_steps: The updates of the whole training; None until the first epoch has ended.
    """

    def __init__(
        self,
        config: Any = None,
        world_size: int = 1,
        accumulation_steps: int = 1,
        *,
        total_epochs: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.world_size, self.accumulation_steps = world_size, accumulation_steps
        self.total_epochs = _setting(config, "TRAIN.EPOCHS") if total_epochs is None else total_epochs
        self._intervals = [_setting(config, f"SCHEDULE.VALIDATION.INTERVAL_{unit}") or 0 for unit in _UNITS]
        self.epoch = self.step = self.global_step = self.samples_seen = 0
        self.expected_total_steps: int | None = None
        self._recorder = recorder
        self._epochs_ended = self._epoch_began_at = 0
        self._open_micro_steps = self._open_samples = 0
        self._reached: set[str] = set()

    def start_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self._epoch_began_at = self.global_step
        if self._recorder is not None:
            self._recorder.epoch_begin(self.epoch - 1)

    def update_step(self, batch_size: int, is_accumulation_step: bool = False, **metrics: Any) -> bool:
        """Count a micro-batch, and return whether it ended an update.

        Args:
            batch_size: Its samples in this process.
            is_accumulation_step: Whether the optimizer did not step. At the last micro-batch of an epoch it did.
            **metrics: Values of the update, to record.
        """
        self.step += 1
        self.samples_seen += batch_size * self.world_size
        self._open_micro_steps += 1
        self._open_samples += batch_size
        if is_accumulation_step:
            if self._recorder is not None:
                counted = {DATA_ORDER: [batch_size, None]}
                self._recorder.event("substep_end", metrics, micro_step=self._open_micro_steps, attrs=counted)
            return False
        self.global_step += 1
        if self._recorder is not None:
            values = {NUM_SAMPLES: self._open_samples, **metrics}
            self._recorder.step(values, step=self.global_step, micro_step=self._open_micro_steps)
        self._open_micro_steps = self._open_samples = 0
        return True

    def end_epoch(self) -> None:
        """End the epoch. The updates of the first one determine those of the whole training."""
        self._epochs_ended += 1
        if self._recorder is not None:
            self._recorder.epoch_end()
        if self.expected_total_steps is None and self.total_epochs:
            steps_per_epoch = self.global_step - self._epoch_began_at
            self.expected_total_steps = steps_per_epoch * self.total_epochs
            if self._recorder is not None and steps_per_epoch:
                self._recorder.declare(total_steps=self.expected_total_steps, steps_per_epoch=steps_per_epoch)

    def get_progress_fraction(self) -> float:
        """Return the share of all updates that is finished.

        Until the first epoch has ended, the number of updates is unknown: the current epoch counts as finished then.
        NaN where the number of epochs is unknown, too.
        """
        if self.expected_total_steps:
            return min(1.0, self.global_step / self.expected_total_steps)
        return min(1.0, self.epoch / self.total_epochs) if self.total_epochs else math.nan

    def is_fraction_point(self, fraction: float | str | Fraction) -> bool:
        """Whether the training has just reached this share: true once, at the first question from that update on."""
        name = str(fraction)
        if not self.expected_total_steps or name in self._reached:
            return False
        if self.global_step < milestone(fraction, self.expected_total_steps):
            return False
        self._reached.add(name)
        return True

    def should_validate(self, *, epochs: int = 0, steps: int = 0, fraction: float | str | Fraction = 0) -> bool:
        """Whether a validation is due: once every so many epochs or updates, or every such share of the training.

        Without an interval, those of the configuration count: ``SCHEDULE.VALIDATION.INTERVAL_EPOCHS``, ``_STEPS`` and
        ``_FRACTION``. An epoch counts once ``end_epoch`` has ended it.
        """
        if not (epochs or steps or fraction):
            epochs, steps, fraction = self._intervals
        share = exact(fraction)
        due = [f"epochs {self._epochs_ended // epochs}" if epochs and self._epochs_ended >= epochs else ""]
        due += [f"steps {self.global_step // steps}" if steps and self.global_step >= steps else ""]
        if share and self.expected_total_steps:
            parts = math.floor(Fraction(self.global_step, self.expected_total_steps) / share)
            due += [f"share {parts}" if parts else ""]
        new = {name for name in due if name} - self._reached
        self._reached |= new
        return bool(new)

    def state_dict(self) -> dict[str, object]:
        """Return what a checkpoint must keep."""
        kept = {name: value for name, value in vars(self).items() if name not in _NOT_KEPT}
        return {**kept, "_reached": sorted(self._reached)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the counts of a checkpoint. World size and accumulation stay those of this process."""
        vars(self).update({**state, "_reached": set(state["_reached"])})


class TrainingConsistencyChecker:
    """Checks that every epoch takes as many micro-batches as the first one.

    Args:
        config: Where ``TRAIN.EPOCHS`` and ``DATA.BATCH_SIZE`` hold these numbers.
        world_size: Processes that train together.
        accumulation_steps: Micro-batches of an update.
    """

    def __init__(self, config: Any = None, world_size: int = 1, accumulation_steps: int = 1) -> None:
        self.world_size, self.accumulation_steps = world_size, accumulation_steps
        self.total_epochs = _setting(config, "TRAIN.EPOCHS")
        self.steps_per_epoch: int | None = None
        self._batch_size = _setting(config, "DATA.BATCH_SIZE")

    def initialize_with_first_epoch(self, actual_steps: int, dataset_size: int | None = None) -> None:
        """Take the first epoch's micro-batches of this process as those of every epoch.

        Args:
            actual_steps: The micro-batches.
            dataset_size: Samples of an epoch, of all processes. A warning says if they give another number.
        """
        self.steps_per_epoch = actual_steps
        if dataset_size is not None and self._batch_size:
            batches = Fraction(dataset_size, self._batch_size * self.world_size)
            if actual_steps not in (math.floor(batches), math.ceil(batches)):
                what = f"the first epoch took {actual_steps} batches; {dataset_size} samples are {float(batches):g}"
                logger.warning("%s", what)

    def validate_epoch_steps(self, epoch: int, actual_steps: int) -> bool:
        """Return whether an epoch took as many micro-batches as the first one; log a warning if not."""
        is_consistent = self.steps_per_epoch in (None, actual_steps)
        if not is_consistent:
            logger.warning("epoch %d took %d batches, the first one %d", epoch, actual_steps, self.steps_per_epoch)
        return is_consistent

    def calculate_expected_fractions(
        self, fractions: Iterable[float | str | Fraction] = QUARTERS
    ) -> dict[float | str | Fraction, int]:
        """Return the update at which each share of the training is finished; empty before the first epoch has ended."""
        if not self.steps_per_epoch or not self.total_epochs:
            return {}
        total_steps = math.ceil(self.steps_per_epoch / self.accumulation_steps) * self.total_epochs
        return {fraction: milestone(fraction, total_steps) for fraction in fractions}


class MetricsTracker:
    """Shows what a recorder holds of each metric.

    Args:
        recorder: The recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def dump_metrics_state(self) -> dict[str, dict[str, dict[str, object]]]:
        """Return the state of each metric by kind of event, ``step_end`` or ``evaluate``, and by name; log it, too.

        A state has ``count``, ``last``, ``least`` and ``greatest`` with their steps, and ``nonfinite``: how many values
        are NaN or infinite.
        """
        metrics = open_run(self._recorder.folder).snapshot().summary.metrics
        state: dict[str, dict[str, dict[str, object]]] = {}
        for name in sorted(metrics):
            for kind, found in metrics.by_kind(name).items():
                state.setdefault(kind, {})[name] = found._asdict()
                logger.info("%s of %s: %s", name, kind, found._asdict())
        return state


class DistributedContext:
    """The place of this process in its job: one object, however often it is constructed.

    Attributes:
        rank, world_size: Those of ``initialize``; detected until then.
        is_distributed: Whether several processes train.
    """

    _only: Self | None = None
    rank: int
    world_size: int
    is_distributed: bool

    def __new__(cls) -> Self:
        """Return the one context of this process."""
        if cls._only is None:
            cls._only = super().__new__(cls)
            cls._only.initialize()
        return cls._only

    def initialize(
        self,
        is_distributed: bool | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Set the place of this process; what is not given is detected. The latest call counts."""
        self.world_size = get_world_size() if world_size is None else world_size
        self.rank = get_rank_safely() if rank is None else rank
        self.is_distributed = self.world_size > 1 if is_distributed is None else is_distributed

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def master_only(self, function: Callable[_Taken, _Result]) -> Callable[_Taken, _Result | None]:
        """Make a function that runs on rank 0 only, and returns None elsewhere."""
        return self.on_rank(0)(function)

    def on_rank(self, rank: int) -> Callable[[Callable[_Taken, _Result]], Callable[_Taken, _Result | None]]:
        """Return a decorator of functions that run on one rank only, and return None elsewhere."""

        def decorate(function: Callable[_Taken, _Result]) -> Callable[_Taken, _Result | None]:
            @functools.wraps(function)
            def run(*arguments: _Taken.args, **named: _Taken.kwargs) -> _Result | None:
                return function(*arguments, **named) if self.rank == rank else None

            return run

        return decorate

    def all_gather(self, tensor: Any) -> list[Any]:
        """Return the tensors of all processes, in order of rank. Collective; shapes must be the same."""
        distributed = self._group()
        if distributed is None:
            return [tensor]
        gathered = [tensor.clone() for _ in range(distributed.get_world_size())]
        distributed.all_gather(gathered, tensor)
        return gathered

    def all_reduce(self, tensor: Any, *, average: bool = True) -> Any:
        """Return the sum or the mean of the tensors of all processes. Collective; shapes must be the same."""
        distributed = self._group()
        if distributed is None:
            return tensor
        summed = tensor.clone()
        distributed.all_reduce(summed)
        return summed / distributed.get_world_size() if average else summed

    def _group(self) -> Any:
        """Return ``torch.distributed`` if a process group connects several processes; else None."""
        distributed = sys.modules.get("torch.distributed")
        return distributed if this_rank().has_group else None


def _setting(config: Any, path: str) -> Any:
    """Return an entry of a configuration; None where it lacks it."""
    return functools.reduce(lambda part, name: getattr(part, name, None), path.split("."), config)
