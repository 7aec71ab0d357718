"""A backtest adds up steps of one unit only: updates, epochs and the counters of trackers stay apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from steptape import backtest, open_run, open_store
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.diff import diff_json, diff_lines, diff_policies
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines, verdict
from steptape.replay.reports.summary import summarize
from steptape.replay.sweeps.sweeping import sweep
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.store import Store

STOP = parse_policy("""
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
""")
NEVER = parse_policy("controllers: [{name: none, triggers: [on_step_end], rule: loss > 9, operations: []}]")


@pytest.fixture
def mixed(tmp_path: Path, store_record: Callable[..., Path]) -> Store:
    """A store with a recorded run of 10 updates and imported ones: 4 epochs, 40 updates, 8 steps of W&B's counter."""
    losses = [3.0 if step == 5 else 0.5 for step in range(1, 11)]
    events = [Event("step_end", step=step, metrics={"loss": loss}) for step, loss in enumerate(losses, start=1)]
    recorded = store_record(events, run_id="recorded", sealed=True)
    logs = tmp_path / "logs"
    logs.mkdir()
    for column, last in (("epoch", 4), ("global_step", 40), ("_step", 8)):
        rows = [f"{step},{3 if 2 * step == last else 0.5}" for step in range(1, last + 1)]
        (logs / f"{column}.csv").write_text("\n".join((f"{column},loss", *rows)) + "\n")
    list(import_sources(recorded.parent, find_sources([logs], all_readers()).sources, ReadOptions()))
    return open_store(recorded.parent)


def over(store: Store) -> Backtest:
    """Backtest the policy over all runs."""
    return backtest(STOP, store)


def test_steps_are_added_up_unit_by_unit(mixed: Store) -> None:
    """The total over all runs is unknown, and each run says what its steps count."""
    report = over(mixed)
    total = report_json(summarize(report))["aggregate"]

    assert (total["steps"], total["steps_saved"], total["median_steps_to_stop"]) == (None, None, None)
    assert total["steps_by_unit"] == [
        {"unit": "updates", "runs": 2, "steps": 50, "steps_saved": 25},
        {"unit": "_step", "runs": 1, "steps": 8, "steps_saved": 4},
        {"unit": "epochs", "runs": 1, "steps": 4, "steps_saved": 2},
    ]
    assert {run["step_unit"] for run in report_json(summarize(report))["runs"]} == {"updates", "_step", "epochs"}


@pytest.mark.parametrize(
    ("name", "text", "unit"),
    [
        ("a.log", "Epoch 1/9 | loss: 2.0\nEpoch 2/9 | loss: 1.0\n", "epochs"),
        ("a.log", "step 1 loss 2.0\nstep 2 loss 1.0\n", "updates"),
        ("a.csv", "time/total_timesteps,rollout/ep_rew_mean\n100,2\n200,1\n", "timesteps"),
        ("a.jsonl", '{"epoch": 1, "loss": 2}\n{"epoch": 2, "loss": 1}\n', "epochs"),
    ],
)
def test_an_import_keeps_what_its_steps_count(name: str, text: str, unit: str, tmp_path: Path) -> None:
    """Its column or the words of its lines say so."""
    (tmp_path / name).write_text(text)
    list(import_sources(tmp_path / "runs", find_sources([tmp_path / name], all_readers()).sources, ReadOptions()))
    (run,) = open_store(tmp_path / "runs")

    assert (run.info.source or {})["step_unit"] == unit


def test_sentences_name_the_unit_of_each_sum(mixed: Store) -> None:
    """Steps of updates are called steps."""
    report = over(mixed)

    assert "cut off 50% of a run's steps on average." in " ".join(verdict(summarize(report)))
    saved = "Cut off: 25 of 50 steps (50%) in 2 runs, 4 of 8 _step (50%) in 1 run, 2 of 4 epochs (50%) in 1 run, 0 of"
    assert any(line.startswith(saved) for line in summary_lines(summarize(report)))


def test_a_difference_adds_up_steps_unit_by_unit(mixed: Store) -> None:
    """The total over all runs is unknown there, too."""
    found = diff_policies(NEVER, STOP, mixed)

    assert diff_json(found)["aggregate"]["steps"] is None
    assert diff_json(found)["aggregate"]["steps_by_unit"] == {"updates": -25, "epochs": -2, "_step": -4}
    assert all(part in diff_lines(found)[2] for part in ("25 steps fewer", "2 epochs fewer", "4 _step fewer"))


def test_random_stops_have_the_policy_s_rate_in_each_unit(mixed: Store) -> None:
    """An epoch is not as many chances to stop as an update."""
    random = [BASELINES["random"]]
    (together,) = backtest(STOP, mixed, baselines=random).baselines
    alone = {
        run.info.run_id: backtest(STOP, [run], baselines=random).baselines[0].standings[0]
        for run in mixed
        if run.info.name in ("epoch", "_step")
    }

    scores = zip(backtest(STOP, mixed).results, together.standings, strict=True)
    assert {result.run_id: score for result, score in scores if result.run_id in alone} == alone
    assert len(alone) == 2


def test_a_sweep_over_several_units_ranks_by_the_share_of_a_run_s_steps(mixed: Store) -> None:
    """It has no sum of steps."""
    policy = parse_policy("""
params: {limit: 2}
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > limit, operations: [hfcontrols.should_training_stop]}
""")
    found = sweep(policy, {"limit": [2, 9]}, mixed)

    assert found.steps is None
    assert found.totals["share_saved"].tolist() == [0.5, 0.0]
    assert [math.isnan(saved) for saved in found.totals["steps_saved"]] == [True, True]
    assert sweep(policy, {"limit": [2, 9]}, [mixed.run("recorded")]).totals["steps_saved"].tolist() == [5.0, 0.0]


def test_an_import_that_does_not_say_what_its_steps_count_has_a_unit_of_its_own(
    store_record: Callable[..., Path],
) -> None:
    """It is not added to the updates of recorded runs."""
    events = [Event("step_end", step=step, seq=step - 1, metrics={"loss": 1.0}) for step in (1, 2)]
    new, old = (
        open_run(store_record(events, run_id=run_id, source=source))
        for run_id, source in (("new", None), ("old", {"kind": "wandb"}))
    )

    assert report_json(summarize(backtest(STOP, [new])))["aggregate"]["steps"] == 2
    assert [
        one["unit"] for one in report_json(summarize(backtest(STOP, [new, old])))["aggregate"]["steps_by_unit"]
    ] == ["updates", "wandb steps"]
