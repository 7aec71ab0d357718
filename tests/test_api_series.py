"""Downsampling returns a series short enough to draw, with every extreme in it."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.api.endpoints.series import kept_indices
from steptape.store.reading.plot_data import ends_and_extremes, robust_range, smoothed

FLOATS = st.lists(st.floats(width=64), min_size=1, max_size=400)
MOSTLY_FINITE = st.lists(
    st.one_of(*[st.floats(-1e6, 1e6)] * 8, st.sampled_from([math.nan, math.inf, -math.inf])), min_size=1, max_size=400
)
POINTS = st.integers(min_value=4, max_value=200)


@given(values=FLOATS, points=POINTS)
def test_a_short_series_is_kept_whole(values: list[float], points: int) -> None:
    """A series that fits loses nothing."""
    kept = kept_indices(values, max(points, len(values)))

    assert list(kept) == list(range(len(values)))


@given(values=st.one_of(FLOATS, MOSTLY_FINITE), points=POINTS)
def test_no_more_is_kept_than_asked_for(values: list[float], points: int) -> None:
    """One bucket may need seven points; above seven, ``points`` is the limit."""
    kept = kept_indices(values, points)

    assert len(kept) <= max(points, 7)


@given(values=st.one_of(FLOATS, MOSTLY_FINITE), points=POINTS)
def test_what_is_kept_stays_in_order_and_comes_once(values: list[float], points: int) -> None:
    """Indices ascend strictly and lie within the series."""
    kept = list(kept_indices(values, points))

    assert kept == sorted(set(kept) & set(range(len(values))))


@given(values=st.one_of(FLOATS, MOSTLY_FINITE), points=POINTS)
def test_the_ends_and_the_finite_extremes_are_kept(values: list[float], points: int) -> None:
    """The first and last value and the smallest and largest finite value are kept."""
    kept = [values[index] for index in kept_indices(values, points)]

    finite = [value for value in values if math.isfinite(value)]
    same = [(kept[0], values[0]), (kept[-1], values[-1])]
    if finite:
        drawn = [value for value in kept if math.isfinite(value)]
        same += [(min(drawn), min(finite)), (max(drawn), max(finite))]
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in same)


@given(values=MOSTLY_FINITE, points=POINTS)
def test_every_sort_of_non_finite_value_is_kept(values: list[float], points: int) -> None:
    """A series that holds NaN, infinity or negative infinity shows it."""
    kept = [values[index] for index in kept_indices(values, points)]

    assert {str(v) for v in kept if not math.isfinite(v)} == {str(v) for v in values if not math.isfinite(v)}


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=201, max_size=2000), at=st.data())
def test_a_single_spike_is_kept_wherever_it_is(values: list[float], at: st.DataObject) -> None:
    """One outlier among many values is in the picture."""
    spike = at.draw(st.integers(0, len(values) - 1))
    values[spike] = 1e9

    assert spike in kept_indices(values, 200)


def test_every_stretch_keeps_its_own_extremes() -> None:
    """Every bucket keeps its extremes, not only the whole series: a sawtooth remains one."""
    values = [float(i % 100) for i in range(10_000)]

    kept = [values[index] for index in kept_indices(values, 400)]

    assert kept.count(0.0) == kept.count(99.0) == 100


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=8, max_size=400), drawn=st.data())
def test_all_stretches_at_once_are_as_one_by_one(values: list[float], drawn: st.DataObject) -> None:
    """Equal values, signed zeros and overflowing sums are covered."""
    count = drawn.draw(st.integers(1, len(values)))

    at_once = ends_and_extremes(values, count)

    bounds = [len(values) * i // count for i in range(count + 1)]
    expected: set[int] = set()
    for start, end in itertools.pairwise(bounds):
        stretch = values[start:end]
        expected |= {start, end - 1, start + stretch.index(min(stretch)), start + stretch.index(max(stretch))}
    assert at_once == sorted(expected)


def test_a_run_that_diverged_shows_where() -> None:
    """The NaN half gets its share of points evenly, and begins where the divergence began."""
    values = [1.0] * 5_000 + [math.nan] * 5_000

    kept = kept_indices(values, 100)

    first_nan = next(index for index in kept if math.isnan(values[index]))
    assert len(kept) <= 100
    assert 5_000 <= first_nan <= 5_000 + 10_000 // 25


def test_a_sum_beyond_the_largest_float_does_no_harm() -> None:
    """Finite values whose sum overflows are still distinguished from infinite ones."""
    values = [1e308, 1.7e308, -1.7e308, 1e308] * 50

    kept = {values[index] for index in kept_indices(values, 8)}

    assert {1.7e308, -1.7e308} <= kept


@pytest.mark.parametrize("points", [4, 5, 6, 7, 8])
def test_the_fewest_points_still_say_the_most(points: int) -> None:
    """First, last, both finite extremes and one of each non-finite value are kept, even beyond the requested count."""
    values = [0.0, 5.0, math.nan, -5.0, math.inf, 1.0, -math.inf, 2.0, 3.0]

    kept = [values[index] for index in kept_indices(values, points)]

    assert {"0.0", "5.0", "nan", "-5.0", "inf", "-inf", "3.0"} <= {str(value) for value in kept}


@pytest.mark.parametrize(("count", "points"), [(97, 5), (1000, 7), (1000, 400), (10_000, 1000)])
def test_the_points_of_a_monotone_series_are_spread(count: int, points: int) -> None:
    """Its extremes are the ends of each bucket; evenly spaced values fill the rest."""
    kept = kept_indices([float(place) for place in range(count)], points)

    gaps = [after - before for before, after in itertools.pairwise(kept)]
    assert len(kept) >= 0.7 * points
    assert max(gaps) <= 2 * count / (points - 1) + 1


def test_few_points_of_a_monotone_series_are_as_many_as_asked() -> None:
    """Two would hide the shape."""
    assert kept_indices([float(place) for place in range(97)], 5) == [0, 24, 48, 72, 96]


@given(values=MOSTLY_FINITE, weight=st.floats(0, 0.999))
def test_smoothing_is_the_debiased_average_of_all_finite_values_so_far(values: list[float], weight: float) -> None:
    """The definition as two sums is the reference. A value that is not finite stays and is skipped."""
    drawn = smoothed(values, weight)

    finite: list[float] = []
    for value, average in zip(values, drawn, strict=True):
        if not math.isfinite(value):
            assert str(average) == str(value)
            continue
        finite.append(value)
        powers = [weight**age for age in range(len(finite))]
        expected = math.fsum(map(math.prod, zip(powers, reversed(finite), strict=True))) / math.fsum(powers)
        assert average == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e-300, 1e300])
def test_a_constant_stays_exactly_itself_when_smoothed(value: float) -> None:
    """Rounding would draw noise on a flat line."""
    assert set(smoothed([value] * 1000, 0.9)) == {value}


@given(values=MOSTLY_FINITE)
def test_the_robust_range_is_of_values_and_counts_those_outside(values: list[float]) -> None:
    """Half of the values lie between the quartiles, so at most half are outside."""
    found = robust_range(values)

    finite = [value for value in values if math.isfinite(value)]
    if found is None:
        assert not finite
    else:
        assert {found.low, found.high} <= set(finite)
        assert found.outside == sum(not found.low <= value <= found.high for value in finite) <= len(finite) / 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([*(2.0 + place % 7 for place in range(400)), 62.0], (2.0, 8.0, 1)),
        ([float(place) for place in range(1000)], (0.0, 999.0, 0)),
        ([0.0] * 90 + [1.0] * 10, (0.0, 1.0, 0)),
        ([3.0, math.nan, math.inf], (3.0, 3.0, 0)),
        ([-1e300, 1.0, 2.0, 3.0, 1e300], (1.0, 3.0, 2)),
        ([-1.7e308, 1.7e308] * 5, (-1.7e308, 1.7e308, 0)),
    ],
)
def test_only_far_values_are_outside_of_the_robust_range(
    values: list[float], expected: tuple[float, float, int]
) -> None:
    """A ramp and a rarely changing value have no outlier; a spike is one."""
    assert robust_range(values) == expected


def test_a_series_without_a_finite_value_has_no_range() -> None:
    """Nothing could be drawn."""
    assert robust_range([math.nan, math.inf]) is None
