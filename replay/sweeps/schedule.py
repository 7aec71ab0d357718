"""What variants watch for, as arrays: laid out once, and used for every run.

Variants flow in; out flow the distinct watches among all that they ask, and which variant has which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .gates import answers_needed, is_plain, starts_anew
from .stream import Ints, Truths
from .variants import SharedRule, Variant, VariantController

#: Variants that are laid out together: what they ask of one run is held in memory at once.
_AT_ONCE: Final = 4_096
#: In the place of a question: that what is watched for is listed event by event.
LISTED: Final = -1
#: No run is as long, and an array can hold it.
_MOST_NEEDED: Final = 2**31


@dataclass(frozen=True, slots=True)
class SweptController:
    """One controller at one trigger, as all variants have it that ask the same.

    Attributes:
        group: What decides together: it alone, or all that share its cooldown.
        place: Which of the group it is.
    """

    group: tuple[VariantController, ...]
    place: int

    @property
    def asked(self) -> VariantController:
        """The controller, the trigger and the question."""
        return self.group[self.place]


@dataclass(frozen=True, eq=False)
class Watches:
    """Watches as columns, each of shape (watches,).

    Attributes:
        source: Number of the answers that a watch goes by.
        needed: How many true answers in a row make one decision.
        is_once: Whether it decides at most once.
        stops, saves: Whether a decision ends the run, and whether it asks for a checkpoint.
    """

    source: Ints
    needed: Ints
    is_once: Truths
    stops: Truths
    saves: Truths


@dataclass(frozen=True, eq=False)
class Schedule:
    """All that some variants ask.

    Attributes:
        variants: The variants.
        questions: The distinct ones.
        watches: The distinct ones.
        columns: The same as columns; the source is a place in ``questions``, or ``LISTED``.
        variant_of, watch_of: For each watch of each variant, the variant and the watch, by their places. Ascending in
            the first.
    """

    variants: tuple[Variant, ...]
    questions: tuple[SharedRule, ...]
    watches: tuple[SweptController, ...]
    columns: Watches
    variant_of: Ints
    watch_of: Ints


def schedules_of(variants: Sequence[Variant]) -> tuple[Schedule, ...]:
    """What those variants ask, some thousands of them at a time."""
    return tuple(schedule_of(variants[begin : begin + _AT_ONCE]) for begin in range(0, max(len(variants), 1), _AT_ONCE))


def schedule_of(variants: Sequence[Variant]) -> Schedule:
    """What those variants ask."""
    questions: dict[SharedRule, int] = {}
    watches: dict[tuple[object, ...], int] = {}
    listed: list[SweptController] = []
    variant_of: list[int] = []
    watch_of: list[int] = []
    for number, variant in enumerate(variants):
        for watch in _watches(variant):
            for _, _, question in watch.group:
                questions.setdefault(question, len(questions))
            key = (watch.place, *[(id(watcher), trigger, id(question)) for watcher, trigger, question in watch.group])
            if key not in watches:
                watches[key] = len(listed)
                listed.append(watch)
            variant_of.append(number)
            watch_of.append(watches[key])
    return Schedule(
        tuple(variants),
        tuple(questions),
        tuple(listed),
        _columns(listed, questions),
        np.array(variant_of, np.int64),
        np.array(watch_of, np.int64),
    )


def _watches(variant: Variant) -> Iterator[SweptController]:
    for group in variant.asked:
        if all(is_plain(watcher.declaration) for watcher, _, _ in group):
            yield from (SweptController((asked,), 0) for asked in group)
        else:
            yield from (SweptController(group, place) for place in range(len(group)))


def _columns(watches: Sequence[SweptController], questions: dict[SharedRule, int]) -> Watches:
    source, needed = np.full(len(watches), LISTED), np.ones(len(watches), np.int64)
    is_once = np.zeros(len(watches), np.bool_)
    for number, watch in enumerate(watches):
        declaration = watch.asked.watcher.declaration
        if is_plain(declaration) and len(watch.group) == 1 and starts_anew(declaration):
            source[number] = questions[watch.asked.question]
            # No run is as long: what is needed is kept small enough for an array.
            needed[number] = min(answers_needed(declaration), _MOST_NEEDED)
            is_once[number] = declaration.is_once
    return Watches(
        source,
        needed,
        is_once,
        np.array([watch.asked.watcher.stops for watch in watches], np.bool_),
        np.array([watch.asked.watcher.saves for watch in watches], np.bool_),
    )
