"""Groups values that were logged one by one, each with tag, step and time, into runs and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .errors import UnreadableSource
from .evaluation_names import split_row
from .source import Fact


class Scalar(NamedTuple):
    """One logged value.

    Attributes:
        tag: Its name.
        step: Its step.
        wall_ns: Time of logging, nanoseconds since 1970; 0 when unknown.
        value: The number.
    """

    tag: str
    step: int
    wall_ns: int
    value: float


def courses_of(scalars: Sequence[Scalar], problem: UnreadableSource | None = None) -> Iterator[Iterator[Fact]]:
    """Yield the facts of each run in the scalars.

    Args:
        scalars: Scalars in the order of logging.
        problem: Error after the last scalar; raised at the end of the last run.
    """
    lives = _lives(scalars)
    last = lives[-1][0] if lives else -1
    for run in range(last + 1):
        own = [(attempt, scalar) for (of, attempt), scalar in zip(lives, scalars, strict=True) if of == run]
        yield _facts(own, problem if run == last else None)


def _lives(scalars: Sequence[Scalar]) -> list[tuple[int, int]]:
    """Return run and attempt of each scalar.

    The tag with the most values is the run's clock. Where its step goes backwards, another process took over. At or
    before the run's first step that is another run; after it, a resume from a checkpoint and so another attempt. Other
    tags may count something of their own and lag behind.
    """
    if not scalars:
        return []
    clock = Counter(scalar.tag for scalar in scalars).most_common(1)[0][0]
    first = newest = None
    run = attempt = 0
    lives = []
    for scalar in scalars:
        if scalar.tag == clock:
            if first is None:
                first = scalar.step
            if newest is not None and scalar.step < newest:
                if scalar.step <= first:
                    run, attempt, first = run + 1, 0, scalar.step
                else:
                    attempt += 1
            newest = scalar.step
        lives.append((run, attempt))
    return lives


def _facts(own: Sequence[tuple[int, Scalar]], problem: UnreadableSource | None) -> Iterator[Fact]:
    """Yield the events of a run: by step within an attempt, the values of a step together until a tag repeats."""
    ordered = sorted(own, key=lambda entry: (entry[0], entry[1].step))
    row: dict[str, Scalar] = {}
    place: tuple[int, int] | None = None
    for attempt, scalar in ordered:
        if place is None or place != (attempt, scalar.step) or scalar.tag in row:
            if place is not None:
                yield from _events(place[0], row)
            place, row = (attempt, scalar.step), {}
        row[scalar.tag] = scalar
    if place is not None:
        yield from _events(place[0], row)
    if problem is not None:
        raise problem


def _events(attempt: int, row: dict[str, Scalar]) -> Iterator[Fact]:
    """Yield the events of one step's values, each with the time of its latest value."""
    for kind, part in split_row({tag: scalar.value for tag, scalar in row.items()}):
        newest = max((row[tag] for tag in part), key=lambda scalar: scalar.wall_ns)
        yield Fact(kind, newest.step, part, time_ns=newest.wall_ns, attempt=attempt)
