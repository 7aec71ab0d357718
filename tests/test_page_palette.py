"""The colours of curves are told apart by readers with and without full colour sight, on light and on dark pages."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[1] / "api" / "pages" / "static"

Vector = tuple[float, float, float]
Matrix = tuple[Vector, Vector, Vector]

#: How a reader without a kind of cone sees linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.
SIGHT: dict[str, Matrix] = {
    "full": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}

#: Linear sRGB to XYZ, and the white of D65.
XYZ: Matrix = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE: Vector = (0.95047, 1.0, 1.08883)


def palette() -> list[str]:
    """Return the colours as the page's script lists them."""
    (listed,) = re.findall(r"PALETTE = \[(.*?)\]", (STATIC / "colours.js").read_text(encoding="utf-8"))
    return re.findall(r"#[0-9a-f]{6}", listed)


def linear(colour: str) -> Vector:
    """Return a colour's linear RGB."""
    encoded = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in encoded)
    return red, green, blue


def times(matrix: Matrix, vector: Vector) -> Vector:
    """Return a matrix times a vector."""
    one, two, three = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return one, two, three


def lab(rgb: Vector) -> Vector:
    """Return the CIE L*a*b* of linear RGB, clipped to what a screen can show."""
    red, green, blue = (min(1.0, max(0.0, value)) for value in rgb)
    scaled = (value / white for value, white in zip(times(XYZ, (red, green, blue)), WHITE, strict=True))
    x, y, z = (math.cbrt(t) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""
    low, high = sorted(times(XYZ, linear(colour))[1] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_colours_differ_by_nineteen_under_each_kind_of_sight(sight: str) -> None:
    """The difference is CIE76."""
    seen = {colour: lab(times(SIGHT[sight], linear(colour))) for colour in palette()}
    closest = min(math.dist(seen[one], seen[other]) for one, other in itertools.combinations(seen, 2))

    assert len(seen) >= 8
    assert closest >= 19


def test_each_colour_stands_out_on_light_and_on_dark() -> None:
    """The contrast is at least 3, as WCAG asks of lines in a picture."""
    papers = set(re.findall(r"--paper: (#[0-9a-f]+);", (STATIC / "page.css").read_text(encoding="utf-8")))
    whole = [paper if len(paper) == 7 else "#" + "".join(2 * letter for letter in paper[1:]) for paper in papers]

    assert len(whole) == 2
    assert min(contrast(colour, paper) for colour in palette() for paper in whole) >= 3
