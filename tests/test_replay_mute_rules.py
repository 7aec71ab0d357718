"""A check and a backtest name each rule that could fire in none of the runs, with the reason and the flag."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from markupsafe import escape

from steptape import backtest, open_run
from steptape.replay.backtests.baselines import BASELINES, baseline_policy
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.page import report_page
from steptape.replay.reports.summary import summarize
from steptape.replay.reports.terminal import terminal_report
from steptape.replay.runs.objective import declared_objective
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan

LATE = """
controllers:
  - {name: late, triggers: [on_evaluate], rule: progress > 0.1 and val_loss > 0.05, operations: [training_stop]}
  - {name: broken, triggers: [on_evaluate], rule: not isfinite(val_loss), operations: [training_stop]}
""".replace("training_stop", "hfcontrols.should_training_stop")


def events_of(metric: str, *values: float, elapsed_ns: int = 0) -> list[Event]:
    """Return a step and an evaluation for each value."""
    found = []
    for step, value in enumerate(values, 1):
        found.append(Event("step_end", step, metrics={"loss": value}, elapsed_ns=step * elapsed_ns))
        found.append(Event("evaluate", step, metrics={metric: value}, elapsed_ns=step * elapsed_ns))
    return [event._replace(seq=seq) for seq, event in enumerate(found)]


@pytest.fixture
def judged(store_record: Callable[..., Path]) -> Callable[..., Backtest]:
    """Return a backtest of a policy on two runs whose evaluations have one metric."""

    def judge(policy: Policy, metric: str, **clock: Any) -> Backtest:
        runs = [
            store_record(
                events_of(metric, 3, 2, offset, **clock), run_id=f"run-{offset}{len(clock)}", sealed=True, steps=3
            )
            for offset in (1, 0.5)
        ]
        return backtest(policy, map(open_run, runs))

    return judge


def lines(report: Backtest) -> Sequence[str]:
    """Return the lines of the terminal's report."""
    return [line for line in terminal_report(summarize(report)) if isinstance(line, str)]


def test_a_rule_that_waits_for_a_plan_is_named_though_others_could_fire(judged: Callable[..., Backtest]) -> None:
    """Terminal, JSON and page name it."""
    report = judged(parse_policy(LATE), "val_loss")
    said = (
        "late could fire in none of 2 runs: no plan, so 'progress' is unknown. "
        "'--plan last' takes the length of completed runs."
    )
    (mute,) = report_json(summarize(report))["mute_rules"]

    assert said in lines(report)
    assert str(escape(said)) in report_page(summarize(report))
    assert (mute["name"], mute["reasons"]) == ("late", {"no plan, so 'progress' is unknown": 2})
    assert mute["is_unplanned"]


def test_a_check_names_it_and_is_not_fine(store_record: Callable[..., Path], tmp_path: Path) -> None:
    """The exit status is that of a warning."""
    (tmp_path / "late.yaml").write_text(LATE, encoding="utf-8")
    run = store_record(events_of("val_loss", 3, 2, 1), sealed=True)

    checked = call("check", tmp_path / "late.yaml", run)
    printed = checked.stdout

    assert checked.returncode == 1
    assert "controller 'late': could fire in none of 1 run: no plan, so 'progress' is unknown. '--plan last'" in printed
    assert "'broken'" not in printed
    assert "fine" not in printed


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("elapsed_s > 60", "no clock, so 'elapsed_s' stays 0"),
        ("elapsed_s > 0", "no clock, so 'elapsed_s' stays 0"),
        ("0 < elapsed_s", "no clock, so 'elapsed_s' stays 0"),
        ("elapsed_s < 60", None),
        ("elapsed_s >= 0", None),
        ("not elapsed_s > 60", None),
    ],
)
def test_a_rule_that_waits_for_time_is_mute_without_a_clock(
    rule: str, reason: str | None, judged: Callable[..., Backtest]
) -> None:
    """Where time passes, it could fire."""
    policy = parse_policy(f"""
controllers:
  - {{name: slow, triggers: [on_evaluate], rule: '{rule}', operations: [hfcontrols.should_training_stop]}}
""")

    assert [list(mute.reasons) for mute in judged(policy, "val_loss").mute_rules] == ([[reason]] if reason else [])
    assert judged(policy, "val_loss", elapsed_ns=1).mute_rules == ()


