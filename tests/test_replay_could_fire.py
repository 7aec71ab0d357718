"""A backtest tells runs in which a policy could not fire from runs in which it did not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from steptape import Policy, backtest, load_policy, open_run, sweep
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.diff import diff_json, diff_lines, diff_policies
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.page import report_page
from steptape.replay.reports.sentences import summary_lines, verdict
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import table_rows
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run

Recorder = Callable[..., Path]


def steps(*losses: float, start: int = 1) -> list[Event]:
    """Return training steps with these losses."""
    return [Event("step_end", step, metrics={"loss": loss}) for step, loss in enumerate(losses, start)]


def evaluations(*losses: float, start: int = 1) -> list[Event]:
    """Return evaluations with these losses, one step apart."""
    return [Event("evaluate", step, metrics={"eval_loss": loss}) for step, loss in enumerate(losses, start)]


def policy(rule: str, trigger: str = "on_step_end", keys: str = "", head: str = "") -> Policy:
    """Return a policy of one controller that stops."""
    return parse_policy(f"""{head}
controllers:
  - {{name: stop, triggers: [{trigger}], rule: '{rule}', {keys} operations: [hfcontrols.should_training_stop]}}
""")


def judged(rules: Policy, events: Sequence[Event], store_record: Recorder, **info: Any) -> RunResult:
    """Return the result of a policy on one run of these events."""
    numbered = [event._replace(seq=seq) for seq, event in enumerate(events)]
    (result,) = backtest(rules, [open_run(store_record(numbered, sealed=True, **info))]).results
    return result


METRIC = "controller_metrics: [{name: w, class: HistoryBasedMetric, arguments: {window_size: 4}}]"
LIST = 'w["metrics"]["eval_loss"]'
EVALUATED = "controller_metrics: [{name: e, class: EvalMetrics}]"
LOG = Event("log", 1, metrics={"loss": 3.0})
ASKS = """
controllers:
  - {name: warned, triggers: [on_step_end], rule: len(loss) > 2, operations: []}
  - {name: stop, triggers: [on_step_end], rule: times_fired("warned") > 0, operations: [stop]}
