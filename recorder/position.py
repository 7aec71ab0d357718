"""Tracks the position of a training loop: updates and epochs finished, as the loop reports them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..store.reading.tally import ProgressCounts, RankTally


@dataclass(slots=True)
class Position:
    """The position of the next event.

    Attributes:
        step: Optimizer updates finished.
        steps_per_epoch: Updates in an epoch, if the loop declared it; epochs then follow from the step.
        epoch: Epochs finished when the loop last told it; None until then.
        epoch_began_at: The step at which it was set.
        epochs_begun: Epochs finished once the current one has ended whole.
        is_counting: Whether this attempt has recorded a step.
        is_ordered: Whether every step number so far was above the one before.
        tally: What was counted so far.
    """

    step: int = 0
    steps_per_epoch: int | None = None
    epoch: float | None = None
    epoch_began_at: int = 0
    epochs_begun: float = 0
    is_counting: bool = False
    is_ordered: bool = True
    tally: RankTally = field(default_factory=RankTally)

    def set_epoch(self, epoch: float | None) -> None:
        """Set the number of epochs finished now."""
        self.epoch, self.epoch_began_at = epoch, self.step

    def begin_epoch(self, begun: float) -> None:
        """Begin an epoch, with so many finished."""
        self.set_epoch(begun)
        self.epochs_begun = begun + 1

    def divide_epochs(self, steps_per_epoch: int) -> None:
        """Count epochs from here on by so many updates each."""
        self.set_epoch(self.epoch_at(self.step))
        self.steps_per_epoch = steps_per_epoch

    def progress(self, total_updates: int | None) -> ProgressCounts:
        """Return how far the training has come, of so many planned updates."""
        tally, epochs = self.tally, self.epoch_at(self.step)
        counts = (tally.skipped, tally.micro_steps, tally.samples, tally.tokens)
        return ProgressCounts(epochs, self.step, *counts, total_updates)

    def epoch_at(self, step: int) -> float | None:
        """Return the epochs finished at a step of the current epoch; None when unknown.

        They count from where the loop last told an epoch, or else from the beginning of the run.
        """
        if not self.steps_per_epoch:
            return self.epoch
        if self.epoch is None:
            return step / self.steps_per_epoch
        return self.epoch + (step - self.epoch_began_at) / self.steps_per_epoch


@dataclass(slots=True)
class NextUpdate:
    """An update that the loop has finished. It takes its number when its event is written, not when it is reported.

    Attributes:
        position: The position of the loop.
        step, epoch: What the call gives; None for the next one.
        number: Its number; None until its event is written.
    """

    position: Position
    step: int | None
    epoch: float | None
    number: int | None = None

    def __call__(self) -> tuple[int, float | None]:
        """Return step and epoch of the event, and move the position there at the first call."""
        if self.number is None:
            self.number = self.position.step + 1 if self.step is None else self.step
            self.position.step, self.position.is_counting = self.number, True
            if self.epoch is not None:
                self.position.set_epoch(self.epoch)
        return self.number, self.position.epoch_at(self.number)
