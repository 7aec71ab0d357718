"""Draws curves over steps as SVG: scales, ticks, panels and elements. Reports and notebooks use the same drawing.

Elements have classes; colours come from a style sheet, so that the same drawing works on light and dark screens and on
paper. Text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

#: Size of a drawing, in drawing units: its width, the margins of its panels, a panel's height and the gap between two.
WIDTH: Final = 480
LEFT: Final = 46
RIGHT: Final = 12
PANEL: Final = 120
GAP: Final = 26
TOP: Final = 18
BOTTOM: Final = 34


def height_of(panels: int) -> int:
    """Return the height of a drawing of panels above each other."""
    return TOP + panels * PANEL + (panels - 1) * GAP + BOTTOM


def panel_scale(values: Iterable[float], top: float) -> Scale | None:
    """Return the scale of a panel's values, upwards; None without finite values."""
    return scale_of(values, top + PANEL, top, may_be_log=True)


def panel(
    name: str,
    steps: Sequence[int],
    values: Sequence[float],
    across: Scale,
    upwards: Scale | None,
    top: float,
    kind: str,
) -> list[Markup]:
    """Draw a curve with its name, grid, ticks and marks at values that are not finite.

    Args:
        name: The name above it.
        steps, values: The curve.
        across, upwards: The scales; without the second, the name says that no value is finite.
        top: The upper end of the panel.
        kind: The class of the curve in the style sheet.
    """
    if upwards is None:
        return [text_at(LEFT, top - 5, f"{name}: no finite values", "axis")]
    ticks = upwards.ticks()
    return [
        *(line(across.begin, upwards.at(tick), across.end, upwards.at(tick), "grid") for tick in ticks),
        *(text_at(LEFT - 5, upwards.at(tick) + 4, tick_text(tick), "tick end") for tick in ticks),
        text_at(LEFT, top - 5, name + (", log scale" if upwards.is_log else ""), "axis"),
        _polyline(steps, values, across, upwards, kind),
        *(
            path("gap", f"M{across.at(step):.1f} {top}v6", f"not finite at step {step}")
            for step, value in zip(steps, values, strict=True)
            if not math.isfinite(value)
        ),
    ]


def axis_labels(across: Scale, height: float) -> list[Markup]:
    """Draw the labels of the axis of steps below the lowest panel."""
    return [text_at(across.at(tick), height - BOTTOM + 24, tick_text(tick), "tick middle") for tick in across.ticks()]


def _polyline(steps: Sequence[int], values: Sequence[float], across: Scale, upwards: Scale, kind: str) -> Markup:
    """Draw the curve, broken at non-finite values; single points between two breaks become dots."""
    commands, pen_down = [], False
    for step, value in zip(steps, values, strict=True):
        if not math.isfinite(value):
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{across.at(step):.1f} {upwards.at(value):.1f}")
        if not pen_down:
            commands.append("h0")
        pen_down = True
    return path(f"curve {kind}", "".join(commands))


# All SVG is made below. Markup escapes everything it formats and joins.


def svg_of(height: float, title: str, parts: Iterable[Markup]) -> Markup:
    """Return a whole drawing."""
    whole = Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">{}</svg>')
    return whole.format(WIDTH, height, title, Markup().join(parts))


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line of a class."""
    return path(kind, f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}")


def path(kind: str, commands: str, title: str = "") -> Markup:
    """Return a path of a class; the title shows where one points at it."""
    return Markup('<path class="{}" d="{}">{}</path>').format(kind, commands, _title(title))


def circle(kind: str, x: float, y: float, radius: float, title: str) -> Markup:
    """Return a circle of a class."""
    whole = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>')
    return whole.format(kind, x, y, radius, _title(title))


def _title(words: str) -> Markup:
    return Markup("<title>{}</title>").format(words) if words else Markup()


def text_at(x: float, y: float, words: str, kind: str) -> Markup:
    """Return a text of a class."""
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, words)


#: Positive values that span more than this factor are drawn on a logarithmic scale.
_WIDE: Final = 10.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A mapping from a range of values to a range of a drawing.

    Attributes:
        low, high: Values at the two ends.
        begin, end: Positions of the ends, in drawing units.
        is_log: Whether the scale is logarithmic.
    """

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, value = (math.log10(v) if self.is_log else v for v in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * (value - low) / (high - low)

    def ticks(self, count: int = 4) -> list[float]:
        """Return about ``count`` round values within the range.

        >>> Scale(0, 100, 0, 1).ticks()
        [0.0, 25.0, 50.0, 75.0, 100.0]
        """
        if self.is_log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            if len(powers) >= 2:
                stride = max(1, round(len(powers) / count))
                return [10.0**power for power in list(powers)[::stride]]
        raw = (self.high - self.low) / count
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def scale_of(values: Iterable[float], begin: float, end: float, *, may_be_log: bool = False) -> Scale | None:
    """Return a scale that holds every finite value, with a margin; None without finite values.

    Args:
        values: The values to draw.
        begin, end: Positions of the ends.
        may_be_log: Whether it becomes logarithmic if positive values span more than a factor of 10.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    if may_be_log and low > 0 and high / low > _WIDE:
        return Scale(low / 1.1, high * 1.1, begin, end, is_log=True)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, begin, end)


def tick_text(value: float) -> str:
    """Format a value for an axis.

    >>> tick_text(20000.0), tick_text(0.25), tick_text(1e-7)
    ('20k', '0.25', '1e-07')
    """
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:g}{unit}"
    return f"{value:.4g}"
