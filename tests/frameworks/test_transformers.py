"""Hugging Face's Trainer, recorded: every step, event for event, through all that a trainer does."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from waiting import PATIENCE_S

from frameworks.tiny_trainer import (
    STOP_AT_7,
    kinds_of,
    policy_file,
    runs_of,
    steps_of,
    tiny_data,
    tiny_model,
    tiny_trainer,
)
from steptape import Policy, Recorder, load_policy
from steptape.integrations.transformers import SteptapeCallback
from steptape.rules.policy_file.policy import shipped_policies
from steptape.store.run import Run


def trained(folder: Path, callback: SteptapeCallback | None = None, **changes: Any) -> tuple[Trainer, Run]:
    """Train with an attached callback, and return the trainer and the newest run."""
    callback = callback or SteptapeCallback(folder / "runs")
    trainer = tiny_trainer(folder, [callback], **changes)
    callback.attach(trainer)
    with callback.training():
        trainer.train()
    return trainer, runs_of(folder)[-1]


def values_of(run: Run, name: str, kind: str = "step_end") -> list[float]:
    """Return the values of a metric in the events of one kind."""
    return [event.metrics[name] for event in run.stream() if event.kind == kind and name in event.metrics]


def test_the_losses_of_steps_average_to_what_the_trainer_logs(tmp_path: Path) -> None:
    """Also where the last group of an epoch has fewer micro-batches: 38 samples are 9 groups of 2 and one of 1."""
    trainer, run = trained(tmp_path, data=tiny_data(38), logging_steps=1)

    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert steps_of(run) == list(range(1, 21))
    assert values_of(run, "loss") == pytest.approx([entry["loss"] for entry in logged], abs=1e-4)
    assert values_of(run, "grad_norm") == pytest.approx([entry["grad_norm"] for entry in logged])
    assert values_of(run, "learning_rate") == pytest.approx([entry["learning_rate"] for entry in logged])
    assert [event.micro_step for event in run.stream() if event.kind == "step_end"] == ([2] * 9 + [1]) * 2


class Lacking:
    """An object that lacks one attribute."""

    def __init__(self, inner: Any, lacking: str) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "lacking", lacking)

    def __getattr__(self, name: str) -> Any:
        if name == self.lacking:
            raise AttributeError(f"no attribute '{name}'")
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


class Witness(TrainerCallback):
    """The trainer's step and epoch at every event, and a stop of one epoch."""

    def __init__(self, stops_epoch_at: int = 0) -> None:
        self.stops_epoch_at = stops_epoch_at
        self.seen: list[tuple[str, int, float]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and name not in ("on_init_end", "on_push_begin"):
            return lambda _, state, control, **__: self._see(name[3:], state, control)
        return super().__getattribute__(name)

    def _see(self, kind: str, state: Any, control: Any) -> None:
        self.seen.append((kind, state.global_step, state.epoch or 0.0))
        if kind == "step_end" and state.global_step == self.stops_epoch_at:
            control.should_epoch_stop = True


def test_every_event_has_the_trainers_step_and_epoch(tmp_path: Path) -> None:
    """Also in and after an epoch that is stopped at its half."""
    witness, callback = Witness(stops_epoch_at=5), SteptapeCallback(tmp_path / "runs", kinds="all")
    trainer = tiny_trainer(tmp_path, [witness, callback], eval_strategy="epoch")
    callback.attach(trainer)
    with callback.training():
        trainer.train()

    (run,) = runs_of(tmp_path)
    ours = [(event.kind, event.step, event.epoch) for event in run.stream()]
    assert ours[1:] == witness.seen[1:]  # Before the first, at the start of the training, there is no epoch here.
    assert ("epoch_begin", 5, 0.5) in ours


def test_frequent_events_are_recorded_if_a_rule_has_them_as_trigger(tmp_path: Path) -> None:
    """By default nothing but the updates is recorded of a step."""
    text = "controllers: [{name: a, triggers: [on_optimizer_step], rule: step == 3, operations: []}]"
    _, without = trained(tmp_path / "a")
    _, run = trained(tmp_path / "b", SteptapeCallback(tmp_path / "b" / "runs", policy_file(tmp_path, text)))

    frequent = {"step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "prediction_step"}
    assert frequent & {kind for kind, _ in kinds_of(without)} == set()
    assert frequent & {kind for kind, _ in kinds_of(run)} == {"optimizer_step"}
    assert len(run.decisions()) == 1


def test_a_disabled_recorder_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes nothing; checkpoints can be resumed from."""
    monkeypatch.setenv("STEPTAPE_MODE", "disabled")
    for epochs, resumes in ((1, None), (2, True)):
        callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, STOP_AT_7))
        trainer = tiny_trainer(tmp_path, [callback], num_train_epochs=epochs, eval_strategy="epoch")
        callback.attach(trainer)
        with callback.training():
            trainer.train(resume_from_checkpoint=resumes)

    assert trainer.state.global_step == 20
    assert not (tmp_path / "runs").exists()


def test_a_save_has_the_size_of_its_folder(tmp_path: Path) -> None:
    """The folder's files, summed; also of a folder that the trainer removes later."""
    trainer, run = trained(tmp_path, save_total_limit=1)

    (first, last) = [event.attrs for event in run.stream() if event.kind == "save"]
    folder = Path(trainer.args.output_dir) / "checkpoint-20"
    assert (Path(last["path"]), last["is_final"]) == (folder, False)
    assert last["size_bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert first["path"].endswith("checkpoint-10")
    assert first["size_bytes"] > 0
    assert not Path(first["path"]).exists()


def test_evaluations_before_and_after_a_training_belong_to_its_run(tmp_path: Path) -> None:
    """The run ends with the next training, or with the program."""
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback], eval_on_start=True)
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    trainer.predict(tiny_data(4))
    callback.close()

    (run,) = runs_of(tmp_path)
    assert [step for kind, step in kinds_of(run) if kind == "evaluate"] == [0, 0, 20]
    assert kinds_of(run)[-2:] == [("predict", 20), ("train_end", 20)]
    assert run.status == "completed"


def test_an_evaluation_after_the_end_of_a_run_is_named_and_belongs_to_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The block ends the run. The next one must not begin with an evaluation of the weights before it."""
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback], max_steps=2)
    for _ in range(2):
        with callback.training():
            trainer.train()
        trainer.evaluate()

    assert [[kind for kind, _ in kinds_of(run) if kind == "evaluate"] for run in runs_of(tmp_path)] == [[], []]
    assert caplog.text.count("an evaluation is not recorded. Evaluate within callback.training()") == 1


def test_two_trainings_are_two_runs(tmp_path: Path) -> None:
    """Each begins at step 1."""
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback])
    callback.attach(trainer).attach(trainer)
    trainer.train()
    trainer.train()
    callback.close()

    assert [steps_of(run) for run in runs_of(tmp_path)] == [list(range(1, 21))] * 2
    assert [run.status for run in runs_of(tmp_path)] == ["completed"] * 2


class Failing(TrainerCallback):
    """An exception at one step."""

    def __init__(self, step: int = 13) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise ValueError("no more")


def test_an_exception_ends_the_run_as_failed(tmp_path: Path) -> None:
    """It passes on to the caller."""
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [Failing(), callback])
    with pytest.raises(ValueError, match="no more"), callback.training():
        trainer.train()

    (run,) = runs_of(tmp_path)
    assert run.status == "failed"
    assert run.info.last.failure is not None
    assert "no more" in str(run.info.last.failure)


ENDING = """
import sys
from pathlib import Path
from frameworks.test_transformers import Failing
from frameworks.tiny_trainer import tiny_trainer
from steptape.integrations.transformers import SteptapeCallback

trainer = tiny_trainer(Path(), [Failing(5), SteptapeCallback("runs", quiet=True)])
try:
    trainer.train()
except ValueError:
    if sys.argv[1] == "raises":
        raise
"""


@pytest.mark.parametrize(
    ("how", "message"), [("catches", None), ("raises", "no more")], ids=["caught", "ends the program"]
)
def test_without_the_block_a_training_that_raised_is_failed_too(tmp_path: Path, how: str, message: str | None) -> None:
    """Whether the program catches the exception or ends with it."""
    (tmp_path / "program.py").write_text(ENDING)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "program.py", how]
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=PATIENCE_S, check=False, stderr=subprocess.DEVNULL)

    (run,) = runs_of(tmp_path)
    failure = run.info.last.failure
    assert (run.status, steps_of(run)) == ("failed", [1, 2, 3, 4])
    assert (failure and failure["message"]) == message
    assert run.info.last.reason == (None if message else "train() did not reach its end")


def test_a_training_that_failed_resumes_in_the_same_process(tmp_path: Path) -> None:
    """Without ``training()`` nobody has ended its run: the resume does. No step counts twice, no epoch begins twice."""
    trainer = tiny_trainer(tmp_path, [Failing(), SteptapeCallback(tmp_path / "runs")], save_steps=6)
    with pytest.raises(ValueError, match="no more"):
        trainer.train()
    callback = SteptapeCallback(tmp_path / "runs")
    again = tiny_trainer(tmp_path, [callback], save_steps=6)
    callback.attach(again)
    with callback.training():
        again.train(resume_from_checkpoint=True)

    (run,) = runs_of(tmp_path)
    assert [attempt.status for attempt in run.info.attempts] == ["failed", "completed"]
    assert run.info.last.from_step == 12
    assert steps_of(run) == list(range(1, 21))
    assert [each for each in kinds_of(run) if each[0] == "epoch_begin"] == [("epoch_begin", 0), ("epoch_begin", 10)]


@pytest.mark.parametrize("skips_data", [True, False])
def test_epochs_are_the_trainers_after_a_resume_too(tmp_path: Path, skips_data: bool) -> None:
    """From a checkpoint at which a rule ended the epoch: the trainer forgets that, or even counts the epoch from 0."""
    text = """
controllers:
  - name: half
    triggers: [on_step_end]
    rule: step == 5
    operations: [hfcontrols.should_save, hfcontrols.should_epoch_stop]
"""
    policy = policy_file(tmp_path, text)
    with pytest.raises(ValueError, match="no more"):
        tiny_trainer(tmp_path, [SteptapeCallback(tmp_path / "runs", policy), Failing(7)]).train()
    witness, callback = Witness(), SteptapeCallback(tmp_path / "runs", policy)
    trainer = tiny_trainer(tmp_path, [witness, callback], ignore_data_skip=not skips_data)
    with callback.training():
        trainer.train(resume_from_checkpoint=True)

    (run,) = runs_of(tmp_path)
    second = [event for event in run.stream() if event.attempt == 1 and event.kind == "step_end"]
    assert [("step_end", event.step, event.epoch) for event in second] == [
        each for each in witness.seen if each[0] == "step_end"
    ]
    assert steps_of(run) == list(range(1, trainer.state.global_step + 1))


def test_a_checkpoint_that_was_made_without_us_begins_a_run(tmp_path: Path) -> None:
    """The trainer can save again, too."""
    tiny_trainer(tmp_path, [], num_train_epochs=1).train()
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback])
    callback.attach(trainer)
    with callback.training():
        trainer.train(resume_from_checkpoint=True)

    (run,) = runs_of(tmp_path)
    assert steps_of(run) == list(range(11, 21))
    assert ("save", 20) in kinds_of(run)


def test_a_checkpoint_of_the_model_alone_resumes_its_run(tmp_path: Path) -> None:
    """Such a checkpoint keeps the trainer's state, too."""
    trained(tmp_path, num_train_epochs=1, save_only_model=True)
    trainer = tiny_trainer(tmp_path, save_only_model=True)
    callback = SteptapeCallback(tmp_path / "runs").attach(trainer)
    with callback.training():
        trainer.train(resume_from_checkpoint=True)

    (run,) = runs_of(tmp_path)
    assert [attempt.from_step for attempt in run.info.attempts] == [None, 10]
    assert steps_of(run) == list(range(1, 21))


def test_a_run_that_is_gone_cannot_be_resumed_and_a_new_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning."""
    trained(tmp_path, num_train_epochs=1)
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback])
    with callback.training():
        trainer.train(resume_from_checkpoint=True)

    assert [steps_of(run) for run in runs_of(tmp_path)] == [list(range(11, 21))]
    assert "cannot be resumed" in caplog.text


@pytest.mark.parametrize("given_as", [Path, load_policy, lambda _: ["stop if step >= 17"]])
def test_a_callback_that_the_trainer_restores_continues_to_record(
    tmp_path: Path, given_as: Callable[[Path], Path | Policy | list[str]]
) -> None:
    """It is a new object, which the attached trainer feeds. It has the rules again: a file, an object or sentences."""
    policy = given_as(policy_file(tmp_path, STOP_AT_7.replace("7", "17")))
    trained(tmp_path, SteptapeCallback(tmp_path / "runs", policy), num_train_epochs=1)
    callback = SteptapeCallback(tmp_path / "runs", policy)
    trainer = tiny_trainer(tmp_path, [callback], restore_callback_states_from_checkpoint=True)
    callback.attach(trainer)
    trainer.train(resume_from_checkpoint=True)
    (restored,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, SteptapeCallback))
    restored.close()

    (run,) = runs_of(tmp_path)
    assert restored is not callback
    assert len(values_of(run, "loss")) == len(steps_of(run)) == 17
    assert run.status == "stopped"


def test_an_order_that_the_trainer_did_not_serve_is_given_again(tmp_path: Path) -> None:
    """With ``save_strategy="best"`` the trainer takes back a save that was ordered before an evaluation."""
    text = """
controllers:
  - {name: a, triggers: [on_step_end], rule: 'step in (2, 3)', operations: [hfcontrols.should_evaluate]}
  - {name: b, triggers: [on_step_end], rule: step == 3, operations: [hfcontrols.should_save]}
  - {name: c, triggers: [on_save], rule: step == 4, operations: [hfcontrols.should_evaluate]}
"""
    changes: dict[str, Any] = {"save_strategy": "best", "metric_for_best_model": "eval_loss", "eval_strategy": "steps"}
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, text))
    _, run = trained(tmp_path, callback, max_steps=6, eval_steps=100, greater_is_better=True, **changes)

    assert [step for kind, step in kinds_of(run) if kind == "save"] == [2, 4]
    assert [step for kind, step in kinds_of(run) if kind == "evaluate"][:3] == [2, 3, 5]


class Evaluating(Trainer):
    """A trainer that needs no dataset of evaluation."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return super().get_eval_dataloader(tiny_data(4))


@pytest.mark.parametrize(("trainer_class", "evaluates"), [(Trainer, False), (Evaluating, True)])
def test_an_order_to_evaluate_without_a_dataset_is_refused_with_a_note(
    tmp_path: Path, trainer_class: type[Trainer], evaluates: bool
) -> None:
    """The trainer would raise. One that brings data of its own evaluates."""
    text = (
        "controllers: [{name: a, triggers: [on_step_end], rule: step >= 3, operations: [hfcontrols.should_evaluate]}]"
    )
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, text))
    trainer = tiny_trainer(tmp_path, trainer_class=trainer_class, max_steps=6)
    trainer.eval_dataset = None
    callback.attach(trainer)
    with callback.training():
        trainer.train()

    (run,) = runs_of(tmp_path)
    evaluations = [step for kind, step in kinds_of(run) if kind == "evaluate"]
    notes = [event.attrs["refused"] for event in run.stream() if event.kind == "annotation"]
    assert trainer.state.global_step == 6
    assert (evaluations, notes) == (([3, 4, 5, 6], []) if evaluates else ([], ["evaluate"]))


