"""Draws the plots of a report as SVG: each run's curves with its decisions, and savings against regret.

Colours come from the page's style sheet by class, so the same drawing works on light and dark screens and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from markupsafe import Markup

from ...store.amounts import regret_text
from ...store.reading.svg import (
    BOTTOM,
    GAP,
    LEFT,
    PANEL,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    axis_labels,
    circle,
    height_of,
    line,
    panel,
    panel_scale,
    path,
    scale_of,
    svg_of,
    text_at,
)
from ..runs.history import TRAINING_SERIES
from ..runs.objective import Curve, Objective, best
from ..runs.run_result import RunResult

_SCATTER_HEIGHT: Final = 420
#: Smallest regret, in percent, that the plot distinguishes from 0.
_FINEST_REGRET: Final = 0.1
_REGRET_TICKS: Final = (-1000, -100, -10, -1, -0.1, 0, 0.1, 1, 10, 100, 1000, 10_000)

#: Maximum number of drawn decision marks other than the stop, spread evenly.
_MARKS: Final = 200


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the scatter plot.

    Attributes:
        x, y: Share cut off and regret, in percent.
        label: Name of the run, policy, baseline or variant.
        kind: Its classes in the style sheet: ``run``, with that of its family, ``policy``, ``baseline``, ``front`` for
            the variants of a front, or ``variant`` to label them, too.
        outside: The point of a variant on runs that did not choose it; None if it is unknown.
    """

    x: float
    y: float
    label: str
    kind: str
    outside: tuple[float, float] | None = None


def run_plot(result: RunResult) -> Markup:
    """Plot a run's objective and training loss over steps, with the policy's decisions; empty without a curve."""
    curves = _drawn(result.curves, result.objective)
    last_step = max((step for curve in curves for step in curve.steps), default=0)
    if not last_step:
        return Markup()
    across = Scale(0, last_step, LEFT, WIDTH - RIGHT)
    height = height_of(len(curves))
    parts = []
    for number, curve in enumerate(curves):
        top = TOP + number * (PANEL + GAP)
        parts += _panel(curve, across, top, number == 0, result)
    bottom = height - BOTTOM
    parts += _decisions(result, across, bottom)
    parts += axis_labels(across, height)
    title = f"{result.name}: {', '.join(curve.metric for curve in curves)} over steps"
    return svg_of(height, title, parts)


def savings_plot(marks: Sequence[Mark], title: str = "steps cut off against regret") -> Markup:
    """Plot relative regret against the share of steps cut off; up and to the left is worse. Empty without points.

    A leader joins a variant to its point out of sample. The regret axis is symmetric-logarithmic in percent: sign times
    log10(1 + regret / 0.1). Regret spans from hundredths to hundreds, and 0 matters most.
    """
    points = [point for mark in marks for point in ((mark.x, mark.y), mark.outside) if point is not None]
    across = scale_of([0.0, *(x for x, _ in points)], LEFT + 8, WIDTH - RIGHT)
    upwards = scale_of([-0.5, 1.0, *(_flattened(y) for _, y in points)], _SCATTER_HEIGHT - 44, TOP)
    if not marks or across is None or upwards is None:
        return Markup()
    base, parts, least = upwards.begin, [], min(0.0, *(y for _, y in points))
    for tick in _REGRET_TICKS:
        if max(upwards.low, _flattened(least)) <= _flattened(tick) <= upwards.high:
            y = upwards.at(_flattened(tick))
            parts += [line(across.begin, y, across.end, y, "grid"), text_at(LEFT + 2, y + 4, f"{tick:g}%", "tick end")]
    parts += [text_at(across.at(tick), base + 16, f"{tick:.4g}%", "tick middle") for tick in across.ticks()]
    parts.append(text_at((across.begin + across.end) / 2, base + 36, "steps cut off", "axis middle"))
    parts.append(text_at(2, 9, "regret", "axis"))
    places = [(across.at(mark.x), upwards.at(_flattened(mark.y)), mark) for mark in marks]
    drawn = [(across.at(x), upwards.at(_flattened(y))) for x, y in points]
    labels = LabelPlacement(drawn, LEFT + 8, WIDTH - RIGHT, TOP, base)
    ordered = sorted(places, key=lambda place: place[:2])
    front = [f"{x:.1f} {y:.1f}" for x, y, mark in ordered if mark.kind in ("front", "variant")]
    if len(front) > 1:
        parts.append(path("front", f"M{'L'.join(front)}"))
    for x, y, mark in places:
        if mark.outside is not None:
            there = across.at(mark.outside[0]), upwards.at(_flattened(mark.outside[1]))
            parts += [line(x, y, *there, "leader"), _dot(*there, Mark(*mark.outside, mark.label, "outside"))]
    # The policy's label is placed first, to be next to its dot; its dot is drawn last, to be on top.
    for x, y, mark in sorted(places, key=lambda place: place[2].kind != "policy"):
        if mark.kind in ("policy", "baseline", "variant"):
            parts += _label(labels.place(x, y, mark.label), x, y, mark)
    parts += [_dot(*place) for place in sorted(places, key=lambda place: place[2].kind == "policy")]
    return svg_of(_SCATTER_HEIGHT, title, parts)


