"""Rules change Lightning's learning rate and epochs, and leave out batches; what it cannot do it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed; 'make frameworks' runs this")

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from frameworks.tiny_lightning import loader, tiny_module, tiny_trainer
from steptape import open_store, verify
from steptape.integrations.lightning import SteptapeCallback
from steptape.replay.policies.run_accounts import learning_rates
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

pytestmark = pytest.mark.filterwarnings("default")

LADDER = """
controllers:
  - {name: first, triggers: [on_step_end], rule: step == 3, operations: ["lr.scale(0.5, over=4)"]}
  - {name: second, triggers: [on_step_end], rule: step == 16, operations: ["lr.scale(0.25, over=6)"]}
  - {name: third, triggers: [on_step_end], rule: step == 30, operations: ["lr.reduce(0.5)"]}
"""

#: In Lightning a rule before the update is asked while the optimizer steps.
BEFORE = """
controllers:
  - {name: skip, triggers: [on_pre_optimizer_step], rule: step == 4 and loss > 0, operations: [batch.skip()]}
  - {name: scale, triggers: [on_pre_optimizer_step], rule: step == 6, operations: ["lr.scale(0.5, over=4)"]}
"""

EPOCHS = """
controllers:
  - {name: longer, triggers: [on_step_end], rule: step == 20, operations: [epochs.set(4)]}
  - {name: shorter, triggers: [on_step_end], rule: step == 45, operations: [epochs.set(2)]}
  - {name: back, triggers: [on_step_end], rule: step == 50, operations: [rollback.to(last)]}
"""


class Rates(Callback):
    """The rates that the optimizer steps with, what its group holds between steps, and the weights."""

    def __init__(self) -> None:
        self.used: list[float] = []
        self.seen: list[float] = []
        self.weights: list[torch.Tensor] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """See the rate when the optimizer is about to end its step: before the hooks of others put it back."""
        (optimizer,) = trainer.optimizers
        note = optimizer.register_step_post_hook
        note(lambda inner, *_: self.used.append(inner.param_groups[0]["lr"]))
        optimizer._optimizer_step_post_hooks.move_to_end(
            next(reversed(optimizer._optimizer_step_post_hooks)), last=False
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Note what the next update begins with."""
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.weights.append(pl_module.layer[0].weight.detach().clone())


def fit(folder: Path, rules: str, ckpt_path: str | None = None, **changes: Any) -> tuple[Any, Any, Rates]:
    """Train, and return the trainer, the module and what it trained with. Without rules nothing is recorded."""
    folder.mkdir(exist_ok=True)
    (folder / "policy.yaml").write_text(rules)
    rates = Rates()
    own: list[Any] = [SteptapeCallback(folder / "runs", rules=folder / "policy.yaml")] if rules else []
    checkpoints = ModelCheckpoint(folder, every_n_train_steps=18, save_top_k=-1, filename="{step}")
    trainer = tiny_trainer(folder, [*own, rates, checkpoints], enable_checkpointing=True, **changes)
    module = tiny_module(dropout=0.0)
    trainer.fit(module, loader(is_constant=True), loader(4), ckpt_path=ckpt_path)
    return trainer, module, rates


def run_of(folder: Path) -> Run:
    """Return the only run in a folder."""
    (run,) = open_store(folder / "runs")
    return run


def track(run: Run, rules: str) -> dict[int, float]:
    """Return the used rate of each update. A replay must compute the same, and decide the same."""
    assert verify(run).identical
    points = learning_rates(replay(parse_policy(rules), run), run)
    steps = [event for event in run.events() if event.kind == "step_end" and "lr.used" in event.metrics]
    recorded = {event.step: event.metrics["lr.used"] for event in steps}
    assert {point.step: point.used for point in points} == recorded
    return recorded


def receipts(run: Run) -> list[tuple[int, str, str]]:
    """Return step, operation and reason of each receipt."""
    found = [event for event in run.events() if event.kind in ("operation_applied", "operation_refused")]
    return [(event.step, event.attrs["operation"], event.attrs.get("reason", "")) for event in found]


