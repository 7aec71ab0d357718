"""Bootstrap intervals draw whole families; they are deterministic, paired by run, and absent for few families."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from steptape.replay.intervals import RESAMPLES, SEED, interval, paired_interval, trimmed_mean


def numbers(seed: int) -> Iterator[int]:
    """Yield the numbers of SplitMix64 (Steele et al., 2014), one after the other."""
    mask, state = (1 << 64) - 1, seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        yield mixed ^ (mixed >> 31)


def test_few_families_have_no_interval() -> None:
    """Up to seven families are shown themselves, however many runs they have."""
    assert interval([0.1] * 7, range(7)).low is None
    assert interval([0.1] * 8, range(8)).low is not None
    assert interval([0.1] * 700, [run % 7 for run in range(700)]).low is None
    assert interval([], []).mean is None
    assert interval([None, 0.5], "aa").runs == 1


def test_an_interval_encloses_the_mean_about_as_theory_says() -> None:
    """For evenly spread values the ends are about 1.96 standard errors from the mean."""
    values = [index / 100 for index in range(100)]
    error = statistics.pstdev(values) / 10

    found = interval(values, range(100))

    assert found.mean == pytest.approx(0.495)
    assert found.low == pytest.approx(0.495 - 1.96 * error, abs=0.01)
    assert found.high == pytest.approx(0.495 + 1.96 * error, abs=0.01)
    assert interval(values, range(100)) == found


def test_the_order_of_the_runs_changes_no_bit() -> None:
    """Imported runs are ordered by id, which differs from place to place; so do the names of their folders."""
    values = [(index * 37 % 101) ** 1.5 / 7 for index in range(60)]
    families = [index % 11 for index in range(60)]

    turned = interval(values[30:] + values[:30], families[30:] + families[:30])

    assert interval(values, families) == interval(values[::-1], families[::-1]) == turned
    assert interval(values, families) == interval(values, [f"/home/{-family}" for family in families])


def test_pairs_take_the_noise_between_runs_out() -> None:
    """Runs that differ widely, with a policy better by the same amount in each, leave no width."""
    found = paired_interval([float(n) + 0.5 for n in range(10)], [float(n) for n in range(10)], range(10))

    assert (found.low, found.mean, found.high) == (0.5, 0.5, 0.5)
    assert paired_interval([1.0, None], [None, 1.0], "ab").runs == 0


@pytest.mark.parametrize("families", [8, 97, 600])
def test_an_interval_equals_that_of_single_draws_to_the_bit(families: int) -> None:
    """Each draw taken by itself from the generator, and added from left to right, gives the same ends."""
    chosen = random.Random(families)
    values = [chosen.gauss(0, 1) ** 5 for _ in range(2 * families)]
    of_family = [(sum(sorted(values[one::families])), 2) for one in range(families)]
    clusters = sorted(of_family, key=lambda each: sorted(values[of_family.index(each) :: families]))
    draws, means = numbers(SEED), []
    for _ in range(RESAMPLES):
        drawn = [clusters[next(draws) % families] for _ in clusters]
        total = 0.0
        for one, _ in drawn:
            total += one
        means.append(total / sum(runs for _, runs in drawn))

    found = interval(values, [run % families for run in range(len(values))])

    assert (found.low, found.high) == (sorted(means)[50], sorted(means)[-51])


def test_the_draws_are_those_of_the_published_generator() -> None:
    """They are SplitMix64's from seed 1234567."""
    draws = numbers(1234567)

    assert [next(draws) for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def dependent_runs(seed: int, families: int = 12, runs: int = 6) -> tuple[list[float], list[int]]:
    """Return values whose true mean is 0: nine tenths of their variance is between families of several runs."""
    draw = random.Random(seed)
    centres = [draw.gauss(0, 0.9**0.5) for _ in range(families)]
    values = [centre + draw.gauss(0, 0.1**0.5) for centre in centres for _ in range(runs)]
    return values, [family for family in range(families) for _ in range(runs)]


def splitmix(count: int) -> npt.NDArray[np.uint64]:
    """Return the generator's first numbers from seed 1, all at once: the state grows by a constant."""
    state = np.uint64(1) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@pytest.mark.parametrize("seed", range(3))
def test_an_interval_is_that_of_a_plain_bootstrap_over_families(seed: int) -> None:
    """It lists the runs of the families drawn, 2,000 times, and takes the 51st mean from either end."""
    values, families = dependent_runs(seed)
    values, families = values[:-4], families[:-4]  # Families of unlike size: a mean is over runs, not over families.
    runs = sorted(sorted(v for v, own in zip(values, families, strict=True) if own == name) for name in range(12))
    drawn = (splitmix(2000 * 12) % np.uint64(12)).reshape(2000, 12).tolist()
    means = sorted(np.mean([value for index in row for value in runs[index]]) for row in drawn)

    found = interval(values, families)

    assert (found.runs, found.families) == (68, 12)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert (found.low, found.high) == pytest.approx((means[50], means[-51]), rel=1e-12)


def test_families_cover_the_truth_where_single_runs_do_not() -> None:
    """With six dependent runs a family, 95 % intervals over runs hold the true mean about half of the time."""
    covers = {"families": 0, "runs": 0}
    for seed in range(40):
        values, families = dependent_runs(seed)
        for name, drawn in (("families", families), ("runs", list(range(len(values))))):
            found = interval(values, drawn)
            assert found.low is not None
            assert found.high is not None
            covers[name] += found.low <= 0 <= found.high

    assert covers["families"] >= 0.88 * 40
    assert covers["runs"] <= 0.65 * 40


def test_one_wild_run_does_not_move_a_trimmed_mean() -> None:
    """A tenth is left out at each end, and nothing of fewer than ten values."""
    assert trimmed_mean([1.0, 2.0, 3.0]) == 2.0
    assert trimmed_mean([*range(1, 20), 10**6]) == statistics.fmean(range(3, 19))
