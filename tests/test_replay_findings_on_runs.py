"""Checking a policy against recorded runs finds metrics that they lack and conditions that they can never meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptape import Plan, Recorder, open_run
from steptape.replay.policies.findings_on_runs import compared_with
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two runs of 10 and 20 steps; their evaluations, every five steps, carry ``loss`` too."""
    store = tmp_path_factory.mktemp("runs")
    opened = []
    for steps in (10, 20):
        with Recorder(store) as rec:
            for step in range(1, steps + 1):
                rec.step(loss=1.0 * step)
                if step % 5 == 0:
                    rec.evaluate(loss=9.0, eval_loss=float("nan"))
        rec.close(seal=True)
        opened.append(open_run(rec.folder))
    return opened


def told(rule: str, runs: list[Run], more: str = "", trigger: str = "on_step_end") -> list[str]:
    """Return the messages about a policy with one rule."""
    text = f"controllers:\n  - name: c\n    triggers: [{trigger}]\n    rule: {rule}\n    operations: []\n{more}"
    return [
        finding.message.removeprefix("controller 'c': ") for finding in compared_with(parse_policy(text), runs).findings
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "loss > mean(loss, 20)",
        "loss > lag(loss, 19)",
        'series("loss", kind="evaluate") > mean(eval_loss, 4)',
        "len(loss) == 20",
        "len(loss) > 19 or len(eval_loss) > 3",
    ],
)
def test_what_the_longest_run_has_is_enough(rule: str, runs: list[Run]) -> None:
    """The newest value counts into a window, and a NaN into a series."""
    assert told(rule, runs) == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("loss > mean(loss, 21)", "a window of 21 values, but 'loss' has at most 20 in any of the 2 runs given"),
        ("loss > lag(loss, 20)", "a window of 21 values, but 'loss' has at most 20 in any of the 2 runs given"),
        (
            'mean(series("loss", kind="evaluate"), 5) > 1',
            "a window of 5 values, but 'loss' of evaluate events has at most 4 in any of the 2 runs given",
        ),
        (
            'series("loss", kind="log") > 1',
            "'loss' of log events was not recorded in any of the 2 runs given. Did you mean 'eval_loss'?",
        ),
        ("lr > 1", "'lr' was not recorded in any of the 2 runs given. Recorded there: eval_loss, loss"),
        ("len(loss) > 20", "'len(loss) > 20' can never hold: in the given runs 'loss' has at most 20 values"),
    ],
)
def test_what_no_run_has_is_found(rule: str, message: str, runs: list[Run]) -> None:
    """A bare name is the series of the kind that carried it first, as in the engine."""
    assert told(rule, runs) == [message]


@pytest.mark.parametrize(
    "rule",
    [
        "loss > num_params",
        "lr > 1",
        "loss > mean(loss, steps=500)",
        "loss > mean(loss, epochs=9)",
        "mean(loss / eval_loss, 5) > ema(loss, 100)",
        "delta(loss, 19) > 0",
    ],
)
def test_what_rules_can_read_beside_plain_series_is_no_finding(rule: str, tmp_path: Path, runs: list[Run]) -> None:
    """The cases: constants of the run, another name of the learning rate, windows by steps, series of expressions."""
    with Recorder(tmp_path, plan=Plan(constants={"num_params": 1e6})) as rec:
        rec.step(learning_rate=0.1, loss=1.0)

    assert told(rule, [*runs, open_run(rec.folder)]) == []


def test_windows_that_skip_values_and_changes_are_as_long_as_they_reach(runs: list[Run]) -> None:
    """The skipped values are needed too."""
    assert told("loss > mean(loss, 19, skip=1)", runs) == []
    assert len(told("loss > mean(loss, 20, skip=1)", runs)) == 1
    assert len(told("delta(loss, 20) > 0", runs)) == 1


def test_a_shorter_selection_of_runs_gives_more_findings(runs: list[Run]) -> None:
    """A single run has its own wording."""
    assert told("loss > mean(loss, 20)", runs[:1]) == [
        "a window of 20 values, but 'loss' has at most 10 in the run given"
    ]


@pytest.mark.parametrize(
    ("rule", "more", "message"),
    [
        (
            "loss > 1",
            "    between: [30, null]\n",
            "'between' begins at step 30, but the runs given have at most 20 steps",
        ),
        (
            "absent(loss, steps=21)",
            "",
            "absent(loss, steps=21) looks back 21 steps, but the runs given have at most 20 steps",
        ),
        (
            "age(eval_loss) > 20",
            "",
            "'age(eval_loss) > 20' is never true, so the rule is never true: the runs given have at most 20 steps",
        ),
    ],
)
def test_what_waits_longer_than_the_longest_run_is_found(rule: str, more: str, message: str, runs: list[Run]) -> None:
    """By its steps, or by those that it plans."""
    assert [what for what in told(rule, runs, more) if "steps" in what] == [message]
    assert [what for what in told(rule.replace("20", "19"), runs, "") if "is never" in what] == []


