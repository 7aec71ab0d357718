"""Computes the checkpoints of all variants on one run: their number, their size, and the best evaluation among them.

Takes the ending of each variant; returns arrays over the variants, as of these endings.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ..columns.stream import Floats, Ints, Stream
from ..runs.metric_names import Mode
from ..runs.objective import Objective
from .tally import Tally


@dataclass(frozen=True, eq=False)
class Kept:
    """The checkpoints of variants; each array has shape (variants,).

    Attributes:
        count: Number of checkpoints.
        size_bytes: Their total size; NaN if unknown.
        deployable: The best evaluation at a step that has a checkpoint; NaN without any.
    """

    count: Ints
    size_bytes: Floats
    deployable: Floats


def recorded_checkpoints(stream: Stream, endings: Ints, objective: Objective | None) -> Kept:
    """Return the run's own checkpoints up to each of those events."""
    saves = stream.rows("save")
    counts = np.searchsorted(saves, endings, side="right")
    totals = itertools.accumulate((math.nan if size is None else size for size in stream.checkpoint_bytes), initial=0)
    sizes = np.array([float(total) for total in totals])[counts]
    return Kept(counts, sizes, _Deployable(stream, objective).until(saves, endings))


def with_asked_checkpoints(
    stream: Stream, tally: Tally, endings: Ints, objective: Objective | None, *, drops_own: bool
) -> Kept:
    """Return the run's own checkpoints and those that rules asked for, up to each variant's ending.

    Rules add one checkpoint per step, of the run's average size, and none where the loop kept one.

    Args:
        stream: The run.
        tally: The firings of all variants.
        endings: The events up to which evaluations and checkpoints count.
        objective: The objective.
        drops_own: Whether the run's own checkpoints are left out.
    """
    saves = np.zeros(0, np.int64) if drops_own else stream.rows("save")
    own = recorded_checkpoints(stream, np.full_like(endings, -1) if drops_own else endings, objective)
    own_steps, own_firsts = _distinct(stream.steps[saves])
    added, best = np.zeros(len(endings), np.int64), own.deployable.copy()
    deployable = _Deployable(stream, objective)
    for asked, variants in tally.asking(tally.watches.saves):
        until = endings[variants]
        steps, firsts = _distinct(stream.steps[asked])
        _, both, own_both = np.intersect1d(steps, own_steps, assume_unique=True, return_indices=True)
        # From these events on the loop, too, has a checkpoint of the step.
        doubled = np.sort(np.maximum(asked[firsts[both]], saves[own_firsts[own_both]]))
        once = np.sort(asked[firsts])
        added[variants] = np.searchsorted(once, until, side="right") - np.searchsorted(doubled, until, side="right")
        best[variants] = deployable.until(np.union1d(saves, once), until)
    sizes = [size for size in stream.checkpoint_bytes if size is not None]
    average = round(sum(sizes) / len(sizes)) if sizes else None
    # Without checkpoints the total is 0 bytes, even if the size of a checkpoint is unknown.
    known = np.array([float(count * average) if average is not None else math.nan for count in added.tolist()])
    return Kept(own.count + added, own.size_bytes + np.where(added > 0, known, 0.0), best)


class _Deployable:
    """The best evaluation at steps that have a checkpoint.

    Args:
        stream: The run.
        objective: The objective.
    """

    def __init__(self, stream: Stream, objective: Objective | None) -> None:
        self._is_min = objective is not None and objective.mode is Mode.MIN
        self._at, self._values = evaluations_of(stream, objective)
        self._stream = stream

    def until(self, saves: Ints, endings: Ints) -> Floats:
        """Return its value as of each ending; NaN without any.

        Args:
            saves: The events that write checkpoints, ascending.
            endings: The events up to which evaluations and checkpoints count.
        """
        steps, of_evaluations = self._stream.steps[saves], self._stream.steps[self._at]
        saved_steps, firsts = _distinct(steps)
        place = np.searchsorted(saved_steps, of_evaluations)
        has_one = np.append(saved_steps, 0)[place] == of_evaluations
        has_one &= place < len(saved_steps)
        ready = np.maximum(self._at[has_one], saves[firsts[place[has_one]]])
        order = np.argsort(ready, kind="stable")
        pick = np.fmin if self._is_min else np.fmax
        bests = np.append(pick.accumulate(self._values[has_one][order]), np.nan)
        # Before the first ready evaluation the index is -1: the last element, which is NaN.
        found: Floats = bests[np.searchsorted(ready[order], endings, side="right") - 1]
        return found


def evaluations_of(stream: Stream, objective: Objective | None) -> tuple[Ints, Floats]:
    """Return the events that evaluated the objective, and its values; empty without an objective."""
    metric = None if objective is None else stream.metrics.get(objective.metric)
    if metric is None:
        return np.zeros(0, np.int64), np.zeros(0)
    own = stream.is_any(("evaluate",))[metric.at]
    return metric.at[own], metric.values[own]


def _distinct(steps: Ints) -> tuple[Ints, Ints]:
    """Return the distinct steps, ascending, and the index of the first occurrence of each."""
    if bool((steps[1:] > steps[:-1]).all()):
        return steps, np.arange(len(steps))
    # Takes ten times as long, and is needed only where steps restart.
    return np.unique(steps, return_index=True)
