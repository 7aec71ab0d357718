"""Small models for the tests of probes, and how a test reads one update of theirs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from steptape.recorder.probes.activations import Activations, AttentionScores
from steptape.recorder.probes.hooks import HookedProbes
from steptape.recorder.probes.model_structure import structure_of
from steptape.recorder.probes.probe_values import Readings

WIDTH, HEADS, TOKENS = 8, 2, 5


class EagerAttention(nn.Module):
    """Causal self-attention, whose softmax is a module; it keeps its scores and probabilities."""

    def __init__(self, dropout: float = 0.0, mask: float = -math.inf) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(dim=-1)
        self.attn_dropout = nn.Dropout(dropout)
        self.mask = mask
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // HEADS)
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(hidden, self.mask)
        probabilities = self.softmax(scores)
        self.kept = [scores.detach(), probabilities.detach()]
        mixed = self.attn_dropout(probabilities) @ v
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class EagerBlock(nn.Module):
    """A pre-norm block."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = EagerAttention(**options)
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Add attention and MLP."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class NanoGPT(nn.Module):
    """A decoder as nanoGPT names it, with tied embeddings.

    Args:
        layers: The number of blocks.
        run: How a block is run; None for a call.
        **options: Arguments of the attention modules.
    """

    def __init__(
        self, layers: int = 4, run: Callable[[nn.Module, Tensor], Tensor] | None = None, **options: Any
    ) -> None:
        super().__init__()
        parts = {
            "wte": nn.Embedding(11, WIDTH),
            "wpe": nn.Embedding(TOKENS, WIDTH),
            "h": nn.ModuleList([EagerBlock(**options) for _ in range(layers)]),
            "ln_f": nn.LayerNorm(WIDTH),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(WIDTH, 11, bias=False)
        parts["wte"].weight = self.lm_head.weight
        self.run = run

    @property
    def blocks(self) -> Any:
        """The list of blocks."""
        return self.transformer["h"]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x) if self.run is None else self.run(block, x)
        return self.lm_head(self.transformer["ln_f"](x))  # type: ignore[no-any-return]


def tokens_of(rows: int = 3) -> Tensor:
    """Return rows of token ids, always the same."""
    return torch.randint(0, 11, (rows, TOKENS), generator=torch.Generator().manual_seed(rows))


def armed_parts(
    model: nn.Module, level: int = 1, sites: Mapping[str, Any] | None = None, *, is_check: bool = False
) -> tuple[Readings, list[HookedProbes]]:
    """Attach the parts with forward hooks to a model."""
    structure, readings = structure_of(model, sites), Readings(level, is_check=is_check)
    parts: list[HookedProbes] = [Activations(structure), AttentionScores(structure)]
    for part in parts:
        part.arm(readings)
    return readings, parts


def one_update(
    model: nn.Module, forward: Callable[[], object], level: int = 1, sites: Mapping[str, Any] | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """Run a forward pass that is watched, and return the values and what is absent."""
    readings, parts = armed_parts(model, level, sites)
    forward()
    for part in parts:
        part.read(readings)
    values = {name: value.item() for name, value in readings.scalars.items()}
    for part in parts:
        part.close()
    return values, readings.absent
