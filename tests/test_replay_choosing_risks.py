"""P-values and bounds are exact, hold for any distribution, and agree with other implementations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptape.replay.choosing.risks import (
    fewest_runs,
    p_values_of_counts,
    p_values_of_means,
    runs_needed,
    upper_bound_of_count,
    upper_bound_of_mean,
)
from steptape.replay.intervals import binomial_tails


@pytest.fixture(scope="module")
def stats() -> Any:
    """Scipy's distributions, which take 0.6 s to import."""
    return pytest.importorskip("scipy.stats", reason="scikit-learn brings scipy")


@pytest.mark.parametrize("runs", [1, 5, 22, 60, 1_000, 5_000])
@pytest.mark.parametrize("risk", [1e-4, 0.01, 0.1, 0.5, 0.99])
def test_binomial_tails_are_those_of_scipy(runs: int, risk: float, stats: Any) -> None:
    """Sums of logarithms lose no more than nine digits, also where a tail is far below the smallest float of a sum."""
    expected = stats.binom.cdf(np.arange(runs + 1), runs, risk)

    assert binomial_tails(runs, risk) == pytest.approx(expected, rel=1e-7, abs=1e-290)


def test_tails_at_the_ends_of_a_risk_are_certain() -> None:
    """Nothing is broken without a risk, and everything with a risk of 1."""
    assert binomial_tails(2, 0.0).tolist() == [1.0, 1.0, 1.0]
    assert binomial_tails(2, 1.0).tolist() == [0.0, 0.0, 1.0]
    assert binomial_tails(0, 0.1).tolist() == [1.0]


@settings(max_examples=30)
@given(st.integers(1, 200), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_a_p_value_is_small_no_more_often_than_it_says(runs: int, limit: float, error: float) -> None:
    """Where the risk equals the limit, the p-value is at most ``error`` with at most that probability."""
    chances = np.diff(binomial_tails(runs, limit), prepend=0.0)
    p_values = p_values_of_counts(np.arange(runs + 1), runs, limit)

    assert chances[p_values <= error].sum() <= error + 1e-9


@settings(max_examples=30)
@given(st.integers(1, 120), st.floats(0.02, 0.9), st.floats(0.01, 0.5))
def test_a_p_value_of_a_mean_is_small_no_more_often_than_it_says(runs: int, limit: float, error: float) -> None:
    """Of all losses within 0 and 1, those that are either are the worst case."""
    chances = np.diff(binomial_tails(runs, limit), prepend=0.0)
    p_values = p_values_of_means(np.arange(runs + 1) / runs, runs, limit)

    assert chances[p_values <= error].sum() <= error + 1e-9


def test_a_mean_at_or_above_its_limit_has_no_small_p_value() -> None:
    """Neither has a mean of no runs."""
    assert p_values_of_means(np.array([0.1, 0.2, 1.0]), 50, 0.1).tolist() == [1.0, 1.0, 1.0]
    assert p_values_of_means(np.array([0.0]), 0, 0.1).tolist() == [1.0]


def test_the_least_number_of_families_is_the_first_that_passes_without_a_loss() -> None:
    """At a limit of 10 % and a confidence of 90 % it is 22."""
    for limit, error in ((0.1, 0.1), (0.05, 0.05), (0.3, 0.01)):
        least = fewest_runs(limit, error)

        assert (1 - limit) ** least <= error < (1 - limit) ** (least - 1)
    assert fewest_runs(0.1, 0.1) == 22


def test_more_runs_are_needed_the_nearer_the_losses_are_to_the_limit() -> None:
    """At the limit no number would do."""
    needed = [runs_needed(share, 0.1, 0.1) for share in (0.0, 0.02, 0.05, 0.09)]

    assert needed[0] == 22
    assert None not in needed
    assert needed == sorted(set(needed), key=lambda number: number or 0)
    assert runs_needed(0.1, 0.1, 0.1) is None
    assert runs_needed(0.0, 0.1, 0.1, is_share=False) == math.ceil(math.log(0.1) / math.log(0.9))


def test_upper_bounds_are_those_of_the_tests(stats: Any) -> None:
    """A limit above the bound passes, one below does not; the bound of a count is that of Clopper and Pearson."""
    bound, of_mean = upper_bound_of_count(3, 60, 0.1), upper_bound_of_mean(0.05, 60, 0.1)

    assert bound == pytest.approx(stats.beta.ppf(0.9, 4, 57))
    assert (
        p_values_of_counts(np.array([3]), 60, bound + 1e-6)[0]
        <= 0.1
        < p_values_of_counts(np.array([3]), 60, bound - 1e-6)[0]
    )
    assert p_values_of_means(np.array([0.05]), 60, of_mean + 1e-6)[0] <= 0.1
    assert upper_bound_of_count(5, 5, 0.1) == 1.0