"""


@pytest.mark.parametrize(
    ("rules", "events", "reason"),
    [
        (policy("loss > 2"), steps(3), "no 'loss'"),
        (policy('series("loss", kind="log") > 2', "on_log"), [LOG], "no 'loss' of log events"),
        (policy("eval_loss > 0"), [*evaluations(1), *steps(1)], "no step_end event"),
        (policy("loss > lag(loss, 2)"), steps(1, 2, 3), "fewer than 3 values of 'loss'"),
        (policy("delta(loss, 2) > 0"), steps(1, 2, 3), "fewer than 3 values of 'loss'"),
        (policy("mean(loss, 50, skip=1) > 2"), steps(3, 3), "fewer than 2 values of 'loss'"),
        (policy("slope(loss, 9) > 0"), steps(1, 2), "fewer than 2 values of 'loss'"),
        (policy("len(loss) > 2 and loss > 0"), steps(1, 2, 3), "fewer than 3 values of 'loss'"),
        (policy("2 < len(loss) and loss > 0"), steps(1, 2, 3), "fewer than 3 values of 'loss'"),
        (policy("not (len(loss) <= 2)"), steps(1, 2, 3), "fewer than 3 values of 'loss'"),
        (policy("count(loss, 9) == 3"), steps(1, 2, 3), "fewer than 3 values of 'loss'"),
        (policy("max(abs(delta(loss)), last=2) > 0"), steps(1, 2), "fewer than 2 values of 'loss'"),
        (policy("loss > 0", keys="for: 3,"), steps(1, 1, 1), "fewer than 3 step_end events"),
        (
            policy("eval_loss == 7 or loss > 0", keys="every: value,"),
            [*steps(1), *evaluations(1), *steps(1)],
            "no step_end event once its series",
        ),
        (
            policy("(loss if len(eval_loss) > 0 else undefined) > 0"),
            [*steps(1), *evaluations(1), *steps(1)],
            "no step_end event once its series",
        ),
        (policy("loss > 0", keys="between: [3, null],"), steps(1, 1, 1), "no step_end event within 'between'"),
        (policy("step >= 3"), steps(1, 1, 1), "no step from 3 on"),
        (
            policy("step > 2", keys="for: 2,"),
            steps(1, 1, 1, 1),
            "fewer than 2 step_end events",
        ),
        (policy("epoch > 0"), [Event("step_end", 1, epoch=0.5, metrics={"loss": 1})], "no epoch"),
        (
            policy(f"{LIST}[-2] > 0", "on_evaluate", head=METRIC),
            evaluations(1, 1),
            "fewer than 2 values of 'eval_loss'",
        ),
        (policy(f"len({LIST}) > 2", "on_evaluate", head=METRIC), evaluations(1, 1, 1), "fewer than 3 values"),
        (policy("e.eval_loss > 0", "on_evaluate", head=EVALUATED), evaluations(1), "no 'eval_loss' of evaluate events"),
        (parse_policy(ASKS), steps(1, 1, 1, 1), "no step_end event once its series have the values"),
        (policy("missing > 0 if len(loss) > 9 else loss > 0"), steps(1), "no 'loss'"),
        (policy("loss > 9 and not_there > 0 or eval_loss > 0", "on_evaluate"), [*steps(1), *evaluations(1)], "no 'ev"),
    ],
)
def test_a_policy_could_fire_from_the_event_on_at_which_its_rule_has_all_it_needs(
    rules: Policy, events: list[Event], reason: str, store_record: Recorder
) -> None:
    """With these events it fires at the last; without that one it could not, whatever the values."""
    before = [Event("predict", metrics={"other": 1.0})]
    whole = judged(rules, [*before, *events], store_record, run_id="whole")
    cut = judged(rules, [*before, *events[:-1]], store_record, run_id="cut")

    assert whole.stop is not None
    assert whole.stop.event_index == len(events)
    assert whole.could_not_fire == ""
    assert cut.stop is None
    assert reason in cut.could_not_fire


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("loss > 9 or not_there > 9", ""),
        ("not_there > 9 or loss > 9", "no 'not_there'"),
        ("loss > 9 and not_there > 9", "no 'not_there'"),
        ("not (loss > 9 and not_there > 9)", ""),
        ("(not_there if loss > 9 else loss) > 9", ""),
        ("len(not_there) > 0 or loss > 9", ""),
        ("not not_there > 9", "no 'not_there'"),
        ("False and loss > 9", "a constant that makes the rule false"),
        ("len(loss) < 0 or len(loss) == 0.5", "a length that the rule can never have"),
    ],
)
def test_one_side_of_an_or_suffices_unless_an_undefined_one_comes_before(
    rule: str, reason: str, store_record: Recorder
) -> None:
    """An undefined side makes the whole undefined before the other one is read."""
    assert judged(policy(rule), steps(1, 1, 1), store_record).could_not_fire == reason


def test_a_policy_that_stops_could_fire_if_its_stop_could(store_record: Recorder) -> None:
    """The checkpoints that it orders do not count; those of a policy without a stop do."""
    saves = "{name: keep, triggers: [on_evaluate], rule: eval_loss > 0, operations: [hfcontrols.should_save]}"
    stop = "{name: stop, triggers: [on_step_end], rule: loss > 9, operations: [hfcontrols.should_training_stop]}"
    both = judged(parse_policy(f"controllers: [{saves}, {stop}]"), evaluations(1, 1), store_record, run_id="both")
    alone = judged(parse_policy(f"controllers: [{saves}]"), evaluations(1, 1), store_record, run_id="alone")

    assert both.fired
    assert both.could_not_fire == "no 'loss'"
    assert [reason and reason.reason for reason in both.unable] == [None, "no 'loss'"]
    assert alone.could_not_fire == ""


@pytest.mark.parametrize("question", ['fired_now("above")', 'streak("above") > 0'])
def test_a_controller_could_fire_at_the_event_of_the_one_that_it_asks(question: str, store_record: Recorder) -> None:
    """The only event at which the one above can be true is the last."""
    text = f"""
controllers:
  - {{name: above, triggers: [on_step_end], rule: len(loss) > 2, operations: []}}
  - {{name: stop, triggers: [on_step_end], rule: '{question}', operations: [stop]}}