def test_flags_of_others_are_left_alone(tmp_path: Path) -> None:
    """Another callback orders a save, and a stop."""

    class Orders(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = state.global_step == 3
            control.should_training_stop = state.global_step == 4

    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [Orders(), callback])
    with callback.training():
        trainer.train()

    (run,) = runs_of(tmp_path)
    assert ("save", 3) in kinds_of(run)
    assert steps_of(run) == [1, 2, 3, 4]
    assert (run.status, run.info.last.reason) == ("stopped", "the trainer or another callback")


def test_a_stop_by_another_callback_is_named(tmp_path: Path) -> None:
    """The trainer's early stopping, after one evaluation that is no better."""
    callback = SteptapeCallback(tmp_path / "runs")
    early = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0)
    changes: dict[str, Any] = {"metric_for_best_model": "eval_loss", "eval_strategy": "steps", "eval_steps": 5}
    trainer = tiny_trainer(tmp_path, [early, callback], save_steps=5, load_best_model_at_end=True, **changes)
    callback.attach(trainer)
    with callback.training():
        trainer.train()

    (run,) = runs_of(tmp_path)
    assert steps_of(run)[-1] == 10
    assert (run.status, run.info.last.reason) == ("stopped", "EarlyStoppingCallback")


def test_detach_undoes_attach(tmp_path: Path) -> None:
    """A popped callback records nothing, and training continues."""
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback], max_steps=2)
    step, clip = trainer.training_step, trainer.accelerator.clip_grad_norm_
    callback.attach(trainer).attach(trainer)
    trainer.train()
    callback.detach()
    assert (trainer.training_step, trainer.accelerator.clip_grad_norm_) == (step, clip)
    assert callback in trainer.callback_handler.callbacks

    callback.attach(trainer)
    assert trainer.pop_callback(SteptapeCallback) is callback
    trainer.train()
    callback.close()
    assert len(runs_of(tmp_path)) == 1


