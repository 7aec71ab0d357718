"""Finds loss, logits and targets in what a model returns, and computes the probe batch's metrics from them.

Nothing here waits for a device, and nothing keeps a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..values import is_distributed
from .data_and_time import IGNORED

_TOP: Final = 10

#: Log-probabilities that are kept from one run to the next: 16 MiB.
_MOST_KEPT: Final = 1 << 22


class Output(NamedTuple):
    """The loss and logits that a model returned.

    Attributes:
        loss: A tensor with one element; None if there is none.
        logits: Scores of classes. Shape (n, classes), or (n, positions, classes); None if there are none.
    """

    loss: Tensor | None
    logits: Tensor | None


def output_of(returned: Any) -> Output:
    """Read what a model returned.

    The loss is the entry ``loss``, or the one element without dimensions of a sequence. Logits are the entry
    ``logits``, the first tensor of a sequence with at least two dimensions, or the tensor itself.
    """
    if isinstance(returned, Tensor):
        return Output(None, _scores(returned)) if returned.dim() else Output(returned, None)
    if isinstance(returned, (tuple, list)) and not hasattr(returned, "logits"):
        tensors = [each for each in returned if isinstance(each, Tensor) and each.is_floating_point()]
        loss = next((each for each in tensors if each.dim() == 0), None)
        return Output(loss, next((each for each in map(_scores, tensors) if each is not None), None))
    loss, logits = _entry(returned, "loss"), _entry(returned, "logits")
    return Output(
        loss if isinstance(loss, Tensor) and loss.numel() == 1 and not is_distributed(loss) else None,
        _scores(logits) if isinstance(logits, Tensor) else None,
    )


def cross_entropy(logits: Tensor, targets: Tensor, *, is_shifted: bool, class_count: int) -> Tensor | None:
    """Return the mean cross-entropy in 32 bits; None if targets do not fit the logits.

    Args:
        logits: Classes are the last dimension, or the second one, as in images.
        targets: Shape of the logits without the classes. Label -100 does not count.
        is_shifted: Whether the logits of a position are for the next one, as with token ids as targets.
        class_count: The number of classes that the targets need. On a GPU, one target beyond them ends the process.
    """
    if logits.shape[:-1] == targets.shape:
        if is_shifted:
            logits, targets = logits[:, :-1], targets[:, 1:]
        logits, targets = logits.flatten(0, -2), targets.flatten()
    elif is_shifted or logits.shape[:1] + logits.shape[2:] != targets.shape:
        return None
    if logits.shape[1] < class_count:
        return None
    loss: Tensor = functional.cross_entropy(logits.float(), targets.long(), ignore_index=IGNORED)
    return loss


def last_log_probabilities(logits: Tensor) -> Tensor:
    """Return the log-probabilities at the last position, in 32 bits. Shape (n, classes)."""
    last = logits[:, -1] if logits.dim() == 3 else logits
    log_p: Tensor = functional.log_softmax(last.float(), -1)
    return log_p


def entropy(log_p: Tensor) -> Tensor:
    """Return the mean entropy of rows of log-probabilities, in nats."""
    rows: Tensor = torch.special.entr(log_p.exp()).sum(-1)
    return rows.mean()


def top_mass(log_p: Tensor) -> tuple[int, Tensor]:
    """Return k, which is 10 or the number of classes, and the mean sum of the k greatest probabilities."""
    k = min(_TOP, log_p.shape[-1])
    return k, log_p.topk(k).values.exp().sum(-1).mean()


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the mean KL divergence of rows, KL(p, q), in nats."""
    p = log_p.exp()
    return (p * (log_p - log_q)).where(p != 0, 0).sum(-1).mean()


def kept(log_p: Tensor) -> Tensor:
    """Return as many first rows as are kept for the next run."""
    return log_p[: max(1, _MOST_KEPT // log_p.shape[-1])].clone()


def _scores(tensor: Tensor) -> Tensor | None:
    return tensor if tensor.dim() > 1 and tensor.is_floating_point() and not is_distributed(tensor) else None


def _entry(returned: Any, name: str) -> Any:
    return returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)
