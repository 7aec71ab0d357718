"""Bootstrap intervals are deterministic, paired by run, and absent for few runs."""

from __future__ import annotations

import statistics

import pytest

from steptape.replay.intervals import interval, numbers, paired_interval


def test_few_runs_have_no_interval() -> None:
    """Up to seven runs are shown themselves."""
    assert interval([0.1] * 7).low is None
    assert interval([0.1] * 8).low is not None
    assert interval([]).mean is None
    assert interval([None, 0.5]).runs == 1


def test_an_interval_encloses_the_mean_about_as_theory_says() -> None:
    """For evenly spread values the ends are about 1.96 standard errors from the mean."""
    values = [index / 100 for index in range(100)]
    error = statistics.pstdev(values) / 10

    found = interval(values)

    assert found.mean == pytest.approx(0.495)
    assert found.low == pytest.approx(0.495 - 1.96 * error, abs=0.01)
    assert found.high == pytest.approx(0.495 + 1.96 * error, abs=0.01)
    assert interval(values) == found


def test_the_order_of_the_runs_changes_no_bit() -> None:
    """Imported runs are ordered by id, which differs from place to place."""
    values = [(index * 37 % 101) ** 1.5 / 7 for index in range(60)]

    assert interval(values) == interval(values[::-1]) == interval(values[30:] + values[:30])


def test_pairs_take_the_noise_between_runs_out() -> None:
    """Runs that differ widely, with a policy better by the same amount in each, leave no width."""
    found = paired_interval([float(n) + 0.5 for n in range(10)], [float(n) for n in range(10)])

    assert (found.low, found.mean, found.high) == (0.5, 0.5, 0.5)
    assert paired_interval([1.0, None], [None, 1.0]).runs == 0


def test_the_draws_are_those_of_the_published_generator() -> None:
    """They are SplitMix64's from seed 1234567."""
    draws = numbers(1234567)

    assert [next(draws) for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
