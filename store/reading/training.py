"""Checks the course of a training: its updates, micro-batches, plan and ranks, and what a resume did to its data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ..errors import counted
from ..events import Event, id_texts
from ..lineage import DECIDING_RANK
from ..run_info import Attempt
from .diagnosis import StoreFault
from .snapshot import Snapshot, ranks_of
from .tally import carried_over, order_of

#: Last parts of the names of learning rates.
_LEARNING_RATES: Final = ("lr", "learning_rate")

#: A learning rate that differs by less than this share has not jumped.
_SAME_RATE: Final = 0.01

#: Updates whose changes of the learning rate are usual ones.
_USUAL: Final = 20

#: Updates without an epoch belong to this one.
_NO_EPOCH: Final = -1


class Update(NamedTuple):
    """One recorded update of one rank.

    Attributes:
        attempt, step: Its place.
        epoch: Epochs finished when its epoch began; ``_NO_EPOCH`` when unknown.
        micro_steps: Its micro-batches; 0 when unknown.
        order: Number of its samples, and the digest of their ids.
        ids: The ids of its samples, where the log holds them.
        rate: Its learning rate.
    """

    attempt: int
    step: int
    epoch: float
    micro_steps: int
    order: tuple[int, int] | None
    ids: Sequence[str]
    rate: float | None


class RankCourse(NamedTuple):
    """What one rank recorded.

    Attributes:
        updates: The effective ones, in order.
        rolled_back: The others.
        repeated: Epochs that began again after their end, each with the attempt.
        leftovers: Micro-batches at the end of an epoch that no update took, by epoch.
        carried: Epochs whose leftovers the next update took.
        ended: Epochs that ended, each with whether it was whole.
    """

    updates: list[Update]
    rolled_back: list[Update]
    repeated: list[tuple[float, int]]
    leftovers: dict[float, int]
    carried: list[float]
    ended: dict[float, bool]


def check_training(snapshot: Snapshot) -> tuple[list[StoreFault], list[str]]:
    """Return what is inconsistent in a run's training, and a sentence for each resume whose data cannot be judged."""
    courses = {rank: _course(snapshot, rank) for rank in ranks_of(snapshot)}
    own = courses.get(DECIDING_RANK)
    if own is None:
        return [], []
    found = [
        *_rank_faults(snapshot, courses),
        *(fault for rank, course in courses.items() for fault in _count_faults(snapshot, rank, course)),
        *_plan_faults(snapshot, own),
    ]
    unknown = []
    for attempt in snapshot.info.attempts:
        if attempt.attempt in snapshot.lineage.attempts and attempt.parent is not None:
            found += _resume_faults(snapshot, courses, attempt)
            told = {update.attempt for update in (*own.updates, *own.rolled_back) if update.order is not None}
            if not {attempt.attempt, attempt.parent} <= told:
                where = f"{snapshot.folder}: the data order after the resume at step {attempt.from_step} is unknown"
                unknown.append(f"{where}. Record it with rec.step(sample_ids=...)")
    return found, unknown


# --- reading ---------------------------------------------------------------------------------------------------------


