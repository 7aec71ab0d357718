"""In a mixed store each run is judged by its own evaluation metric, and metrics can be renamed while they are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptape import Policy, TelemetryError, backtest, open_run, sweep
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.reports.diff import diff_json, diff_lines, diff_policies
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.page import report_page
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.objective import Objective, declared_objective, guessed_objective
from steptape.replay.sweeps.outcomes import Outcomes
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.metric_words import mode_of
from steptape.store.run import Run

#: Stops at the second evaluation above the best.
WORSE = """
params: {tolerated: 0}
controllers:
  - name: worse
    triggers: [on_evaluate]
    rule: eval_loss > min(eval_loss, 100)
    patience: {patience_threshold: tolerated}
    operations: [hfcontrols.should_training_stop]
"""
#: Stops every run at step 3, whatever it evaluates.
AT_3 = """
params: {at: 3}
controllers:
  - {name: at, triggers: [on_step_end], rule: step >= at, operations: [hfcontrols.should_training_stop]}
"""
#: Evaluations of one run: the best comes last.
FALLING = (4.0, 3.0, 2.5, 3.5, 2.0)

Recording = Callable[..., Run]


@pytest.fixture
def record(store_record: Callable[..., Path]) -> Recording:
    """A function that makes sealed runs that log those metrics at each evaluation, one after each of five steps."""

    def make(run_id: str, metrics: Mapping[str, tuple[float, ...]], **info: Any) -> Run:
        events = []
        for step in range(1, 6):
            events.append(Event("step_end", step=step, time_ns=step, metrics={"loss": float(step)}))
            values = {name: series[step - 1] for name, series in metrics.items()}
            if values:
                events.append(Event("evaluate", step=step, time_ns=step, metrics=values))
        return open_run(store_record(events, run_id=run_id, sealed=True, **info))

    return make


@pytest.fixture
def mixed(record: Recording) -> list[Run]:
    """Three losses under three names, an accuracy, two metrics of which neither is clearly meant, and nothing."""
    rising = tuple(value / 10 for value in FALLING)
    return [
        record("a", {"eval_loss": FALLING, "test_loss": rising}),
        record("b", {"val_loss": FALLING}),
        record("c", {"validation/loss": FALLING, "test/loss": rising}),
        record("d", {"eval_answer_f1": rising}),
        record("e", {"val/box_loss": FALLING, "val/cls_loss": FALLING}),
        record("f", {}),
    ]


@pytest.mark.parametrize(
    ("names", "mode"),
    [
        (("eval_loss", "ValLoss", "binary_logloss", "eval/perplexity", "test_err", "wer", "val/WER"), "min"),
        (
            ("eval_mse", "RMSE", "val_mae", "nll", "eval/cer", "bpb", "FID", "cross entropy", "neg_log_likelihood"),
            "min",
        ),
        (("eval_answer_f1", "eval_answer_accuracy", "val_lower_acc", "eval_tower_acc", "TestAcc", "acc1"), "max"),
        (("eval/mean_reward", "metrics/mAP50-95(B)", "MeanIoU", "mIoU", "val_dice", "R2", "psnr", "SSIM"), "max"),
        (("rougeL", "rouge1", "exact_match", "eval_spearmanr", "eval_matthews_correlation", "AUC", "bbox/AP"), "max"),
        (("neg_mean_squared_error", "log_likelihood"), "max"),
        (("eval_throughput_accel", "neg_loss", "eval_runtime", "eval_samples_per_second", "score", "epoch"), None),
    ],
)
def test_whole_words_of_a_name_say_which_direction_is_better(names: tuple[str, ...], mode: str | None) -> None:
    """Letters inside a word do not: "answer" is no word error rate."""
    assert {name: mode_of(name) for name in names} == dict.fromkeys(names, mode)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("val_loss", "loss_of_test", "test_loss", "train/loss"), "val_loss"),
        (("validation/loss", "validation/accuracy", "test/loss", "test/accuracy"), "validation/loss"),
        (("valid_loss", "eval_loss"), "eval_loss"),
        (("validation/accuracy", "test/accuracy", "test/loss"), "validation/accuracy"),
        (("test_acc", "train_acc"), "test_acc"),
        (("Val Loss", "Val Box Loss"), "Val Loss"),
        (("valid_loss_epoch", "valid_loss_step/epoch_0", "valid_loss_step/epoch_1"), "valid_loss_epoch"),
        (("eval_accuracy", "eval_f1"), None),
        (("val_box_loss", "val_cls_loss", "test_loss"), None),
        (("train/loss", "eval_runtime"), None),
    ],
)
def test_validation_comes_before_test_and_the_plain_loss_before_others(
    names: tuple[str, ...], chosen: str | None
) -> None:
    """Where several metrics could be meant, none is guessed."""
    found = guessed_objective(frozenset(names))

    assert (found and found.metric) == chosen


def test_each_run_of_a_mixed_store_is_judged_by_its_own_metric(mixed: list[Run]) -> None:
    """The first lines say by which metrics, for how many runs, and how many runs have none."""
    report = backtest(parse_policy(AT_3), mixed, baselines=list(BASELINES.values()))
    told = report_json(summarize(report))

    judged = {run["run_id"]: run["objective"] and run["objective"]["metric"] for run in told["runs"]}
    assert judged == {
        "a": "eval_loss", "b": "val_loss", "c": "validation/loss", "d": "eval_answer_f1", "e": None, "f": None
    }  # fmt: skip
    # Best of 4, 3, 2.5 against 2; for the score, where higher is better, the best comes first.
    assert [run["regret"]["relative"] for run in told["runs"]] == [0.25, 0.25, 0.25, 0.0, None, None]
    assert (report.objective, told["objective"]) == (None, None)
    lines = summary_lines(summarize(report))
    assert (
        "Runs are judged by: eval_loss (1 run), val_loss (1), validation/loss (1), eval_answer_f1 (1, higher is "
        "better). Lower is better unless it says otherwise (guessed run by run; change with --objective)."
    ) in lines
    assert "2 runs have no evaluation that says how good they are." in lines
    assert report.runs_frame()["objective_mode"].to_list() == ["min", "min", "min", "max", None, None]
    assert "val/box_loss" in told["runs"][4]["notes"][0]
    assert "validation/loss" in report_page(summarize(report))


def test_baselines_watch_the_objective_of_each_run(record: Recording) -> None:
    """Each has the score that it has in a store of such runs alone; runs without an objective have none."""
    rise_and_fall = (0.1, 0.5, 0.4, 0.3, 0.2)
    losses, scores = record("a", {"val_loss": FALLING}), record("b", {"eval_f1": rise_and_fall})
    neither = record("c", {})
    policy, baselines = parse_policy(AT_3), list(BASELINES.values())

    together = backtest(policy, [losses, scores, neither], baselines=baselines).baselines
    alone = [backtest(policy, [run], baselines=baselines).baselines for run in (losses, scores)]

    for index, outcome in enumerate(together):
        if outcome.baseline.name != "random":  # Its rate is that of the policy over all runs.
            expected = [one[index].standings[0] if one[index].standings else None for one in alone]
            assert list(outcome.standings[:2]) == expected, outcome.baseline.name
        if outcome.baseline.reads_merit:
            assert outcome.standings[2] is None, outcome.baseline.name


def test_several_declared_objectives_are_an_order_of_preference(mixed: list[Run]) -> None:
    """A run that has none of them is not judged, and each of them must be in some run."""
    wanted = [declared_objective(name) for name in ("test_loss", "val_loss", "eval_answer_f1:min")]
    policy = parse_policy(AT_3)

    report = backtest(policy, mixed, objective=wanted)

    assert [result.objective for result in report.results] == [wanted[0], wanted[1], None, wanted[2], None, None]
    assert any("3 runs have no evaluation" in line for line in summary_lines(summarize(report)))
    with pytest.raises(TelemetryError, match=r"no run recorded an evaluation of this metric; got 'vall_loss'"):
        backtest(policy, mixed, objective=[*wanted, declared_objective("vall_loss")])


def test_the_metric_that_a_study_optimises_judges_its_runs(record: Recording) -> None:
    """Its direction is the study's, whatever the name suggests."""
    study = {"kind": "optuna", "objective": {"metric": "intermediate_value", "mode": "max"}}
    rising = tuple(reversed(FALLING))
    run = record("a", {"intermediate_value": rising, "eval_loss": FALLING}, source=study)

    report = backtest(parse_policy(AT_3), [run], renames={"intermediate_value": "goal"})

    assert report_json(summarize(report))["objective"] == {
        "metric": "goal",
        "mode": "max",
        "guessed": False,
        "origin": "study",
    }
    assert any("goal, higher is better (the study optimises it" in line for line in summary_lines(summarize(report)))


