"""Trains a small transformer that six broken batches throw off: without rules, steered by some, and healed by others.

The model learns the characters of Python's own help texts. It normalises after each block, as the first transformers
did, and its learning rate is too high for that: what the broken batches do to its weights lasts.

Usage: ``python -m steptape.examples.spiking_transformer [STORE]``
"""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from ..recorder.recorder import Recorder
from ..rules.policy_file.policy import Policy, load_policy

STEPS: Final = 400
WARMUP_STEPS: Final = 50
LEARNING_RATE: Final = 1.5e-2
BATCH_SIZE: Final = 16
CONTEXT: Final = 32
WIDTH: Final = 64
EVAL_EVERY: Final = 20

#: The updates whose batches hold characters drawn at random.
BROKEN: Final = range(201, 207)


class CharacterModel(nn.Module):
    """Predicts the next character from the ones before.

    Args:
        characters: How many there are.
    """

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, characters)

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy in nats. Shapes (batch, context + 1) and ()."""
        before, after = text[:, :-1], text[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        hidden = self.characters(before) + self.positions(torch.arange(CONTEXT))
        logits = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), after.flatten())


def train(store: str | Path, name: str, rules: Policy | str | None = None) -> Path:
    """Train once and record it.

    Args:
        rules: What steers it.

    Returns:
        The run's folder.
    """
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    text = "".join(topics[topic] for topic in sorted(topics))
    codes = {character: code for code, character in enumerate(sorted(set(text)))}
    data = torch.tensor([codes[character] for character in text])

    def batch(size: int, generator: torch.Generator) -> torch.Tensor:
        starts = torch.randint(len(data) - CONTEXT, (size,), generator=generator)
        return torch.stack([data[start : start + CONTEXT + 1] for start in starts])

    held_out = batch(200, torch.Generator().manual_seed(1))
    model = CharacterModel(len(codes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / WARMUP_STEPS))

    with Recorder(store, name=name, rules=rules, total_steps=STEPS, quiet=True) as rec:
        rec.learning_rate(optimizer, scheduler)
        rec.restore_points(model, optimizer)
        for step in range(1, STEPS + 1):
            rows = batch(BATCH_SIZE, random)
            if step in BROKEN:
                rows = torch.randint(len(codes), rows.shape, generator=random)
            loss = model.loss(rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            optimizer.step()
            scheduler.step()
            control = rec.step(loss=loss, grad_norm=grad_norm)
            if control.should_save:  # The rules give up: the state is kept for inspection.
                torch.save(model.state_dict(), rec.folder / "last.pt")
                rec.save(rec.folder / "last.pt")
            if control.should_stop:
                break
            if step % EVAL_EVERY == 0:
                with torch.no_grad():
                    rec.evaluate(eval_loss=model.loss(held_out))
    return rec.folder


def main() -> None:
    """Train the free run, the steered one and the healed one."""
    torch.set_num_threads(1)  # The model is too small for more.
    store = sys.argv[1] if len(sys.argv) > 1 else "runs"
    train(store, "free")
    train(store, "steered", load_policy("surogate", params={"auto_lr_reduction": True}))
    train(store, "healed", "recover")


if __name__ == "__main__":
    main()
