"""A loop under a policy does what the backtest of its uncontrolled run predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptape import Recorder, backtest, open_run, verify
from steptape.replay.runs.objective import Saves
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

STEPS = 60


def train(store: Path, rules: Path | None = None, saves: Saves = Saves.KEEP) -> Run:
    """The README's loop: evaluate every 20 steps, save on request or every 20 steps, stop at the end of a step.

    With ``REPLACE`` it saves only on request while rules are live.
    """
    with Recorder(store, rules=rules) as rec:
        for step in range(1, STEPS + 1):
            if step % 30 == 1:
                rec.epoch_begin()
            control = rec.step(loss=2 / step + (5 if step == 40 else 0))
            if step % 20 == 0 or control.should_evaluate:
                rec.evaluate(eval_loss=2 - step / 100)
            if control.should_save or ((rules is None or saves is Saves.KEEP) and step % 20 == 0):
                rec.save(f"{step}.pt", size_bytes=100)
            if control.should_stop:
                break
            if step % 30 == 0:
                rec.epoch_end()
    return open_run(rec.folder)


STOP = "operations: [hfcontrols.should_training_stop]"
SAVE = "operations: [hfcontrols.should_save]"
POLICIES = {
    "a stop at a step that is evaluated": f"""
controllers:
  - {{name: spike, triggers: [on_step_end], rule: loss > 4, {STOP}}}
  - {{name: keep, triggers: [on_evaluate], rule: eval_loss < 1.9, {SAVE}}}
""",
    "a stop between evaluations": f"""
controllers:
  - {{name: low, triggers: [on_step_end], rule: loss < 0.08, {STOP}}}
  - {{name: keep, triggers: [on_evaluate], rule: eval_loss < 1.9, {SAVE}}}
""",
    "two rules that save in one iteration": f"""
controllers:
  - {{name: often, triggers: [on_step_end], rule: loss < 0.15, {SAVE}}}
  - {{name: keep, triggers: [on_evaluate], rule: eval_loss < 1.9, {SAVE}}}
""",
    "a stop before the first event": f"""
controllers:
  - {{name: at once, triggers: [on_init_end], rule: "True", {STOP}}}
""",
    "a stop as an epoch begins": f"""
controllers:
  - {{name: second, triggers: [on_epoch_begin], rule: len(loss) > 5, {STOP}}}
""",
    "a stop at an evaluation": f"""
controllers:
  - {{name: good, triggers: [on_evaluate], rule: eval_loss < 1.7, {STOP}}}
""",
    "no stop": f"""
controllers:
  - {{name: keep, triggers: [on_evaluate], rule: eval_loss < 1.7, {SAVE}}}
""",
}


@pytest.mark.parametrize("saves", Saves)
@pytest.mark.parametrize("name", POLICIES)
def test_the_live_run_is_the_one_that_the_backtest_said(name: str, saves: Saves, tmp_path: Path) -> None:
    """Steps, checkpoints and evaluations agree, wherever in the iteration the rules fire."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICIES[name])
    uncontrolled = train(tmp_path / "runs")
    predicted = backtest(parse_policy(POLICIES[name]), [uncontrolled], saves=saves).results[0].predicted

    live = train(tmp_path / "runs", path, saves)
    evaluations = [event.metrics["eval_loss"] for event in live.events() if event.kind == "evaluate"]
    saved = [event.step for event in live.events() if event.kind == "save"]

    assert predicted is not None
    # A policy that never saves replaces nothing, but the loop of REPLACE leaves checkpoints to the rules.
    expected_saves = predicted.checkpoints if saves is Saves.KEEP or "should_save" in POLICIES[name] else 0
    assert (live.info.last.steps, len(saved)) == (predicted.steps, expected_saves)
    assert (min(evaluations, default=None), evaluations[-1] if evaluations else None) == (
        predicted.best,
        predicted.final,
    )
    assert verify(live).identical