"""
    result = judged(parse_policy(text), steps(1.0, 1.0, 1.0), store_record)

    assert not result.could_not_fire
    assert result.stop is not None


def test_a_policy_that_steers_could_fire_in_a_run_in_which_it_cannot_stop(store_record: Recorder) -> None:
    """Its stop reads a metric that the run lacks, and its reduction of the learning rate one that it has."""
    steer = "  - {name: steer, triggers: [on_step_end], rule: loss > 1, operations: [lr.reduce(0.5)]}"
    rules = parse_policy(f"{policy('eval_loss > 2').text}{steer}")

    result = judged(rules, steps(1, 2, 3), store_record)

    assert result.could_not_fire == ""
    assert [reason and reason.reason for reason in result.unable] == ["no 'eval_loss'", None]


@pytest.mark.parametrize(
    "rule", ["not isfinite(loss)", "not isfinite(mean(loss, 5))", "not isfinite(loss) or loss > lag(loss, 9)"]
)
def test_a_rule_on_nan_could_not_fire_where_the_tool_hid_nan(rule: str, store_record: Recorder) -> None:
    """Hugging Face's Trainer replaces NaN in the training loss before it logs it, not in evaluations."""
    source = {"kind": "trainer_state", "path": "x", "sha256": "0" * 64, "nan_filtered": ["loss"]}
    hidden = judged(policy(rule), steps(1, 1), store_record, run_id="hidden", source=source)
    shown = judged(policy(rule), steps(1, 1), store_record, run_id="shown")
    evaluated = policy('not isfinite(series("loss", kind="evaluate"))', "on_evaluate")
    events = [Event("evaluate", 1, metrics={"loss": 1.0})]

    assert hidden.could_not_fire.startswith("the tool that logged 'loss' replaced NaN and infinities before")
    assert shown.could_not_fire == ""
    assert judged(evaluated, events, store_record, run_id="evaluated", source=source).could_not_fire == ""


def test_a_controller_that_could_not_fire_is_counted_among_the_runs_in_which_the_policy_could(
    store_record: Recorder,
) -> None:
    """The guard against NaN can fire nearly anywhere; the report says in how many runs the real stop could."""
    runs = [store_record(steps(*[1.0] * 30), run_id=f"no-eval-{n}", sealed=True) for n in range(3)]
    runs += [store_record(training(evaluations=20), run_id="whole", sealed=True)]
    report = backtest(load_policy(shipped_policies()["overfitting"]), map(open_run, runs))
    said = "The rules could fire in all 4 runs: stop_not_finite in 4, stop_overfitting in 1, stop_eval_not_finite in 1"

    assert verdict(summarize(report))[0] == f"{said}."


def test_a_value_that_came_late_counts_at_the_step_that_awaited_it(store_record: Recorder) -> None:
    """Its step triggers the rule once, and once is enough."""
    awaited = {"awaited": ["loss"]}
    events = [
        Event("step_end", 1, attrs=awaited),
        Event("evaluate", 1, metrics={"eval_loss": 1.0}),
        Event("step_end", 1, value_lag=1, metrics={"loss": 3.0}, attrs={**awaited, "late_for": 0}),
    ]
    once, twice = (policy("loss > 2", keys=keys) for keys in ("", "for: 2,"))

    assert judged(once, events, store_record, run_id="once").could_not_fire == ""
    assert judged(twice, events, store_record, run_id="twice").could_not_fire.startswith("fewer than 2 step_end events")


def test_an_event_that_brings_a_late_value_is_no_step_more(store_record: Recorder) -> None:
    """Two steps are two answers for patience, though the log has three events of them."""
    events = [
        Event("step_end", 1, metrics={"loss": 3.0}),
        Event("step_end", 2, attrs={"awaited": ["loss"]}),
        Event("step_end", 2, value_lag=1, metrics={"loss": 3.0}, attrs={"awaited": ["loss"], "late_for": 1}),
    ]

    reason = judged(policy("loss > 2", keys="for: 3,"), events, store_record).could_not_fire

    assert reason.startswith("fewer than 3 step_end events")


@pytest.fixture
def mixed(store_record: Recorder) -> list[Run]:
    """A store of 24 runs: TrAC's Fig. 4 could stop 10, and does stop 8 of these.

    Six have no ``eval_loss``, five no training step, three fewer than ten evaluations.
    """
    plain = {"sealed": True, "status": "completed", "plan": Plan(total_steps=100)}
    runs = [
        store_record(training(evaluations=20, factor=1.0 if n < 8 else 0.9 - n / 100), run_id=f"can-{n}", **plain)
        for n in range(10)
    ]
    runs += [store_record(steps(*[1.0] * 100), run_id=f"no-eval-{n}", **plain) for n in range(6)]
    lone = [Event("evaluate", step, metrics={"eval_loss": 1.0}) for step in range(5, 101, 5)]
    runs += [store_record(lone, run_id=f"no-step-{n}", **plain) for n in range(5)]
    runs += [store_record(training(evaluations=9), run_id=f"few-{n}", **plain) for n in range(3)]
    return [open_run(folder) for folder in runs]


