"""Puts the series of a log on one axis, the steps of its training.

The series of one log may count different things: updates, epochs, batches of a validation, or nothing at all. Takes
what was logged in its order, and returns the places of what counts something else than the training. A step is the
number of updates finished when a value was logged, so the order of the log or its clock proves it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from ..store.metric_words import is_evaluation
from .rows import PLACE_NAMES, Row
from .source import EPOCHS, Proof, ReadOptions, StepAxis, UnreadableSource

#: The attribute of an event that keeps the log's own count, where that is not known to be the epoch.
LOGGED_STEP: Final = "logged_step"

#: Between steps of the training and own steps, two counts are one if they grow alike up to this factor.
_ALIKE: Final = 1.5

#: A single value belongs to another counter if the training is further by this factor. An evaluation that runs beside
#: the training lags, but less.
_FAR: Final = 5

#: Rows before the first that lies behind, which show the training that it lies behind.
_CONTEXT: Final = 64


class LoggedEntry(NamedTuple):
    """A row or a value of a log, as far as it says what is counted.

    Attributes:
        names: Its metrics; an entry without any is left where it is.
        step: The step that it was logged with.
        time_ns: Its wall clock; 0 when unknown.
        epoch: The epoch that it was logged with, beside its step.
        unit: What its step counts, where the log says so.
        stream: The file that it was written to. Order means something within a file only.
    """

    names: tuple[str, ...]
    step: int
    time_ns: int = 0
    epoch: float | None = None
    unit: str = ""
    stream: int = 0


class StepPlace(NamedTuple):
    """The place of an entry among the steps of the training.

    Attributes:
        step: Its step.
        axis: What it counts, and the proof of its step.
        after: Index of the entry that it follows: itself where it stands right, -1 before all.
        epoch: Epochs finished, if the log's own count is known to be the epoch.
    """

    step: int
    axis: StepAxis
    after: int
    epoch: float | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """The places of the entries that count something else than the training.

    Attributes:
        by_index: The places, by the entries' indices.
        undecided: Entries that a longer log may place otherwise.
        reference: The series of the training that counts its steps; empty without any.
        follows: The newest entry of the training when an entry of another file was logged, by the latter's index.
    """

    by_index: Mapping[int, StepPlace] = field(default_factory=dict)
    undecided: frozenset[int] = frozenset()
    reference: str = ""
    follows: Mapping[int, int] = field(default_factory=dict)


class _Verdict(Enum):
    """Whether a series counts the steps of the training, something else with proof, or something unknown."""

    TRAINING = auto()
    LIKELY_TRAINING = auto()
    OTHER = auto()
    UNKNOWN = auto()


def places_of(
    entries: Sequence[LoggedEntry],
    steps_per_epoch: int | None = None,
    *,
    configured: int | None = None,
    context: int = 0,
) -> Places:
    """Return the places of the entries that count something else than the training.

    Args:
        entries: What was logged, in the order of the log.
        steps_per_epoch: Steps of the training in one count of another series, where the user says so.
        configured: The same as the run's configuration has it, which holds where the log proves nothing.
        context: Number of entries at the begin that are known to stand right.
    """
    reference = _reference(entries)
    return _Log(entries, reference, steps_per_epoch, configured, context).places() if reference else Places()


def _reference(entries: Sequence[LoggedEntry]) -> str:
    """Return the series of the training with the most values; without a training, of all series.

    A series that is logged with several counters goes backwards again and again, which counts against it.
    """
    merit: Counter[str] = Counter()
    newest: dict[str, int] = {}
    for entry in entries:
        for name in entry.names:
            merit[name] += 1 if entry.step >= newest.get(name, entry.step) else -1
            newest[name] = entry.step
    trained = {name: count for name, count in merit.items() if not is_evaluation(name)}
    found = trained or merit
    return max(found, key=found.__getitem__, default="")


class _Log:
    """The entries of a log, seen from the series of the training."""

    def __init__(
        self,
        entries: Sequence[LoggedEntry],
        reference: str,
        steps_per_epoch: int | None,
        configured: int | None,
        context: int,
    ) -> None:
        self._entries = entries
        self._reference = reference
        self._steps_per_epoch = steps_per_epoch
        self._configured = configured
        self._context = context
        self._own = [index for index, entry in enumerate(entries) if reference in entry.names]
        self._steps = [entries[index].step for index in self._own]
        self._unit = entries[self._own[0]].unit
        self._streams = {entries[index].stream for index in self._own}
        self._at_times = sorted((entries[index].time_ns, at) for at, index in enumerate(self._own))
        self._has_clock = self._at_times[0][0] > 0

    def places(self) -> Places:
        """Return the places of all series."""
        series = self._series()
        follows = {
            index: self._own[max(newest, 0)]
            for index, newest in enumerate(self._at)
            if newest is not None and self._entries[index].stream not in self._streams
        }
        if not any(entry.step for entry in self._entries):
            # A second value of the training may have step 0 as well, or be at step 1.
            is_counted, every = len(self._own) > 1, frozenset(range(self._context, len(self._entries)))
            counted = self._counted() if is_counted else {}
            return Places(counted, frozenset() if is_counted else every, self._reference, follows)
        places: dict[int, StepPlace] = {}
        undecided: set[int] = set()
        decided: list[tuple[set[tuple[int, int | None]], _Verdict]] = []
        for indices in sorted(series.values(), key=len, reverse=True):
            logged = {(self._entries[index].step, self._at[index]) for index in indices}
            # What was logged with another series counts the same, though it has too few values to say so.
            known = (verdict for others, verdict in decided if logged <= others)
            verdict = next(known, None) or self._verdict(indices)
            decided.append((logged, verdict))
            if verdict in (_Verdict.UNKNOWN, _Verdict.LIKELY_TRAINING):
                undecided.update(indices)
            if verdict in (_Verdict.UNKNOWN, _Verdict.OTHER):
                places.update(self._placed(indices, verdict))
        kept = {index: place for index, place in places.items() if index >= self._context}
        return Places(kept, frozenset(index for index in undecided if index >= self._context), self._reference, follows)

    def _series(self) -> dict[str, list[int]]:
        """Return the entries without the reference, by the rarest of their metrics: others may be logged anywhere."""
        counts = Counter(name for entry in self._entries for name in entry.names)
        series: dict[str, list[int]] = {}
        for index, entry in enumerate(self._entries):
            if entry.names and self._reference not in entry.names:
                series.setdefault(min(entry.names, key=counts.__getitem__), []).append(index)
        return series

    @cached_property
    def _at(self) -> list[int | None]:
        """Which value of the reference was the newest when each entry was logged.

        It is -1 before the first, and None where neither order nor clock says it. What has the time of a value of
        another file came after it: to place it before would let a rule see it too early.
        """
        found: list[int | None] = []
        newest = dict.fromkeys(self._streams, -1)
        count = 0
        for entry in self._entries:
            if self._reference in entry.names:
                newest[entry.stream] = count
                count += 1
            found.append(newest[entry.stream] if entry.stream in newest else self._at_time(entry.time_ns))
        return found

    def _at_time(self, time_ns: int) -> int | None:
        if not self._has_clock or not time_ns:
            return None
        found = bisect_right(self._at_times, (time_ns, len(self._own)))
        return self._at_times[found - 1][1] if found else -1

    # --- what a series counts ---------------------------------------------------------------------------------------

    def _verdict(self, indices: Sequence[int]) -> _Verdict:
        entries, steps = self._entries, self._steps
        own = [entries[index].step for index in indices]
        known = [
            (entries[index].step, newest)
            for index in indices
            if (newest := self._at[index]) is not None and newest >= 0
        ]
        has_order = all(self._at[index] is not None for index in indices)
        if any(entries[index].unit != self._unit for index in indices):
            is_spread = len({newest for _, newest in known}) > 1 or any(newest < len(steps) - 1 for _, newest in known)
            return _Verdict.OTHER if has_order and (is_spread or self._is_streamed(indices)) else _Verdict.UNKNOWN
        if not known:
            is_first = has_order and max(own) <= steps[0]
            return _Verdict.TRAINING if is_first else self._verdict_by_range(own, steps[-1], is_early=False)
        if all(steps[newest] <= step <= self._next_step(newest) for step, newest in known):
            return _Verdict.TRAINING
        last_by_moment = {newest: step for step, newest in known}
        if len(set(own)) == 1 and len(last_by_moment) == 1:
            return self._verdict_of_one(own[0], steps[known[-1][1]])
        if len(last_by_moment) == 1:
            newest = known[-1][1]
            return self._verdict_by_range(own, steps[newest], is_early=newest < len(steps) - 1)
        return self._verdict_by_growth(last_by_moment, known)

    def _is_streamed(self, indices: Sequence[int]) -> bool:
        """Whether the entries are in the training's file, so that their order is that of the log."""
        return all(self._entries[index].stream in self._streams for index in indices)

    def _next_step(self, newest: int) -> float:
        """Return the step of the training's next value; infinity at the end, and where the training begins again."""
        following = self._steps[newest + 1] if newest + 1 < len(self._steps) else math.inf
        return following if following >= self._steps[newest] else math.inf

    @staticmethod
    def _verdict_of_one(own: int, newest: int) -> _Verdict:
        """Judge a series of one step, logged at one moment."""
        if newest >= _FAR * max(own, 1):
            return _Verdict.OTHER
        return _Verdict.LIKELY_TRAINING if newest > _ALIKE * own else _Verdict.TRAINING

    def _verdict_by_range(self, own: Sequence[int], newest: int, *, is_early: bool) -> _Verdict:
        """Judge a series that was logged at one moment, as after the training: by the steps that it spans.

        Args:
            own: Its steps.
            newest: The step of the training at that moment.
            is_early: Whether the training continued after it.
        """
        top, apart = max(own), {later - earlier for earlier, later in pairwise(sorted(set(own)))}
        if newest <= _ALIKE * top and top <= _ALIKE * max(newest, 1):
            return _Verdict.TRAINING
        if top <= newest < _FAR * max(top, 1):
            is_sparse = bool(apart) and min(apart) > 1
            if len(set(own)) == 1 or (is_sparse and set(own) <= set(self._steps)):
                return _Verdict.LIKELY_TRAINING
        return _Verdict.OTHER if is_early else _Verdict.UNKNOWN

    def _verdict_by_growth(self, last_by_moment: Mapping[int, int], known: Sequence[tuple[int, int]]) -> _Verdict:
        """Judge a series by how much its steps grow while those of the training do."""
        steps = self._steps
        made = own = 0
        for (earlier, begin), (later, end) in pairwise(sorted(last_by_moment.items())):
            if steps[later] >= steps[earlier]:
                made += steps[later] - steps[earlier]
                own += end - begin
        newest, last = steps[known[-1][1]], known[-1][0]
        if own <= 0:
            return _Verdict.OTHER if made > 1 else _Verdict.TRAINING
        if made > _ALIKE * own or newest >= _FAR * max(last, 1):
            return _Verdict.OTHER
        is_ahead = any(step > self._next_step(newest) for step, newest in known)
        return _Verdict.OTHER if own > _ALIKE * made and is_ahead else _Verdict.TRAINING

    # --- where its values belong ------------------------------------------------------------------------------------

    def _placed(self, indices: Sequence[int], verdict: _Verdict) -> Iterator[tuple[int, StepPlace]]:
        own = [self._entries[index].step for index in indices]
        axis = StepAxis(self._reference, Proof.LOGGED, max(own), self._steps[-1])
        each = self._steps_per_epoch or (self._configured if verdict is _Verdict.UNKNOWN else None)
        if each is not None:
            first = int(min(own) == 0 and (max(own) + 1) * each - self._steps[-1] < each / 2)
            counted = ((step + first) * each for step in own)
            axis = axis._replace(proof=Proof.STEPS_PER_EPOCH)
            for index, step in zip(indices, counted, strict=True):
                yield index, self._at_step(min(step, self._steps[-1]), axis)
            return
        if verdict is _Verdict.OTHER:
            epochs = self._epochs_by_order(indices)
            for index, epoch in zip(indices, epochs, strict=True):
                yield index, self._at_moment(index, self._at[index], axis, epoch)
            return
        if (ends := self._ends_of_epochs(own)) is not None:
            axis = axis._replace(proof=Proof.EPOCHS)
            for index, (at_end, epoch) in zip(indices, ends, strict=True):
                yield index, StepPlace(self._steps[at_end], axis, self._own[at_end], epoch)
            return
        axis = axis._replace(proof=Proof.NONE)
        for index in indices:
            yield index, StepPlace(self._steps[-1], axis, self._own[-1])

    def _at_moment(self, index: int, newest: int | None, axis: StepAxis, epoch: float | None) -> StepPlace:
        """Return the place of an entry at the newest step of the training."""
        entry = self._entries[index]
        is_in_order = entry.stream in self._streams
        if newest is None or newest < 0:
            return StepPlace(min(entry.step, self._steps[0]), axis, index if is_in_order else -1, epoch)
        return StepPlace(self._steps[newest], axis, index if is_in_order else self._own[newest], epoch)

    def _at_step(self, step: int, axis: StepAxis) -> StepPlace:
        """Return the place after the last value of the training up to a step."""
        newest = next((at for at in reversed(range(len(self._steps))) if self._steps[at] <= step), -1)
        return StepPlace(step, axis, self._own[newest] if newest >= 0 else -1)

    @cached_property
    def _marks(self) -> list[tuple[int, float]]:
        """Return the epochs that the training was logged with, each with the newest value of the reference."""
        found = []
        for index, entry in enumerate(self._entries):
            if entry.epoch is not None and (not entry.names or self._reference in entry.names):
                found.append((self._at[index] or 0, entry.epoch))
        return found

    def _epochs_by_order(self, indices: Sequence[int]) -> list[float | None]:
        """Return the epochs finished at each entry, if its own count is known to be the epoch."""
        own = [self._entries[index].step for index in indices]
        if all(self._entries[index].unit == EPOCHS != self._unit for index in indices):
            is_from_zero = own[0] == 0 and (self._at[indices[0]] or 0) >= 0
            return [float(step + is_from_zero) for step in own]
        marks = self._marks
        moments = [newest for newest, _ in marks]
        begun = []
        for index, step in zip(indices, own, strict=True):
            found = bisect_right(moments, self._at[index] or 0)
            begun.append(marks[found - 1][1] - step if found else math.nan)
        if len(set(begun)) != 1 or begun[0] not in (-1.0, 0.0, 1.0):
            return [None] * len(own)
        return [self._finished(step + begun[0], marks) for step in own]

    def _ends_of_epochs(self, own: Sequence[int]) -> list[tuple[int, float]] | None:
        """Return for each count the last value of the training in its epoch, and the epochs finished; None if unknown.

        The training's epochs may be counted from 0 or 1 where the series counts from 1 or 0.
        """
        marks = self._marks
        if not marks:
            return None
        ends = dict[float, int]()
        is_whole = all(epoch.is_integer() for _, epoch in marks)
        for newest, epoch in marks:
            ends[epoch if is_whole else math.ceil(epoch)] = newest
        for offset in (0, -1, 1):
            if all(step + offset in ends for step in own):
                return [(ends[step + offset], self._finished(step + offset, marks)) for step in own]
        return None

    @staticmethod
    def _finished(epoch: float, marks: Sequence[tuple[int, float]]) -> float:
        """Return the epochs finished at the end of an epoch, which the training counts from 0, from 1 or in parts."""
        first = min(mark for _, mark in marks)
        return epoch + 1 if first == 0 and all(mark.is_integer() for _, mark in marks) else epoch

    def _counted(self) -> dict[int, StepPlace]:
        """Return the places of a log that has step 0 for all: the values of the reference are counted from 1.

        A series of the training with as many values is counted alike. Everything else has the count at its moment.
        """
        axis = StepAxis(self._reference, Proof.COUNTED, 0, len(self._own))
        places = {index: StepPlace(count, axis, index) for count, index in enumerate(self._own, start=1)}
        for name, indices in self._series().items():
            # The newest value of the one may come before that of the other.
            is_alike = not is_evaluation(name) and abs(len(indices) - len(self._own)) <= 1
            is_alike |= len(indices) == len(self._own) and len({self._at[index] for index in indices}) == 1
            for count, index in enumerate(indices, start=1):
                newest = self._at[index]
                step = count if is_alike or newest is None else newest + 1
                places[index] = StepPlace(step, axis, index)
        return places


