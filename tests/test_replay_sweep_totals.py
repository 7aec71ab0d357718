"""A sweep adds up runs as they come: in any order, in bounded memory, each training once."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape import Recorder, TelemetryError, open_run, sweep
from steptape.replay.sweeps import totals
from steptape.replay.sweeps.totals import ExactSums, Sweep, lost_counts
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

POLICY = parse_policy("""
params: {at: 3}
controllers:
  - {name: high, triggers: [on_step_end], rule: step >= at, operations: [hfcontrols.should_training_stop]}
""")
AXES = {"at": [2, 6, 99]}
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)


def record(store: Path, values: list[float], *, name: str, group: str, saves: bool = False, losses: int = 0) -> Run:
    """Record a run with one evaluation a step, and so many values of a training loss that other runs may share."""
    with Recorder(store, name=name, group=group, quiet=True) as rec:
        for step, value in enumerate(values, 1):
            rec.step({"loss": 1.0 + math.sin(step)} if step <= losses else {})
            rec.evaluate(eval_loss=value)
            if saves:
                rec.save(f"checkpoint-{step}", size_bytes=step)
    return open_run(rec.folder)


def shown(swept: Sweep) -> str:
    """Return all totals as text, equal only if every bit is."""
    return repr({name: values.tolist() for name, values in swept.totals.items()})


@given(st.lists(st.lists(FLOATS, min_size=3, max_size=3), max_size=20))
def test_a_sum_is_that_of_exact_fractions_in_any_order(rows: list[list[float]]) -> None:
    """Values are added in parts of several runs, from the least to the largest float."""
    exact = ExactSums(3)
    for row in rows:
        exact.add(np.array(row)[:, np.newaxis])
    at_once = ExactSums(3)
    at_once.add(np.array(rows[::-1]).reshape(-1, 3).T)

    def rounded(values: list[float]) -> float:
        try:
            return float(sum(map(Fraction, values), Fraction(0)))
        except OverflowError:
            return math.inf

    expected = [rounded([row[column] for row in rows]) if rows else math.nan for column in range(3)]
    assert np.abs(exact.sums()).tolist() == pytest.approx(np.abs(expected).tolist(), rel=0, abs=0, nan_ok=True)
    assert at_once.sums().tolist() == pytest.approx(exact.sums().tolist(), rel=0, abs=0, nan_ok=True)


def test_a_sum_without_values_is_unknown_and_one_of_infinities_infinite() -> None:
    """NaN is no value."""
    sums = ExactSums(4)
    sums.add(np.array([[math.nan, math.nan], [math.inf, 1.0], [math.inf, -math.inf], [math.nan, 2.0]]))

    assert sums.sums().tolist() == pytest.approx([math.nan, math.inf, math.nan, 2.0], nan_ok=True)
    assert sums.counts.tolist() == [0, 2, 2, 1]


def test_folded_totals_equal_those_of_kept_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are folded one by one here, because hardly any may wait."""
    runs = [
        record(tmp_path, [1.0 + (step - number) ** 2 / 7 for step in range(9)], name=f"{number}", group=str(number % 2))
        for number in range(6)
    ]
    kept = sweep(POLICY, AXES, runs)
    monkeypatch.setattr(totals, "_HELD_BYTES", 1)
    folded = sweep(POLICY, AXES, runs[::-1], keep_outcomes=False)

    assert shown(folded) == shown(kept)
    assert folded.front == kept.front
    with pytest.raises(TelemetryError, match="keep_outcomes=True"):
        folded.runs_frame()


def test_a_log_that_knows_more_of_a_training_replaces_one_that_was_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs are swept again: sums could be undone, a maximum could not."""
    values = [2.0 - step / 40 for step in range(30)]
    less = record(tmp_path, values[:12], name="less", group="a", losses=30)
    with Recorder(tmp_path, name="same", group="a", quiet=True) as rec:
        for step in range(1, 31):
            rec.step(loss=1.0 + math.sin(step))
    same = open_run(rec.folder)
    more = record(tmp_path, values, name="more", group="a", losses=30)
    kept = sweep(POLICY, AXES, [same, more, less])
    monkeypatch.setattr(totals, "_HELD_BYTES", 1)
    folded = sweep(POLICY, AXES, [same, more, less], keep_outcomes=False)

    assert shown(folded) == shown(kept)
    assert [run.name for run in folded.runs] == [run.name for run in kept.runs]
    assert [one.name for one in folded.repeated] == ["same", "less"]


def test_the_best_run_of_a_family_is_lost_by_what_ends_it_before_its_best_value(tmp_path: Path) -> None:
    """A family of one run has no winner; of two equal winners both have to be lost."""
    runs = [
        record(tmp_path, [3.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0], name="early", group="a"),
        record(tmp_path, [3.0, 1.5, 1.5, 1.5, 1.5, 1.5, 1.2], name="loser", group="a"),
        record(tmp_path, [4.0, 4.0, 0.5, 4.0, 4.0, 4.0, 4.0], name="tied-early", group="b"),
        record(tmp_path, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 0.5], name="tied-late", group="b"),
        record(tmp_path, [1.0, 0.1, 0.01], name="alone", group="c"),
    ]
    found = sweep(POLICY, AXES, runs, keep_outcomes=False)

    assert [(winner.family.value, winner.name) for winner in found.winners] == [("a", "early"), ("b", "tied-early")]
    assert [[winner.is_lost(number) for number in range(3)] for winner in found.winners] == [
        [True, False, False],
        [True, False, False],
    ]
    assert lost_counts(found.winners, 3).tolist() == [2, 0, 0]
