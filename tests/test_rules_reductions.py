"""Reductions of a window are exact, summed in one fixed order, and NaN if any value is NaN."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import steptape
from steptape import rules, store
from steptape.rules.functions import reductions
from steptape.rules.functions.undefined import Undefined

REDUCTIONS = [
    reductions.total,
    reductions.mean,
    reductions.std,
    reductions.slope,
    reductions.var,
    reductions.detrended_std,
    reductions.median,
    reductions.age_of_least,
    reductions.least,
    reductions.greatest,
]

windows = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60)


def loop_sum(values: Sequence[float]) -> float:
    """Return the sum by additions in C from left to right: another implementation of the same order."""
    return list(itertools.accumulate(values, initial=0.0))[-1]


@given(windows)
def test_the_sum_adds_left_to_right_and_nothing_else(values: list[float]) -> None:
    """It equals repeated addition bit for bit, on every version of Python."""
    result = reductions.total(values)

    assert result.hex() == loop_sum(values).hex()


def test_the_sum_is_not_pythons_own_which_changed() -> None:
    """Python 3.12 compensates and returns 1.0 here; numpy's pairwise order has other bits again."""
    values = [0.1] * 10

    assert reductions.total(values) == 0.9999999999999999


def test_the_line_of_a_window_keeps_its_bits() -> None:
    """Its arithmetic is fixed. Positions count from the middle; from elsewhere, other digits are rounded."""
    values = [7.6, 6.8, 3.8, 2.3, 4.6, 3.6]

    assert (reductions.slope(values), reductions.detrended_std(values)) == (-0.8028571428571429, 1.244199238880874)


@given(windows)
def test_the_mean_is_the_sum_divided_by_the_length(values: list[float]) -> None:
    """It equals that formula bit for bit."""
    assert reductions.mean(values).hex() == (loop_sum(values) / len(values)).hex()


@given(windows)
@example([0.0, 0.0, 7.8e-158])  # The square is denormal, and has few digits.
def test_reductions_are_near_the_exact_values(values: list[float]) -> None:
    """The reference is computed with fractions; the tolerance is the possible loss of left-to-right float additions."""
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    positions = [Fraction(2 * index - len(exact) + 1, 2) for index in range(len(exact))]
    slope = sum(x * y for x, y in zip(positions, exact, strict=True)) / sum(x * x for x in positions)
    scale = max(map(abs, values)) + 1e-300

    assert math.isclose(reductions.mean(values), float(mean), rel_tol=0, abs_tol=1e-13 * scale)
    assert math.isclose(reductions.std(values) ** 2, float(variance), rel_tol=1e-9, abs_tol=1e-12 * scale**2 + 1e-322)
    assert math.isclose(reductions.slope(values), float(slope), rel_tol=1e-9, abs_tol=1e-12 * scale)


@given(windows)
def test_least_and_greatest_are_members(values: list[float]) -> None:
    """They equal Python's own as long as there is no NaN."""
    assert (reductions.least(values), reductions.greatest(values)) == (min(values), max(values))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@given(values=windows, data=st.data())
def test_a_nan_anywhere_in_a_window_gives_nan(
    reduce: Callable[[Sequence[float]], float], values: list[float], data: st.DataObject
) -> None:
    """The position of the NaN does not matter, nor do infinities in the same window."""
    place = data.draw(st.integers(0, len(values)))
    window = [*values[:place], math.nan, *values[place:], math.inf]

    assert math.isnan(reduce(window))


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (reductions.total, math.inf),
        (reductions.mean, math.inf),
        (reductions.std, math.nan),
        (reductions.slope, math.nan),
        (reductions.least, 1.0),
        (reductions.greatest, math.inf),
    ],
)
def test_an_infinity_in_a_window_follows_float_arithmetic(
    reduce: Callable[[Sequence[float]], float], expected: float
) -> None:
    """Nothing is filtered out."""
    assert repr(reduce([1.0, math.inf, 2.0])) == repr(expected)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ([math.inf, math.inf], math.inf),
        ([-math.inf, -math.inf], -math.inf),
        ([1.0, math.inf, math.inf, math.inf], math.inf),
        ([1.0, math.inf], math.inf),
        ([-math.inf, 1.0], math.nan),
        ([-math.inf, math.inf], math.nan),
        ([-math.inf, 1.0, 2.0, math.inf], 1.5),
    ],
)
def test_the_midpoint_of_equal_infinities_is_that_infinity(window: list[float], expected: float) -> None:
    """Between -inf and a greater value it is NaN, as the formula says."""
    assert repr(reductions.median(window)) == repr(expected)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_an_empty_window_is_undefined(reduce: Callable[[Sequence[float]], float]) -> None:
    """There is no number to return."""
    with pytest.raises(Undefined):
        reduce([])


def test_the_slope_of_one_value_is_undefined() -> None:
    """A line needs two points."""
    with pytest.raises(Undefined):
        reductions.slope([1.0])


SCRIPT = """
from steptape.rules.engine.engine import Engine
from steptape.rules.engine.decisions import decision_digest
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

policy = parse_policy('''
controllers:
  - name: c
    triggers: [on_step_end]
    rule: >-
      mean(loss, 10) + std(loss, 7) + slope(loss, 5) + sum([loss, 0.1, 0.2]) > 0.5
      and str({"b", "a"}) != f"{loss:.3f}"
    operations: [hfcontrols.should_save]
  - name: d
    triggers: [on_step_end]
    rule: >-
      mean(loss, 40) + mean(loss, 16, skip=1) + var(loss, 30) + quantile(loss, 9, 0.3) + detrended_std(loss, 12)
      + ema(loss, 7) + peak(mean(abs(delta(loss)), 5)) + exp(loss) + mean(loss, steps=33) > 1
      and streak("c") == 0 or times_fired("c") % 7 == 3
    cooldown: 3
    message: "{mean(loss, 60)} {median(loss, 12)}"
    operations: []
''')
engine = Engine(policy)
value, outcomes = 0.1, []
for step in range(500):
    value = value * 3.9 * (1 - value)
    outcomes += engine.observe(Event("step_end", step=step, seq=step, metrics={"loss": value}))
print(len(outcomes), policy.digest, decision_digest(outcomes), [outcome.message for outcome in outcomes[-3:]])
"""


def interpreters() -> list[str]:
    """Return other versions of Python on this machine that start."""
    names = ("python3.11", "python3.12", "python3.13", "python3.14")
    roots = [*os.environ.get("PATH", "").split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    found = {name: str(path) for name in names for root in roots if (path := Path(root, name)).is_file()}
    return [path for path in found.values() if not subprocess.run([path, "-c", ""], capture_output=True).returncode]


def test_decisions_and_digests_are_the_same_on_every_python_at_hand(tmp_path: Path) -> None:
    """Hash seeds differ too, so that the order of texts in a set cannot matter."""
    import simpleeval  # type: ignore[import-untyped]
    import yaml

    package = tmp_path / "steptape"
    package.mkdir()
    (package / "__init__.py").symlink_to(Path(steptape.__path__[0]) / "__init__.py")
    for room in (rules, store):
        (package / Path(room.__path__[0]).name).symlink_to(room.__path__[0])
    for module in (simpleeval.__file__, Path(yaml.__file__).parent):
        (tmp_path / Path(module).name).symlink_to(module)
    answers = set()
    for seed, interpreter in enumerate([sys.executable, sys.executable, *interpreters()]):
        environment = {"PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [interpreter, "-c", SCRIPT], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        answers.add(done.stdout)

    assert len(answers) == 1, answers