def test_attach_adds_a_callback_that_the_trainer_lacks(tmp_path: Path) -> None:
    """Once. What it has added, ``detach`` takes away."""
    trainer = tiny_trainer(tmp_path, [], max_steps=2)
    callback = SteptapeCallback(tmp_path / "runs").attach(trainer).attach(trainer)
    with callback.training():
        trainer.train()
    callback.detach()

    (run,) = runs_of(tmp_path)
    assert steps_of(run) == [1, 2]
    assert callback not in trainer.callback_handler.callbacks


def test_a_cell_that_runs_twice_ends_the_first_run_and_the_second_callback_alone_steers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first training was interrupted, without a ``training()`` block."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    trainer = tiny_trainer(tmp_path, [], max_steps=5)
    first = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, STOP_AT_7.replace("7", "2"))).attach(trainer)
    step, trainer.training_step = trainer.training_step, interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.training_step = step
    second = SteptapeCallback(tmp_path / "other" / ".." / "runs").attach(trainer)
    with second.training():
        trainer.train()

    assert first.recorder is None
    assert [(run.status, steps_of(run)) for run in runs_of(tmp_path)] == [
        ("failed", []),
        ("completed", [1, 2, 3, 4, 5]),
    ]
    assert "an earlier callback recorded this trainer" in caplog.text


