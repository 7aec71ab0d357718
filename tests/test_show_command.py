"""A curve is drawn as lines of braille dots."""

from __future__ import annotations

import math

from steptape.cli.commands.show import braille_plot

BLANK = "\N{BRAILLE PATTERN BLANK}"


def dots(line: str) -> str:
    """Return the part right of the axis."""
    return line.partition("\N{BOX DRAWINGS LIGHT VERTICAL}")[2]


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right() -> None:
    """Two lines of one character each have left dots above, right dots below."""
    lines = braille_plot([1, 2], [1.0, 0.0], width=14, height=2)

    first, second = dots(lines[0]), dots(lines[1])
    assert first[0] != BLANK
    assert first[-1] == BLANK
    assert second[-1] != BLANK
    assert second[0] == BLANK


def test_extremes_and_ends_are_told() -> None:
    """The highest value is at the top, the lowest at the bottom, steps are below."""
    lines = braille_plot(range(10, 2010), [float(step) for step in range(2000)], width=60, height=5)

    assert lines[0].split()[0] == "1999"
    assert lines[4].split()[0] == "0"
    assert lines[5].split() == ["10", "2,009"]
    assert {len(line) for line in lines} == {60}


def test_a_spike_of_one_step_in_a_million_is_seen() -> None:
    """The number of values per column does not matter."""
    values = [0.0] * 1_000_000
    values[500_000] = 1.0

    lines = braille_plot(range(1_000_000), values, width=80, height=6)

    assert all(dots(line).strip(BLANK) for line in lines[:6])


def test_values_that_are_not_finite_are_left_out() -> None:
    """With fewer than two values left there is no plot."""
    assert braille_plot([1, 2, 3], [math.nan, math.inf, 1.0], width=40, height=4) == []
    assert braille_plot([], [], width=40, height=4) == []
    assert braille_plot([1, 2, 3], [1.0, math.nan, 2.0], width=40, height=4)[0].split()[0] == "2"


def test_a_level_line_is_drawn() -> None:
    """Its lowest value is its highest."""
    lines = braille_plot([1, 2, 3], [2.0, 2.0, 2.0], width=40, height=4)

    assert any(dots(line).strip(BLANK) for line in lines[:4])


def test_a_constant_has_its_value_beside_the_line() -> None:
    """The value appears once."""
    lines = braille_plot([1, 2, 3], [0.1, 0.1, 0.1], width=14, height=3)

    labels = [line.partition("\N{BOX DRAWINGS LIGHT VERTICAL}")[0].strip() for line in lines[:3]]
    assert labels == ["", "0.1", ""]
    assert [set(dots(line)) == {BLANK} for line in lines[:3]] == [True, False, True]


def test_a_terminal_that_knows_ascii_alone_is_shown_coarser_dots() -> None:
    """A character has two rows: the upper dot, the lower dot, or both."""
    lines = braille_plot([1, 2, 3, 4], [1.0, 0.0, 0.0, 1.0], width=14, height=1, is_ascii=True)

    assert lines[0] == "         1 |::"
    assert braille_plot([1, 2], [1.0, 0.0], width=15, height=2, is_ascii=True)[:2] == [
        "         1 |:. ",
        "         0 | ':",
    ]
