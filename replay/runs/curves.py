"""The course of a metric, thinned out for a plot: extremes survive, so a spike of one step is still seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .event_stream import EventStream

#: Points that a curve keeps at most: about one for each pixel of a plot's width.
POINTS: Final = 600

#: The series of training that is drawn beside the evaluations.
TRAINING_SERIES: Final = "loss"


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run, as points.

    Attributes:
        metric: Its name.
        kind: The kind of event that carries it.
        steps: In event order.
        values: One for each step; those that are not finite are kept, as gaps.
    """

    metric: str
    kind: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def curves_of(stream: EventStream) -> tuple[Curve, ...]:
    """The training loss, as steps or else logs carry it, and every metric of the evaluations."""
    points: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    begins: dict[tuple[str, str], int] = {}
    losses = stream.values(TRAINING_SERIES)
    for kind in ("step_end", "log"):
        course = [
            index
            for index, (own, loss) in enumerate(zip(stream.kinds, losses, strict=True))
            if own == kind and loss is not None
        ]
        if course:
            begins[kind, TRAINING_SERIES] = course[0]
            taken = [loss for index in course if (loss := losses[index]) is not None]
            points[kind, TRAINING_SERIES] = [stream.steps[index] for index in course], taken
            break
    for index, event in stream.of_kind("evaluate"):
        for name, value in event.metrics.items():
            begins.setdefault(("evaluate", name), index)
            steps, values = points.setdefault(("evaluate", name), ([], []))
            steps.append(event.step)
            values.append(value)
    return tuple(_thinned(name, kind, *points[kind, name]) for kind, name in sorted(points, key=begins.__getitem__))


def _thinned(name: str, kind: str, steps: Sequence[int], values: Sequence[float]) -> Curve:
    """First, last, and the smallest and greatest value of each of ``POINTS / 2`` stretches, with every first gap."""
    if len(values) <= POINTS:
        return Curve(name, kind, tuple(steps), tuple(values))
    kept = {0, len(values) - 1}
    stretches = POINTS // 2
    for number in range(stretches):
        start, end = number * len(values) // stretches, (number + 1) * len(values) // stretches
        stretch = values[start:end]
        if all(map(math.isfinite, stretch)):
            kept |= {start + stretch.index(min(stretch)), start + stretch.index(max(stretch))}
            continue
        kept.add(next(index for index in range(start, end) if not math.isfinite(values[index])))
        finite = [index for index in range(start, end) if math.isfinite(values[index])]
        if finite:
            kept.add(min(finite, key=values.__getitem__))
            kept.add(max(finite, key=values.__getitem__))
    order = sorted(kept)
    return Curve(name, kind, tuple(steps[index] for index in order), tuple(values[index] for index in order))