@pytest.mark.parametrize("is_the_callers", [False, True])
def test_an_evaluation_before_the_first_step_is_no_mistake(
    tmp_path: Path, is_the_callers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The Trainer logs its values at step 0."""
    with Recorder(tmp_path / "runs") as rec:
        callback = SteptapeCallback(tmp_path / "own" / "runs", recorder=rec if is_the_callers else None)
        trainer = tiny_trainer(tmp_path, [], max_steps=2, eval_strategy="steps", eval_on_start=True)
        with callback.attach(trainer).training():
            trainer.train()

    assert ("evaluate", 0) in kinds_of(runs_of(tmp_path if is_the_callers else tmp_path / "own")[-1])
    assert [message for message in caplog.messages if "step" in message] == []


def test_an_order_that_the_trainer_cannot_serve_is_named_in_words_of_the_trainer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody who trains with it has a recorder called ``rec``."""
    text = "controllers: [{name: late, triggers: [on_save], rule: step >= 20, operations: [hfcontrols.should_save]}]"
    trained(tmp_path, SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, text)), save_strategy="steps")

    assert "a rule asked for a checkpoint at step 20" in caplog.text
    assert "rec." not in caplog.text


def test_the_trainer_rotates_the_checkpoints_that_rules_order(tmp_path: Path) -> None:
    """By its own limit."""
    text = STOP_AT_7.replace("step >= 7", "step % 3 == 0").replace("should_training_stop", "should_save")
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, text))
    trained(tmp_path, callback, save_strategy="no", save_total_limit=2)

    assert sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*")) == ["checkpoint-15", "checkpoint-18"]


