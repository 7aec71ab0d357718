"""Rules change the learning rate of Hugging Face's Trainer and leave out batches; what it cannot do it refuses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

import torch
from torchrun import run_job
from transformers import Trainer, TrainerCallback

from frameworks.tiny_trainer import policy_file, runs_of, tiny_trainer, weights_of
from steptape import verify
from steptape.integrations.transformers import SteptapeCallback
from steptape.replay.policies.run_accounts import learning_rates
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

LADDER = """
controllers:
  - {name: first, triggers: [on_step_end], rule: step == 3, operations: ["lr.scale(0.5, over=4)"]}
  - {name: second, triggers: [on_step_end], rule: step == 8, operations: ["lr.scale(0.25, over=6)"]}
  - {name: third, triggers: [on_step_end], rule: step == 12, operations: ["lr.reduce(0.5)"]}
"""

STOP_AT_10 = """
  - {name: stop, triggers: [on_step_end], rule: step == 10, operations: [hfcontrols.should_training_stop]}
"""

SKIP = """
controllers:
  - {name: skip, triggers: [on_pre_optimizer_step], rule: step == 4 and loss > 0, operations: [batch.skip()]}
"""


HALF = """
controllers:
  - {name: half, triggers: [on_step_end], rule: step == 2, operations: [lr.scale(0.5)]}
"""

SHORTER = """
controllers:
  - {name: shorter, triggers: [on_step_end], rule: step == STEP, operations: [epochs.set(math_ceil(loss / loss))]}
"""

BEYOND = """
controllers:
  - {name: back, triggers: [on_step_end], rule: step == 2, operations: [rollback.to(last)]}
  - {name: longer, triggers: [on_step_end], rule: step == 3, operations: [epochs.set(4)]}