@pytest.mark.parametrize("name", ["val/avg_loss", "validation/avg loss", "val_ce_loss", "dev/nll", "val/perplexity"])
def test_where_no_name_is_near_the_metric_that_judges_the_runs_is_offered(
    name: str, judged: Callable[..., Backtest]
) -> None:
    """Another rule of the file, which could fire, hides nothing."""
    policy = parse_policy(LATE.replace("val_loss", "loss").replace("progress > 0.1 and loss > 0.05", "eval_loss > 1"))
    report = judged(policy, name)
    (hint, *_) = lines(report)

    assert hint.startswith("2 of 2 runs lack eval_loss, which the rules read; no name is near; judged by:")
    assert f"{name}=eval_loss" in hint


def test_a_score_is_not_offered_as_a_loss(judged: Callable[..., Backtest]) -> None:
    """Higher is better for one, lower for the other."""
    policy = parse_policy(LATE.replace("val_loss", "eval_loss"))

    assert judged(policy, "val_accuracy").lacking == ()


@pytest.mark.parametrize("name", [one.name for one in BASELINES.values() if one.reads_merit])
def test_the_verdict_on_a_baseline_names_the_metric_and_not_an_expression(
    name: str, judged: Callable[..., Backtest]
) -> None:
    """Runs without eval_loss are told how it may be judged."""
    report = judged(baseline_policy(BASELINES[name], declared_objective("eval_loss")), "val_loss")
    because = summarize(report).arming.because

    assert because.startswith("These 2 runs never logged eval_loss, which its rules read")
    assert "--rename val_loss=eval_loss." in because
    assert "in new runs" not in because


def test_plan_last_takes_the_length_of_completed_runs(judged: Callable[..., Backtest], tmp_path: Path) -> None:
    """Check, backtest and sweep read it, and say so; a run that did not complete has no plan."""
    report = judged(parse_policy(LATE), "val_loss")
    (tmp_path / "late.yaml").write_text(f"params: {{limit: 0.5}}\n{LATE.replace('0.1', 'limit')}", encoding="utf-8")
    told, store = tmp_path / "late.yaml", tmp_path / "runs"

    unplanned, planned = (
        call("backtest", told, "--store", store, "--json", *options) for options in ((), ("--plan", "last"))
    )
    checked = call("check", told, "--store", store, "--plan", "last")
    swept = call("sweep", told, "--store", store, "--set", "limit=0.3,0.9", "--plan", "last")

    assert "'--plan last' takes the length of completed runs" in " ".join(lines(report))
    assert [run["stop"] for run in json.loads(unplanned.stdout)["runs"]] == [None, None]
    assert [run["stop"]["step"] for run in json.loads(planned.stdout)["runs"]] == [2, 2]
    assert [run["planned_steps"] for run in json.loads(planned.stdout)["runs"]] == [3, 3]
    assert json.loads(planned.stdout)["mute_rules"] == []
    assert ": fine against 2 runs" in checked.stdout
    assert "A completed run without a plan counts as planned for its length (--plan last)." in swept.stdout


def test_plan_last_is_silent_about_runs_that_did_not_complete_or_have_a_plan(
    store_record: Callable[..., Path],
) -> None:
    """Nobody knows how long a crashed run was meant to be."""
    policy, events = parse_policy(LATE), events_of("val_loss", 3, 2, 1)
    crashed = open_run(store_record(events, run_id="crashed", status="crashed", sealed=True, steps=3))
    planned = open_run(store_record(events, run_id="planned", plan=Plan(total_steps=30), sealed=True, steps=3))

    stops = [
        result.stop and result.stop.outcome.step
        for result in backtest(policy, [crashed, planned], plans_by_length=True).results
    ]

    assert stops == [None, None]