def test_without_attach_the_losses_are_those_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning says so; a callback may be given as a class, which records to ``runs``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        trainer = tiny_trainer(tmp_path, [SteptapeCallback])
        trainer.train()
        (callback,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, SteptapeCallback))
        callback.close()

    (run,) = runs_of(tmp_path)
    assert values_of(run, "loss") == []
    assert len(values_of(run, "loss", "log")) == 4
    assert len(values_of(run, "learning_rate")) == 20
    assert caplog.text.count("attach") == 1


def test_two_callbacks_record_and_resume_two_stores(tmp_path: Path) -> None:
    """Checkpoints keep both states, of callbacks of one class."""
    for epochs, resumes in ((1, None), (2, True)):
        callbacks = [SteptapeCallback(tmp_path / name / "runs") for name in ("a", "b")]
        trainer = tiny_trainer(tmp_path, callbacks, num_train_epochs=epochs)
        callbacks[0].attach(trainer)
        callbacks[1].attach(trainer)
        with callbacks[0].training(), callbacks[1].training():
            trainer.train(resume_from_checkpoint=resumes)

    for name in ("a", "b"):
        (run,) = runs_of(tmp_path / name)
        assert len(values_of(run, "loss")) == 20
        assert len(run.info.attempts) == 2


def test_the_run_has_the_models_config_and_counts_samples_and_tokens(tmp_path: Path) -> None:
    """Runs of two sizes can be told apart. Half an epoch is no planned number of epochs."""
    trainer, run = trained(tmp_path, data=tiny_data(38), num_train_epochs=1.5)
    config, plan, progress = run.info.config, run.info.last.plan, run.progress()

    assert (config["model.n_layer"], config["model.vocab_size"]) == (2, 64)
    assert config["model.num_parameters"] == sum(each.numel() for each in trainer.model.parameters())
    assert (plan.total_steps, plan.total_epochs) == (15, None)
    assert (progress.samples, progress.tokens) == (38 + 20, 8 * (38 + 20))


