"""Downsamples metric series to curves for plots. Extremes are kept, so a spike of one step remains visible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...store.parquet.event_rows import Numbers
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
    found: list[tuple[str, str, Numbers]] = []
    for kind in ("step_end", "log"):
        losses = stream.values_at(kind, TRAINING_SERIES)
        if len(losses.rows):
            found.append((TRAINING_SERIES, kind, losses))
            break
    if len(stream.rows("evaluate")):
        every = ((name, "evaluate", stream.values_at("evaluate", name)) for name in stream.facts.metrics)
        found += [each for each in every if len(each[2].rows)]
    found.sort(key=lambda each: int(each[2].rows[0]))
    return tuple(
        _thinned(name, kind, stream.steps[own.rows].tolist(), own.values.tolist()) for name, kind, own in found
    )


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
