"""Counts how far a training has come: epochs, updates, micro-batches, samples, tokens, and the share of its plan."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..events import APPLIED, NO_IDS, RANKS, STEP_TIME, TEXT_IDS, Event, SampleLosses
from ..journal.format import crc32

#: Attribute of an update or a micro-batch whose samples were not all kept: their number, and the CRC-32 of their ids
#: (null without ids).
DATA_ORDER: Final = "data_order"

#: Metrics of a ``step_end`` event that count what its update was made of, where no samples are recorded.
NUM_SAMPLES: Final = "num_samples"
NUM_TOKENS: Final = "num_tokens"

#: Attributes and metrics that count something beyond the update itself.
COUNTED: Final = frozenset((DATA_ORDER, NUM_SAMPLES, NUM_TOKENS, APPLIED))

#: The attribute of a ``ranks`` event that no recorder wrote.
MADE_UP: Final = "made_up"
_NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class ProgressCounts:
    """How far a training has come.

    Attributes:
        epochs: Epochs finished, as a fraction where the loop tells it; None when unknown.
        updates: Optimizer updates finished, skipped ones included.
        skipped: Updates of these that changed nothing, as mixed precision skips them after an overflow.
        micro_steps: Micro-batches of rank 0. An update of which the loop says nothing counts as one.
        samples, tokens: Seen by all ranks that recorded them; None where none did. Samples of a
            micro-batch count even where no update took it.
        total_updates: The planned number of updates; None when unknown.
    """

    epochs: float | None = None
    updates: int = 0
    skipped: int = 0
    micro_steps: int = 0
    samples: int | None = None
    tokens: int | None = None
    total_updates: int | None = None

    @property
    def fraction(self) -> float | None:
        """The share of the planned updates that is finished, at most 1; None without a plan."""
        return None if self.total_updates is None else min(1.0, self.updates / self.total_updates)


class RankTally:
    """The counts of one rank.

    Attributes:
        epochs, skipped, tokens: As in ``ProgressCounts``.
        updates: The highest step.
    """

    def __init__(self) -> None:
        self.epochs: float | None = None
        self.updates = self.skipped = 0
        self.tokens: int | None = None
        self._micro_steps = self._open_micro_steps = self._left_over = 0
        self._samples: int | None = None
        self._open_samples = self._left_over_samples = 0

    @property
    def micro_steps(self) -> int:
        """Micro-batches so far, those of an unfinished update included."""
        return self._micro_steps + self._left_over + self._open_micro_steps

    @property
    def samples(self) -> int | None:
        """Samples so far, those of an unfinished update included; None where none were recorded."""
        unfinished = self._left_over_samples + self._open_samples
        return (self._samples or 0) + unfinished if unfinished else self._samples

    def add(self, event: Event) -> None:
        """Count an event of the rank's effective timeline."""
        if event.epoch is not None:
            self.epochs = event.epoch
        if event.kind == "substep_end":
            self._open_micro_steps += 1
            self._open_samples += samples_in(event) or 0
        elif event.kind in ("epoch_begin", "epoch_end"):
            self._left_over, self._open_micro_steps = self._left_over + self._open_micro_steps, 0
            self._left_over_samples, self._open_samples = self._left_over_samples + self._open_samples, 0
        elif event.kind == "step_end":
            if not event.is_late:
                self.end_update(event.step, event.micro_step, is_applied=event.attrs.get(APPLIED) is not False)
            self.add_counts(samples_in(event), tokens_in(event))

    def end_update(self, step: int, micro_steps: int, *, is_applied: bool = True) -> None:
        """Count an update. Samples of its micro-batches are among its own, which ``add_counts`` adds.

        Args:
            step: Its number.
            micro_steps: Its micro-batches; 0 if the loop does not say.
            is_applied: Whether it changed the model.
        """
        if step > self.updates:  # ``max`` would cost the fast path of a step 0.05 us.
            self.updates = step
        if not is_applied:
            self.skipped += 1
        if self._left_over:
            carried = carried_over(self._left_over, self._open_micro_steps, micro_steps)
            self._micro_steps += self._left_over - carried
            if self._left_over_samples and not carried:
                self.add_counts(self._left_over_samples, None)
            self._left_over = self._left_over_samples = 0
        self._micro_steps += micro_steps or self._open_micro_steps + 1
        self._open_micro_steps = self._open_samples = 0

    def add_counts(self, samples: int | None, tokens: int | None) -> None:
        """Add the samples and tokens of an update, as far as known."""
        if samples is not None:
            self._samples = (self._samples or 0) + samples
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens


def carried_over(left_over: int, in_epoch: int, micro_steps: int) -> int:
    """Return how many micro-batches, left over at the end of an epoch, are among those of the first update after it.

    A loop that counts micro-batches across epochs takes them into that update; one that counts from the beginning of
    each epoch does not.

    Args:
        left_over: Micro-batches since the last update, up to the end of an epoch.
        in_epoch: Micro-batches after it, without the update's last.
        micro_steps: The update's micro-batches, as the loop says; 0 if it does not.

    >>> carried_over(2, 1, 4), carried_over(2, 3, 4)
    (2, 0)
    """
    return max(0, min(left_over, micro_steps - in_epoch - 1))


def ids_digest(ids: bytes, id_kind: int) -> int:
    """Return the CRC-32 of the sample ids of a batch, which are packed as in ``SampleLosses``.

    Ids that are the decimal text of integers count as integers: Parquet files hold them so.
    """
    if id_kind != TEXT_IDS:
        return crc32(ids)
    texts = json.loads(ids)
    try:
        numbers = array("q", map(int, texts))
        if [*map(str, numbers)] == texts:
            return crc32(numbers.tobytes())
    except (ValueError, OverflowError):
        pass
    return crc32(json.dumps(texts, separators=(",", ":"), ensure_ascii=False).encode())


def _batch_note(event: Event) -> list[int | None] | None:
    """Return what the recorder noted of a batch that it did not keep whole."""
    note = event.attrs.get(DATA_ORDER)
    return note if isinstance(note, list) and len(note) == 2 and type(note[0]) is int else None


def order_of(event: Event) -> tuple[int, int] | None:
    """Return the number of samples in an update and the CRC-32 of their ids; None where they were not recorded."""
    if (note := _batch_note(event)) is not None:
        return (note[0] or 0, note[1]) if type(note[1]) is int else None
    held = event.samples
    return (len(held), ids_digest(held.ids, held.id_kind)) if held and held.id_kind != NO_IDS else None


def samples_in(event: Event) -> int | None:
    """Return the number of samples in an update; None where it was not recorded."""
    if NUM_SAMPLES in event.metrics:
        return _whole(event.metrics[NUM_SAMPLES])
    if (note := _batch_note(event)) is not None:
        return note[0]
    return len(event.samples) if event.samples else None


def tokens_in(event: Event) -> int | None:
    """Return the number of tokens in an update; None where it was not recorded."""
    if NUM_TOKENS in event.metrics:
        return _whole(event.metrics[NUM_TOKENS])
    return tokens_of(event.samples) if event.samples and _batch_note(event) is None else None


def tokens_of(samples: SampleLosses) -> int | None:
    """Return the sum of the token counts of a batch; None where they were not recorded."""
    if not samples.tokens:
        return None
    counts = array("i")
    counts.frombytes(samples.tokens)
    return sum(counts)


def _whole(value: float) -> int | None:
    return int(value) if value >= 0 and value != float("inf") else None


class NewestValues:
    """The newest value of each metric. A value that is not finite is not replaced by a finite one.

    Args:
        names: The metrics.

    Attributes:
        names: The metrics, in order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._values: dict[str, float] = {}

    def add_values(self, metrics: Mapping[str, float]) -> None:
        """Replace values by those of an event."""
        for name in self.names:
            value = metrics.get(name)
            if value is not None and math.isfinite(self._values.get(name, 0.0)):
                self._values[name] = value

    def pop_values(self) -> dict[str, float]:
        """Return the values since the call before."""
        values, self._values = self._values, {}
        return values


class OwnValues(NewestValues):
    """The values that an agreement gathers of one rank: the newest since the agreement before, and the step time."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._place = (0, 0)

    def gathered(self, event: Event) -> Mapping[str, float]:
        """Return what an agreement after an update gathers."""
        values = self.pop_values()
        if STEP_TIME in self.names:
            attempt, before_ns = self._place
            before_ns = before_ns if attempt == event.attempt else 0
            values.setdefault(STEP_TIME, (event.elapsed_ns - before_ns) / _NS_PER_S)
            self._place = event.attempt, event.elapsed_ns
        return values

    def whole(self, event: Event) -> Event:
        """Take a complete event, and return it: one that was made up without values with those of this rank."""
        if MADE_UP in event.attrs:
            return made_up(event, {event.rank: self.gathered(event)})
        self.add_values(event.metrics)
        return event


def made_up(event: Event, by_rank: Mapping[int, Mapping[str, float]]) -> Event:
    """Return the ``ranks`` event that rank 0 would have written after its update, had it gathered these values."""
    values = {f"{name}@{rank}": value for rank, own in by_rank.items() for name, value in own.items()}
    return event._replace(kind=RANKS, metrics=values, attrs={MADE_UP: True}, samples=None, vectors={})