def training(*, evaluations: int, factor: float = 1.0) -> list[Event]:
    """Return 100 steps with evaluations at every fifth, each time of this factor of the loss before."""
    events = []
    for step in range(1, 101):
        events.append(Event("step_end", step, metrics={"loss": 1.0}))
        if step % 5 == 0 and step <= 5 * evaluations:
            events.append(Event("evaluate", step, metrics={"eval_loss": factor ** (step // 5)}))
    return [event._replace(seq=seq) for seq, event in enumerate(events)]


@pytest.fixture
def report(mixed: list[Run]) -> Backtest:
    """The backtest of TrAC's Fig. 4 over the mixed store, with all baselines."""
    return backtest(load_policy(shipped_policies()["trac_fig4"]), mixed, baselines=list(BASELINES.values()))


def test_means_are_over_the_runs_in_which_the_policy_could_fire(report: Backtest) -> None:
    """Each of the eight is stopped at step 71, the 21st after the tenth evaluation."""
    total, rows = (
        report_json(summarize(report))["aggregate"],
        {row["name"]: row for row in report_json(summarize(report))["comparison"]},
    )

    assert (total["runs"], total["could_fire"], total["stopped"]) == (24, 10, 8)
    assert total["share_saved"]["mean"] == pytest.approx(8 * 0.29 / 10)
    assert total["share_saved"]["runs"] == total["relative_regret"]["runs"] == 10
    assert total["steps"] == 1000
    assert {row["runs"] for row in rows.values() if "reason" not in row} == {10}
    assert rows["policy"]["share_saved"] == total["share_saved"]
    assert rows["random"]["stopped"] == pytest.approx(8, abs=2.5)


def test_the_report_counts_the_runs_in_which_the_policy_could_fire_first(report: Backtest) -> None:
    """The first sentence has both counts; the reasons follow, each with its number of runs."""
    paragraphs, lines = verdict(summarize(report)), summary_lines(summarize(report))
    said = " ".join(paragraphs)

    assert said.startswith("The rules could fire in 10 of 24 runs. They would have stopped 8 of these. ")
    assert (
        "In all 8 of them, by a median of 6 later evaluations of eval_loss, training on would not have given a model "
        "more than 1% better (regret 0)." in said
    )
    assert lines[: len(paragraphs)] == paragraphs
    assert "6 runs, such as no-eval-0: could not fire: no 'eval_loss' of evaluate events." in lines
    assert "5 runs, such as no-step-0: could not fire: no step_end event." in lines
    assert "few-0: could not fire: fewer than 10 values of 'eval_loss' of evaluate events." in lines
    assert sum(row[-1] == "cannot fire" for row in table_rows(summarize(report))) == 14
    page = report_page(summarize(report)).replace("\N{NO-BREAK SPACE}", " ")
    assert all(f"<p>{escape(text)}</p>" in page for text in paragraphs)
    assert report_page(summarize(report)).count("could not fire</span>") == 14


def test_the_json_of_a_run_has_the_reason(report: Backtest) -> None:
    """It is null for a run in which the rules could fire; regret lists the run as left out."""
    found = report_json(summarize(report))
    reasons = {run["run_id"]: run["could_not_fire"] for run in found["runs"]}
    left_out = {run["run_id"]: run["reason"] for run in found["excluded_from_regret"]}

    assert reasons["can-0"] is None
    assert reasons["no-step-0"] == "no step_end event"
    assert left_out["no-step-0"] == "could not fire: no step_end event"
    assert set(left_out) == {name for name, reason in reasons.items() if reason}


def test_a_sweep_judges_each_variant_over_the_runs_in_which_it_could_fire(mixed: list[Run]) -> None:
    """A shorter window can fire in runs with fewer evaluations; mean and share are those of the variant's backtest."""
    text = """
params: {window: 10, tolerance: 1.0}
controllers:
  - name: stop
    triggers: [on_step_end]
    rule: len(eval_loss) >= window and eval_loss >= tolerance * min(eval_loss, window)
    for: 21
    operations: [hfcontrols.should_training_stop]
"""
    found = sweep(parse_policy(text), {"window": [5, 10], "tolerance": [1.0, 2.0]}, mixed)
    reports = [backtest(variant.policy(), mixed) for variant in found.variants]

    assert found.totals["could_fire"].tolist() == [13, 13, 10, 10]
    for number, total in enumerate(report_json(summarize(one))["aggregate"] for one in reports):
        assert found.totals["could_fire"][number] == total["could_fire"]
        assert found.totals["steps"][number] == total["steps"]
        assert found.totals["steps_saved"][number] == total["steps_saved"]
        assert found.totals["mean_regret"][number] == pytest.approx(total["relative_regret"]["mean"])


def test_a_diff_is_over_the_runs_in_which_either_policy_could_fire(mixed: list[Run]) -> None:
    """Runs in which neither could would only pull the mean to zero; the report says how many there are."""
    old, new = (policy(f"len(eval_loss) > {count} and eval_loss > 0", "on_evaluate") for count in (9, 15))
    found = diff_policies(old, new, mixed)

    assert diff_json(found)["aggregate"]["could_fire"] == {"old": 15, "new": 15}
    assert found.mean(lambda run: run.steps).runs == 15
    assert any("The old rules could fire in 15 and the new one in 15 of 24 runs" in line for line in diff_lines(found))


@pytest.mark.usefixtures("mixed")
def test_check_says_beforehand_in_how_many_runs_a_policy_could_fire(store_path: Path) -> None:
    """It says so above its verdict, with the reasons, and in the JSON."""
    command = [
        sys.executable,
        "-m",
        "steptape",
        "check",
        "trac_fig4",
        "--store",
        str(store_path),
        "--ignore",
        "nan-guard",
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    document = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=False).stdout)

    assert "could fire in 10 of 24 runs" in text.splitlines()
    assert "5 of 24 runs: could not fire: no step_end event" in text.splitlines()
    assert document["could_fire"]["could_fire"] == 10
    assert document["could_fire"]["reasons"] == {
        "no 'eval_loss' of evaluate events": 6,
        "no step_end event": 5,
        "fewer than 10 values of 'eval_loss' of evaluate events": 3,
    }


def test_a_series_that_ends_before_half_of_the_run_is_told(store_record: Recorder) -> None:
    """The rule could fire for 3 of 20 steps; it stayed silent on the rest because nothing came."""
    blind = [Event("step_end", step, metrics={"loss": 1.0} if step <= 3 else {"lr": 0.1}) for step in range(1, 21)]
    runs = [
        store_record(steps(*[1.0] * 20), run_id="whole", sealed=True),
        store_record(blind, run_id="blind", sealed=True),
    ]
    report = backtest(policy("loss > 2"), map(open_run, runs))

    assert verdict(summarize(report))[0] == (
        "The rules could fire in both runs: stop in 2 (1 of them only in the first 15%)."
    )
    said = "'loss' ends at step 3 of 20: rules that read it saw no newer value"
    assert [said in result.notes for result in report.results] == [False, True]


def test_a_constant_that_was_declared_late_ends_nowhere(store_record: Recorder) -> None:
    """It holds to the end of the attempt."""
    declared = Event("plan", 5, attrs={"constants": {"size": 1}})
    run = open_run(store_record([*steps(*[1.0] * 20)[:5], declared, *steps(*[1.0] * 20)[5:]], sealed=True))

    (result,) = backtest(policy("size > 2"), [run]).results

    assert not any("ends at step" in note for note in result.notes)


def test_a_stop_after_which_nothing_was_evaluated_is_not_judged(store_record: Recorder) -> None:
    """Its regret is zero whatever it costs: the best evaluation of the record comes before it."""
    early = [*evaluations(3, 2, 1, 2, 3), Event("step_end", 6, metrics={"loss": 9.0}), *steps(*[1.0] * 9)[6:]]
    run = open_run(store_record(early, sealed=True, status="completed"))
    report = backtest(policy("loss > 2"), [run], objective=[declared_objective("eval_loss", "min")])

    assert report.results[0].relative_regret == 0
    why = "no stopped run can be judged (without an evaluation after the stop)."
    assert f"What the stops cost is unknown: {why}" in verdict(summarize(report))[0]
    assert "no stopped run can be judged" in report_page(summarize(report))