# --- rows -----------------------------------------------------------------------------------------------------------


def entry_of(row: Row, stream: int = 0) -> LoggedEntry:
    """Return what a row says of what it counts."""
    names = tuple(name for name in row.metrics if name not in PLACE_NAMES)
    return LoggedEntry(names, row.step, row.time_ns, row.metrics.get("epoch"), row.step_unit, stream)


def on_one_axis(rows: Iterable[Row], options: ReadOptions) -> Iterator[Row]:
    """Yield rows with the steps of the training. Rows are held from the first that lies behind another one's step.

    Args:
        rows: Rows in the order of the log.
        options: As for ``Reader.read``.
    """
    rest = iter(rows)
    context: deque[Row] = deque(maxlen=_CONTEXT)
    ends: list[Row] = []
    newest: Row | None = None
    for row in rest:
        if newest is not None and (row.step < newest.step or row.step_unit != newest.step_unit):
            known = [end for end in ends if all(end is not one for one in context)]
            yield from placed_rows([*known, *context], _chained(row, rest), options)
            return
        if newest is not None and row.metrics.get("epoch") != newest.metrics.get("epoch"):
            ends.append(newest)
        newest = row
        context.append(row)
        yield row


def _chained(row: Row, rest: Iterator[Row]) -> Iterator[Row]:
    yield row
    yield from rest