def test_a_run_has_the_name_that_wandb_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the trainer's arguments name it."""
    monkeypatch.setenv("WANDB_NAME", "of W&B")

    assert [trained(tmp_path, max_steps=1, run_name=name)[1].info.name for name in (None, "own")] == ["of W&B", "own"]


def test_a_recorder_of_the_callers_is_used_and_left_open(tmp_path: Path) -> None:
    """It hears the planned length when the training begins."""
    with Recorder(tmp_path / "runs", name="mine") as rec:
        callback = SteptapeCallback(recorder=rec)
        trainer = tiny_trainer(tmp_path, [callback])
        callback.attach(trainer)
        with callback.training():
            trainer.train()
        rec.annotate("still open")

    (run,) = runs_of(tmp_path)
    assert run.info.name == "mine"
    assert run.info.last.newest_plan.total_steps == 20
    assert steps_of(run) == list(range(1, 21))


def test_the_run_has_the_trainers_name_config_and_planned_length(tmp_path: Path) -> None:
    """Of an epoch the length is known if the training counts epochs."""
    _, run = trained(tmp_path)
    _, other = trained(tmp_path, max_steps=15, run_name="by steps")

    assert (run.info.name, other.info.name) == ("out", "by steps")
    assert run.info.config["learning_rate"] == 1e-3
    plans = [each.info.last.plan for each in (run, other)]
    assert [(plan.total_steps, plan.total_epochs, plan.steps_per_epoch) for plan in plans] == [
        (20, 2, 10),
        (15, 2, None),
    ]