@pytest.mark.parametrize("declared", [(), ("val_loss", "eval_loss", "eval_answer_f1")], ids=["guessed", "declared"])
def test_a_sweep_judges_each_run_as_its_backtest_does(mixed: list[Run], declared: tuple[str, ...]) -> None:
    """By columns and by events, with and without renames."""
    objectives: list[Objective] = [declared_objective(name) for name in declared]
    for renames in ({}, {"validation/loss": "eval_loss"}):
        swept = sweep(parse_policy(AT_3), {"at": [1, 3]}, mixed, objective=objectives, renames=renames)
        for number, variant in enumerate(swept.variants):
            results = backtest(variant.policy(), mixed, objective=objectives, renames=renames).results
            assert [run.objective for run in swept.runs] == [result.objective for result in results]
            for run, result in zip(swept.runs, results, strict=True):
                for field in fields(Outcomes):
                    if field.name.endswith("regret"):
                        expected = getattr(result, field.name)
                        found = getattr(run.outcomes, field.name)[number]
                        assert np.isnan(found) if expected is None else found == expected


def test_a_renamed_metric_is_replayed_as_if_it_had_been_recorded_so(record: Recording) -> None:
    """Rules, objective, baselines and coverage see the new name."""
    policy = parse_policy(WORSE)
    other, same = record("run", {"val_loss": FALLING}), record("own", {"eval_loss": FALLING})

    def told(run: Run, renames: Mapping[str, str] | None = None) -> dict[str, Any]:
        report = report_json(
            summarize(backtest(policy, [run], renames=renames, baselines=list(BASELINES.values()), with_coverage=True))
        )
        for name in ("run_id", "name", "identity"):
            report["runs"][0].pop(name)
        text = json.dumps(report).replace(f"in {run.info.name})", "in the run)")
        document: dict[str, Any] = json.loads(text.replace(f'"name": "{run.info.name}"', '"name": "the run"'))
        return document

    plain, renamed, expected = told(other), told(other, {"val_loss": "eval_loss"}), told(same)

    assert (plain["aggregate"]["stopped"], renamed["aggregate"]["stopped"]) == (0, 1)
    assert renamed.pop("renames") == {"val_loss": "eval_loss"}
    assert expected.pop("renames") == {}
    assert renamed == expected


