"""TRL's trainers, unchanged: they derive from Hugging Face's Trainer. More about them is in the gates."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed; 'make frameworks' runs this")

import pyarrow.parquet as pq

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


OF_COMPLETIONS = """
    SELECT step, unnest(from_json(attrs->'ids', '["TEXT"]')) AS id,
      unnest(from_json(attrs->'groups', '["INT"]')) AS "group",
      unnest(from_json(attrs->'tokens', '["INT"]')) AS tokens,
      unnest(from_json(attrs->'rewards'->'reward_words', '["DOUBLE"]')) AS reward
    FROM events WHERE kind = 'custom:completions' ORDER BY step
"""


def test_rewards_of_single_completions_are_recorded_by_component_if_asked_for(tmp_path: Path) -> None:
    """With group and length. The digest of a text finds it in the tables that TRL writes."""
    trainer = tiny_grpo(tmp_path, max_steps=2, logging_steps=1, log_completions=True)
    method = trainer._calculate_rewards
    callback = SteptapeCallback(tmp_path / "runs", completions=True)

    run = train(tmp_path, trainer, callback)

    written = [pq.read_table(tmp_path / "out" / "completions" / f"completions_0000{step}.parquet") for step in (1, 2)]
    events = [event for event in run.stream() if event.kind == "custom:completions"]
    assert [event.step for event in events] == [0, 1]
    for event, table in zip(events, written, strict=True):
        texts = table["completion"].to_pylist()
        assert event.attrs["ids"] == [hashlib.md5(text.encode()).hexdigest() for text in texts]
        assert event.attrs["rewards"] == {name: table[name].to_pylist() for name in ("reward_length", "reward_words")}
        assert event.attrs["groups"] == [0, 0, 1, 1]
        assert all(1 <= count <= 4 for count in event.attrs["tokens"])
    rows = run.sql(OF_COMPLETIONS).to_pylist()
    assert [row["reward"] for row in rows] == [each for table in written for each in table["reward_words"].to_pylist()]
    callback.detach()
    assert trainer._calculate_rewards == method


def test_completions_are_not_recorded_unless_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The trainer keeps its method. One without rewards is named."""
    trainer = tiny_grpo(tmp_path, max_steps=2)
    method = trainer._calculate_rewards
    run = train(tmp_path, trainer, SteptapeCallback(tmp_path / "runs"))
    SteptapeCallback(tmp_path / "runs", completions=True).attach(tiny_sft(tmp_path))

    assert trainer._calculate_rewards == method
    assert "custom:completions" not in {event.kind for event in run.stream()}
    assert caplog.text.count("rewards of completions, which TRL's GRPOTrainer has, are not recorded") == 1
