"""Tests of means over families hold for any losses, and agree with other implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptape.replay.choosing.family_tests import (
    FamilyLosses,
    digest_order,
    families_needed,
    fewest_families,
    p_value_of_less,
    p_values,
    upper_bound,
)
from steptape.replay.intervals import binomial_tails
from steptape.replay.runs.run_families import Family


@pytest.fixture(scope="module")
def stats() -> Any:
    """Scipy's distributions, which take 0.6 s to import."""
    return pytest.importorskip("scipy.stats", reason="scikit-learn brings scipy")


def counts(*broken: int, families: int) -> FamilyLosses:
    """Return families of one run each, so many of which are broken by each variant."""
    values = np.zeros((families, len(broken)))
    for variant, number in enumerate(broken):
        values[:number, variant] = 1.0
    return FamilyLosses(values, are_counts=True)


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
def test_a_p_value_of_counts_is_small_no_more_often_than_it_says(families: int, limit: float, error: float) -> None:
    """Where the risk equals the limit, the p-value is at most ``error`` with at most that probability."""
    chances = np.diff(binomial_tails(families, limit), prepend=0.0)
    found = p_values(counts(*range(families + 1), families=families), limit)

    assert chances[found <= error].sum() <= error + 1e-9


@pytest.mark.parametrize("limit", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("kind", ["two values", "three values", "spread", "heavy"])
def test_bets_win_no_more_often_than_they_say(limit: float, kind: str) -> None:
    """4,000 histories of 80 families whose mean loss is the limit: at most one in ten is taken for a lower one."""
    random, shape = np.random.default_rng(5), (80, 4000)
    values = {
        "two values": (random.random(shape) < limit).astype(float),
        "three values": np.where(random.random(shape) < 2 * limit, 0.5, 0.0),
        "spread": random.beta(1.0, 1.0 / limit - 1.0, shape),
        "heavy": random.beta(0.1 * limit, 0.1 * (1.0 - limit), shape),
    }[kind]
    found = p_values(FamilyLosses(values, are_counts=False), limit)

    assert (found <= 0.1).mean() <= 0.1 + 0.015


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0.01, 0.99), st.floats(0, 1))
def test_a_greater_last_loss_never_lowers_a_p_value(losses: list[float], limit: float, last: float) -> None:
    """And a family that is added never raises it: a bettor stops where the capital was greatest."""

    def found(*added: float) -> float:
        return float(p_values(FamilyLosses(np.array([[*losses, *added]]).T, are_counts=False), limit)[0])

    assert found(0.0) <= found(last) <= found(1.0) <= found()


def test_a_mean_at_or_above_its_limit_has_no_small_p_value() -> None:
    """Neither has a mean of no families."""
    values = np.tile([0.1, 0.2, 1.0], (50, 1))

    assert p_values(FamilyLosses(values, are_counts=False), 0.1).tolist() == [1.0, 1.0, 1.0]
    assert p_values(FamilyLosses(np.zeros((0, 1)), are_counts=False), 0.1).tolist() == [1.0]
    assert p_values(FamilyLosses(np.zeros((0, 1)), are_counts=True), 0.1).tolist() == [1.0]


def test_losses_far_above_a_limit_are_told_from_it() -> None:
    """The test of less is that of more, mirrored."""
    values = np.full((60, 1), 0.5)

    assert p_value_of_less(FamilyLosses(values, are_counts=False), 0.1) < 0.01
    assert p_value_of_less(FamilyLosses(0.0 * values, are_counts=False), 0.1) == 1.0


def test_the_least_number_of_families_is_the_first_that_passes_without_a_loss() -> None:
    """At a limit of 10 % and a confidence of 90 % it is 22, and 23 where families have several runs."""
    for limit, error in ((0.1, 0.1), (0.05, 0.05), (0.3, 0.01)):
        least = fewest_families(limit, error)

        assert (1 - limit) ** least <= error < (1 - limit) ** (least - 1)
    for are_counts, least in ((True, 22), (False, 23)):
        assert fewest_families(0.1, 0.1, are_counts=are_counts) == least
        assert p_values(FamilyLosses(np.zeros((least, 1)), are_counts), 0.1)[0] <= 0.1
        assert p_values(FamilyLosses(np.zeros((least - 1, 1)), are_counts), 0.1)[0] > 0.1


def test_more_families_are_needed_the_nearer_the_losses_are_to_the_limit() -> None:
    """At the limit no number would do."""
    needed = [families_needed(counts(broken, families=100), 0.1, 0.1) for broken in (0, 2, 5, 9)]
    bets = [families_needed(FamilyLosses(np.full((9, 1), loss), False), 0.1, 0.1) for loss in (0.0, 0.03, 0.06)]

    assert needed[0] == 22
    assert bets[0] == 23
    for found in (needed, bets):
        assert None not in found
        assert found == sorted(set(found), key=lambda number: number or 0)
    assert families_needed(counts(10, families=100), 0.1, 0.1) is None
    assert families_needed(FamilyLosses(np.full((9, 1), 0.1), False), 0.1, 0.1) is None


def test_upper_bounds_are_those_of_the_tests(stats: Any) -> None:
    """A limit above the bound passes, one below does not; the bound of counts is that of Clopper and Pearson."""
    three, mean = counts(3, families=60), FamilyLosses(np.full((60, 1), 0.05), are_counts=False)

    assert upper_bound(three, 0.1) == pytest.approx(stats.beta.ppf(0.9, 4, 57))
    for losses in (three, mean):
        bound = upper_bound(losses, 0.1)
        assert p_values(losses, bound + 1e-6)[0] <= 0.1 < p_values(losses, bound - 1e-6)[0]
    assert upper_bound(counts(5, families=5), 0.1) == 1.0


def test_families_are_ordered_by_digests() -> None:
    """Neither their names nor the order in which they were found decides."""
    families = [Family("group", f"g{number}") for number in range(20)]
    ordered = digest_order(families)

    assert ordered == digest_order(families[::-1])
    assert ordered != families
