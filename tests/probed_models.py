"""Small models to watch, and the metrics of the catalogue as NumPy computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """A block with two main weights and a normalisation in front."""

    def __init__(self, width: int, extra: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(width)) for _ in range(extra)])

    def forward(self, x: Tensor) -> Tensor:
        """Add to the residual stream."""
        change = self.down(torch.relu(self.up(self.norm(x))))
        for scale in self.scales:
            change = change * scale
        return torch.as_tensor(x + change)


class ResidualModel(nn.Module):
    """Blocks between an embedding and a head.

    Args:
        depth: Number of blocks.
        width: Of the residual stream.
        extra: Further small tensors in each block.
    """

    def __init__(self, depth: int = 4, width: int = 8, extra: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Linear(width, width)
        self.blocks = nn.ModuleList([ResidualBlock(width, extra) for _ in range(depth)])
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits. Shape (n, 2)."""
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(x))


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[np.float64]]:
    """Return copies of tensors as arrays of doubles."""
    return {name: tensor.detach().double().numpy().copy() for name, tensor in tensors.items()}


def gradients(model: nn.Module) -> dict[str, npt.NDArray[np.float64]]:
    """Return the gradients of a model, by parameter."""
    return arrays({name: each.grad for name, each in model.named_parameters() if each.grad is not None})


def whole_norm(parts: Sequence[npt.NDArray[np.float64]]) -> float:
    """Return the L2 norm of some arrays together."""
    return float(np.sqrt(sum((part**2).sum() for part in parts)))


def expected_numbers(
    before: Mapping[str, npt.NDArray[np.float64]],
    used: Mapping[str, npt.NDArray[np.float64]],
    weights: Mapping[str, npt.NDArray[np.float64]],
    after: Mapping[str, npt.NDArray[np.float64]],
    blocks: Sequence[Sequence[str]],
    lr: float,
    clip_norm: float,
) -> dict[str, Any]:
    """Compute the metrics of gradients, parameters and updates of one update.

    Args:
        before, used: Gradients before and after clipping.
        weights, after: Parameters before and after the update.
        blocks: Names of the main weights of each block.
        lr: The learning rate of all parameters.
        clip_norm: The norm to which gradients were clipped.
    """
    norm, weight = whole_norm([*before.values()]), whole_norm([*weights.values()])
    numbers = {
        "LR": lr,
        "Gradients/norm": norm,
        "Gradients/norm_used": whole_norm([*used.values()]),
        "Gradients/clip_coef": min(1.0, clip_norm / (norm + 1e-6)),
        "Gradients/clipped": float(norm > clip_norm),
        "Parameters/norm": weight,
        "Updates/ratio_global": lr * whole_norm([*used.values()]) / (weight + 1e-12),
    }
    for index, names in enumerate(blocks):
        numbers[f"Gradients/block_{index}/norm"] = whole_norm([before[name] for name in names])
        numbers[f"Weights/block_{index}/norm"] = whole_norm([after[name] for name in names])
        own = whole_norm([weights[name] for name in names])
        numbers[f"Updates/block_{index}/ratio"] = lr * whole_norm([used[name] for name in names]) / (own + 1e-12)
    last = len(blocks) - 1
    for kind, of in (("Gradients", "norm"), ("Updates", "ratio")):
        first_last = numbers[f"{kind}/block_0/{of}"], numbers[f"{kind}/block_{last}/{of}"]
        numbers[f"{kind}/depth_ratio_first_last"] = first_last[0] / (first_last[1] + 1e-12)
    main = [name for names in blocks for name in names]
    ratios = np.sort([lr * whole_norm([used[name]]) / (whole_norm([weights[name]]) + 1e-12) for name in main])
    for label, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        numbers[f"Updates/ratio_{label}"] = float(ratios[round(share * (len(ratios) - 1))])
    return numbers