"""


class Rates(TrainerCallback):
    """What the optimizer's groups hold while it steps and after, and the weights after each update."""

    def __init__(self) -> None:
        self.used: list[float] = []
        self.seen: list[float] = []
        self.weights: list[list[torch.Tensor]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """See the rates after all other hooks."""
        optimizer.optimizer.register_step_pre_hook(lambda inner, *_: self.used.append(inner.param_groups[0]["lr"]))

    def on_step_end(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, model: Any = None, **_: Any
    ) -> None:
        """Note what the next update begins with."""
        self.seen.append(optimizer.param_groups[0]["lr"])
        self.weights.append([weight.detach().clone() for weight in model.parameters()])


def trained(
    folder: Path, rules: str = "", resume: Path | None = None, **changes: Any
) -> tuple[Trainer, Rates, Run | None]:
    """Train 20 updates, and return the trainer, what it trained with and the newest run."""
    rates, callback = Rates(), None
    if rules:
        callback = SteptapeCallback(folder / "runs", policy_file(folder, rules))
    trainer = tiny_trainer(folder, [callback, rates] if callback else [rates], **changes)
    if callback is None:
        trainer.train()
        return trainer, rates, None
    callback.attach(trainer)
    with callback.training():
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer, rates, runs_of(folder)[-1]


def track(run: Run | None, rules: str) -> dict[int, float]:
    """Return the used rate of each update. A replay must compute the same, and decide the same."""
    assert run is not None
    assert verify(run).identical
    points = learning_rates(replay(parse_policy(rules), run), run)
    steps = [event for event in run.events() if event.kind == "step_end" and "lr.used" in event.metrics]
    recorded = {event.step: event.metrics["lr.used"] for event in steps}
    assert {point.step: point.used for point in points} == recorded
    return recorded


def receipts(run: Run | None) -> list[tuple[int, str, str]]:
    """Return step, operation and reason of each receipt."""
    assert run is not None
    found = [event for event in run.events() if event.kind in ("operation_applied", "operation_refused")]
    return [(event.step, event.attrs["operation"], event.attrs.get("reason", "")) for event in found]


def test_the_optimizer_trains_with_the_rates_of_the_rules(tmp_path: Path) -> None:
    """To the bit those of the record and of a replay. The scheduler and a checkpoint see nothing of them."""
    plain_trainer, plain, _ = trained(tmp_path / "plain", max_grad_norm=0)
    trainer, steered, run = trained(tmp_path / "steered", LADDER, max_grad_norm=0)

    assert steered.seen == plain.seen
    assert [*track(run, LADDER).values()] == steered.used
    steps = [event for event in run.events() if event.kind == "step_end"]  # type: ignore[union-attr]
    assert [event.metrics["lr.base"] for event in steps] == plain.used
    assert [event.metrics["learning_rate"] for event in steps] == steered.used
    pairs = enumerate(zip(steered.used, plain.used, strict=True), 1)
    assert [step for step, (one, other) in pairs if one != other] == [4, 5, 6, *range(9, 21)]
    for name in ("scheduler.pt", "optimizer.pt"):
        kept = [torch.load(Path(each.args.output_dir) / "checkpoint-10" / name) for each in (trainer, plain_trainer)]
        rates = [state.get("_last_lr") or [group["lr"] for group in state["param_groups"]] for state in kept]
        assert rates[0] == rates[1]


def test_a_resume_in_the_middle_of_an_override_continues_it(tmp_path: Path) -> None:
    """From a checkpoint of the trainer: rates, weights and receipts are those of the whole training."""
    whole_trainer, whole, unsplit = trained(tmp_path / "whole", LADDER)
    _, first, _ = trained(tmp_path / "split", LADDER + STOP_AT_10)
    trainer, second, run = trained(tmp_path / "split", LADDER, tmp_path / "split" / "out" / "checkpoint-10")

    assert len(first.used) == 10
    assert first.used + second.used == whole.used
    assert track(run, LADDER) == track(unsplit, LADDER)
    assert receipts(run) == receipts(unsplit)
    assert all(map(torch.equal, weights_of(trainer), weights_of(whole_trainer)))


def test_a_batch_is_left_out_before_its_update(tmp_path: Path) -> None:
    """Rules read its loss and its norm. AdamW moves no weight, and the training goes on."""
    _, seen, run = trained(tmp_path, SKIP, weight_decay=0.1)

    assert receipts(run) == [(5, "batch.skip()", "")]
    assert run is not None
    (unapplied,) = [event.step for event in run.events() if event.attrs.get("applied") is False]
    assert unapplied == 5
    unmoved = [step for step in range(2, 21) if all(map(torch.equal, seen.weights[step - 1], seen.weights[step - 2]))]
    assert unmoved == [5]
    before = [event for event in run.events() if event.kind == "pre_optimizer_step"]
    after = [event for event in run.events() if event.kind == "step_end"]
    for name in ("loss", "grad_norm"):
        assert [event.metrics[name] for event in before] == [event.metrics[name] for event in after]
    assert verify(run).identical


def test_ranks_are_steered_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: each rank trains with the same rates, and leaves out the same update."""
    rules = LADDER + SKIP.replace("controllers:\n", "")
    training = {"folder": str(tmp_path), "policy": str(policy_file(tmp_path, rules)), "max_steps": 14}
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    run_job(Path(__file__).with_name("transformers_ranks.py"), tmp_path, 2, [training])

    (run,) = runs_of(tmp_path)
    steps = [[event for event in run.events(rank) if event.kind == "step_end"] for rank in (0, 1)]
    used = [[event.metrics.get("lr.used") for event in each] for each in steps]
    assert used[0] == used[1]
    assert [rate for rate in used[0] if rate is not None] == [*track(run, rules).values()]
    assert [[event.step for event in each if event.attrs.get("applied") is False] for each in steps] == [[5], [5]]
    applied = [
        [(event.step, event.attrs["operation"]) for event in run.events(rank) if event.kind == "operation_applied"]
        for rank in (0, 1)
    ]
    assert applied[0] == applied[1]
    assert [step for step, _ in applied[0]] == [3, 5, 8, 12]


def test_a_second_training_with_the_same_optimizer_is_not_steered_by_the_first(tmp_path: Path) -> None:
    """The first run leaves the optimizer alone when it ends."""
    callback = SteptapeCallback(tmp_path / "runs", policy_file(tmp_path, HALF))
    rates = Rates()
    trainer = tiny_trainer(tmp_path, [callback, rates], max_steps=4, lr_scheduler_type="constant")
    callback.attach(trainer)
    with callback.training():
        trainer.train()
    trainer.remove_callback(callback)
    rates.used.clear()
    trainer.train()

    assert set(rates.used) == {1e-3}


def test_what_the_trainer_cannot_do_is_named_and_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has no way back to a checkpoint, and no more epochs than it has counted."""
    with caplog.at_level(logging.WARNING, logger="steptape"):
        _, rates, run = trained(tmp_path, BEYOND)

    assert len(rates.used) == 20
    why = "the loop has no handler for it"
    longer = "the trainer has counted its epochs before the training begins. Give it num_train_epochs=4"
    assert receipts(run) == [(2, "rollback.to(last)", why), (3, "epochs.set(4)", longer)]
    named = [line for line in caplog.messages if "may order" in line]
    assert [line.partition(", and ")[0] for line in named] == ["rules may order rollback.to(last)"]


@pytest.mark.parametrize(("step", "last"), [(1, 10), (10, 10), (11, 20)])
def test_the_trainer_ends_after_the_epochs_of_the_rules(tmp_path: Path, step: int, last: int) -> None:
    """At the end of the epoch, also if that is now; an epoch that has begun is trained to its end."""
    trainer, rates, run = trained(tmp_path, SHORTER.replace("STEP", str(step)))

    assert len(rates.used) == trainer.state.global_step == last
    assert [reason for *_, reason in receipts(run)] == ([""] if last == 10 else ["epoch 2 has begun"])


def test_a_resumed_trainer_ends_after_the_epochs_that_rules_set_before(tmp_path: Path) -> None:
    """The checkpoint keeps them."""
    trained(tmp_path, SHORTER.replace("STEP", "3"), save_steps=5)
    trainer, rates, _ = trained(
        tmp_path, SHORTER.replace("STEP", "99"), tmp_path / "out" / "checkpoint-5", save_steps=5
    )

    assert (len(rates.used), trainer.state.global_step) == (5, 10)
