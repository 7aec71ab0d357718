"""Window features of a sweep equal those of the rules' own functions, bit for bit."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st
from numpy import array

from steptape.replay.columns.window_values import WindowSums, windowed
from steptape.rules.functions.reductions import median, quantile, total
from steptape.rules.readings.table import FUNCTIONS

NUMBERS = st.one_of(st.floats(), st.sampled_from([-0.0, 0.0, 0.1, 1e16, -1e16, math.inf, math.nan]))


@given(st.lists(NUMBERS, max_size=30), st.lists(st.integers(1, 40), min_size=1, max_size=6))
@example([1e308, 1e308, -math.inf, math.inf], [2, 4])
def test_sums_of_windows_are_left_to_right_whatever_lengths_were_asked_for_before(
    values: list[float], lengths: list[int]
) -> None:
    """Ascending lengths continue from the preceding ones; others start anew."""
    sums = WindowSums(array(values, dtype=float))

    for length in lengths:
        expected = [total(values[max(0, end - length) : end]) for end in range(1, len(values) + 1)]
        assert repr(sums.of(length).tolist()) == repr(expected)


@given(st.lists(NUMBERS, max_size=12), st.integers(1, 8), st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]))
@example([math.inf, math.inf, -math.inf, -math.inf], 2, 0.5)
def test_quantiles_of_windows_are_those_of_the_rules(values: list[float], length: int, share: float) -> None:
    """NaN and infinities included; the midpoint of two equal infinities is that infinity."""
    sums, windows = WindowSums(array(values)), [values[max(0, end - length) : end] for end in range(1, len(values) + 1)]
    (quantiles, _), (medians, _) = (
        windowed(sums, FUNCTIONS[name], length, 0, None, options)
        for name, options in (("quantile", (share,)), ("median", ()))
    )

    assert [*map(plain, quantiles)] == [plain(quantile(window, share)) for window in windows]
    assert [*map(plain, medians)] == [plain(median(window)) for window in windows]


def plain(number: float) -> str:
    """Return a number as text; the two zeros are one, since sorting does not order them."""
    return repr(float(number) + 0.0)
