"""Trains a tiny GPT-2 with Hugging Face's Trainer under a shipped policy. Nothing is downloaded.

``pip install 'steptape[transformers]'``, then ``python transformers_training.py STORE``.
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from steptape.integrations.transformers import SteptapeCallback

torch.manual_seed(0)
tokens = torch.randint(0, 64, (48, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]

callback = SteptapeCallback(sys.argv[1], rules="overfitting", name="tiny GPT-2")
trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)),
    args=TrainingArguments(
        output_dir="checkpoints",
        per_device_train_batch_size=8,
        num_train_epochs=100,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="no",  # The policy orders a checkpoint at every new best, and stops.
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=data[:32],
    eval_dataset=data[32:],
    callbacks=[callback],
)
callback.attach(trainer)
with callback.training():
    trainer.train()
print(f"stopped after {trainer.state.global_step} of {trainer.state.max_steps} steps")
