"""The real trainer controller and ours, each steering a training of its own under one policy: the same course.

The policies do nothing at which TRAC.md lists a departure. Those of ``DEPARTING`` do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")
pytest.importorskip("tuning.trainercontroller", reason="fms-hf-tuning is not installed; 'make frameworks' runs this")

from transformers import PrinterCallback
from tuning.trainercontroller import TrainerControllerCallback

from frameworks.tiny_trainer import policy_file, tiny_trainer
from steptape.integrations.transformers import SteptapeCallback

METRICS = """
controller_metrics:
  - {name: m, class: Loss}
  - {name: t, class: TrainingState}
  - {name: e, class: EvalMetrics}
  - {name: w, class: HistoryBasedMetric, arguments: {window_size: 3}}
controllers:
"""

STEP = "t['global_step']"

#: Trigger, rule, operations, and more keys of the controllers of each policy.
POLICIES: dict[str, list[tuple[str, str, str, str]]] = {
    "stop at train_begin": [("on_train_begin", "True", "should_training_stop", "")],
    "stop at epoch_begin": [("on_epoch_begin", f"{STEP} == 10", "should_training_stop", "")],
    "stop at step_begin": [("on_step_begin", "m['loss'] < 3.7", "should_training_stop", "")],
    "stop at substep_end": [("on_substep_end", "m['loss'] < 3.7", "should_training_stop", "")],
    "stop at optimizer_step": [("on_optimizer_step", "m['loss'] < 3.7", "should_training_stop", "")],
    "stop at step_end": [("on_step_end", f"{STEP} == 7", "should_training_stop", "")],
    "stop at log": [("on_log", "m['loss'] < 3.7", "should_training_stop", "")],
    "stop at prediction_step": [("on_prediction_step", f"{STEP} == 10", "should_training_stop", "")],
    "stop at evaluate": [("on_evaluate", "e['eval_loss'] < 10", "should_training_stop", "")],
    "stop at save": [("on_save", f"{STEP} >= 8", "should_training_stop", "")],
    "stop at epoch_end": [("on_epoch_end", "t['epoch'] >= 1", "should_training_stop", "")],
    "stop of an epoch at step_end": [("on_step_end", f"{STEP} == 5", "should_epoch_stop", "")],
    "stop of an epoch at log": [("on_log", f"{STEP} == 6", "should_epoch_stop", "")],
    "save at step_end": [("on_step_end", f"{STEP} in [3, 13]", "should_save", "")],
    "save and stop at epoch_end": [
        ("on_epoch_end", "True", "should_save", ""),
        ("on_epoch_end", f"{STEP} > 10", "should_training_stop", ""),
    ],
    "evaluate and log at step_end": [
        ("on_step_end", f"{STEP} == 3", "should_evaluate", ""),
        ("on_step_end", f"{STEP} == 5", "should_log", ""),
    ],
    "save at evaluate": [("on_evaluate", "e['eval_loss'] < 10", "should_save", "")],
    "save at log, evaluate with it": [
        ("on_log", f"{STEP} == 6", "should_save", ""),
        ("on_log", f"{STEP} == 6", "should_evaluate", ""),
    ],
    "patience and a window": [
        (
            "on_log",
            'len(w["training_loss"]["loss"]) == 3 and w["training_loss"]["loss"][-1] < w["training_loss"]["loss"][0]',
            "should_training_stop",
            "patience: {patience_threshold: 2, mode: no_reset_on_failure}",
        )
    ],
    "a window of evaluations": [
        ("on_step_end", 'len(w["metrics"]) > 0 and w["metrics"]["eval_loss"][-1] < 10', "should_save", "")
    ],
    "log at step_begin": [("on_step_begin", f"{STEP} == 3", "should_log", "")],
    "at the end": [("on_train_end", "True", "should_save", ""), ("on_predict", "True", "should_save", "")],
}

#: Orders that the trainer clears before it serves them: lost in the trainer controller, served late here.
DEPARTING = {
    "evaluate at save": [("on_save", f"{STEP} == 8", "should_evaluate", "")],
    "stop at init_end": [("on_init_end", "True", "should_training_stop", "")],
}


def text_of(controllers: list[tuple[str, str, str, str]]) -> str:
    """Return a policy."""
    text = METRICS
    for number, (trigger, rule, operation, more) in enumerate(controllers):
        text += f"  - name: c{number}\n    triggers: [{trigger}]\n    rule: >-\n      {rule}\n"
        text += f"    operations: [hfcontrols.{operation}]\n" + (f"    {more}\n" if more else "")
    return text


def course(folder: Path, callback: Any) -> dict[str, Any]:
    """Train under a callback, and return what came of it: all that does not tell the time."""
    trainer = tiny_trainer(folder, [callback], eval_strategy="epoch", logging_steps=3, save_steps=8)
    if isinstance(callback, SteptapeCallback):
        callback.attach(trainer)
    trainer.train()
    if isinstance(callback, SteptapeCallback):
        callback.close()
    timed = ("runtime", "per_second")
    history = [
        {name: value for name, value in entry.items() if not name.endswith(timed)}
        for entry in trainer.state.log_history
    ]
    saved = sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))
    return {"history": history, "saved": saved, "steps": trainer.state.global_step, "epoch": trainer.state.epoch}


def courses(folder: Path, controllers: list[tuple[str, str, str, str]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the course under the real trainer controller, and that under ours."""
    policy = policy_file(folder, text_of(controllers))
    theirs = course(folder / "theirs", TrainerControllerCallback(str(policy)))
    return theirs, course(folder / "ours", SteptapeCallback(folder / "runs", policy))


@pytest.fixture(scope="module")
def free_course(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the course without rules."""
    return course(tmp_path_factory.mktemp("free"), PrinterCallback())


@pytest.mark.parametrize("name", POLICIES)
def test_one_policy_gives_one_course(tmp_path: Path, free_course: dict[str, Any], name: str) -> None:
    """The same log history, checkpoints, last step and epoch; another course than without rules, but at the end."""
    theirs, ours = courses(tmp_path, POLICIES[name])

    assert ours == theirs
    assert (ours == free_course) == (name == "at the end")


@pytest.mark.parametrize("name", DEPARTING)
def test_an_order_that_the_trainer_drops_is_kept_here(tmp_path: Path, name: str) -> None:
    """TRAC.md lists it."""
    theirs, ours = courses(tmp_path, DEPARTING[name])

    assert theirs["steps"] == 20
    if name == "stop at init_end":
        assert ours["steps"] == 0  # After the first of two micro-batches.
    else:
        evaluated = [[entry["step"] for entry in one["history"] if "eval_loss" in entry] for one in (theirs, ours)]
        assert evaluated == [[10, 20], [9, 10, 20]]


def test_the_policies_use_every_trigger_and_every_operation() -> None:
    """Twenty and more, of the triggers that the trainer controller fires."""
    used = [controller for policy in POLICIES.values() for controller in policy]

    assert len(POLICIES) >= 20
    assert len({trigger for trigger, *_ in used}) == 13
    assert {operation for _, _, operation, _ in used} == {
        f"should_{name}" for name in ("training_stop", "epoch_stop", "save", "evaluate", "log")
    }
