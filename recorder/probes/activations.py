"""Reads the residual stream, normalisation layers and attention scores: outputs of modules in, scalars out.

Scalars stay on the device. Nothing is recomputed and no implementation of attention is changed: what a model does not
show is absent, with a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Softmax

from .hooks import HookedProbes, Pass, first_tensor, unreadable, without_autocast
from .model_structure import COMPILED, Block, ModelStructure
from .norms import histogram
from .probe_values import Readings

#: An element is an outlier above this multiple of the root mean square.
_OUTLIER_FACTOR: Final = 10
_LATE_NORM: Final = "the normalisation layer runs after the attention module"
_EARLY_NORM: Final = "the normalisation layer runs before the last block"

#: Scores above it count for ``frac_logits_gt_tau``.
TAU: Final = 100.0

#: Scores below it are masked: masks add -inf, the least number of the type, or about -10,000.
_MASKED_BELOW: Final = -5000.0
_FUSED: Final = (
    "the attention module returns no weights, as with scaled_dot_product_attention; train with "
    "attn_implementation='eager' (and output_attentions=True in transformers 4), or name what outputs the scores in "
    "sites={'attention_scores': ...}"
)
_WEIGHTS_ONLY: Final = "the attention module returns probabilities, not scores"
_DROPPED: Final = "the attention module returns its weights after dropout or a mask of heads"
_AVERAGED: Final = "the attention module returns the mean of its heads' weights"
_NO_GRAPH: Final = "the attention module returns tensors without gradients, so that their origin is unknown"
_NOT_KEYS: Final = "its softmax is not over the last dimension"

#: Steps of the graph that change neither a value nor the last dimension.
_COPIES: Final = ("ToCopyBackward", "CloneBackward", "AliasBackward")
_VIEWS: Final = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward")
_LONGEST_PATH: Final = 6


class Activations(HookedProbes):
    """Reads ``Residual/block_i/...`` and ``Activations/SITE/...`` of the sentinel blocks, in debug of all blocks.

    Args:
        structure: The structure of the model.
    """

    def __init__(self, structure: ModelStructure) -> None:
        super().__init__()
        self._structure: ModelStructure | None = structure
        self._ran: set[str] = set()
        self._misplaced: set[str] = set()
        self._histograms: dict[str, Tensor] = {}
        self._is_check = False

    def arm(self, readings: Readings) -> None:
        """Attach hooks to the blocks and normalisation layers of the level."""
        self.disarm()
        structure, self._is_check = self._structure, readings.is_check
        if structure is None or not readings.level:
            return
        self._absent.update({name: why for name, why in structure.absent.items() if name.startswith("Activations/")})
        if not structure.blocks:
            self._absent["Residual/block_*"] = structure.absent["*/block_*"]
        for site, module in structure.norm_sites_at(readings.level).items():
            self._expect(f"Activations/{site}/rms", f"Activations/{site}/max_abs")
            self._after(module, Activations._measure_norm, f"Activations/{site}/")
        self._arm_blocks(structure, readings.level)

    def disarm(self) -> None:
        """Remove the hooks and what they saw. Idempotent."""
        super().disarm()
        self._ran.clear()
        self._misplaced.clear()
        self._histograms.clear()

    def read(self, readings: Readings) -> None:
        """Add what the hooks saw, and at a check the histograms of the same outputs."""
        super().read(readings)
        for prefix, histogram_of in self._histograms.items():
            if f"{prefix}rms" in self._values:
                site = prefix.removeprefix("Activations/").removesuffix("/")
                readings.vector(f"activations_hist/{site}", histogram_of)

    def close(self) -> None:
        """Remove the hooks, and forget the model. Idempotent."""
        super().close()
        self._structure = None

    def _arm_blocks(self, structure: ModelStructure, level: int) -> None:
        by_structure = not structure.named_norms
        for block in structure.blocks_at(level):
            prefix, site = f"Residual/block_{block.index}/", f"Activations/block_{block.index}/attn_norm/"
            if block.is_compiled:
                self._absent[f"{prefix}*"] = COMPILED
            else:
                self._expect(f"{prefix}rms", f"{prefix}outlier_rate_k10")
                self._after(block.module, Activations._measure_block, prefix)
            if not by_structure:
                continue
            if block.is_compiled_inside:
                self._absent[f"{site}*"] = COMPILED
            elif block.attention_norm is None or block.attention is None:
                self._absent[f"{site}*"] = "no normalisation layer is found in front of the attention"
            else:
                self._check_order(block.attention_norm, block.attention, site, _LATE_NORM)
        if by_structure and structure.final_norm is not None and not structure.blocks[-1].is_compiled:
            self._check_order(structure.blocks[-1].module, structure.final_norm, "Activations/final_norm/", _EARLY_NORM)

    def _check_order(self, first: Module, second: Module, prefix: str, reason: str) -> None:
        """Give a site up if its modules run in another order, since its name would be wrong.

        Passes without gradients count, too: reentrant checkpointing runs a whole block in one.
        """
        self._after(first, Activations._mark, prefix, needs_gradients=False)
        self._before(second, Activations._compare, prefix, reason, needs_gradients=False)

    def _mark(self, prefix: str, _seen: Pass) -> None:
        self._ran.add(prefix)

    def _compare(self, prefix: str, reason: str, _seen: Pass) -> None:
        if prefix not in self._ran:
            self._misplaced.add(prefix)
            self._miss(reason, f"{prefix}rms", f"{prefix}max_abs")

    def _measure_block(self, prefix: str, seen: Pass) -> None:
        value = first_tensor(seen.output)
        reason = unreadable(value)
        if value is None or reason:
            self._miss(reason, f"{prefix}rms", f"{prefix}outlier_rate_k10")
            return
        with without_autocast(value):
            sizes = value.abs()
            rms = root_mean_square(sizes)
            self._values[f"{prefix}rms"] = rms
            self._values[f"{prefix}outlier_rate_k10"] = share_above(sizes, _OUTLIER_FACTOR * rms)

    def _measure_norm(self, prefix: str, seen: Pass) -> None:
        value = first_tensor(seen.output)
        reason = unreadable(value)
        if prefix in self._misplaced:
            return
        if value is None or reason:
            self._miss(reason, f"{prefix}rms", f"{prefix}max_abs")
            return
        with without_autocast(value):
            value = value.abs() if value.is_complex() else value
            self._values[f"{prefix}rms"] = root_mean_square(value)
            self._values[f"{prefix}max_abs"] = torch.stack(torch.aminmax(value)).abs().amax()
            if self._is_check:
                self._histograms[prefix] = histogram(value)


class AttentionScores(HookedProbes):
    """Reads ``Attention/block_i/...`` of the sentinel blocks, in debug of all blocks.

    The source of a block is, in this order: the module that ``sites`` names; the one ``nn.Softmax`` inside the
    attention module; the weights that the attention module returns, which yield the entropy alone.

    Args:
        structure: The structure of the model.
    """

    def __init__(self, structure: ModelStructure) -> None:
        super().__init__()
        self._structure: ModelStructure | None = structure
        self._level = 0

    def arm(self, readings: Readings) -> None:
        """Attach hooks to what shows the attention of the level's blocks."""
        self.disarm()
        structure, self._level = self._structure, readings.level
        if structure is None or not readings.level:
            return
        blocks = structure.blocks_at(readings.level)
        if not any(block.attention or block.scores for block in blocks):
            why = structure.absent.get("*/block_*") or structure.absent.get("Attention/block_*")
            self._absent["Attention/block_*"] = why or "the blocks hold no attention module"
            return
        shared = _shared(structure)
        for block in blocks:
            self._arm_block(block, shared)

    def close(self) -> None:
        """Remove the hooks, and forget the model. Idempotent."""
        super().close()
        self._structure = None

    def _arm_block(self, block: Block, shared: set[int]) -> None:
        prefix = f"Attention/block_{block.index}/"
        softmaxes = _softmaxes(block.attention)
        if block.is_compiled_inside:
            self._absent[f"{prefix}*"] = COMPILED
        elif block.scores is not None:
            self._arm_source(prefix, block.scores, shared)
        elif len(softmaxes) == 1:
            self._arm_source(prefix, softmaxes[0], shared)
        elif softmaxes:
            self._absent[f"{prefix}*"] = f"the attention module holds {len(softmaxes)} nn.Softmax; name one in `sites`"
        elif block.attention is None:
            self._absent[f"{prefix}*"] = "the block holds no attention module"
        else:
            self._expect(*self._names(prefix))
            self._after(block.attention, AttentionScores._read_weights, prefix)

    def _arm_source(self, prefix: str, source: Module, shared: set[int]) -> None:
        if id(source) in shared:
            self._absent[f"{prefix}*"] = "blocks share the module that shows the scores"
            return
        self._expect(*self._names(prefix))
        take = AttentionScores._read_softmax if isinstance(source, Softmax) else AttentionScores._read_output
        self._after(source, take, prefix)

    def _names(self, prefix: str) -> list[str]:
        return [*self._score_names(prefix), f"{prefix}attn_entropy", f"{prefix}attn_entropy_norm"]

    def _score_names(self, prefix: str) -> list[str]:
        names = [f"{prefix}max_attn_logit"]
        return [*names, f"{prefix}frac_logits_gt_tau"] if self._level > 1 else names

    def _read_softmax(self, prefix: str, seen: Pass) -> None:
        scores, output = first_tensor(seen.arguments), first_tensor(seen.output)
        reason = unreadable(output) or unreadable(scores)
        if scores is None or output is None or reason:
            self._miss(reason, *self._names(prefix))
        elif isinstance(seen.module, Softmax) and seen.module.dim not in (-1, output.dim() - 1):
            self._miss(_NOT_KEYS, *self._names(prefix))
        else:
            with without_autocast(output):
                self._put_scores(prefix, scores)
                self._put_entropy(prefix, output)

    def _read_output(self, prefix: str, seen: Pass) -> None:
        scores = first_tensor(seen.output)
        reason = unreadable(scores)
        if scores is None or reason:
            self._miss(reason, *self._names(prefix))
            return
        with without_autocast(scores):
            self._put_scores(prefix, scores)
            self._put_entropy(prefix, torch.softmax(_precise(scores), dim=-1))

    def _read_weights(self, prefix: str, seen: Pass) -> None:
        weights, reason = returned_probabilities(seen.output)
        if weights is None:
            self._miss(reason, *self._names(prefix))
            return
        self._miss(_WEIGHTS_ONLY, *self._score_names(prefix))
        with without_autocast(weights):
            self._put_entropy(prefix, weights)

    def _put_scores(self, prefix: str, scores: Tensor) -> None:
        greatest = _precise(scores.amax())
        # Without any unmasked score there is no greatest one. A tensor made of a number would cost a synchronisation.
        self._values[f"{prefix}max_attn_logit"] = greatest.masked_fill(greatest < _MASKED_BELOW, math.nan)
        if self._level > 1:
            share = share_above(scores, TAU) / share_above(scores, _MASKED_BELOW)
            self._values[f"{prefix}frac_logits_gt_tau"] = share

    def _put_entropy(self, prefix: str, probabilities: Tensor) -> None:
        entropy = torch.special.entr(_precise(probabilities)).sum(dim=-1).mean()
        keys = probabilities.shape[-1]
        self._values[f"{prefix}attn_entropy"] = entropy
        self._values[f"{prefix}attn_entropy_norm"] = entropy / math.log(keys) if keys > 1 else torch.zeros_like(entropy)


