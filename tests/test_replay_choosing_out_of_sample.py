"""A front is judged on runs that did not choose it: splits keep families whole, and optimism is the difference."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from steptape import Recorder, TelemetryError, open_run, sweep
from steptape.cli.app import app
from steptape.replay.choosing.out_of_sample import (
    RunTable,
    chosen_variant,
    family_splits,
    joined_groups,
    judge_choices,
    means_of,
    optimism_of,
    run_table,
    walk_forward_splits,
)
from steptape.replay.reports.sweep_report import sample_sentences
from steptape.replay.sweeps.totals import Sweep
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

TEXT = """
params: {tolerated: 0}
controllers:
  - name: no_better
    triggers: [on_evaluate]
    rule: eval_loss >= trough(eval_loss, skip=1)
    patience: {patience_threshold: tolerated}
    operations: [hfcontrols.should_training_stop]
"""
POLICY = parse_policy(TEXT)
AXES = {"tolerated": [0, 1, 2, 3, 99]}


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Eight runs of four families, whose losses stall for longer and longer before they fall again."""
    made = []
    for number in range(8):
        with Recorder(tmp_path / "runs", name=f"run-{number}", group=f"group-{number // 2}", quiet=True) as rec:
            for loss in (3.0, 2.0, *[2.0] * (number // 2), 1.0 + number / 8, 1.5):
                rec.step(loss=loss)
                rec.evaluate(eval_loss=loss)
        made.append(open_run(rec.folder))
    return made


@pytest.fixture
def swept(runs: list[Run]) -> Sweep:
    """The sweep over those runs, with their outcomes."""
    return sweep(POLICY, AXES, runs)


def test_each_family_is_tested_once_in_a_deal_and_never_chooses_for_itself() -> None:
    """Folds differ by at most one family."""
    families = ["a", "b", "c", "d", "e"] * 3
    splits = family_splits(families, folds=2, repeats=3, seed=7)

    for deal in (splits[:2], splits[2:4], splits[4:]):
        tested = [sorted({families[index] for index in split.test}) for split in deal]
        assert sorted(chain(*tested)) == ["a", "b", "c", "d", "e"]
        assert sorted(map(len, tested)) == [2, 3]
    for split in splits:
        assert {families[index] for index in split.test}.isdisjoint(families[index] for index in split.training)
        assert sorted([*split.training.tolist(), *split.test.tolist()]) == list(range(15))


def test_the_order_of_the_runs_changes_no_fold_and_the_seed_does() -> None:
    """The deal depends on the names of the families alone."""
    families = [f"family-{number}" for number in range(12)]

    def tested(order: list[str], seed: int) -> list[list[str]]:
        return [sorted(order[index] for index in split.test) for split in family_splits(order, folds=3, seed=seed)]

    assert tested(families, 1) == tested(families[::-1], 1)
    assert tested(families, 1) != tested(families, 2)


def test_walking_forward_tests_later_groups_and_purges_those_still_running() -> None:
    """The second group ends after the third began: it does not choose for the third, but for the fourth."""
    splits = walk_forward_splits(["a", "b", "c", "d"], [10, 20, 30, 40], [15, 35, 38, 45], folds=3)

    assert [(s.training.tolist(), s.test.tolist(), s.purged.tolist()) for s in splits] == [
        ([0], [1], []),
        ([0], [2], [1]),
        ([0, 1, 2], [3], []),
    ]


def test_near_duplicates_stay_together_in_time() -> None:
    """Runs of one configuration are one group, even if each run is a family."""
    groups = joined_groups(["a", "b", "c", "d", "d"], ["x", "y", "x", "", "y"])

    assert [groups.index(group) for group in groups] == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("families", "folds", "message"),
    [
        (["a"] * 5, 2, "a split needs several families"),
        (["a", "b", "c"], 4, "fewer families than folds; got '3 and 4'"),
    ],
)
def test_too_few_families_are_refused(families: list[str], folds: int, message: str) -> None:
    """The error says how to go on."""
    with pytest.raises(TelemetryError, match=message) as refused:
        family_splits(families, folds=folds)

    assert "--family" in str(refused.value)


def test_a_time_that_is_unknown_or_shared_by_all_is_no_order() -> None:
    """Runs that all overlap have no earlier and later part."""
    with pytest.raises(TelemetryError, match="the start and the end of each run"):
        walk_forward_splits(["a", "b", "c"], [1, 0, 3], [2, 3, 4], folds=2)
    with pytest.raises(TelemetryError, match="overlaps in time"):
        walk_forward_splits(["a", "b", "c"], [1, 2, 3], [9, 9, 9], folds=2)
    with pytest.raises(TelemetryError, match="fewer families than parts in time"):
        walk_forward_splits(["a", "b", "c"], [1, 2, 3], [1, 2, 3], folds=3)


def test_a_choice_saves_most_within_the_limit_or_loses_least() -> None:
    """Of equal variants the one with less regret is chosen, then the first."""
    regret, saved = np.array([0.5, 0.01, 0.0, 0.0, math.nan]), np.array([9.0, 4.0, 4.0, 4.0, 99.0])

    assert chosen_variant(regret, saved, math.inf) == 0
    assert chosen_variant(regret, saved, 0.02) == 2
    assert chosen_variant(regret + 0.3, saved, 0.02) == 2
    assert chosen_variant(np.full(5, math.nan), saved, 0.02) == -1


def test_out_of_sample_is_what_each_fold_s_choice_does_on_the_fold() -> None:
    """Two variants, three runs: the thrifty variant loses on the last run only."""
    table = RunTable(np.array([[0.0, 0.0], [0.0, 0.0], [0.3, 0.0]]), np.array([[5.0, 1.0]] * 3), np.full((3, 2), 10.0))
    splits = family_splits(["a", "b", "c"], folds=3, repeats=1)
    (found,) = judge_choices(table.variants, 2, 3, splits, [0.05])

    # The last run chooses nothing for itself, so the thrifty variant is chosen for it and loses.
    assert found.regret == pytest.approx(0.1)
    assert found.saved_share == pytest.approx((1 + 1 + 5) / 30)


def test_the_whole_front_is_read_back_from_the_table_of_its_runs(swept: Sweep) -> None:
    """Means of the table are the sweep's totals."""
    table = run_table(swept.runs, np.arange(5))
    means = means_of(table, np.ones((1, len(swept.runs))))

    assert means.regret[0].tolist() == pytest.approx(swept.totals["mean_regret"].tolist(), nan_ok=True)
    assert means.score[0].tolist() == pytest.approx(swept.totals["steps_saved"].tolist())


def test_optimism_changes_with_no_order_of_runs(runs: list[Run], swept: Sweep) -> None:
    """Runs are ordered by the digests of their logs."""
    found, turned = (optimism_of(one, "families", folds=4) for one in (swept, sweep(POLICY, AXES, runs[::-1])))

    assert found == turned
    assert [point.variant for point in found.points] == list(swept.front)
    assert found.points[0].optimism_regret == pytest.approx(0.0)
    assert found.frame().height == len(swept.front)


def test_a_front_that_sees_more_stalls_in_the_tests_is_optimistic(swept: Sweep) -> None:
    """Later families stall longer, so what earlier ones chose loses more on them."""
    found = optimism_of(swept, "walk-forward", folds=3)

    assert found.kind == "walk-forward"
    assert found.points[-1].optimism_regret > 0


def test_runs_that_were_left_out_for_their_time_are_counted(swept: Sweep) -> None:
    """Only if there are any."""
    found = optimism_of(swept, "walk-forward", folds=3)
    said = [" ".join(sample_sentences(swept, replace(found, purged=count))) for count in (0, 1, 2)]

    assert "did not choose" not in said[0]
    assert "1 run did not choose for a part that began before they ended" in said[1]
    assert "2 runs did not choose" in said[2]


def test_a_sweep_without_outcomes_is_not_split(runs: list[Run]) -> None:
    """The error names the option."""
    with pytest.raises(TelemetryError, match="keep_outcomes=True"):
        optimism_of(sweep(POLICY, AXES, runs, keep_outcomes=False), "families", folds=2)


def test_the_command_says_in_which_sample_a_front_is(runs: list[Run], tmp_path: Path) -> None:
    """Title, JSON and page say so; with a split they have the optimism."""
    policy, page = tmp_path / "policy.yaml", tmp_path / "page.html"
    policy.write_text(TEXT)
    command = ["sweep", str(policy), "--store", str(runs[0].folder.parent), "--set", "tolerated=0,1,2,3"]

    def output(*options: str) -> str:
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    inside = output("--html", str(page))
    assert inside.startswith("Best trade-offs, in sample:")
    assert "In sample: the runs that chose these variants also judge them" in inside
    assert 'aria-label="Best trade-offs, in sample"' in page.read_text()
    assert {(row["sample"], row["split"]) for row in map(json.loads, output("--json").splitlines())} == {("in", None)}

    assert "(each of 4 families left out in turn):" in output("--split", "families")
    outside = output("--split", "families=2", "--html", str(page))
    assert outside.startswith("Best trade-offs, in sample and out of sample (2 folds of 4 families, dealt 3 times):")
    assert "optimism" in outside
    assert "out of sample: " in page.read_text()
    rows = [json.loads(line) for line in output("--split", "families=4", "--json").splitlines()]
    assert rows[0]["split"]["families"] == 4
    assert {"out_of_sample_regret", "optimism_regret", "optimism_saved"} <= rows[0]["out_of_sample"].keys()
    assert [row["out_of_sample"] is not None for row in rows] == [row["on_front"] for row in rows]


def test_the_command_refuses_more_folds_than_families(runs: list[Run], tmp_path: Path) -> None:
    """The message names both numbers."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(TEXT)
    command = ["sweep", str(policy), "--store", str(runs[0].folder.parent), "--set", "tolerated=0,1"]
    result = CliRunner().invoke(app, [*command, "--split", "families=5"])

    assert result.exit_code != 0
    assert "there are fewer families than folds; got '4 and 5'" in str(result.exception)
