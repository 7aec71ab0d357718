"""TRL's trainers, unchanged: they derive from Hugging Face's Trainer. More about them is in the gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed; 'make frameworks' runs this")

from frameworks.tiny_trainer import runs_of, steps_of
from frameworks.tiny_trl import tiny_grpo, tiny_sft
from steptape.integrations.transformers import SteptapeCallback


def train(folder: Path, trainer: Any, callback: SteptapeCallback) -> Any:
    """Train with the callback attached, and return the run."""
    callback.attach(trainer)
    with callback.training():
        trainer.train()
    return runs_of(folder)[-1]


def test_sft_is_recorded_step_by_step(tmp_path: Path) -> None:
    """With the values of its own that it logs."""
    trainer = tiny_sft(tmp_path, max_steps=4, logging_steps=1)

    run = train(tmp_path, trainer, SteptapeCallback(tmp_path / "runs"))

    assert steps_of(run) == [1, 2, 3, 4]
    losses = [event.metrics["loss"] for event in run.stream() if event.kind == "step_end"]
    assert losses == pytest.approx([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], abs=1e-4)
    assert {"entropy", "mean_token_accuracy", "num_tokens"} <= set(run.metrics())


def test_grpo_is_recorded_step_by_step(tmp_path: Path) -> None:
    """With the rewards, which it logs as means."""
    trainer = tiny_grpo(tmp_path, max_steps=4, logging_steps=1)

    run = train(tmp_path, trainer, SteptapeCallback(tmp_path / "runs", "grpo"))

    assert steps_of(run) == [1, 2, 3, 4]
    assert {"reward", "kl", "completions/clipped_ratio", "rewards/reward_length/mean"} <= set(run.metrics())
