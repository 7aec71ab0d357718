"""TRL's trainers, unchanged: they derive from Hugging Face's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed; 'make frameworks' runs this")

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from frameworks.tiny_trainer import runs_of, steps_of, tiny_model
from steptape.integrations.transformers import SteptapeCallback


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of 60 words and 3 marks."""
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(60))])}
    model = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def tiny(folder: Path) -> dict[str, Any]:
    """Return arguments for few steps on the CPU."""
    return {
        "output_dir": str(folder / "out"),
        "max_steps": 4,
        "logging_steps": 1,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
    }


def train(folder: Path, trainer: Any, callback: SteptapeCallback) -> Any:
    """Train with the callback attached, and return the run."""
    trainer.remove_callback(PrinterCallback)
    callback.attach(trainer)
    with callback.training():
        trainer.train()
    return runs_of(folder)[-1]


def test_sft_is_recorded_step_by_step(tmp_path: Path) -> None:
    """With the values of its own that it logs."""
    callback = SteptapeCallback(tmp_path / "runs")
    data = Dataset.from_list([{"text": " ".join(f"w{(i * j) % 60}" for j in range(8))} for i in range(16)])
    config = SFTConfig(**tiny(tmp_path), max_length=16)
    trainer = SFTTrainer(
        model=tiny_model(), args=config, train_dataset=data, processing_class=tokenizer(), callbacks=[callback]
    )

    run = train(tmp_path, trainer, callback)

    assert steps_of(run) == [1, 2, 3, 4]
    losses = [event.metrics["loss"] for event in run.stream() if event.kind == "step_end"]
    assert losses == pytest.approx([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], abs=1e-4)
    assert {"entropy", "mean_token_accuracy", "num_tokens"} <= set(run.metrics())


def reward_length(completions: list[str], **_: Any) -> list[float]:
    """Reward short completions."""
    return [-float(len(text.split())) for text in completions]


def reward_words(completions: list[str], **_: Any) -> list[float]:
    """Reward different words."""
    return [float(len(set(text.split()))) for text in completions]


def test_grpo_is_recorded_step_by_step(tmp_path: Path) -> None:
    """With the rewards, which it logs as means."""
    callback = SteptapeCallback(tmp_path / "runs", "grpo")
    tiny_model().save_pretrained(tmp_path / "model")  # GRPO reads the model of reference from there.
    data = Dataset.from_list([{"prompt": f"w{i} w{i + 1}"} for i in range(16)])
    config = GRPOConfig(**{**tiny(tmp_path), "num_generations": 2, "max_completion_length": 4, "beta": 0.1})
    trainer = GRPOTrainer(
        model=str(tmp_path / "model"),
        reward_funcs=[reward_length, reward_words],
        args=config,
        train_dataset=data,
        processing_class=tokenizer(),
        callbacks=[callback],
    )

    run = train(tmp_path, trainer, callback)

    assert steps_of(run) == [1, 2, 3, 4]
    assert {"reward", "kl", "completions/clipped_ratio", "rewards/reward_length/mean"} <= set(run.metrics())
