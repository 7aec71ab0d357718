"""Computes what rules ask of past decisions: ``fired``, ``steps_since``, ``holding``, and the like.

Takes the answers or the firings of the controller that is asked about; returns a vector over the rows of the rule that
asks. Rules see what happened at earlier events, and of controllers above them also what happens at the same event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .gates import Answers
from .stream import Ints, Truths
from .vectors import Vector
from .watchers import Watcher

#: Questions about the answers of a rule; those of ``OF_FIRINGS`` depend on what holds its controller back.
OF_ANSWERS: Final = frozenset({"holding", "true_now", "streak"})
OF_FIRINGS: Final = frozenset({"fired", "times_fired", "steps_since", "fired_now"})
#: The questions whose answer is True or False.
OF_TRUTH: Final = frozenset({"fired", "holding", "true_now", "fired_now"})


@dataclass(frozen=True, slots=True)
class AskedPast:
    """A question about the past decisions of a controller.

    Attributes:
        question: The function.
        group: The controllers that are decided together: those that share its cooldown, or it alone.
        place: Its index among them.
        is_above: Whether it is above the controller that asks.
    """

    question: str
    group: tuple[Watcher, ...]
    place: int
    is_above: bool

    @property
    def watcher(self) -> Watcher:
        """The controller that is asked about."""
        return self.group[self.place]


def of_answers(asked: AskedPast, every: Sequence[Answers], rows: Ints) -> Vector:
    """Return what a question of ``OF_ANSWERS`` gives at each row.

    Args:
        asked: The question.
        every: The answers of the controller at its triggers.
        rows: The events at which the question is asked.
    """
    events = np.concatenate([answers.events for answers in every])
    truths = np.concatenate([_truths(answers) for answers in every])
    if len(every) > 1:
        order = np.argsort(events, kind="stable")
        events, truths = events[order], truths[order]
    if asked.question == "true_now":
        return Vector(np.isin(rows, events[truths]), None)
    before = np.searchsorted(events, rows, side="right" if asked.question == "streak" and asked.is_above else "left")
    if asked.question == "holding":
        # Index 0 is the state before the first answer.
        return Vector(np.append(False, truths)[before], None)
    counts = np.arange(len(truths))
    streaks = counts - np.maximum.accumulate(np.where(truths, -1, counts)) if len(truths) else counts
    return Vector(np.append(0, streaks)[before].astype(np.float64), None)


def of_firings(asked: AskedPast, every: Sequence[Ints], rows: Ints, steps: Ints) -> Vector:
    """Return what a question of ``OF_FIRINGS`` gives at each row.

    Args:
        asked: The question.
        every: The events at which the controller fires, at each of its triggers.
        rows: The events at which the question is asked.
        steps: The step of each event.
    """
    events = every[0] if len(every) == 1 else np.sort(np.concatenate(every))
    if asked.question == "fired_now":
        return Vector(np.isin(rows, events), None)
    times = np.searchsorted(events, rows, side="left")
    match asked.question:
        case "fired":
            return Vector(times > 0, None)
        case "times_fired":
            return Vector(times.astype(np.float64), None)
    if not len(events):
        return Vector(np.zeros(len(rows)), np.zeros(len(rows), np.bool_))
    since = steps[rows] - steps[events[np.maximum(times - 1, 0)]]
    return Vector(since.astype(np.float64), times > 0)


def _truths(answers: Answers) -> Truths:
    truths = np.zeros(len(answers.events), np.bool_)
    truths[answers.true_at] = True
    return truths
