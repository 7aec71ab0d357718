"""Draws the front of a sweep as SVG: each point in sample and, with a split, out of sample.

Takes points, returns markup. The drawing says in its title which runs chose the points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from ..reports.scales import scale_of, tick_text

_WIDTH: Final = 640
_HEIGHT: Final = 380
_LEFT: Final = 56
_RIGHT: Final = 16
_TOP: Final = 34
_BOTTOM: Final = 48


@dataclass(frozen=True, slots=True)
class DrawnPoint:
    """A point of a front, in percent.

    Attributes:
        label: Its settings.
        saved, regret: In sample.
        out_saved, out_regret: Out of sample; NaN if unknown.
    """

    label: str
    saved: float
    regret: float
    out_saved: float = math.nan
    out_regret: float = math.nan


def front_plot(points: Sequence[DrawnPoint], title: str) -> Markup:
    """Plot mean regret against saved steps; a line leads from each point to itself out of sample.

    Returns nothing without points.

    Args:
        points: The points of the front.
        title: Which runs chose them; drawn above the plot.
    """
    judged = [point for point in points if math.isfinite(point.out_saved) and math.isfinite(point.out_regret)]
    saved = [point.saved for point in points] + [point.out_saved for point in judged]
    regret = [point.regret for point in points] + [point.out_regret for point in judged]
    across = scale_of([0.0, *saved], _LEFT, _WIDTH - _RIGHT)
    upwards = scale_of([0.0, *regret], _HEIGHT - _BOTTOM, _TOP)
    if not points or across is None or upwards is None:
        return Markup()
    base = _HEIGHT - _BOTTOM
    parts = [_text(2, 13, title, "axis"), _text(2, 29, "mean regret", "tick")]
    for tick in upwards.ticks():
        y = upwards.at(tick)
        parts += [
            _line(across.begin, y, across.end, y, "grid"),
            _text(_LEFT - 5, y + 4, f"{tick_text(tick)}%", "tick end"),
        ]
    parts += [_text(across.at(tick), base + 18, f"{tick:.4g}%", "tick middle") for tick in across.ticks()]
    parts.append(_text((across.begin + across.end) / 2, base + 38, "steps saved", "axis middle"))
    places = {id(point): (across.at(point.saved), upwards.at(point.regret)) for point in points}
    outside = {id(point): (across.at(point.out_saved), upwards.at(point.out_regret)) for point in judged}
    parts += [_line(*places[id(point)], *outside[id(point)], "leader") for point in judged]
    for point in points:
        name = f"{point.label}, in sample: {point.saved:.1f}% saved, regret {point.regret:+.2f}%"
        parts.append(_circle("dot policy", *places[id(point)], name))
    for point in judged:
        name = f"{point.label}, out of sample: {point.out_saved:.1f}% saved, regret {point.out_regret:+.2f}%"
        parts.append(_circle("dot baseline", *outside[id(point)], name))
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return svg.format(_WIDTH, _HEIGHT, title, Markup().join(parts))


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, text)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(kind, x1, y1, x2, y2)


def _circle(kind: str, x: float, y: float, title: str) -> Markup:
    circle = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>')
    return circle.format(kind, x, y, title)
