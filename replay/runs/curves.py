"""Downsamples metric series to curves for plots. Extremes are kept, so a spike of one step remains visible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .event_stream import EventStream

#: Maximum number of points in a curve: about one per pixel of a plot's width.
POINTS: Final = 600

#: The training series that is drawn with the evaluations.
TRAINING_SERIES: Final = "loss"


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run, as points.

    Attributes:
        metric: Name of the metric.
        kind: Kind of event that carries it.
        steps: Steps of the points, in event order.
        values: One value per step; non-finite values are kept as gaps.
    """

    metric: str
    kind: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def curves_of(stream: EventStream) -> tuple[Curve, ...]:
    """Return curves of the training loss (of ``step_end`` events, else of ``log``) and of each evaluation metric."""
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
    """Keep the first and last value, and the minimum, maximum and first gap of each of ``POINTS / 2`` stretches."""
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