def test_the_optimizer_trains_with_the_rates_of_the_rules(tmp_path: Path) -> None:
    """To the bit those of the record and of a replay. The scheduler and a checkpoint see nothing of them."""
    _, _, plain = fit(tmp_path / "plain", "")
    _, _, steered = fit(tmp_path / "steered", LADDER)
    run = run_of(tmp_path / "steered")

    assert steered.seen == plain.seen
    assert [*track(run, LADDER).values()] == steered.used
    steps = [event for event in run.events() if event.kind == "step_end"]
    assert [event.metrics["lr.base"] for event in steps] == plain.used
    assert [event.metrics["lr"] for event in steps] == steered.used
    assert steered.used != plain.used
    kept = [torch.load(tmp_path / name / "step=18.ckpt", weights_only=False) for name in ("plain", "steered")]
    for part in ("optimizer_states", "lr_schedulers"):
        rates = [each[part][0].get("_last_lr") or each[part][0]["param_groups"][0]["lr"] for each in kept]
        assert rates[0] == rates[1]


def test_a_resume_in_the_middle_of_an_override_continues_it(tmp_path: Path) -> None:
    """Rates, weights and receipts are those of the whole training."""
    _, whole_module, whole = fit(tmp_path / "whole", LADDER)
    _, _, first = fit(tmp_path / "split", LADDER, max_steps=18)
    _, module, second = fit(tmp_path / "split", LADDER, str(tmp_path / "split" / "step=18.ckpt"))

    unsplit, run = run_of(tmp_path / "whole"), run_of(tmp_path / "split")
    assert first.used + second.used == whole.used
    assert track(run, LADDER) == track(unsplit, LADDER)
    assert receipts(run) == receipts(unsplit)
    assert torch.equal(module.layer[0].weight, whole_module.layer[0].weight)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_rules_are_asked_before_an_update(micro_batches: int, tmp_path: Path) -> None:
    """They leave out a batch, and change the rate of the update that they are asked before."""
    changes: dict[str, Any] = {"accumulate_grad_batches": micro_batches, "gradient_clip_val": 1.0}
    _, _, rates = fit(tmp_path, BEFORE, **changes)
    run = run_of(tmp_path)

    assert receipts(run) == [(5, "batch.skip()", ""), (6, "lr.scale(0.5, over=4)", "")]
    used = track(run, BEFORE)
    assert [*used] == [step for step in range(1, 42 // micro_batches + 1) if step != 5]
    assert [rate for step, rate in enumerate(rates.used, 1) if step != 5] == [*used.values()]
    steps = [event for event in run.events() if event.kind == "step_end"]
    bases = {event.step: event.metrics["lr.base"] for event in steps if "lr.base" in event.metrics}
    assert used[7] == 0.5 * bases[6] + (bases[7] - 0.5 * bases[6]) * (1 / 4)
    updates = rates.weights[micro_batches - 1 :: micro_batches]
    assert [step for step in range(2, 9) if torch.equal(updates[step - 1], updates[step - 2])] == [5]
    before = [event for event in run.events() if event.kind == "pre_optimizer_step"]
    for name in ("loss", "grad_norm"):
        assert [event.metrics[name] for event in before] == [event.metrics[name] for event in steps]


def test_rules_set_the_number_of_epochs(tmp_path: Path) -> None:
    """Also for a resume. A number that is over and a way back to a checkpoint are refused."""
    trainer, _, _ = fit(tmp_path / "whole", EPOCHS)
    run = run_of(tmp_path / "whole")
    fit(tmp_path / "split", EPOCHS.replace("step == 50", "step == 1000"))
    again, _, second = fit(tmp_path / "split", EPOCHS, str(tmp_path / "split" / "step=36.ckpt"))

    assert (trainer.global_step, trainer.current_epoch) == (56, 4)
    assert receipts(run) == [
        (20, "epochs.set(4)", ""),
        (45, "epochs.set(2)", "epoch 4 has begun"),
        (50, "rollback.to(last)", "the loop has no handler for it"),
    ]
    assert (again.global_step, again.current_epoch, len(second.used)) == (56, 4, 20)
    _, _, short = fit(tmp_path / "steps", EPOCHS, max_steps=30)
    assert len(short.used) == 30
    assert receipts(run_of(tmp_path / "steps")) == [(20, "epochs.set(4)", "max_steps=30 ends the training")]