def test_a_run_that_plans_more_steps_than_it_has_counts_with_those(tmp_path: Path) -> None:
    """It may still get there."""
    with Recorder(tmp_path, total_steps=100) as rec:
        rec.step(loss=1.0)
    run = open_run(rec.folder)

    assert told("mean(loss, steps=100) > 1 and step > 99", [run]) == []
    assert len(told("mean(loss, steps=101) > 1", [run])) == 1
    assert [what[:31] for what in told("loss > 1 and step > 100", [run])] == ["'step > 100' is never true, so "]


def test_patience_and_triggers_are_measured_by_how_often_the_trigger_comes(runs: list[Run]) -> None:
    """Four evaluations satisfy a patience of 3, but not of 4."""
    patience = "    patience: {{patience_threshold: {}}}\n"

    assert told("eval_loss > 1", runs, patience.format(3), "on_evaluate") == []
    assert told("eval_loss > 1", runs, patience.format(4), "on_evaluate") == [
        "patience waits for 5 true answers, but on_evaluate occurs at most 4 times in any of the 2 runs given"
    ]
    assert told("loss > 1", runs, trigger="on_save") == ["on_save never occurs in any of the 2 runs given"]
    assert told("len(loss) < 1", runs, trigger="on_init_end") == []


def test_decisions_that_contradict_each_other_are_found_once_and_only_up_to_the_stop(runs: list[Run]) -> None:
    """Nothing is decided after the end of a run."""
    text = """\
controllers:
  - {name: epoch, triggers: [on_step_end], rule: loss >= FIRST, operations: [hfcontrols.should_epoch_stop]}
  - {name: stop, triggers: [on_step_end], rule: loss >= 5, operations: [hfcontrols.should_training_stop]}
"""
    together = compared_with(parse_policy(text.replace("FIRST", "4"), source="p.yaml"), runs).findings
    later = compared_with(parse_policy(text.replace("FIRST", "6")), runs).findings

    assert [str(finding) for finding in together] == [
        "p.yaml:3:73: warning: controller 'stop': orders hfcontrols.should_training_stop at step 5 of "
        f"{runs[0].run_id}, where controller 'epoch' orders hfcontrols.should_epoch_stop [contradiction]"
    ]
    assert later == []


def test_what_a_shadow_controller_would_order_contradicts_nothing(runs: list[Run]) -> None:
    """A shadow controller orders nothing."""
    text = """\
controllers:
  - {name: e, triggers: [on_step_end], rule: loss > 4, operations: [hfcontrols.should_epoch_stop], mode: shadow}
  - {name: stop, triggers: [on_step_end], rule: loss > 4, operations: [hfcontrols.should_training_stop]}
"""
    assert compared_with(parse_policy(text), runs).findings == []


def test_a_folder_of_runs_is_left_as_it_is(runs: list[Run]) -> None:
    """Checking only reads."""
    before = sorted((path, path.stat().st_mtime_ns) for path in runs[0].folder.iterdir())

    told("loss > 1", runs)

    assert sorted((path, path.stat().st_mtime_ns) for path in runs[0].folder.iterdir()) == before


