"""Hugging Face's Trainer under rules: it trains as without them, stops where they say, and survives the recorder."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

import torch
from transformers import TrainerCallback

from frameworks.tiny_trainer import STOP_AT_7, kinds_of, policy_file, runs_of, steps_of, tiny_trainer, weights_of
from steptape import Policy, backtest, load_policy, verify
from steptape.integrations.transformers import SteptapeCallback

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
    rule: step > 12 and count(loss, 100) > 12 and lag(loss, 12) > 0
    patience: {patience_threshold: 3}
    operations: [hfcontrols.should_training_stop]
"""


def decided(folder: Path) -> list[tuple[Any, ...]]:
    """Return the decisions of the newest run: step, trigger, controller and operations."""
    columns = runs_of(folder)[-1].decisions().select(["step", "trigger", "controller", "operations"])
    return [tuple(map(str, row.values())) for row in columns.to_pylist()]


def test_losses_and_weights_are_bit_equal_with_and_without_us(tmp_path: Path) -> None:
    """With all events, an attached trainer and rules that fire but order nothing that changes the course."""
    changes: dict[str, Any] = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 5}
    plain = tiny_trainer(tmp_path / "plain", **changes)
    plain.train()
    text = (
        "controllers: [{name: a, triggers: [on_step_end, on_log], rule: loss > 0, operations: [hfcontrols.should_log]}]"
    )
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, text), kinds="all")
    recorded = tiny_trainer(tmp_path, [callback], **changes)
    callback.attach(recorded)
    with callback.training():
        recorded.train()

    losses = [[each["loss"] for each in one.state.log_history if "loss" in each] for one in (plain, recorded)]
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(recorded), strict=True))


def test_a_rule_stops_the_training_at_the_step_that_a_backtest_predicts(tmp_path: Path) -> None:
    """The stop is the loop's last step, the run is ``stopped``, and its log verifies."""
    free = SteptapeCallback(tmp_path / "free" / "runs")
    trainer = tiny_trainer(tmp_path / "free", [free], eval_strategy="steps", eval_steps=5)
    free.attach(trainer)
    with free.training():
        trainer.train()
    policy = load_policy(policy_file(tmp_path, POLICY))
    (predicted,) = backtest(policy, runs_of(tmp_path / "free")).results
    assert predicted.stop is not None

    steered = steered_by(policy, tmp_path / "steered", eval_strategy="steps", eval_steps=5)

    (run,) = runs_of(tmp_path / "steered")
    assert steered.state.global_step == steps_of(run)[-1] == predicted.stop.outcome.step == 16
    assert run.status == "stopped"
    assert verify(run).identical
    assert [step for step, _, controller, _ in decided(tmp_path / "steered") if controller == "stop"] == ["16"]


def steered_by(policy: Policy | Path, folder: Path, resume: bool | None = None, **changes: Any) -> Any:
    """Train under rules, and return the trainer."""
    callback = SteptapeCallback(folder / "runs", policy)
    trainer = tiny_trainer(folder, [callback], **changes)
    callback.attach(trainer)
    with callback.training():
        trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("killed_at", [7, 11])
def test_a_resumed_training_decides_as_an_unsplit_one(tmp_path: Path, killed_at: int) -> None:
    """From a checkpoint in the middle of an epoch, and from one at its end."""

    class Killing(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == killed_at:
                raise KeyboardInterrupt

    policy = policy_file(tmp_path, POLICY)
    changes: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5}
    whole = steered_by(policy, tmp_path / "whole", **changes)
    callback = SteptapeCallback(tmp_path / "split" / "runs", policy)
    trainer = tiny_trainer(tmp_path / "split", [callback, Killing()], **changes)
    callback.attach(trainer)
    with pytest.raises(KeyboardInterrupt), callback.training():
        trainer.train()
    split = steered_by(policy, tmp_path / "split", resume=True, **changes)

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


RANKS = """
import sys
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from frameworks.tiny_trainer import tiny_trainer
from steptape.integrations.transformers import SteptapeCallback

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
folder = Path(sys.argv[1])
callback = SteptapeCallback(folder / "runs", folder / "policy.yaml")
trainer = tiny_trainer(folder, [callback], ddp_backend="gloo")
callback.attach(trainer)
with callback.training():
    trainer.train()
print("rank", dist.get_rank(), "ended at", trainer.state.global_step, flush=True)
"""

ORDERS = """
controllers:
  - {name: save, triggers: [on_step_end], rule: step == 3, operations: [hfcontrols.should_save]}
  - {name: evaluate, triggers: [on_step_end], rule: step == 3, operations: [hfcontrols.should_evaluate]}
  - {name: b, triggers: [on_evaluate], rule: step == 3, operations: [hfcontrols.should_log]}
"""


def test_two_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    """They save and evaluate together, too."""
    policy_file(tmp_path, ORDERS + STOP_AT_7.partition("controllers:\n")[2])
    (tmp_path / "ranks.py").write_text(RANKS)
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ranks.py", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=180)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output

    assert sorted(line for line in output.splitlines() if line.startswith("rank ")) == [
        "rank 0 ended at 7",
        "rank 1 ended at 7",
    ]
    (run,) = runs_of(tmp_path)
    assert run.status == "stopped"
    assert {("save", 3), ("evaluate", 3)} <= set(kinds_of(run))
