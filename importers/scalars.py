"""Groups values that were logged one by one into runs, attempts and events: a value has a tag, a step and a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from .axes import LoggedEntry, Places, StepPlace, logged_step, places_of
from .rows import split_row
from .source import Fact, Proof, ReadOptions, UnreadableSource

#: The tag of the epoch, which some tools log beside the step.
_EPOCH: Final = "epoch"


class Scalar(NamedTuple):
    """One logged value.

    Attributes:
        tag: Its name.
        step: Its step.
        wall_ns: Time of logging, nanoseconds since 1970; 0 when unknown.
        value: The number.
        stream: The file that it was written to: the order of values means something within a file only.
    """

    tag: str
    step: int
    wall_ns: int
    value: float
    stream: int = 0


#: Attempt, step, and own count of what counts something else than the training.
_Group: TypeAlias = tuple[int, int, int | None]


class _Placed(NamedTuple):
    """A value of a run: its attempt, and its place if it counts something else than the training."""

    attempt: int
    scalar: Scalar
    place: StepPlace | None

    @property
    def step(self) -> int:
        return self.scalar.step if self.place is None else self.place.step

    @property
    def group(self) -> _Group:
        """Attempt, step and own count: what has the same may be one event."""
        is_apart = self.place is not None and self.place.axis.proof is not Proof.COUNTED
        return self.attempt, self.step, self.scalar.step if is_apart else None


def courses_of(
    scalars: Sequence[Scalar],
    problem: UnreadableSource | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - immutable
    configured: int | None = None,
) -> Iterator[Iterator[Fact]]:
    """Yield the facts of each run in the scalars.

    Args:
        scalars: Scalars in the order of logging.
        problem: Error after the last scalar; raised at the end of the last run.
        options: As for ``Reader.read``.
        configured: As for ``places_of``.
    """
    places = _places(scalars, options.steps_per_epoch, configured)
    lives = _lives(scalars, places)
    last = max((run for run, _ in lives), default=-1)
    waiting = places.undecided if options.is_growing else frozenset()
    for run in range(last + 1):
        own = [
            _Placed(attempt, scalars[index], places.by_index.get(index))
            for index, (of, attempt) in enumerate(lives)
            if of == run and index not in waiting
        ]
        if own or not waiting or problem is not None:
            yield _facts(own, problem if run == last else None)


def _places(scalars: Sequence[Scalar], steps_per_epoch: int | None, configured: int | None) -> Places:
    """Return the places of what counts something else; without looking, where no step lies behind another one's."""
    is_ascending = all(earlier.step <= later.step for earlier, later in pairwise(scalars))
    if is_ascending and scalars and scalars[-1].step != scalars[0].step:
        return Places()
    return places_of([_entry(scalar) for scalar in scalars], steps_per_epoch, configured=configured)


def _entry(scalar: Scalar) -> LoggedEntry:
    if scalar.tag == _EPOCH:
        return LoggedEntry((), scalar.step, scalar.wall_ns, scalar.value, stream=scalar.stream)
    return LoggedEntry((scalar.tag,), scalar.step, scalar.wall_ns, stream=scalar.stream)


def _lives(scalars: Sequence[Scalar], places: Places) -> list[tuple[int, int]]:
    """Return run and attempt of each scalar.

    Where the step of the training goes backwards, another process took over. At or before the run's first step that is
    another run; after it, a resume from a checkpoint and so another attempt. Other tags may lag behind. What a file
    without the training holds belongs to the life of the training at that time.
    """
    first = newest = None
    run = attempt = 0
    lives = []
    for index, scalar in enumerate(scalars):
        if scalar.tag == places.reference and index not in places.by_index:
            if first is None:
                first = scalar.step
            if newest is not None and scalar.step < newest:
                if scalar.step <= first:
                    run, attempt, first = run + 1, 0, scalar.step
                else:
                    attempt += 1
            newest = scalar.step
        lives.append((run, attempt))
    return [lives[_beside(index, places)] for index in range(len(lives))]


def _beside(index: int, places: Places) -> int:
    """Return the index of a scalar of the same life."""
    place = places.by_index.get(index)
    return places.follows.get(index, index) if place is None or place.after < 0 else place.after


def _facts(own: Sequence[_Placed], problem: UnreadableSource | None) -> Iterator[Fact]:
    """Yield the events of a run: by step within an attempt, the values of a step together until a tag repeats.

    What counts something else is an event of its own after those of its step, in the order of logging.
    """
    begun: dict[_Group, int] = {}
    places: list[tuple[int, int, int]] = []
    for index, value in enumerate(own):
        attempt, step, count = group = value.group
        places.append((attempt, step, -1 if count is None else begun.setdefault(group, index)))
    row: dict[str, _Placed] = {}
    place: tuple[int, int, int] | None = None
    for index in sorted(range(len(own)), key=places.__getitem__):
        value = own[index]
        if places[index] != place or value.scalar.tag in row:
            yield from _events(row)
            place, row = places[index], {}
        row[value.scalar.tag] = value
    yield from _events(row)
    if problem is not None:
        raise problem


def _events(row: dict[str, _Placed]) -> Iterator[Fact]:
    """Yield the events of one step's values, each with the time of its latest value."""
    for kind, part in split_row({tag: value.scalar.value for tag, value in row.items()}):
        newest = max((row[tag] for tag in part), key=lambda value: value.scalar.wall_ns)
        fact = Fact(kind, newest.step, part, time_ns=newest.scalar.wall_ns, attempt=newest.attempt)
        if (place := newest.place) is None:
            yield fact
        else:
            attrs = logged_step(newest.scalar.step, place)
            yield fact._replace(epoch=place.epoch, attrs=attrs).on_axis(place.axis)