def test_each_trial_of_a_search_is_a_run(tmp_path: Path) -> None:
    """With its parameters, in the group of the search, and with the sizes of its checkpoints."""
    pytest.importorskip("optuna", reason="optuna is not installed")
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [callback], model_init=tiny_model, max_steps=2, save_steps=2)
    callback.attach(trainer)
    trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", [1e-3, 1e-4])},
        backend="optuna",
        n_trials=2,
        hp_name=lambda trial: f"trial {trial.number}",
        compute_objective=lambda metrics: metrics.get("eval_loss", 0.0),
    )
    callback.close()

    runs = runs_of(tmp_path)
    assert [(run.info.name, run.info.group) for run in runs] == [("trial 0", "out"), ("trial 1", "out")]
    assert all(run.info.config["learning_rate"] in (1e-3, 1e-4) for run in runs)
    saves = [event.attrs for run in runs for event in run.stream() if event.kind == "save"]
    assert len(saves) == 2
    assert all(save["size_bytes"] for save in saves)
    assert all(len(values_of(run, "grad_norm")) == 2 for run in runs)


def test_a_smaller_batch_after_a_lack_of_memory_begins_another_run(tmp_path: Path) -> None:
    """The trainer begins anew within one ``train()``."""

    class Greedy(Trainer):
        def training_step(self, model: Any, inputs: Any, *args: Any) -> Any:
            if len(inputs["input_ids"]) > 1:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(model, inputs, *args)

    _, run = trained(tmp_path, trainer_class=Greedy, auto_find_batch_size=True, max_steps=3)

    first, *_ = runs_of(tmp_path)
    assert (first.status, steps_of(first)) == ("failed", [])
    assert (run.status, steps_of(run)) == ("completed", [1, 2, 3])


@pytest.mark.parametrize("rules", [None, *shipped_policies()])
def test_an_update_that_a_scaler_skipped_is_recorded_as_not_applied(tmp_path: Path, rules: str | None) -> None:
    """A real scaler whose first scales are too great. No shipped policy stops the run for the infinite gradients."""

    class Scaling(Trainer):
        def create_optimizer(self, *args: Any) -> Any:
            self.accelerator.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10_000)
            optimizer = super().create_optimizer(*args)
            # The accelerator scales back before it clips under fp16 alone, which needs a GPU.
            self.accelerator.unscale_gradients = lambda *_: scaler.unscale_(optimizer)
            return optimizer

    callback = SteptapeCallback(tmp_path / "runs", rules)
    trainer, run = trained(tmp_path, callback, trainer_class=Scaling, max_steps=10, logging_steps=1)

    applied = [event.attrs.get("applied", True) for event in run.stream() if event.kind == "step_end"]
    assert len(applied) == 10
    assert not applied[0]
    assert not math.isfinite(values_of(run, "grad_norm")[0])
    assert applied[-1]
    assert (trainer.state.global_step, run.status) == (10, "completed")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rules", [None, *shipped_policies()])
def test_fp16_on_a_gpu_is_recorded_with_the_updates_that_it_skipped(tmp_path: Path, rules: str | None) -> None:
    """The first updates overflow, later ones do not. Of the shipped policies only TrAC's Fig. 3 stops the plateau."""

    class Scaling(Trainer):
        def create_optimizer(self, *args: Any) -> Any:
            self.accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
            return super().create_optimizer(*args)

    callback, settings = SteptapeCallback(tmp_path / "runs", rules), {"fp16": True, "use_cpu": False, "max_steps": 40}
    _, run = trained(tmp_path, callback, trainer_class=Scaling, logging_steps=1, **settings)

    steps = [event for event in run.stream() if event.kind == "step_end" and "late_for" not in event.attrs]
    applied = [event.attrs.get("applied", True) for event in steps]
    expected = (30, "stopped") if rules == "trac_fig3" else (40, "completed")
    assert (len(applied), run.status) == expected
    assert (applied[0], applied[-1]) == (False, True)


