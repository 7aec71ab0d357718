"""A stop loses the same by backtest, sweep and certificate: one definition, known and unknown alike."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from steptape import Recorder, TelemetryError, open_run
from steptape.cli.app import app
from steptape.replay.backtests.backtesting import backtest
from steptape.replay.backtests.baselines import BASELINES, baseline_policy
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.choosing.certifying import candidates_of, certification_of
from steptape.replay.reports.result import Fate, ScoredRun
from steptape.replay.reports.summary import scored_runs, summarize
from steptape.replay.runs.objective import declared_objective
from steptape.replay.runs.risk import Risk, risk_of
from steptape.replay.sweeps.losses import losses_at, losses_on
from steptape.replay.sweeps.sweeping import sweep
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run

PATIENCE = """
params: {patience: 1}
controllers:
  - name: no_better
    triggers: [on_evaluate]
    rule: not (eval_loss < lag(trough(eval_loss), 1))
    patience: {patience_threshold: patience}
    operations: [OPERATIONS]
"""

STOP, SAVE = "hfcontrols.should_training_stop", "hfcontrols.should_save"

#: Each judges its stops in another way: with its own checkpoints, by steps that no record shows, in bounded runs.
POLICIES = {
    "stops": PATIENCE.replace("OPERATIONS", STOP),
    "saves and stops": PATIENCE.replace("OPERATIONS", f"{SAVE}, {STOP}"),
    "saves": PATIENCE.replace("OPERATIONS", SAVE),
    "evaluates": PATIENCE.replace("OPERATIONS", "hfcontrols.should_evaluate"),
    "steers": PATIENCE.replace("OPERATIONS", '"lr.scale(0.5)"'),
    "bounded": PATIENCE.replace("OPERATIONS", STOP) + "ranges: {eval_loss: [0.5, 10]}\n",
    "reads what few log": PATIENCE.replace("OPERATIONS", STOP).replace("eval_loss <", "rare < 9 and eval_loss <"),
}

RISKS = ("regret > 1%", "regret > 0.05", "deployable_regret > 2%", "deployable_regret > 0.02")


@pytest.fixture
def history(store_record: Callable[..., Path], tmp_path: Path) -> list[Run]:
    """Runs of every kind: whole, short of their plan, with few evaluations or none, at zero, ended by their rules."""
    luck = random.Random(41)
    runs = []
    for number in range(36):
        kind = number % 12
        count = 3 if kind == 0 else 0 if kind == 1 else luck.randint(6, 14)
        values = [0.0 if kind == 2 else round(1 + luck.choice([0, 0.02, 0.3, -0.2]), 2) for _ in range(count)]
        events = []
        for step in range(1, 10 * max(count, 1) + luck.choice([1, 1, 6])):
            events.append(Event("step_end", step=step, metrics={"loss": 1.0, "run": float(number)}))
            if step % 10 == 0 and values:
                metrics = {"eval_loss": values[step // 10 - 1]} | ({"rare": 1.0} if kind % 2 else {})
                events.append(Event("evaluate", step=step, metrics=metrics))
                if kind != 3 and luck.random() < 0.4:
                    events.append(Event("save", step=step))
        told: dict[str, Any] = {"plan": Plan(total_steps=500)} if kind == 4 else {}
        told |= {"config": {"family": number // 3}, "status": "crashed" if kind == 5 else "completed"}
        runs.append(open_run(store_record(events, run_id=f"run-{number}", name=f"run {number}", **told)))
    for number in range(4):
        rules = parse_policy(POLICIES["stops"], params={"patience": 2})
        with Recorder(tmp_path / "own", name=f"own {number}", rules=rules, config={"family": 99 + number}) as rec:
            for step in range(1, 12):
                rec.step(loss=1.0)
                if rec.evaluate(eval_loss=1.0 + luck.choice([-0.1, 0.0, 0.1]) * step).should_stop and number < 3:
                    break
        runs.append(open_run(rec.folder))
    return runs


def judged(found: Backtest, risk: Risk) -> dict[str, ScoredRun]:
    """Return each run of a backtest with its loss by a risk."""
    settings = dataclasses.replace(found.settings, risk=risk)
    return {one.result.run_id: one for one in scored_runs(dataclasses.replace(found, settings=settings))}


@pytest.mark.parametrize(
    ("name", "saves", "text"),
    [
        ("stops", "keep", "regret > 1%"),
        ("saves and stops", "keep", "deployable_regret > 2%"),
        ("saves and stops", "replace", "deployable_regret > 2%"),
        ("saves", "replace", "deployable_regret > 0.02"),
        ("evaluates", "keep", "regret > 0.05"),
        ("steers", "keep", "regret > 1%"),
        ("bounded", "keep", "regret > 30%"),
        ("reads what few log", "keep", "regret > 1%"),
    ],
)
def test_backtest_sweep_and_certificate_lose_alike(name: str, saves: str, text: str, history: list[Run]) -> None:
    """Run by run, by every risk, and unknown in the same runs; the sweep's averages are those of the verdict."""
    axes, policy = {"patience": [1, 3]}, parse_policy(POLICIES[name])
    swept = sweep(policy, axes, history, risk=risk_of(text, "10%"), saves=saves, family="family")
    candidates = candidates_of(policy, axes, history, saves=saves, family="family")
    backtests = [backtest(one.policy(), history, saves=saves, family="family") for one in swept.variants]
    for risk in (risk_of(one, "10%") for one in {text, *RISKS}):
        certified = certification_of(candidates, risk, 0.9)
        members = [member.swept.run_id for member in certified.members]
        of_members = dict(zip(members, certified.of_runs, strict=True))
        for variant, found in enumerate(backtests):
            mine = judged(found, risk)
            for run in swept.runs:
                scored, losses = mine[run.run_id], losses_on(risk, policy, run, run.outcomes)
                told = None if losses.is_unknown[variant] else losses.values[variant]
                certain = of_members.get(run.run_id, losses)

                assert (run.name, scored.loss) == (run.name, told)
                assert (scored.loss is None) == (scored.fate is Fate.UNKNOWN)
                assert certain.is_unknown[variant] == losses.is_unknown[variant]
                assert certain.values[variant] == losses.values[variant]
            if risk == swept.risk:
                shares = [swept.totals[name][variant] for name in ("share_lost", "share_unknown")]
                assert shares == pytest.approx(averages([*mine.values()]), nan_ok=True)


