"""The engine agrees with a second implementation of the language, written from its reference page alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawing import scaled, seed
from reference_drawing import drawn_policy, drawn_run
from reference_driving import disagreement, expected, live_disagreement

FIRST = seed()


@pytest.mark.parametrize("part", range(10))
def test_random_policies_decide_as_the_reference_page_says(part: int) -> None:
    """At once, with late values, and resumed: the same steps, controllers, values, messages and errors."""
    decided = 0
    for number in range(1_000):
        if number >= scaled(25) and decided > 5:  # A few seeds draw policies that seldom decide.
            break
        case = FIRST + part * 10_000 + number
        text, (plan, events) = drawn_policy(case), drawn_run(case)
        told = expected(text, plan, events)
        decided += bool(told)

        assert not disagreement(text, plan, events, told, case), f"seed {case}\n{text}"
    assert decided > 5


@pytest.mark.parametrize("number", range(scaled(8)))
def test_a_recorded_run_decides_as_the_reference_page_says(number: int, tmp_path: Path) -> None:
    """Live, resumed by a recorder, and replayed from the store."""
    case = FIRST + number
    text, (plan, events) = drawn_policy(case), drawn_run(case)

    assert not live_disagreement(tmp_path / "whole", text, plan, events, None), f"seed {case}\n{text}"
    assert not live_disagreement(tmp_path / "split", text, plan, events, len(events) // 2), f"seed {case}\n{text}"