def placed_rows(known: Sequence[Row], rows: Iterable[Row], options: ReadOptions) -> Iterator[Row]:
    """Yield rows with the steps of the training, in its order.

    Args:
        known: Rows before them, which are not yielded.
        rows: The rows. What precedes an error is kept.
        options: As for ``Reader.read``.
    """
    held = list(known)
    problem: UnreadableSource | None = None
    try:
        for row in rows:
            held.append(row)  # noqa: PERF402 - what precedes an error is kept
    except UnreadableSource as error:
        problem = error
    entries = [entry_of(row) for row in held]
    times = [entry.time_ns for entry in entries]
    if all(times) and any(later < earlier for earlier, later in pairwise(times)):
        # The rows are sorted, not logged in this order. Each series has a clock of its own.
        streams: dict[tuple[str, ...], int] = {}
        entries = [entry._replace(stream=streams.setdefault(entry.names, len(streams))) for entry in entries]
    places = places_of(entries, options.steps_per_epoch, context=len(known))
    order: Sequence[int] = range(len(known), len(held))
    if places.by_index:
        moved = {index: place.after for index, place in places.by_index.items()}
        order = sorted(order, key=lambda index: (moved.get(index, index), moved.get(index, index) != index, index))
    unit = next((entry.unit for entry in entries if places.reference in entry.names), "")
    for index in order:
        if options.is_growing and index in places.undecided:
            continue
        yield _placed_row(held[index], places.by_index.get(index), unit)
    if problem is not None:
        raise problem


def _placed_row(row: Row, place: StepPlace | None, unit: str) -> Row:
    if place is None:
        return row
    attrs = {**row.attrs, **logged_step(row.step, place)}
    return row._replace(step=place.step, epoch=place.epoch, attrs=attrs, axis=place.axis, step_unit=unit)


def logged_step(step: int, place: StepPlace) -> dict[str, int]:
    """Return the attribute that keeps an event's own count; none where it is the epoch, or where all are 0."""
    return {} if place.epoch is not None or place.axis.proof is Proof.COUNTED else {LOGGED_STEP: step}
