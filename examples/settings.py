"""Defines the hyper-parameters of the examples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyper-parameters of a small classifier under SGD.

    Attributes:
        save_every: Steps between checkpoints; 0 leaves checkpoints to the rules.
    """

    steps: int = 2000
    batch_size: int = 64
    lr: float = 0.1
    momentum: float = 0.9
    hidden: int = 64
    eval_every: int = 10
    save_every: int = 10
    seed: int = 0
