"""Hugging Face's Trainer under rules: it trains as without them, stops where they say, and survives the recorder."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

import torch
import transformers
from torchrun import run_job
from transformers import TrainerCallback

from frameworks.tiny_trainer import (
    STOP_AT_7,
    kinds_of,
    plant_nan,
    policy_file,
    runs_of,
    steps_of,
    tiny_trainer,
    weights_of,
)
from steptape import Policy, backtest, load_policy, verify
from steptape.integrations.transformers import SteptapeCallback

#: The functions that make trainers. TRL is tested with the newest transformers alone.
MAKERS: dict[str, Callable[..., Any]] = {"trainer": tiny_trainer}
if find_spec("trl") is not None:
    from frameworks.tiny_trl import tiny_grpo, tiny_sft

    MAKERS |= {"sft": tiny_sft, "grpo": tiny_grpo}

makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)

#: Rules with a memory, over steps, logs and evaluations, that fire several times and stop at the end.
POLICY = """
controller_metrics:
  - {name: window, class: HistoryBasedMetric, arguments: {window_size: 3}}
controllers:
  - name: falling
    triggers: [on_step_end]
    rule: loss < mean(loss, 5, skip=1)
    patience: {patience_threshold: 2, mode: no_reset_on_failure}
    operations: [hfcontrols.should_log]
  - {name: epochs, triggers: [on_epoch_begin, on_epoch_end], rule: epoch >= 0, operations: []}
  - {name: logs, triggers: [on_log], rule: 'len(window["training_loss"]["loss"]) == 3', operations: []}
  - {name: evaluations, triggers: [on_evaluate], rule: eval_loss < 10, operations: [hfcontrols.should_save]}
  - name: stop
    triggers: [on_step_end]
    rule: step > 12 and count(learning_rate, 100) > 12 and lag(learning_rate, 12) > 0
    for: 4
    operations: [hfcontrols.should_training_stop]
"""


def decided(folder: Path) -> list[tuple[Any, ...]]:
    """Return the decisions of the newest run: step, trigger, controller and operations."""
    columns = runs_of(folder)[-1].decisions().select(["step", "trigger", "controller", "operations"])
    return [tuple(map(str, row.values())) for row in columns.to_pylist()]


@makers
def test_losses_and_weights_are_bit_equal_with_and_without_us(tmp_path: Path, make: Callable[..., Any]) -> None:
    """With all events, an attached trainer and rules that fire but order nothing that changes the course."""
    changes: dict[str, Any] = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 5}
    plain = make(tmp_path / "plain", **changes)
    plain.train()
    text = (
        "controllers: [{name: a, triggers: [on_step_end, on_log], rule: loss > 0, operations: [hfcontrols.should_log]}]"
    )
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, text), kinds="all")
    recorded = make(tmp_path, [callback], **changes)
    callback.attach(recorded)
    with callback.training():
        recorded.train()

    losses = [[each["loss"] for each in one.state.log_history if "loss" in each] for one in (plain, recorded)]
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(recorded), strict=True))


@makers
def test_a_rule_stops_the_training_at_the_step_that_a_backtest_predicts(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    """The stop is the loop's last step, the run is ``stopped``, and its log verifies."""
    free = SteptapeCallback(tmp_path / "free" / "runs")
    trainer = make(tmp_path / "free", [free], eval_strategy="steps", eval_steps=5)
    free.attach(trainer)
    with free.training():
        trainer.train()
    policy = load_policy(policy_file(tmp_path, POLICY))
    (predicted,) = backtest(policy, runs_of(tmp_path / "free")).results
    assert predicted.stop is not None

    steered = steered_by(policy, tmp_path / "steered", make=make, eval_strategy="steps", eval_steps=5)

    (run,) = runs_of(tmp_path / "steered")
    assert steered.state.global_step == steps_of(run)[-1] == predicted.stop.outcome.step == 16
    assert run.status == "stopped"
    assert verify(run).identical
    assert [step for step, _, controller, _ in decided(tmp_path / "steered") if controller == "stop"] == ["16"]