def _flattened(percent: float) -> float:
    return math.copysign(math.log10(1 + abs(percent) / _FINEST_REGRET), percent)


def _drawn(curves: Iterable[Curve], objective: Objective | None) -> list[Curve]:
    """Return the objective's curve first, then that of the training loss."""
    merit = [curve for curve in curves if curve.kind == "evaluate" and objective and curve.metric == objective.metric]
    return merit + [curve for curve in curves if curve.kind != "evaluate" and curve.metric == TRAINING_SERIES]


def _panel(curve: Curve, across: Scale, top: float, is_first: bool, result: RunResult) -> list[Markup]:
    upwards = panel_scale(curve.values, top)
    name = curve.metric if curve.kind == "evaluate" else f"{curve.metric} (training)"
    kind = "merit" if curve.kind == "evaluate" else "training"
    parts = panel(name, curve.steps, curve.values, across, upwards, top, kind)
    if upwards is None:
        return parts
    if curve.kind == "evaluate" and result.objective is not None:
        parts += _bests(result, result.objective, across, upwards)
    stop = result.predicted.steps if result.predicted is not None and result.stop is not None else None
    if stop is not None and stop < across.high:
        x = across.at(stop)
        parts.insert(0, path("spared", f"M{x:.1f} {top}H{across.end:.1f}v{PANEL}H{x:.1f}z"))
        parts.append(line(x, top, x, top + PANEL, "stop"))
        if is_first:
            side = "end" if x > WIDTH * 0.6 else "start"
            parts.append(text_at(x + (-4 if side == "end" else 4), top + 11, f"stop at {stop:,}", f"stoplabel {side}"))
    return parts


def _bests(result: RunResult, objective: Objective, across: Scale, upwards: Scale) -> list[Markup]:
    """Draw rings around the best of the whole run and the best up to the stop."""
    marks = []
    whole = best(result.evaluations, objective)
    if whole is not None:
        marks.append((whole.step, whole.value, "best", "best of the whole run"))
    predicted = result.predicted
    if predicted is not None and predicted.best is not None and predicted.best_step is not None:
        marks.append((predicted.best_step, predicted.best, "reached", "best up to the stop"))
    return [
        circle(kind, across.at(step), upwards.at(value), 3.5, f"{title}: {value:.5g} at step {step}")
        for step, value, kind, title in marks
        if math.isfinite(value)
    ]


