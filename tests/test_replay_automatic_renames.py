"""``--rename auto`` takes the nearest name of a metric where it is the only one, and says so."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from command_line import call

from steptape import Recorder

STOP = """
controllers:
  - {name: stop, triggers: [on_evaluate], rule: eval_loss > 0.5, operations: [hfcontrols.should_training_stop]}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return a policy that reads the evaluation loss."""
    file = tmp_path / "stop.yaml"
    file.write_text(STOP, encoding="utf-8")
    return file


def record(store: Path, *names: str) -> Path:
    """Record a run whose evaluations have these metrics."""
    with Recorder(store, quiet=True) as rec:
        for step in range(1, 4):
            rec.step(loss=1.0)
            rec.evaluate(dict.fromkeys(names, 1.0 / step))
    return store


def test_the_only_near_name_is_taken_and_said(policy: Path, tmp_path: Path) -> None:
    """The metric that a run has under the rules' own name stays."""
    store = record(record(tmp_path / "runs", "val/loss"), "eval_loss")

    found = call("backtest", policy, "--store", store, "--rename", "auto", "--json")

    assert found.returncode == 0
    assert "--rename auto: val/loss (1 run) is read as eval_loss, the nearest name" in found.stderr
    assert json.loads(found.stdout)["renames"] == {"val/loss": "eval_loss"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("val/avg_loss", "which judges the runs; no name is near"),
        ("validation/avg loss", "which judges the runs; no name is near"),
        ("valid/total_loss", "which judges the runs; no name is near"),
        ("val_ce_loss", "which judges the runs; no name is near"),
        ("dev/nll", "which judges the runs; no name is near"),
        ("val/perplexity", "which judges the runs; no name is near"),
        ("eval_code_loss", "which judges the runs; no name is near"),
        ("validation/main/loss", "which judges the runs; no name is near"),
        ("TEST_LOSS", "the nearest name"),
    ],
)
def test_everyday_names_are_taken_and_hinted_at(name: str, why: str, policy: Path, tmp_path: Path) -> None:
    """Import and backtest print the flag; ``auto`` takes the name, near or not."""
    log = tmp_path / "log.csv"
    rows = [f"{step},{1 / step},{1 / step}" for step in range(1, 6)]
    log.write_text("\n".join([f"step,loss,{name}", *rows]), encoding="utf-8")
    store, flag = tmp_path / "runs", f"--rename {shlex.quote(f'{name}=eval_loss')}"

    imported = call("import", "auto", log, "--store", store)
    hinted = call("backtest", policy, "--store", store)
    auto = call("backtest", policy, "--store", store, "--rename", "auto", "--json")

    assert flag in imported.stdout
    assert flag in hinted.stdout
    assert "in new runs" not in hinted.stdout
    assert "No rule fired" not in hinted.stdout
    assert f"--rename auto: {name} (1 run) is read as eval_loss, {why}" in auto.stderr
    assert json.loads(auto.stdout)["renames"] == {name: "eval_loss"}
    assert json.loads(auto.stdout)["runs"][0]["stop"]["step"] == 1


def test_each_run_has_its_own_judge_and_one_that_means_another_metric_is_not_taken(
    policy: Path, tmp_path: Path
) -> None:
    """Runs of several tools call one thing by several names."""
    store = record(record(record(tmp_path / "runs", "val/avg_loss"), "dev/nll"), "val_loss")
    policy.write_text(STOP.replace("eval_loss > 0.5", "eval_loss > 0.5 and eval_perplexity > 1"), encoding="utf-8")

    several = call("check", policy, "--store", store, "--rename", "auto")
    other = call("check", policy, "--store", record(tmp_path / "others", "val/perplexity"), "--rename", "auto")

    named = "dev/nll (1 run), val/avg_loss (1 run), val_loss (1 run) are read as eval_loss"
    assert f"--rename auto: {named}, the nearest name of each run" in several.stderr
    assert "val/perplexity (1 run) is read as eval_perplexity, the nearest name" in other.stderr
    assert "is read as eval_loss" not in other.stderr


