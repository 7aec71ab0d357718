"""Makes TRL's trainers of the tiny language model, which train like the tiny trainer: 2 epochs of 10 updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Trainer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from frameworks.tiny_trainer import SAMPLES, tiny_model, tiny_settings


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of 60 words and 3 marks."""
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(60))])}
    model = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def tiny_sft(folder: Path, callbacks: Sequence[TrainerCallback] = (), **changes: Any) -> Trainer:
    """Return a trainer that imitates texts."""
    data = Dataset.from_list([{"text": " ".join(f"w{(i * j) % 60}" for j in range(8))} for i in range(SAMPLES)])
    return _tiny(SFTTrainer, SFTConfig, folder, callbacks, data, {"max_length": 16, **changes}, model=tiny_model())


def tiny_grpo(folder: Path, callbacks: Sequence[TrainerCallback] = (), **changes: Any) -> Trainer:
    """Return a trainer that is rewarded for two kinds of completions, in groups of 2."""
    model = folder / "model"
    tiny_model().save_pretrained(model)  # GRPO reads the model of reference from there. Rank 0 alone writes it.
    if dist.is_initialized():
        dist.barrier()
    data = Dataset.from_list([{"prompt": f"w{i} w{i + 1}"} for i in range(SAMPLES // 2)])
    own = {"num_generations": 2, "max_completion_length": 4, "beta": 0.1, **changes}
    more = {"model": str(model), "reward_funcs": [reward_length, reward_words]}
    return _tiny(GRPOTrainer, GRPOConfig, folder, callbacks, data, own, **more)


def _tiny(
    trainer_class: Any,
    config_class: Any,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
    data: Dataset,
    changes: Mapping[str, Any],
    **more: Any,
) -> Trainer:
    trainer: Trainer = trainer_class(
        args=config_class(**tiny_settings(folder, bf16=False, **changes)),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def reward_length(completions: list[str], **_: Any) -> list[float]:
    """Reward short completions."""
    return [-float(len(text.split())) for text in completions]


def reward_words(completions: list[str], **_: Any) -> list[float]:
    """Reward different words."""
    return [float(len(set(text.split()))) for text in completions]