def test_a_loss_of_an_unknown_form_is_named_once_and_the_rest_is_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``strict`` it raises."""

    class Odd(Trainer):
        def training_step(self, *args: Any) -> Any:
            return OddLoss(super().training_step(*args))

    class OddLoss(torch.Tensor):
        def detach(self) -> Any:
            raise NotImplementedError("no detach")

    _, run = trained(tmp_path, trainer_class=Odd, max_steps=3)

    assert (len(values_of(run, "loss")), len(values_of(run, "grad_norm"))) == (0, 3)
    assert len([record for record in caplog.records if "loss of a step" in record.getMessage()]) == 1
    with pytest.raises(NotImplementedError):
        trained(tmp_path, SteptapeCallback(tmp_path / "runs", strict=True), trainer_class=Odd, max_steps=3)


@pytest.mark.parametrize(
    ("lacking", "still"),
    [
        ("logging_nan_inf_filter", {"loss", "grad_norm", "learning_rate"}),
        ("accelerator", {"loss", "learning_rate"}),
        ("callback_handler", {"learning_rate"}),
        ("stateful_callbacks", {"loss", "grad_norm", "learning_rate"}),
        ("run_name", {"loss", "grad_norm", "learning_rate"}),
        ("max_steps", {"loss", "grad_norm", "learning_rate"}),
        ("param_groups", {"loss", "grad_norm"}),
    ],
)
def test_what_an_unknown_version_lacks_is_named_once_and_the_rest_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lacking: str, still: set[str]
) -> None:
    """Trainer, arguments, state and optimizer without one of their attributes, as our hooks see them."""
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, STOP_AT_7))
    trainer = tiny_trainer(tmp_path, [callback], save_steps=3)
    attached = Lacking(trainer, "")
    callback.attach(attached)
    for name in [name for name in dir(callback) if name.startswith("on_")]:
        hook = getattr(callback, name)
        setattr(
            callback,
            name,
            lambda args, state, control, hook=hook, **named: hook(
                Lacking(args, lacking),
                Lacking(state, lacking),
                control,
                **{name: Lacking(value, lacking) if name == "optimizer" else value for name, value in named.items()},
            ),
        )
    object.__setattr__(attached, "lacking", lacking)
    if lacking == "logging_nan_inf_filter":
        callback.detach()
        still = {"learning_rate"}
    with callback.training():
        trainer.train()

    (run,) = runs_of(tmp_path)
    assert (run.status, trainer.state.global_step) == ("stopped", 7)
    steps = [event for event in run.stream() if event.kind == "step_end"]
    assert all(event.metrics.keys() - {"num_samples", "num_tokens"} == still for event in steps)
    assert [step for kind, step in kinds_of(run) if kind == "save"] == [3, 6]
    warnings = [record.getMessage() for record in caplog.records if f"no attribute '{lacking}'" in record.getMessage()]
    assert len(warnings) == len(set(warnings)) >= 1


def test_rules_that_do_not_load_are_refused_before_the_training(tmp_path: Path) -> None:
    """Where the callback is made."""
    with pytest.raises(Exception, match="unknown function"):
        SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, STOP_AT_7.replace("step >= 7", "men(loss) > 1")))
    with pytest.raises(Exception, match="kinds"):
        SteptapeCallback(tmp_path / "runs", kinds="some")
    with pytest.raises(Exception, match="kinds"):
        SteptapeCallback(tmp_path / "runs", kinds=["step_begins"])

    assert not (tmp_path / "runs").exists()