def returned_probabilities(output: Any) -> tuple[Tensor | None, str]:
    """Find the attention probabilities among what an attention module returns, by the graph that computed them.

    Returns:
        The probabilities, or None and the reason why there are none.
    """
    if isinstance(output, Mapping):
        output = tuple(output.values())
    others = output[1:] if isinstance(output, (tuple, list)) else ()
    candidates = [each for each in others if isinstance(each, Tensor) and each.dim() > 2 and not unreadable(each)]
    reason = _FUSED
    for value in candidates:
        found = _origin(value)
        if not found:
            return value, ""
        # T5 returns its position bias, too: what was done to the weights says more than an unknown tensor.
        reason = found if reason == _FUSED else reason
    return None, reason


def _origin(value: Tensor) -> str:
    """Return why a tensor is not the result of a softmax over its last dimension; empty if it is.

    Only names and sizes in the graph are read: reading a saved tensor would run a checkpoint's recomputation.
    """
    node = value.grad_fn
    if node is None:
        return _NO_GRAPH
    for _ in range(_LONGEST_PATH):
        if node is None:
            return _FUSED
        name = node.name()
        if name.startswith("SoftmaxBackward"):
            dimension = getattr(node, "_saved_dim", 0)
            return "" if dimension in (value.dim() - 1, 2**64 - 1, -1) else _NOT_KEYS
        if name.startswith(("MulBackward", "NativeDropoutBackward")):
            return _DROPPED
        if name.startswith("MeanBackward"):
            return _AVERAGED
        sizes = list(getattr(node, "_saved_self_sym_sizes", ()))
        is_view = name.startswith(_VIEWS) and sizes[-1:] == [value.shape[-1]]
        if not (is_view or name.startswith(_COPIES)):
            return _FUSED
        node = node.next_functions[0][0]
    return _FUSED


