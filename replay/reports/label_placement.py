"""Places the labels of a crowded plot next to their points, clear of other points and of each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

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
