"""Lays out as arrays the watches of all variants; computed once and used for every run.

A watch is one controller at one trigger, with the values of its params. Takes variants; returns their distinct watches,
and which variant has which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ..columns.gates import answers_needed, is_plain, starts_anew
from ..columns.stream import Ints, Truths
from ..columns.watchers import SharedRule, VariantController
from .reach import VariantGroups
from .variants import Variant

#: Variants laid out together: their answers on one run are all in memory at once.
_AT_ONCE: Final = 4_096
#: Replaces a question's number where the firings of a watch are listed event by event.
LISTED: Final = -1
#: Longer than any run, and small enough for an array.
_MOST_NEEDED: Final = 2**31


@dataclass(frozen=True, slots=True)
class SweptController:
    """One controller at one trigger, shared by all variants that ask the same.

    Attributes:
        group: The controllers decided together: this one alone, or all that share its cooldown.
        place: Index of this controller in the group.
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
        source: Number of the answers that a watch reads.
        needed: Number of true answers in a row that make one decision.
        is_once: Whether it decides at most once.
        stops, saves, evaluates: Whether a decision ends the run, asks for a checkpoint, and asks for an evaluation.
    """

    source: Ints
    needed: Ints
    is_once: Truths
    stops: Truths
    saves: Truths
    evaluates: Truths


@dataclass(frozen=True, eq=False)
class Schedule:
    """The questions and watches of some variants.

    Attributes:
        variants: The variants.
        questions: The distinct questions.
        watches: The distinct watches.
        columns: The watches as columns; the source is an index into ``questions``, or ``LISTED``.
        variant_of, watch_of: For each watch of each variant, the indices of the variant and of the watch. Ascending in
            ``variant_of``.
    """

    variants: tuple[Variant, ...]
    questions: tuple[SharedRule, ...]
    watches: tuple[SweptController, ...]
    columns: Watches
    variant_of: Ints
    watch_of: Ints

    @cached_property
    def groups(self) -> VariantGroups:
        """The variants, grouped by whether they could fire in a run."""
        return VariantGroups(self.variants)


def schedules_of(variants: Sequence[Variant]) -> tuple[Schedule, ...]:
    """Return the schedules of those variants, some thousands of them in each."""
    return tuple(schedule_of(variants[begin : begin + _AT_ONCE]) for begin in range(0, max(len(variants), 1), _AT_ONCE))


def schedule_of(variants: Sequence[Variant]) -> Schedule:
    """Return the schedule of those variants."""
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
            needed[number] = min(answers_needed(declaration), _MOST_NEEDED)
            is_once[number] = declaration.is_once
    return Watches(
        source,
        needed,
        is_once,
        np.array([watch.asked.watcher.stops for watch in watches], np.bool_),
        np.array([watch.asked.watcher.saves for watch in watches], np.bool_),
        np.array([watch.asked.watcher.evaluates for watch in watches], np.bool_),
    )