class _CourseReader:
    """Follows the epochs of one rank's events, and makes updates of them."""

    def __init__(self, rates: Sequence[str]) -> None:
        self._rates = rates
        self._begun: float | None = None
        self.course = RankCourse([], [], [], {}, [], {})
        self._open = 0
        self._left_over: dict[float, int] = {}

    def add_event(self, event: Event, *, is_effective: bool) -> None:
        if not is_effective:
            if event.kind == "step_end":
                self._add(self.course.rolled_back, event, self._epoch_of(event))
        elif event.kind == "epoch_begin":
            self._begin(event)
        elif event.kind == "epoch_end":
            self._end(event)
        elif event.kind == "substep_end":
            self._open += 1
        elif event.kind == "step_end":
            self._add(self.course.updates, event, self._epoch_of(event))

    def _begin(self, event: Event) -> None:
        self._begun = _NO_EPOCH if event.epoch is None else event.epoch
        if self._begun in self.course.ended:
            self.course.repeated.append((self._begun, event.attempt))

    def _end(self, event: Event) -> None:
        ended = self._begun if self._begun is not None else _number(event.epoch)
        self.course.ended[ended] = event.epoch is None or event.epoch >= ended + 1
        if self._open:
            self._left_over[ended] = self.course.leftovers[ended] = self._open
        self._open = 0

    def _epoch_of(self, event: Event) -> float:
        return _number(event.epoch) if self._begun is None or event.epoch is None else self._begun

    def _add(self, updates: list[Update], event: Event, epoch: float) -> None:
        if event.is_late:
            self._add_late(updates, event)
            return
        micro_steps = self._micro_steps_of(event.micro_step)
        self._open, self._left_over = 0, {}
        rate = next((event.metrics[name] for name in self._rates if name in event.metrics), None)
        ids = (event.samples and id_texts(event.samples)) or ()
        updates.append(Update(event.attempt, event.step, epoch, micro_steps, order_of(event), ids, rate))

    def _micro_steps_of(self, declared: int) -> int:
        """Return the micro-batches of an update, and take from the leftovers of ended epochs what is among them.

        Without a word of the loop, leftovers count to the update if it is then as large as the one before.
        """
        left_over, in_epoch = sum(self._left_over.values()), self._open + 1
        if not left_over:
            return declared or (in_epoch if self._open else 0)
        before = self.course.updates[-1].micro_steps if self.course.updates else 0
        whole = declared or (left_over + in_epoch if before in (0, left_over + in_epoch) else in_epoch)
        if carried_over(left_over, self._open, whole) == left_over:
            for epoch in self._left_over:
                del self.course.leftovers[epoch]
                self.course.carried.append(epoch)
        return whole

    def _add_late(self, updates: list[Update], event: Event) -> None:
        for index in range(len(updates) - 1, -1, -1):
            if updates[index].step == event.step and updates[index].attempt == event.attempt:
                ids = (event.samples and id_texts(event.samples)) or updates[index].ids
                updates[index] = updates[index]._replace(order=order_of(event) or updates[index].order, ids=ids)
                return


def _number(epoch: float | None) -> int:
    """Return the number of the epoch that an update belongs to, from the epochs finished after it."""
    return _NO_EPOCH if epoch is None else max(0, math.ceil(epoch) - 1)


def _course(snapshot: Snapshot, rank: int) -> RankCourse:
    lineage = snapshot.lineage
    rates = [name for name in snapshot.columns.of_loop if name.rpartition("/")[2] in _LEARNING_RATES]
    reader = _CourseReader(rates)
    # Only a resume needs the samples.
    for event in snapshot.events(rank, samples=len(lineage.attempts) > 1):
        is_effective = lineage.holds(event.attempt, event.rank, event.seq, event.step)
        reader.add_event(event, is_effective=is_effective)
    return reader.course


# --- updates, micro-batches, plan, ranks -----------------------------------------------------------------------------


def _count_faults(snapshot: Snapshot, rank: int, course: RankCourse) -> Iterator[StoreFault]:
    where = f"{snapshot.folder}, rank {rank}" if rank else str(snapshot.folder)
    strides = Counter(later.step - earlier.step for earlier, later in pairwise(course.updates))
    stride = strides.most_common(1)[0][0] if strides else 1
    for earlier, later in pairwise(course.updates):
        if later.step <= earlier.step:
            again = f"update {later.step} of attempt {later.attempt} comes after update {earlier.step}"
            yield StoreFault("doubled-update", where, f"{again}: it was recorded or trained twice")
        elif later.step > earlier.step + max(stride, 1) and snapshot.info.source is None:
            lost = _span(earlier.step + 1, later.step - 1)
            end = f", at the end of epoch {earlier.epoch:g}" if earlier.epoch != later.epoch else ""
            code = "unlogged-leftover" if end else "lost-update"
            yield StoreFault(code, where, f"{lost} not recorded{end} (attempt {later.attempt})")
    for epoch, attempt in course.repeated:
        what = f"attempt {attempt} trained epoch {epoch:g} again, which had ended"
        yield StoreFault("repeated-epoch", where, what, "Resume with the epoch after the checkpoint's")
    for epoch, count in course.leftovers.items():
        what = f"micro-batches at the end of epoch {epoch:g} that no update took: {count}"
        yield StoreFault("unlogged-leftover", where, what, "Step the optimizer, and record it, before the epoch ends")
    yield from _accumulation_faults(where, course)


def _span(first: int, last: int) -> str:
    return f"update {first} was" if first == last else f"updates {first} to {last} were"


