"""Finds token ids and labels among the arguments of a model's forward pass, and counts them over many passes.

Labels are counted where they are, in one small tensor, so that nothing waits for a device.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from ..loop_values import is_distributed

#: Finds a tensor among arguments by name; None if there is none.
Finder: TypeAlias = Callable[[Mapping[str, Any]], Tensor | None]

_IDS: Final = "input_ids"
LABELS: Final = ("labels", "targets", "target")

#: The label that PyTorch's losses ignore.
IGNORED: Final = -100

#: Types in which an embedding takes ids. Images of bytes are no ids.
_INDEXES: Final = (torch.int64, torch.int32)

_NOT_IDS: Final = "mask|position|segment|type|length|cache|label|target"
_NOT_LABELS: Final = "mask|position|segment|type|length|cache|input|ids"


class BatchContent(NamedTuple):
    """The content of a batch, as far as its arguments show it.

    Attributes:
        samples: The first dimension of the token ids, else of the first tensor; 0 without any.
        tokens: Number of token ids, with padding; None without token ids.
        targets: The labels that count, on their device; None without labels. Labels of two dimensions lose their first
            position, as causal language models predict each token from those before. All others count in full.
        has_target_per_token: Whether the labels have the shape of the token ids.
    """

    samples: int
    tokens: int | None
    targets: Tensor | None
    has_target_per_token: bool


class BatchArguments:
    """Reads the arguments of one model.

    Token ids are ``input_ids``, else the first 32 or 64 bit integers of at least two dimensions. Labels are ``labels``,
    ``targets`` or ``target``, else other integers of the shape of the token ids. Masks, positions and the like are
    neither: positional arguments have the names of the ``forward`` method. A mapping stands for its entries.

    Args:
        model: The model whose ``forward`` gives the names.
        find_ids, find_labels: Replace these rules.
    """

    def __init__(self, model: nn.Module, find_ids: Finder | None = None, find_labels: Finder | None = None) -> None:
        self._names = _positional_names(model)
        self._find_ids, self._find_labels = find_ids or _find_ids, find_labels

    def content(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BatchContent:
        """Return what the arguments of one forward pass hold, without a wait for their device."""
        named = self._named(args, kwargs)
        ids = self._find_ids(named)
        labels = self._find_labels(named) if self._find_labels else _find_labels(named, ids)
        first = ids if ids is not None else next((each for each in named.values() if _is_batch(each)), None)
        targets = labels[:, 1:] if labels is not None and labels.dim() == 2 else labels
        is_per_token = ids is not None and labels is not None and labels.shape == ids.shape
        return BatchContent(
            0 if first is None else first.shape[0], None if ids is None else ids.numel(), targets, is_per_token
        )

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args:
            return kwargs
        named: dict[str, object] = {}
        for index, value in enumerate(args):
            if isinstance(value, Mapping):
                named |= value
            else:
                named[self._names[index] if index < len(self._names) else f"#{index}"] = value
        return {**named, **kwargs}


class Counts(NamedTuple):
    """Sums over forward passes. Immutable, so that an earlier state costs no copy.

    Attributes:
        forwards, samples, tokens: Sums of the host.
        token_forwards, labelled_forwards, aligned_forwards: Forward passes with token ids, with labels, and with labels
            of the shape of the token ids.
        targets: Labels that count, ignored or not.
        ignored: The ignored ones, as a tensor with one element; None before the first.
    """

    forwards: int = 0
    samples: int = 0
    tokens: int = 0
    token_forwards: int = 0
    labelled_forwards: int = 0
    aligned_forwards: int = 0
    targets: int = 0
    ignored: Tensor | None = None

    def add(self, content: BatchContent) -> Counts:
        """Return the sums with one more forward pass."""
        tokens, targets = content.tokens, content.targets
        return Counts(
            self.forwards + 1,
            self.samples + content.samples,
            self.tokens + (tokens or 0),
            self.token_forwards + (tokens is not None),
            self.labelled_forwards + (targets is not None),
            self.aligned_forwards + content.has_target_per_token,
            self.targets + (0 if targets is None else targets.numel()),
            self.ignored if targets is None else _sum(self.ignored, torch.count_nonzero(targets == IGNORED)),
        )

    def since(self, before: Counts) -> Counts:
        """Return the sums since an earlier state."""
        ignored = self.ignored
        if ignored is not None and before.ignored is not None:
            ignored = ignored - before.ignored.to(ignored.device, non_blocking=True)
        return Counts(
            self.forwards - before.forwards,
            self.samples - before.samples,
            self.tokens - before.tokens,
            self.token_forwards - before.token_forwards,
            self.labelled_forwards - before.labelled_forwards,
            self.aligned_forwards - before.aligned_forwards,
            self.targets - before.targets,
            ignored,
        )

    @property
    def effective(self) -> Tensor:
        """The targets that the loss does not ignore. Only with labels."""
        assert self.ignored is not None
        return self.targets - self.ignored

    @property
    def ignored_share(self) -> Tensor | None:
        """The share of the targets that the loss ignores; None without targets."""
        return self.ignored / self.targets if self.ignored is not None and self.targets else None


def _positional_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the positional arguments of ``forward``. Those of a wrapper are its wrapped module's."""
    while isinstance(inner := getattr(model, "module", getattr(model, "_orig_mod", None)), nn.Module):
        model = inner
    try:
        listed = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # For a forward method that is not written in Python.
        return ()
    return tuple(each.name for each in listed if each.kind is each.POSITIONAL_OR_KEYWORD)


def _find_ids(named: Mapping[str, Any]) -> Tensor | None:
    if _has_index_type(given := named.get(_IDS)) and given.dim() > 1:
        return given
    for name, value in named.items():
        if _has_index_type(value) and value.dim() > 1 and not _matches(_NOT_IDS, name):
            return value
    return None


def _find_labels(named: Mapping[str, Any], ids: Tensor | None) -> Tensor | None:
    for name in LABELS:
        if (given := named.get(name)) is not None:
            return given if _has_index_type(given) and given.dim() else None
    if ids is None:
        return None
    for name, value in named.items():
        if _has_index_type(value) and value.shape == ids.shape and value is not ids and not _matches(_NOT_LABELS, name):
            return value
    return None


def _has_index_type(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dtype in _INDEXES and not is_distributed(value)


def _is_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


@lru_cache(maxsize=256)
def _matches(pattern: str, name: str) -> bool:
    return re.search(pattern, str(name)) is not None


def _sum(total: Tensor | None, more: Tensor) -> Tensor:
    """Add counts that may be on two devices, without a wait: the sum is on a device rather than on the host."""
    if total is None:
        return more
    if total.device != more.device:
        if total.is_cpu:
            total = total.to(more.device, non_blocking=True)
        else:
            more = more.to(total.device, non_blocking=True)
    return total + more