def averages(runs: list[ScoredRun]) -> tuple[float, float]:
    """Compute by plain loops the share of lost runs and that of unknown ones, each family as one."""
    families: dict[object, list[ScoredRun]] = {}
    for run in runs:
        if run.result.objective is not None and not run.result.could_not_fire:
            families.setdefault(run.result.family, []).append(run)
    if not families:
        return float("nan"), float("nan")
    lost = [sum(run.loss == 1 for run in own) / len(own) for own in families.values()]
    unknown = [sum(run.loss is None for run in own) / len(own) for own in families.values()]
    return float(np.mean(lost)), float(np.mean(unknown))


@pytest.mark.parametrize("text", RISKS)
def test_a_baseline_loses_in_a_comparison_what_its_own_backtest_loses(text: str, history: list[Run]) -> None:
    """By every risk; an imagined stop loses what a replayed one does."""
    risk, declared = risk_of(text, "10%"), declared_objective("eval_loss", "min")
    asked: dict[str, Any] = {"risk": risk, "objective": declared, "family": "family"}
    rows = {
        row.name: (row.score.lost.lost, row.score.lost.unknown)
        for row in summarize(
            backtest(parse_policy(POLICIES["stops"]), history, baselines=[*BASELINES.values()], **asked)
        ).comparison
        if row.score is not None and row.score.lost is not None
    }
    own, plain = backtest(baseline_policy(BASELINES["hf_early_stopping"], declared), history, **asked), risk.loss_of
    ended = [one.result.ended_by_rules for one in scored_runs(own) if one.result.objective is not None]

    assert rows["hf_early_stopping"] == pytest.approx(averages(scored_runs(own)))
    assert rows["never"] == (0.0, sum(ended) / 16)
    for one in scored_runs(own):
        if one.result.ending is not None:
            found = losses_at(risk, own.policy, one.result, [one.result.ending.step])
            told = None if found.is_unknown[0] else plain(found.regrets)[0]
            assert (one.result.name, told) == (one.result.name, one.loss)