def _accumulation_faults(where: str, course: RankCourse) -> Iterator[StoreFault]:
    """Yield attempts with an update, other than the last of its epoch, of more or fewer micro-batches than usual."""
    for attempt in sorted({update.attempt for update in course.updates}):
        own = [update for update in course.updates if update.attempt == attempt and update.micro_steps]
        inner = [
            earlier for earlier, later in pairwise(own) if earlier.epoch == later.epoch and earlier.epoch != _NO_EPOCH
        ]
        counts = [update.micro_steps for update in own]
        usual = Counter(counts).most_common(1)[0][0] if counts else 0
        odd = [update for update in inner if update.micro_steps != usual]
        if odd:
            shown = ", ".join(map(str, counts[:6])) + (", ..." if len(counts) > 6 else "")
            what = (
                f"update {odd[0].step} of attempt {attempt} took {odd[0].micro_steps} of usually {usual} micro-batches"
            )
            yield StoreFault("accumulation", where, f"{what} ({shown})", "Only the last update of an epoch may differ")


def _plan_faults(snapshot: Snapshot, course: RankCourse) -> Iterator[StoreFault]:
    plan, where = snapshot.info.last.newest_plan, str(snapshot.folder)
    strides = {later.step - earlier.step for earlier, later in pairwise(course.updates)}
    if not course.updates or strides - {1} or snapshot.info.source is not None:
        return
    whole = sorted(epoch for epoch, is_whole in course.ended.items() if epoch != _NO_EPOCH and is_whole)
    if course.repeated:
        whole = []
    per_epoch = [sum(update.epoch == epoch for update in course.updates) for epoch in whole]
    reached, planned = course.updates[-1].step, plan.max_steps()
    # An epoch that finishes an update of the one before may take one more than the first epoch.
    further = range(len(course.carried) + 1)
    fix = "An epoch's last update may take fewer micro-batches: divide and round up"
    if per_epoch and plan.steps_per_epoch and per_epoch[0] != plan.steps_per_epoch:
        what = f"epoch {whole[0]:g} took {counted(per_epoch[0], 'update')}; the plan says {plan.steps_per_epoch}"
        yield StoreFault("plan-mismatch", where, what, fix)
    elif (
        per_epoch
        and planned
        and plan.total_epochs
        and planned - (in_all := per_epoch[0] * plan.total_epochs) not in further
    ):
        what = f"{plan.total_epochs} epochs of {counted(per_epoch[0], 'update')} are {in_all}; the plan says {planned}"
        yield StoreFault("plan-mismatch", where, what, fix)
    elif planned and snapshot.status == "completed" and reached - planned not in further:
        yield StoreFault("plan-mismatch", where, f"completed after {reached} updates; the plan says {planned}")


def _rank_faults(snapshot: Snapshot, courses: Mapping[int, RankCourse]) -> Iterator[StoreFault]:
    """Yield ranks that recorded other updates than rank 0. Ranks of a run that broke off may end at other steps."""
    has_ended = snapshot.status in ("completed", "stopped")
    steps = {rank: [update.step for update in course.updates] for rank, course in courses.items()}
    own = steps[DECIDING_RANK]
    for rank, others in steps.items():
        reached = max(own + others, default=0) if has_ended else min(own[-1:] + others[-1:], default=0)
        mine, theirs = (sum(step <= reached for step in each) for each in (own, others))
        if mine != theirs:
            what = f"rank {rank} recorded {counted(theirs, 'update')}, rank 0 {mine}"
            yield StoreFault("rank-disagreement", str(snapshot.folder), f"{what}, up to step {reached}")


# --- resumes ---------------------------------------------------------------------------------------------------------


def _resume_faults(snapshot: Snapshot, courses: Mapping[int, RankCourse], attempt: Attempt) -> Iterator[StoreFault]:
    for rank, course in courses.items():
        where = f"{snapshot.folder}, rank {rank}" if rank else str(snapshot.folder)
        before = [update for update in course.updates if update.attempt < attempt.attempt]
        after = [update for update in course.updates if update.attempt == attempt.attempt]
        undone = {update.step: update for update in course.rolled_back if update.attempt < attempt.attempt}
        if before and after:
            yield from _order_faults(where, attempt, before, after, undone)
            if rank == DECIDING_RANK:
                yield from _rate_faults(where, attempt, before, after, undone)
    yield from _sample_faults(snapshot, courses, attempt)


