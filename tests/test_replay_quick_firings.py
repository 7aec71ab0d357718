"""Where rules fire in runs that stay in memory is where a replay says, whatever was asked before."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from steptape import Recorder, open_store
from steptape.replay.backtests.backtesting import backtest
from steptape.replay.runs.replaying import replay
from steptape.replay.sweeps.quick_firings import AskedRun, QuickFirings, RunSteps
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.policy import Policy, load_policy
from steptape.store.run import Run

SPIKE = "stop if loss > {1.2, 1.5, 2, 4} * median(loss, 20, skip=1)"

RULES = {
    "sentence": "stop if loss > 3; save if step % 50 == 0",
    "evaluations": "stop if eval_loss has not improved for 3 evaluations",
    "in a row": "warn 'high' if loss > 2 for 3 steps at most every 20 steps",
    "not finite": "stop if not isfinite(loss)",
    "shipped": "loss_spike",
    "other": "overfitting",
    "events": "bad_batches",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with spikes and evaluations, one with NaN, one under live rules, and one that has other metrics."""
    folder = tmp_path_factory.mktemp("quick")
    draw = random.Random(1)
    for name in ("plain", "spiky", "nan", "live"):
        rules = ["save if loss > 4"] if name == "live" else None
        with Recorder(folder, name=name, rules=rules, quiet=True) as rec:
            for step in range(1, 201):
                loss = 2 + draw.gauss(0, 0.2) + (5 if name != "plain" and step % 61 == 0 else 0)
                rec.step(loss=math.nan if name == "nan" and step == 150 else loss, grad_norm=draw.random())
                if step % 10 == 0:
                    rec.evaluate(eval_loss=1 + draw.random())
    with Recorder(folder, name="other", quiet=True) as rec:
        rec.step(accuracy=0.5)
    return folder


@pytest.fixture(scope="module")
def runs(store: Path) -> list[AskedRun]:
    """All runs."""
    opened = open_store(store)
    return [AskedRun(opened.run(run_id), "") for run_id in opened.runs()["run_id"].to_pylist()]


def replayed(policy: Policy, run: Run) -> dict[str, Any]:
    """Return what the event engine decides."""
    found = [each.outcome for each in replay(policy, run).outcomes if isinstance(each.outcome, Decision)]
    stops = [each.step for each in found if "hfcontrols.should_training_stop" in each.operations]
    steps = sorted({each.step for each in found})
    return {
        "firings": len(found),
        "first_step": min(steps, default=None),
        "stop_step": min(stops, default=None),
        "steps": tuple(steps[:40]),
    }


def said(found: RunSteps) -> dict[str, Any]:
    """Return the same of an answer."""
    return {name: getattr(found, name) for name in ("firings", "first_step", "stop_step", "steps")}


@pytest.mark.parametrize("name", RULES)
def test_rules_fire_where_a_replay_says(runs: list[AskedRun], name: str) -> None:
    """In runs with spikes and NaN, under live rules, and without the metrics."""
    policy = load_policy(RULES[name])
    found = QuickFirings().of(policy, runs)

    assert [said(each) for each in found] == [replayed(policy, asked.run) for asked in runs]


def test_other_values_of_params_fire_where_a_replay_of_them_says(runs: list[AskedRun]) -> None:
    """Windows that an earlier value read are read again, and its answers are not."""
    quick = QuickFirings()
    for limit in (4.0, 1.2, 2.0, 1.5, 4.0):
        policy = load_policy(SPIKE, params={"limit": limit})

        assert [said(each) for each in quick.of(policy, runs, SPIKE)] == [replayed(policy, one.run) for one in runs]


def test_a_param_that_counts_values_is_no_exception(runs: list[AskedRun]) -> None:
    """Lengths of windows, and evaluations to wait."""
    quick, text = QuickFirings(), "stop if eval_loss has not improved for {2..4} evaluations"
    for count in (2, 4, 3):
        policy = load_policy(text, params={"for_evaluations": count})

        assert [said(each) for each in quick.of(policy, runs, text)] == [replayed(policy, one.run) for one in runs]


def test_what_a_run_has_written_since_is_read(tmp_path: Path) -> None:
    """Its stamp has changed."""
    quick, policy = QuickFirings(), load_policy("log if loss > 0")
    with Recorder(tmp_path, quiet=True) as rec:
        rec.step(loss=1.0)
        before = quick.of(policy, [AskedRun(Run(rec.folder), "1")])
        rec.step(loss=1.0)
        after = quick.of(policy, [AskedRun(Run(rec.folder), "2")])

    assert [each.firings for each in (*before, *after)] == [1, 2]


def test_other_rules_read_other_metrics_of_the_same_runs(runs: list[AskedRun]) -> None:
    """Those that were read stay."""
    quick = QuickFirings()
    for text in ("log if loss > 3", "log if grad_norm > 0.9", "log if loss > 3 and grad_norm > 0.5"):
        policy = load_policy(text)

        assert [said(each) for each in quick.of(policy, runs)] == [replayed(policy, one.run) for one in runs]


@pytest.mark.parametrize("rule", ["stop if eval_loss > 9", "stop if loss > 1000", "stop if loss > mean(loss, 500)"])
def test_a_run_in_which_no_rule_could_fire_says_why_as_a_backtest_does(runs: list[AskedRun], rule: str) -> None:
    """A run that lacks a metric has shown nothing about the rule."""
    policy = load_policy(rule)
    found = QuickFirings().of(policy, runs)
    judged = {one.run_id: one.could_not_fire for one in backtest(policy, [asked.run for asked in runs]).results}

    assert {one.run_id: one.could_not_fire for one in found} == judged
    assert any(judged.values())