def _softmaxes(attention: Module | None) -> list[Softmax]:
    return [] if attention is None else [each for each in attention.modules() if isinstance(each, Softmax)]


def _shared(structure: ModelStructure) -> set[int]:
    """Return the identities of the modules that would show the scores of more than one block."""
    sources = Counter(id(source) for block in structure.blocks for source in _sources(block))
    return {source for source, count in sources.items() if count > 1}


def _sources(block: Block) -> Iterator[Module]:
    if block.scores is not None:
        yield block.scores
    else:
        yield from _softmaxes(block.attention)


def _precise(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def root_mean_square(values: Tensor) -> Tensor:
    """Return the root mean square of a real tensor, in float32 or float64.

    The sum has two stages: a sum over all elements in one has a relative error of 7e-5 at 3 million elements on a CPU.
    """
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    rows = torch.linalg.vector_norm(values.reshape(1) if values.dim() == 0 else values, dim=-1, dtype=dtype)
    whole: Tensor = torch.linalg.vector_norm(rows)
    return whole / math.sqrt(values.numel())


def share_above(values: Tensor, threshold: Tensor | float) -> Tensor:
    """Return the share of the elements that exceed a threshold, which is a number or a tensor with one element."""
    # A tensor of one dimension keeps its type, where one of none would be rounded to that of the values.
    above = values.reshape(-1) > (threshold.reshape(1) if isinstance(threshold, Tensor) else threshold)
    return above.sum(dtype=torch.int64).to(torch.float32) / values.numel()