def steered_by(
    policy: Policy | Path,
    folder: Path,
    resume: bool | None = None,
    make: Callable[..., Any] = tiny_trainer,
    nan: int | None = None,
    **changes: Any,
) -> Any:
    """Train under rules, and return the trainer."""
    callback = SteptapeCallback(folder / "runs", policy)
    trainer = make(folder, [callback], **changes)
    if nan is not None:
        plant_nan(trainer, nan)
    callback.attach(trainer)
    with callback.training():
        trainer.train(resume_from_checkpoint=resume)
    return trainer


@makers
@pytest.mark.parametrize("micro_batch", [8, 9])
def test_a_nan_in_any_micro_batch_stops_the_training_at_its_step(
    tmp_path: Path, make: Callable[..., Any], micro_batch: int
) -> None:
    """The trainer's own log never shows it."""
    policy = policy_file(tmp_path, STOP_AT_7.replace("step >= 7", "not isfinite(loss)"))

    trainer = steered_by(policy, tmp_path, make=make, nan=micro_batch)

    assert trainer.state.global_step == 5
    assert runs_of(tmp_path)[0].status == "stopped"
    assert all(entry["loss"] == entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


@makers
@pytest.mark.parametrize("killed_at", [7, 11])
def test_a_resumed_training_decides_as_an_unsplit_one(tmp_path: Path, make: Callable[..., Any], killed_at: int) -> None:
    """From a checkpoint in the middle of an epoch, and from one at its end."""

    class Killing(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == killed_at:
                raise KeyboardInterrupt

    policy = policy_file(tmp_path, POLICY)
    changes: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5}
    whole = steered_by(policy, tmp_path / "whole", make=make, **changes)
    callback = SteptapeCallback(tmp_path / "split" / "runs", policy)
    trainer = make(tmp_path / "split", [callback, Killing()], **changes)
    callback.attach(trainer)
    with pytest.raises(KeyboardInterrupt), callback.training():
        trainer.train()
    split = steered_by(policy, tmp_path / "split", resume=True, make=make, **changes)

    (run,) = runs_of(tmp_path / "split")
    assert [attempt.status for attempt in run.info.attempts] == ["interrupted", "stopped"]
    assert split.state.global_step == whole.state.global_step == 16
    assert decided(tmp_path / "split") == decided(tmp_path / "whole")
    assert [each for each in kinds_of(run) if each[0] != "train_begin"] == [
        each for each in kinds_of(runs_of(tmp_path / "whole")[0]) if each[0] != "train_begin"
    ]
    assert verify(run).identical


def remove(store: Path) -> None:
    """Remove the store, again and again."""
    shutil.rmtree(store, ignore_errors=True)


def fill(store: Path) -> None:  # noqa: ARG001
    """Let no file grow, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize("break_it", [remove, fill])
def test_a_recorder_that_fails_changes_no_weight(tmp_path: Path, break_it: Callable[[Path], None]) -> None:
    """The disk is full, or the store removed, from the fifth step on."""

    class Breaking(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step >= 5:
                break_it(tmp_path / "runs")

    plain = tiny_trainer(tmp_path / "plain", save_strategy="no")
    plain.train()
    callback = SteptapeCallback(tmp_path / "runs")
    trainer = tiny_trainer(tmp_path, [Breaking(), callback], save_strategy="no")
    callback.attach(trainer)
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.getsignal(signal.SIGXFSZ)
    try:
        with callback.training():
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
        signal.signal(signal.SIGXFSZ, handler)

    assert trainer.state.global_step == 20
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(trainer), strict=True))


ORDERS = """
controllers:
  - {name: save, triggers: [on_step_end], rule: step == 3, operations: [hfcontrols.should_save]}
  - {name: evaluate, triggers: [on_step_end], rule: step == 3, operations: [hfcontrols.should_evaluate]}
  - {name: b, triggers: [on_evaluate], rule: step == 3, operations: [hfcontrols.should_log]}
"""


def on_two_ranks(folder: Path, *trainings: dict[str, Any]) -> list[list[int]]:
    """Train on two ranks, one training after the other, and return the steps at which the ranks ended."""
    tests = Path(__file__).parents[1]
    for training in trainings:
        training["folder"] = str(folder / training["folder"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tests))
        done = run_job(tests / "frameworks" / "transformers_ranks.py", folder, 2, trainings)
    return [[each["step"] for each in ranks] for ranks in done]


@makers
def test_two_ranks_stop_at_the_same_step(tmp_path: Path, make: Callable[..., Any]) -> None:
    """They save and evaluate together, too."""
    policy = policy_file(tmp_path, ORDERS + STOP_AT_7.partition("controllers:\n")[2])

    ended = on_two_ranks(tmp_path, {"folder": ".", "policy": str(policy), "make": make.__name__})

    (run,) = runs_of(tmp_path)
    assert ended == [[7, 7]]
    assert run.status == "stopped"
    assert {("save", 3), ("evaluate", 3)} <= set(kinds_of(run))


def test_a_slow_checkpoint_of_rank_0_does_not_end_the_steering(tmp_path: Path) -> None:
    """Within an epoch, longer than an agreement may take; and at its end, as long as the job waits for a rank."""
    policies = [
        str(policy_file(tmp_path / name, STOP_AT_7.replace("7", step))) for name, step in (("a", "7"), ("b", "12"))
    ]

    ended = on_two_ranks(
        tmp_path,
        {
            "folder": "a",
            "policy": policies[0],
            "save_s": 6.0,
            "save_steps": 3,
            "arguments": {"ranks": {"agree_timeout_s": 4.0}},
        },
        {"folder": "b", "policy": policies[1], "save_s": 27.0, "save_steps": 10, "num_train_epochs": 4},
    )

    assert ended == [[7, 7], [12, 12]]
    assert [runs_of(tmp_path / name)[0].status for name in ("a", "b")] == ["stopped", "stopped"]


@pytest.mark.parametrize(("rank", "micro_batch"), [(0, 5), (1, 4)])
def test_a_nan_on_any_rank_is_seen_at_its_step(tmp_path: Path, rank: int, micro_batch: int) -> None:
    """By a rule that reads the losses of all ranks."""
    policy = policy_file(tmp_path, STOP_AT_7.replace("step >= 7", "any_rank(not isfinite(loss))"))

    ended = on_two_ranks(tmp_path, {"folder": ".", "policy": str(policy), "nan": [rank, micro_batch]})

    assert ended == [[3, 3]]
    assert runs_of(tmp_path)[0].status == "stopped"


@pytest.mark.skipif(
    transformers.__version__.startswith("4."), reason="transformers 4 loads no optimizer on several CPU ranks"
)
def test_a_job_of_two_ranks_that_resumes_decides_as_an_unsplit_one(tmp_path: Path) -> None:
    """Rank 0 alone has written the checkpoint."""
    policy = policy_file(tmp_path, POLICY)
    job = {"policy": str(policy), "eval_strategy": "steps", "eval_steps": 5, "save_steps": 5, "num_train_epochs": 4}

    ended = on_two_ranks(
        tmp_path,
        {**job, "folder": "whole"},
        {**job, "folder": "split", "killed_at": 7},
        {**job, "folder": "split", "resume": True},
    )

    (run,) = runs_of(tmp_path / "split")
    assert ended == [[16, 16], [7, 7], [16, 16]]
    assert [attempt.status for attempt in run.info.attempts] == ["interrupted", "stopped"]
    assert decided(tmp_path / "split") == decided(tmp_path / "whole")
    assert verify(run).identical
