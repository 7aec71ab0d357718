"""Assigns steps to the lines of a plain-text log: from counters of the line, of its epoch, or of the line above."""

from __future__ import annotations

from typing import NamedTuple

from .encodings.log_line import EPOCH_RANK, GLOBAL_RANK, Counter, LogLine
from .encodings.numbers import INT64_MAX


class LinePlace(NamedTuple):
    """A line's step, and the last step that the training plans."""

    step: int
    total_steps: int | None = None


class Positions:
    """The position of a training, line by line.

    A line counts the steps of the training, those of its epoch, or only epochs. A count within an epoch continues the
    previous epoch's when it begins again: 100/600 of the second epoch is step 700. A log that counts nothing finer has
    epochs as steps. A line without a counter, such as a validation below ``Epoch 3/15``, has the newest position.
    """

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._first_epoch = 1
        self._step: int | None = None
        self._steps_per_epoch: int | None = None
        #: The steps before each epoch, and the newest epoch's own count.
        self._before: dict[int, int] = {}
        self._count = 0

    @property
    def is_counted_by_bars(self) -> bool:
        """Whether nothing but progress bars has counted steps."""
        return self._step is None and self._epoch is None

    @property
    def step_unit(self) -> str:
        """The unit of the steps so far, as in ``ImportedRun``; empty where only progress bars count."""
        if self._step is not None or self._steps_per_epoch is not None:
            return "updates"
        return "" if self._epoch is None else "epochs"

    def place_of(self, line: LogLine) -> LinePlace | None:
        """Return the step of the next line; None where nothing tells it, or where it shows how far an evaluation is."""
        place = self._place_of(line)
        if place is None or place.step > INT64_MAX:
            return None
        return place if (place.total_steps or 0) <= INT64_MAX else LinePlace(place.step)

    def _place_of(self, line: LogLine) -> LinePlace | None:
        finest = min(line.counters, default=None)
        if finest is None:
            return self._uncounted(line)
        counter = line.counters[finest]
        epoch = line.counters.get(EPOCH_RANK)
        if epoch is not None:
            self._epoch = epoch.done
            if epoch.done == 0 or epoch.is_from_zero:
                self._first_epoch = 0
        if counter.counts_evaluation:
            return self._evaluated(counter)
        if finest == EPOCH_RANK and counter.inner is None:
            return LinePlace(*self._after_epoch(counter))
        place = self._counted(counter)
        self._step = place.step
        return place

    def _uncounted(self, line: LogLine) -> LinePlace | None:
        """LinePlace a line without counters."""
        if self._step is not None:
            return LinePlace(self._step)
        if self._epoch is not None:
            return LinePlace(self._epoch)
        return None if line.bar is None else LinePlace(line.bar.done, line.bar.total)

    def _evaluated(self, counter: Counter) -> LinePlace | None:
        """LinePlace an evaluation that counts its own batches; between its batches it has no result yet."""
        at, last = (counter.done, counter.total) if counter.inner is None else (counter.inner, counter.within)
        if last is not None and at < last:
            return None
        return LinePlace(*self._after_epoch(counter)) if counter.rank == EPOCH_RANK else self._newest()

    def _newest(self) -> LinePlace | None:
        return None if self._step is None else LinePlace(self._step)

    def _after_epoch(self, epoch: Counter) -> LinePlace:
        """LinePlace what is known when an epoch is over."""
        if self._steps_per_epoch is not None:
            return LinePlace((epoch.done - self._first_epoch + 1) * self._steps_per_epoch)
        return LinePlace(epoch.done, epoch.total) if self._step is None else LinePlace(self._step)

    def _counted(self, counter: Counter) -> LinePlace:
        if counter.rank == EPOCH_RANK and counter.inner is not None:
            if counter.within is None:
                return LinePlace(self._continued(counter.done, counter.inner, None))
            self._steps_per_epoch = counter.within
            total = None if counter.total is None else counter.total * counter.within
            return LinePlace((counter.done - self._first_epoch) * counter.within + counter.inner, total)
        if counter.rank == GLOBAL_RANK or self._epoch is None:
            return LinePlace(counter.done, counter.total)
        return LinePlace(self._continued(self._epoch, counter.done, counter.total))

    def _continued(self, epoch: int, count: int, total: int | None) -> int:
        """Return the step of a count that may begin again with each epoch."""
        if epoch not in self._before:
            newest = max(self._before, default=epoch)
            held = self._before.get(newest, 0)
            self._before[epoch] = held + (total or self._count) if self._before and count <= self._count else held
        self._count = count
        return self._before[epoch] + count
