"""Makes Hugging Face trainers of a tiny language model on random data, and reads what became of their runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from steptape.store.run import Run

#: 40 samples: with batches of 2 in groups of 2, 10 updates an epoch.
SAMPLES = 40

STOP_AT_7 = """
controllers:
  - {name: stop, triggers: [on_step_end], rule: step >= 7, operations: [hfcontrols.should_training_stop]}
"""


def tiny_model() -> GPT2LMHeadModel:
    """Return a GPT-2 of 2 layers x 32, always the same."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16))


def tiny_data(count: int = SAMPLES) -> list[dict[str, torch.Tensor]]:
    """Return random sequences of 8 tokens, always the same."""
    tokens = torch.randint(0, 64, (count, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def tiny_settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return settings of 2 epochs of 10 updates of 2 micro-batches, logged every 5 and saved every 10 updates."""
    return {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "logging_steps": 5,
        "save_steps": 10,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }


def tiny_trainer(
    folder: Path,
    callbacks: Sequence[TrainerCallback] = (),
    *,
    trainer_class: type[Trainer] = Trainer,
    data: Sequence[Mapping[str, Any]] | None = None,
    model: Any = None,
    model_init: Any = None,
    collator: Any = None,
    **changes: Any,
) -> Trainer:
    """Return a trainer of the tiny model, with changes of its arguments."""
    own = {"model_init": model_init} if model_init else {"model": tiny_model() if model is None else model}
    trainer = trainer_class(
        args=TrainingArguments(**tiny_settings(folder, **changes)),
        train_dataset=tiny_data() if data is None else data,
        eval_dataset=tiny_data(4),
        callbacks=list(callbacks),
        data_collator=collator,
        **own,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def plant_nan(trainer: Trainer, micro_batch: int) -> None:
    """Let the loss of one micro-batch, counted from 0, be NaN."""
    step, seen = trainer.training_step, iter(range(1_000_000))

    def training_step(*args: Any, **named: Any) -> Any:
        return step(*args, **named) * (math.nan if next(seen) == micro_batch else 1.0)

    trainer.training_step = training_step


def policy_file(folder: Path, text: str) -> Path:
    """Write a policy."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def runs_of(folder: Path) -> list[Run]:
    """Return the runs of the store ``runs`` in a folder, oldest first."""
    runs = [Run(path.parent) for path in (folder / "runs").glob("*/run.json")]
    return sorted(runs, key=lambda run: run.info.attempts[0].started_ns)


def steps_of(run: Run) -> list[int]:
    """Return the steps of the updates that belong to a run."""
    return [event.step for event in run.stream() if event.kind == "step_end"]


def kinds_of(run: Run) -> list[tuple[str, int]]:
    """Return kind and step of every event of a run."""
    return [(event.kind, event.step) for event in run.stream()]


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    """Return the weights."""
    return [weight.detach().clone() for weight in trainer.model.parameters()]
