"""Turns a rule's answers into the events at which its controller fires, using only the few true answers.

Takes the answers of controllers at their triggers; returns, for each controller and trigger, the events at which it
fires. Patience is arithmetic on streaks of true answers: here for one controller, in ``sweeps/firings.py`` for those of
all variants at once. Anything with more state (``for``, ``cooldown``, ``once`` at several triggers) goes through the
engine's own gates, which receive the true answers and the end of each streak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...rules.engine.gates import FiringGate, FiringLimits
from ...rules.language.context import Clock, Past
from ...rules.language.patience import RESET_ON_FAILURE
from ...rules.language.timing import SpanTimer
from ...rules.policy_file.declarations import Controller
from ...store.events import Event
from .stream import Ints, Stream, Truths

_FIRST: Final[Ints] = np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a rule at the events of one kind; it has no answer where it was undefined or not asked.

    Attributes:
        events: Index of the event of each answer; shape (n,).
        starts, lengths: First answer and length of each streak of true answers.
    """

    events: Ints
    starts: Ints
    lengths: Ints

    @property
    def true_at(self) -> Ints:
        """Indices of the true answers, ascending."""
        ends = np.cumsum(self.lengths)
        listed: Ints = np.repeat(self.starts - (ends - self.lengths), self.lengths) + np.arange(self.lengths.sum())
        return listed


def answers_of(events: Ints, truths: Truths) -> Answers:
    """Return the answers at those events, one each."""
    (edges,) = (truths[1:] != truths[:-1]).nonzero()
    edges += 1
    if len(truths) and truths[0]:
        edges = np.concatenate([_FIRST, edges])
    if len(edges) % 2:
        edges = np.append(edges, len(truths))
    starts = edges[::2]
    return Answers(events, starts, edges[1::2] - starts)


def is_plain(controller: Controller) -> bool:
    """Whether its decisions depend only on its answers, patience, and ``once`` at a single trigger."""
    is_simple = controller.hold is None and controller.cooldown is None
    return is_simple and not (controller.is_once and len(controller.triggers) > 1)


def answers_needed(controller: Controller) -> int:
    """Return the number of true answers that make one decision of a controller for which ``is_plain`` is true."""
    return 1 if controller.patience is None else max(controller.patience.threshold, 0) + 1


def starts_anew(controller: Controller) -> bool:
    """Whether a false answer resets the count of true ones; irrelevant if a single one makes a decision."""
    patience = controller.patience
    return patience is None or patience.threshold <= 0 or patience.mode == RESET_ON_FAILURE


def plain_firings(controller: Controller, answers: Answers) -> Ints:
    """Return the events at which a controller fires for which ``is_plain`` is true, ascending."""
    needed = answers_needed(controller)
    if starts_anew(controller):
        return firings_in_a_row(answers, needed, is_once=controller.is_once)
    fired = answers.true_at[needed - 1 :: needed]
    listed: Ints = answers.events[fired[:1] if controller.is_once else fired]
    return listed


def firings_in_a_row(answers: Answers, needed: int, *, is_once: bool) -> Ints:
    """Return the events that complete ``needed`` true answers in a row, ascending; with ``is_once`` only the first."""
    times = answers.lengths // needed
    ends = np.cumsum(times)
    again = np.arange(int(times.sum())) - np.repeat(ends - times, times)
    fired = np.repeat(answers.starts + needed - 1, times) + again * needed
    listed: Ints = answers.events[fired[:1] if is_once else fired]
    return listed


class _ClockAt(Clock):
    """A clock whose time is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.stands_at_ns = 0

    @property
    def elapsed_ns(self) -> int:
        """Training time up to the current event."""
        return self.stands_at_ns


def gated_firings(stream: Stream, watches: Sequence[tuple[Controller, str, Answers]]) -> list[Ints]:
    """Return the events at which each controller fires, at each of its triggers.

    Args:
        stream: The run.
        watches: Controllers that share a cooldown, or a single one: the controller, the kind of event, and the answers,
            in the order in which they are asked.
    """
    clock = _ClockAt()
    shared: dict[str, SpanTimer] = {}
    restraints: dict[int, FiringLimits] = {}
    gates: list[FiringGate] = []
    for controller, _, _ in watches:
        if id(controller) not in restraints:
            restraints[id(controller)] = FiringLimits(
                Past(), is_once=controller.is_once, cooldown=_timer(controller, shared)
            )
        gates.append(FiringGate(restraints[id(controller)], clock, controller.patience, controller.hold))
    fired: list[list[int]] = [[] for _ in watches]
    for index, number, is_true in _merged([answers for _, _, answers in watches]):
        gate = gates[number]
        if not is_true:
            gate.on_false()
            continue
        clock.stands_at_ns = int(stream.clock_ns[index])
        clock.evaluations = int(stream.evaluation_counts[index])
        if gate.on_true(Event(watches[number][1], step=int(stream.steps[index]))):
            fired[number].append(index)
    return [np.array(indices, np.int64) for indices in fired]


def _timer(controller: Controller, shared: dict[str, SpanTimer]) -> SpanTimer | None:
    cooldown = controller.cooldown
    if cooldown is None:
        return None
    return shared.setdefault(cooldown.name, SpanTimer(cooldown.span)) if cooldown.name else SpanTimer(cooldown.span)


def _merged(every: Sequence[Answers]) -> list[tuple[int, int, bool]]:
    """Return the true answers, and the first false one after each streak, in the order in which they were given."""
    merged: list[tuple[int, int, bool]] = []
    for number, answers in enumerate(every):
        ends = answers.starts + answers.lengths
        merged += [(index, number, True) for index in answers.events[answers.true_at].tolist()]
        merged += [(index, number, False) for index in answers.events[ends[ends < len(answers.events)]].tolist()]
    return sorted(merged)
