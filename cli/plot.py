"""Plots a curve in a terminal, as lines of braille characters, each two dots wide and four high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

#: The bit of each dot of a braille character, by column and by row from the top.
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK: Final = 0x2800

#: The dots in the upper and in the lower half of a braille character.
_UPPER: Final = 0x1B
_LOWER: Final = 0xE4

#: Width of the labels left of the plot, in characters.
_LABEL: Final = 10


def braille_plot(
    steps: Sequence[int], values: Sequence[float], *, width: int, height: int, is_ascii: bool = False
) -> list[str]:
    """Plot values over steps, with the highest and lowest value on the left and the first and last step below.

    If several values share a column of dots, the line spans them from the lowest to the highest, so that a spike of one
    step stays visible. Values that are not finite are left out.

    Args:
        steps: The step of each value, ascending. Shape (n,).
        values: Shape (n,).
        width: Total width in characters, labels included.
        height: Height of the plot in lines.
        is_ascii: Use ASCII characters with two rows of dots each, for terminals that know only ASCII.

    Returns:
        The lines; empty if fewer than two values are finite, or if their range overflows.
    """
    points = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    across, upwards = 2 * max(1, width - _LABEL - 2), 4 * height
    low, high = (f(value for _, value in points) if points else 0.0 for f in (min, max))
    if len(points) < 2 or not math.isfinite(high - low):
        return []
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    grid = [[0] * (across // 2) for _ in range(height)]
    before: tuple[int, int] | None = None
    for step, value in _thinned(points, across):
        x = round((step - first) / (last - first) * (across - 1))
        y = round((high - value) / (high - low) * (upwards - 1)) if high > low else upwards // 2
        for column, row in _line(before or (x, y), (x, y)):
            grid[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
        before = x, y
    labels = [""] * height
    if high > low:
        labels[-1] = f"{low:.4g}"
    labels[0 if high > low else height // 2] = f"{high:.4g}"
    axis, character = ("|", _ascii) if is_ascii else ("\N{BOX DRAWINGS LIGHT VERTICAL}", _braille)
    rows = [
        f"{label:>{_LABEL}} {axis}" + "".join(map(character, cells)) for label, cells in zip(labels, grid, strict=True)
    ]
    ends = f"{first:,}".ljust(across // 2 - len(f"{last:,}")) + f"{last:,}"
    return [*rows, " " * (_LABEL + 2) + ends]


def _braille(cell: int) -> str:
    return chr(_BLANK + cell)


def _ascii(cell: int) -> str:
    return " .':"[2 * bool(cell & _UPPER) + bool(cell & _LOWER)]


def _thinned(points: Sequence[tuple[int, float]], columns: int) -> Sequence[tuple[int, float]]:
    """Reduce each stretch to its first, lowest, highest and last point, in order, if points far outnumber columns."""
    size = len(points) // columns
    if size < 8:
        return points
    kept: list[tuple[int, float]] = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        ends = (stretch[0], min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1]))
        kept += sorted({*ends, stretch[-1]})
    return kept


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots from start to end, both included."""
    (x0, y0), (x1, y1) = start, end
    count = max(abs(x1 - x0), abs(y1 - y0), 1)
    return [(round(x0 + (x1 - x0) * part / count), round(y0 + (y1 - y0) * part / count)) for part in range(count + 1)]