def test_the_hint_names_every_run_that_lacks_a_metric_and_whose_direction_is_unknown(
    policy: Path, tmp_path: Path
) -> None:
    """A run with the metric, one with a near name, one judged by another, and one whose only evaluation is unclear."""
    store = tmp_path / "runs"
    for name in ("eval_loss", "val_loss", "dev/nll", "holdout_objective"):
        record(store, name)

    found = call("backtest", policy, "--store", store)
    auto = call("backtest", policy, "--store", store, "--rename", "auto")

    assert (
        "3 of 4 runs lack eval_loss, which the rules read; nearest: val_loss (1); others are judged by: dev/nll (1); "
        "the only evaluation, though nobody says which way is better: holdout_objective (1). To replay over these: "
        "--rename val_loss=eval_loss --rename dev/nll=eval_loss --rename holdout_objective=eval_loss "
        "(holdout_objective: only if lower is better)"
    ) in found.stdout
    assert "1 of 4 runs lacks eval_loss" in auto.stdout


def test_a_check_reads_runs_under_new_names(policy: Path, tmp_path: Path) -> None:
    """Without, the metric is lacking; a name that no run has is an error."""
    store = record(tmp_path / "runs", "val_loss")

    lacking = call("check", policy, "--store", store)
    renamed = call("check", policy, "--store", store, "--rename", "val_loss=eval_loss")
    auto = call("check", policy, "--store", store, "--rename", "auto")
    unknown = call("check", policy, "--store", store, "--rename", "valloss=eval_loss")

    assert "[unrecorded]" in lacking.stdout
    assert "[unrecorded]" not in renamed.stdout
    assert auto.stdout == renamed.stdout
    assert unknown.returncode == 2
    assert "no run recorded the metric to rename; got 'valloss=eval_loss'" in unknown.stderr


def test_where_two_names_are_as_near_none_is_taken(policy: Path, tmp_path: Path) -> None:
    """A test loss is farther than a validation loss, and no other name for one."""
    store = record(record(tmp_path / "runs", "val_loss", "valid/loss", "test_loss"), "valid/loss")

    found = call("backtest", policy, "--store", store, "--rename", "auto", "--json")

    assert "eval_loss may be valid/loss (2 runs) or val_loss (1 run): none is taken" in found.stderr
    assert "--rename OLD=eval_loss" in found.stderr
    assert json.loads(found.stdout)["renames"] == {}


def test_a_rename_by_hand_comes_first(policy: Path, tmp_path: Path) -> None:
    """Then nothing is lacking."""
    store = record(tmp_path / "runs", "val_loss", "test_loss")

    found = call("backtest", policy, "--store", store, "--rename", "test_loss=eval_loss", "--rename", "auto", "--json")

    assert "no metric that the rules read and runs lack has a near name" in found.stderr
    assert json.loads(found.stdout)["renames"] == {"test_loss": "eval_loss"}


@pytest.mark.parametrize("command", [("sweep", "tolerance=1,2"), ("diff", None), ("health", None), ("check", None)])
def test_other_commands_that_judge_runs_by_rules_take_it_too(command: tuple[str, str | None], tmp_path: Path) -> None:
    """They print the same line."""
    name, values = command
    store = record(tmp_path / "runs", "val_loss")
    (run,) = store.glob("*/run.json")
    told = {
        "sweep": ("sweep", "overfitting", "--set", values, "--store", store),
        "diff": ("diff", "overfitting", "overfitting", "--store", store),
        "check": ("check", "overfitting", "--store", store),
        "health": ("health", run.parent, "--rules", "overfitting"),
    }[name]

    found = call(*told, "--rename", "auto")

    assert "--rename auto: val_loss (1 run) is read as eval_loss, the nearest name" in found.stderr


def test_an_import_has_no_rules_and_refuses_it(tmp_path: Path) -> None:
    """The error says what it takes."""
    found = call("import", "auto", tmp_path, "--store", tmp_path / "runs", "--rename", "auto")

    assert found.returncode == 2
    assert "--rename takes OLD=NEW; got 'auto'" in " ".join(found.stderr.split())