def _decisions(result: RunResult, across: Scale, bottom: float) -> list[Markup]:
    """Draw a small mark under the lowest panel for each decision, coloured by its validity."""
    stride = max(1, math.ceil(len(result.decisions) / _MARKS))
    marks = []
    for judged in result.decisions[::stride]:
        x = across.at(min(judged.outcome.step, across.high))
        title = f"step {judged.outcome.step}: {judged.outcome.controller} ({judged.validity})"
        marks.append(path(f"mark {judged.validity}", f"M{x:.1f} {bottom + 3}l3 7h-6z", title))
    return marks


def _dot(x: float, y: float, mark: Mark) -> Markup:
    where = ", out of sample" if mark.kind == "outside" else ""
    title = f"{mark.label}{where}: {mark.x:.1f}% cut off, regret {regret_text(mark.y / 100)}"
    if mark.kind == "baseline":
        return path("dot baseline", f"M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z", title)
    return circle(f"dot {mark.kind}", x, y, 7 if mark.kind == "policy" else 4, title)


def _label(placed: Placed, x: float, y: float, mark: Mark) -> list[Markup]:
    """Draw a label, and a leader line to its point if the label is far."""
    text = text_at(placed.x, placed.y, mark.label, f"label {mark.kind} {placed.side}")
    if not placed.is_far:
        return [text]
    return [line(x, y, placed.x, placed.y - 4, f"leader {mark.kind}"), text]


#: Width of a character and height of a line, in drawing units; generous, because fonts differ.
CHARACTER: Final = 7.0
LINE: Final = 12.5

#: Distance from a point to its label, and clearance around every point.
_BESIDE: Final = 9.0
_AROUND: Final = 5.0

#: Vertical shifts tried for a label, nearest first.
_SHIFTS: Final = (0.0, *(sign * 13.0 * step for step in range(1, 9) for sign in (-1, 1)))


class Placed(NamedTuple):
    """The position of a label.

    Attributes:
        x, y: The end of the text next to the point, on the base line.
        side: ``start`` if the text continues to the right from there, ``end`` if it ends there.
        is_far: Whether it is far enough away to need a leader line.
    """

    x: float
    y: float
    side: str
    is_far: bool


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        """Whether two boxes overlap."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not (is_beside or self.bottom <= other.top or other.bottom <= self.top)


@dataclass(slots=True)
class LabelPlacement:
    """Places labels one after the other.

    Args:
        points: All points of the plot.
        left, right, top, bottom: The area for labels.
    """

    points: Sequence[tuple[float, float]]
    left: float
    right: float
    top: float
    bottom: float
    _taken: list[_Box] = field(init=False)

    def __post_init__(self) -> None:
        self._taken = [_Box(x - _AROUND, y - _AROUND, x + _AROUND, y + _AROUND) for x, y in self.points]

    def place(self, x: float, y: float, text: str) -> Placed:
        """Return the position next to a point that overlaps least, the nearest of several such."""
        candidates = self._candidates(x, y, CHARACTER * len(text))
        placed, box = min(candidates, key=lambda entry: sum(entry[1].meets(taken) for taken in self._taken))
        self._taken.append(box)
        return placed

    def _candidates(self, x: float, y: float, length: float) -> Iterator[tuple[Placed, _Box]]:
        """Yield the positions within the area, nearest first, right before left."""
        yielded = False
        for shift in _SHIFTS:
            for side, begin in (("start", x + _BESIDE), ("end", x - _BESIDE - length)):
                middle = y + shift
                box = _Box(begin, middle - LINE / 2, begin + length, middle + LINE / 2)
                is_inside = box.left >= self.left and box.right <= self.right
                if is_inside and box.top >= self.top and box.bottom <= self.bottom:
                    yielded = True
                    at = begin if side == "start" else begin + length
                    yield Placed(at, middle + 4, side, abs(shift) > LINE), box
        if not yielded:
            box = _Box(x + _BESIDE, y - LINE / 2, x + _BESIDE + length, y + LINE / 2)
            yield Placed(box.left, y + 4, "start", False), box