def test_every_kind_of_loss_is_among_those_compared(history: list[Run]) -> None:
    """Known and unknown, lost and not."""
    found = backtest(parse_policy(POLICIES["stops"]), history, family="family")

    assert {one.fate for one in judged(found, found.settings.risk).values()} == set(Fate)


@pytest.fixture
def store(store_record: Callable[..., Path], tmp_path: Path) -> Path:
    """A store of 10 families of two runs beside ``policy.yaml``: each run is flat, then one in five is 20 % better.

    The first two save only at their end, the others at step 3, too.
    """
    (tmp_path / "policy.yaml").write_text(POLICIES["stops"])
    for number in range(20):
        values = [*[2.0, 1.5, 1.0], *[1.1] * 6, 0.8 if number % 10 == 0 else 1.2, 1.2]
        told = {"run_id": f"run-{number}", "name": f"run {number}", "config": {"family": number // 2}}
        events = [
            Event("evaluate", step=step, metrics={"eval_loss": value + number * 1e-6})
            for step, value in enumerate(values, start=1)
        ]
        early = [] if number < 2 else [Event("save", step=3)]
        folder = store_record([*events[:3], *early, *events[3:], Event("save", step=11)], **told)
    return folder.parent


def command(*arguments: str | Path) -> str:
    """Call the command line; return its output on one line."""
    return " ".join(CliRunner().invoke(app, [*map(str, arguments)]).output.split())


def test_a_sweep_prints_the_share_of_lost_runs_that_the_verdict_has(store: Path, tmp_path: Path) -> None:
    """By the risk that is asked for; the front says that it is in sample, and who leaves no weights."""
    policy, by = tmp_path / "policy.yaml", ("--store", store, "--family", "family")
    text = command("sweep", policy, *by, "--set", "patience=1,9")
    lines = CliRunner().invoke(app, ["sweep", *map(str, (policy, *by)), "--set", "patience=1,9", "--json"]).output
    lenient = command("sweep", policy, *by, "--set", "patience=1,9", "--risk", "regret > 30%")
    verdict = json.loads(
        CliRunner().invoke(app, ["backtest", *map(str, (policy, *by)), "--set", "patience=1", "--json"]).output
    )

    bold, shy = map(json.loads, lines.splitlines())
    assert (bold["share_lost"], bold["share_unknown"]) == (0.15, 0.0)
    assert (bold["stopped"], bold["without_weights"], shy["without_weights"]) == (20, 2, 0)
    assert verdict["arming"]["share_lost"] == bold["share_lost"]
    assert (bold["risk"], bold["confidence"]) == (verdict["risk"], verdict["confidence"])
    assert "Best trade-offs, in sample" in text
    assert "Lost: the share of runs in which training on after the stop gave a model more than 1% better" in text
    assert "With patience=1 nothing had been saved by the stop in 2 of 20 stopped runs" in text
    assert "gave a model more than 30% better" in lenient
    assert bold["winners_lost"] == 2
    assert "The first variant loses the best model of 2 of 10 families of several runs: run 0 of 0" in text


def test_a_sweep_takes_no_mean() -> None:
    """It counts lost runs."""
    risk = Risk(is_deployable=False, over=None, cap=0.1, at_most=0.01, is_relative=True)

    with pytest.raises(TelemetryError, match="a sweep counts lost runs"):
        sweep(parse_policy(POLICIES["stops"]), {"patience": [1]}, [], risk=risk)


def test_one_command_line_serves_a_store_that_has_the_new_name_already(store: Path, tmp_path: Path) -> None:
    """A rename of what no run has is a note there, and an error where no run has the new name either."""
    arguments = ("backtest", tmp_path / "policy.yaml", "--store", store, "--rename")
    noted, refused = (
        command(*arguments, "val_loss=eval_loss"),
        CliRunner().invoke(app, [*map(str, arguments), "val_loss=other"]),
    )

    assert "--rename val_loss=eval_loss: no run recorded val_loss; they have eval_loss" in noted
    assert "It stopped 20 of 20 runs" in noted
    assert "no run recorded the metric to rename" in str(refused.exception)