def test_a_run_that_recorded_the_new_name_keeps_its_own(record: Recording) -> None:
    """Of two metrics for one new name the first gets it."""
    runs = [
        record("a", {"val_loss": FALLING, "eval_loss": (9.0,) * 5}),
        record("b", {"val_loss": FALLING, "dev_loss": (9.0,) * 5}),
    ]

    report = backtest(parse_policy(AT_3), runs, renames={"val_loss": "eval_loss", "dev_loss": "eval_loss"})

    assert [result.recorded.best for result in report.results] == [9.0, 2.0]


@pytest.mark.parametrize("use", ["backtest", "sweep", "diff"])
def test_a_rename_of_a_metric_that_no_run_has_is_refused(mixed: list[Run], use: str) -> None:
    """The error names the nearest."""
    policy, renames = parse_policy(AT_3), {"vall_loss": "new_loss"}
    uses: dict[str, Callable[[], object]] = {
        "backtest": lambda: backtest(policy, mixed, renames=renames),
        "sweep": lambda: sweep(policy, {"at": [1]}, mixed, renames=renames),
        "diff": lambda: diff_policies(policy, policy, mixed, renames=renames),
    }

    with pytest.raises(TelemetryError, match=r"no run recorded .* got 'vall_loss=new_loss'. Did you mean 'val_loss'"):
        uses[use]()


#: The same loss by way of controller metrics, whose other keys are no metrics of the run.
BY_HISTORY = """
controller_metrics: [{name: window, class: HistoryBasedMetric, arguments: {window_size: 2}}]
controllers:
  - name: worse
    triggers: [on_evaluate]
    rule: window.metrics.eval_loss[-1] > 9 and window["metrics"]["steps"][-1] > len(window.training_loss.loss)
    operations: [hfcontrols.should_training_stop]
"""
BY_EVALUATION = """
controller_metrics: [{name: newest, class: EvalMetrics}]
controllers:
  - name: worse
    triggers: [on_evaluate]
    rule: newest["eval_loss"] > 9 and newest.epoch > 1
    operations: [hfcontrols.should_training_stop]
"""


@pytest.mark.parametrize("text", [WORSE, BY_HISTORY, BY_EVALUATION], ids=["series", "history", "newest evaluation"])
def test_a_report_says_which_rename_would_let_the_rules_see_more_runs(mixed: list[Run], text: str) -> None:
    """Nothing is said of names that nobody recorded otherwise, or after the rename."""
    policy = parse_policy(text)
    report = backtest(policy, mixed)
    (hint,) = report_json(summarize(report))["lacking"]
    nearest = {"val_loss": 1, "validation/loss": 1}

    assert hint == {"name": "eval_loss", "runs": 5, "of": 6, "nearest": nearest, "judging": {}, "doubtful": {}}
    assert (
        "5 of 6 runs lack eval_loss, which the rules read; nearest: val_loss (1), validation/loss (1)"
        in report_page(summarize(report))
    )
    assert backtest(policy, mixed, renames={"val_loss": "eval_loss", "validation/loss": "eval_loss"}).lacking == ()


def test_a_difference_never_averages_the_units_of_unlike_metrics(mixed: list[Run]) -> None:
    """The mean is relative; run by run the JSON has both."""
    old, new = parse_policy(AT_3, params={"at": 5}), parse_policy(AT_3)

    found = diff_policies(old, new, mixed)
    told = diff_json(found)

    assert told["aggregate"]["regret"]["mean"] is None
    assert told["aggregate"]["relative_regret"]["mean"] == pytest.approx((3 * 0.25 + 0) / 4)
    assert [run["regret"] for run in told["runs"][:4]] == [0.5, 0.5, 0.5, 0.0]
    assert "regret +18.75%" in "\n".join(diff_lines(found))
    alike: Policy = parse_policy(AT_3)
    assert diff_json(diff_policies(old, alike, mixed[:1]))["aggregate"]["regret"]["mean"] == 0.5