@pytest.mark.parametrize(
    ("rule", "trigger", "meant"),
    [
        ("loss > 1", "on_step_end", "train/loss"),
        ("loss > 1", "on_evaluate", "val_loss"),
        ('series("loss", kind="evaluate") > 1', "on_step_end", "val_loss"),
        ('series("accuracy", kind="log") > 1', "on_evaluate", "top1_accuracy"),
    ],
)
def test_a_missing_series_is_answered_with_a_metric_of_its_kind(
    rule: str, trigger: str, meant: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same last word counts more than similar letters, when checked and at the end of a live run."""
    text = (
        f"controllers:\n  - {{name: r, triggers: [{trigger}], rule: '{rule}', operations: [hfcontrols.should_log]}}\n"
    )
    policy = parse_policy(text)
    with Recorder(tmp_path, rules=policy) as rec:
        for step in range(1, 4):
            rec.step({"train/loss": 1.0 / step, "lost": 1.0})
            rec.evaluate(val_loss=1.0 / step, top1_accuracy=0.5)

    (live,) = [message for message in caplog.messages if "in this run" in message]
    (checked,) = told(f"'{rule}'", [open_run(rec.folder)], trigger=trigger)
    assert [text.rpartition(". ")[2] for text in (live, checked)] == [f"Did you mean '{meant}'?"] * 2


def test_a_required_metric_that_no_run_has_is_found_at_its_place(runs: list[Run]) -> None:
    """A controller that waits for it could fire in none of them."""
    text = "controllers:\n- {name: c, triggers: [on_step_end], rule: loss > 2, requires: [los], operations: []}\n"

    compared = compared_with(parse_policy(text, source="p.yaml"), runs)

    assert [str(each) for each in compared.findings] == [
        "p.yaml:2:65: warning: controller 'c': requires 'los', which was not recorded in any of the 2 runs given."
        " Did you mean 'loss'? [unrecorded]"
    ]
    assert compared.reach.could_fire == 0


@pytest.mark.parametrize(
    ("rule", "trigger", "more", "found"),
    [
        ('series("loss", kind="evaluate") > 2', "on_step_end", "    for: 3\n", 1),
        ("eval_loss > 2", "on_step_end", "    patience: {patience_threshold: 1}\n", 1),
        ("eval_loss > 2 and loss > 1", "on_step_end", "    for: 3\n", 0),
        ("eval_loss > 2", "on_evaluate", "    for: 3\n", 0),
        ("eval_loss > 2", "on_step_end", "    for: 3\n    every: value\n", 0),
    ],
)
def test_patience_that_counts_steps_over_values_of_evaluations_is_found(
    rule: str, trigger: str, more: str, found: int, runs: list[Run]
) -> None:
    """The runs say which metric comes by evaluation."""
    said = told(rule, runs, more, trigger)

    assert [line for line in said if "comes by evaluation: between two evaluations" in line] == said
    assert len(said) == found


def test_a_state_without_a_class_keeps_the_rules_that_read_it_from_firing(runs: list[Run]) -> None:
    """Its conditions read a metric that no run has."""
    text = (
        "states: {phase: [{high: acc > 2}, {low: loss > 0}]}\ncontrollers:\n"
        '- {name: c, triggers: [on_step_end], rule: phase == "low", operations: []}\n'
    )

    compared = compared_with(parse_policy(text), runs)

    assert compared.reach.reasons == {"no 'acc'": 2}


@pytest.fixture(scope="module")
def negative(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A run whose loss falls from 2 to -7, and whose evaluations are positive."""
    with Recorder(tmp_path_factory.mktemp("negative")) as rec:
        for step in range(1, 11):
            rec.step(loss=3.0 - step, grad_norm=1.0)
            rec.evaluate(eval_loss=1.0)
    rec.close(seal=True)
    return [open_run(rec.folder)]


@pytest.mark.parametrize(
    ("rule", "mend"),
    [
        ("loss > 2 * mean(loss, 5)", "mean(loss, 5) + (2 - 1) * abs(mean(loss, 5))"),
        ("mean(loss, 5, skip=1) * 1.5 < loss", "mean(loss, 5, skip=1) + (1.5 - 1) * abs(mean(loss, 5, skip=1))"),
        ("loss > 3 * trough(loss)", "trough(loss) + (3 - 1) * abs(trough(loss))"),
        ("loss > factor * lag(loss, 1)", "lag(loss, 1) + (factor - 1) * abs(lag(loss, 1))"),
    ],
)
def test_a_multiple_of_a_series_that_is_negative_is_told(rule: str, mend: str, negative: list[Run]) -> None:
    """Twice -3 lies below -3; the mend is as far above the value as it is from 0."""
    assert told(rule, negative, "params: {factor: 2.0}\n") == [
        f"a multiple of 'loss' is below it where it is negative, as in 1 of 1 run, down to -7. Write {mend}"
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "eval_loss > 2 * mean(eval_loss, 5)",
        "grad_norm > 2 * mean(loss, 5)",
        "loss > mean(loss, 5) + 3 * std(loss, 5)",
        "loss > 2 * mean(loss, 5) and mean(loss, 5) > 0",
        "loss > mean(loss, 5) + 1.0 * abs(mean(loss, 5))",
        "loss > (2 * mean(loss, 5) if mean(loss, 5) > 0 else 0)",
    ],
)
def test_a_multiple_that_is_no_wrong_limit_is_not_told(rule: str, negative: list[Run]) -> None:
    """Of a positive series, of another one, of a deviation, or where the rule asks for the sign."""
    assert told(rule, negative) == []