def _order_faults(
    where: str, attempt: Attempt, before: Sequence[Update], after: Sequence[Update], undone: Mapping[int, Update]
) -> Iterator[StoreFault]:
    """Yield whether a resumed attempt takes its epoch from the beginning, or other samples than before."""
    epoch = after[0].epoch
    begun = [update for update in before if update.epoch == epoch]
    paired = [*zip(after, begun, strict=False)]
    same = [again for again, first in paired if again.order is not None and again.order == first.order]
    at_resume = [update for update in after if update.step in undone and update.order and undone[update.step].order]
    changed = [update for update in at_resume if update.order != undone[update.step].order]
    if paired and len(same) == len(paired):
        first_time = _steps(begun[0].step, begun[len(same) - 1].step)
        steps = f"{_steps(after[0].step, same[-1].step)} take the samples of {first_time}"
        of = "" if epoch == _NO_EPOCH else f" of epoch {epoch:g}"
        what = f"attempt {attempt.attempt} replayed the order{of} from its beginning: {steps}"
        yield StoreFault("replayed-order", where, what, "Skip what the epoch has given, or restore the loader's state")
    elif changed:
        first = changed[0].step
        what = (
            f"attempt {attempt.attempt} takes other samples at update {first} than attempt {undone[first].attempt} did"
        )
        yield StoreFault("changed-order", where, what, "Restore the state of the loader and its random generator")


def _steps(first: int, last: int) -> str:
    return f"update {first}" if first == last else f"updates {first} to {last}"


def _sample_faults(snapshot: Snapshot, courses: Mapping[int, RankCourse], attempt: Attempt) -> Iterator[StoreFault]:
    """Yield the number of samples that the epoch with the resume saw twice, or never if it has ended."""
    updates = [update for course in courses.values() for update in course.updates]
    resumed = [update for update in updates if update.attempt == attempt.attempt]
    epoch = resumed[0].epoch if resumed else _NO_EPOCH
    if epoch == _NO_EPOCH:
        return
    of_epoch = [update for update in updates if update.epoch == epoch]
    earlier = _ids(update for update in of_epoch if update.attempt < attempt.attempt)
    later = _ids(update for update in of_epoch if update.attempt >= attempt.attempt)
    if not earlier or not later:
        return
    twice, never = earlier & later, set[str]()
    if epoch in courses[DECIDING_RANK].ended or any(update.epoch > epoch for update in updates):
        undone = (update for course in courses.values() for update in course.rolled_back)
        never = _ids(updates) | _ids(undone)
        never -= earlier | later
    if twice or never:
        seen = f"{counted(len(twice), 'sample')} seen twice, {len(never)} never"
        what = f"epoch {epoch:g}, which attempt {attempt.attempt} resumed at step {attempt.from_step}: {seen}"
        yield StoreFault("data-order", str(snapshot.folder), what, f"Such as {_examples(twice or never)}")


def _ids(updates: Iterable[Update]) -> set[str]:
    return {sample for update in updates for sample in update.ids}


def _examples(samples: Iterable[str]) -> str:
    return ", ".join(sorted(samples)[:3])


def _rate_faults(
    where: str, attempt: Attempt, before: Sequence[Update], after: Sequence[Update], undone: Mapping[int, Update]
) -> Iterator[StoreFault]:
    rates = [update.rate for update in before[-_USUAL:] if update.rate is not None]
    first = after[0]
    if not rates or first.rate is None:
        return
    expected = undone[first.step].rate if first.step in undone else None
    usual = 0.0 if expected is not None else max((abs(b - a) for a, b in pairwise(rates)), default=0.0)
    compared = rates[-1] if expected is None else expected
    if abs(first.rate - compared) > 2 * usual + _SAME_RATE * max(abs(first.rate), abs(compared)):
        known = f"at update {before[-1].step}" if expected is None else f"there in attempt {undone[first.step].attempt}"
        own = f"{first.rate:g} in attempt {attempt.attempt}"
        what = f"the learning rate of update {first.step} is {own}, {compared:g} {known}"
        yield StoreFault("lr-jump", where, what, "Restore the state of the schedule with the optimizer's")
