"""Computes the metrics of one update from the norms of its tensors, on the host.

The formulas are those of the catalogue. Norms and sums come under the keys of ``norms.py``: what was measured, and
the name of the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .norms import Numbers

#: What is measured of each parameter: the gradient's norm before and after clipping, its sum, the weight's norm before
#: and after the update, the norm of what the update moved, and the parts of the optimizer's state that are not finite.
BEFORE: Final = "gradient before clipping"
USED: Final = "gradient"
SUM: Final = "sum of the gradient"
WEIGHT: Final = "weight"
AFTER: Final = "weight after the update"
MOVED: Final = "update"
STATE: Final = "optimizer state"

#: What is measured once: the loss scale of gradients before clipping and at the optimizer, and rates in tensors.
SCALE: Final = "scale"
RATE: Final = "rate"

#: The kind of numbers that are metrics as they are, by name.
GIVEN: Final = ""

#: The group whose rate is the metric ``LR``: optimizer and group, both from 0.
FIRST_GROUP: Final = "0/0"

_TINY: Final = 1e-12

#: A weight whose norm is not above this, such as a bias that begins at 0, has no update ratio.
_NO_WEIGHT: Final = 1e-6
_CLIP_TINY: Final = 1e-6


@dataclass(frozen=True)
class UpdateNumbers:
    """The facts about a model by which metrics are computed.

    Attributes:
        blocks: Names of the main weights of each block, first block first.
        detailed: Names of the parameters that have metrics of their own.
        sizes: Numbers of elements by parameter.
        groups: The parameter group of each parameter that an optimizer updates.
        rates: The learning rate of each group. One in a tensor is measured instead.
        clip_norm: The norm that the loop clips to, if it said so.
        is_minimal: Whether only the metrics of the lowest level are computed.
    """

    blocks: Sequence[Collection[str]]
    detailed: Sequence[str]
    sizes: Mapping[str, int]
    groups: Mapping[str, str]
    rates: Mapping[str, float]
    clip_norm: float | None
    is_minimal: bool

    def metrics(self, numbers: Numbers) -> dict[str, float]:
        """Compute the metrics. Which there are depends on the keys alone."""
        scales = numbers.get(SCALE, {})
        before = _scaled(numbers.get(BEFORE, {}), scales.get(BEFORE))
        used = _scaled(numbers.get(USED, {}), scales.get(USED))
        rates = {**self.rates, **numbers.get(RATE, {})}
        metrics = {**numbers.get(GIVEN, {}), **self._clipping(before, used)}
        if FIRST_GROUP in rates:
            metrics["LR"] = rates[FIRST_GROUP]
        if self.is_minimal:
            return metrics
        weights = numbers.get(WEIGHT, {})
        moved = {name: rates[self.groups[name]] * norm for name, norm in used.items() if self.groups.get(name) in rates}
        metrics |= self._depth("Gradients/block_{}/norm", "Gradients/depth_ratio_first_last", before, {})
        metrics |= self._depth("Weights/block_{}/norm", None, numbers.get(AFTER, {}), {})
        if weights:
            metrics["Parameters/norm"] = _norm(weights.values())
        if moved and weights:
            metrics["Updates/ratio_global"] = _norm(moved.values()) / (_norm(weights.values()) + _TINY)
            metrics |= self._depth("Updates/block_{}/ratio", "Updates/depth_ratio_first_last", moved, weights)
            main = [name for names in self.blocks for name in names if name in moved and name in weights]
            metrics |= _quantiles(sorted(moved[name] / (weights[name] + _TINY) for name in main))
        return metrics | self._details(numbers, used, {**moved, **numbers.get(MOVED, {})}, weights)

    def _clipping(self, before: Mapping[str, float], used: Mapping[str, float]) -> dict[str, float]:
        """Return the norms over all gradients, and what clipping made of them."""
        metrics = {}
        if before:
            metrics["Gradients/norm"] = norm = _norm(before.values())
        if used:
            metrics["Gradients/norm_used"] = norm_used = _norm(used.values())
        if before and self.clip_norm is not None:
            metrics["Gradients/clip_coef"] = _least(1.0, self.clip_norm / (norm + _CLIP_TINY))
            metrics["Gradients/clipped"] = _flag(norm > self.clip_norm, norm)
        elif before and used:
            # Gradients that belong to no optimizer, or to one that is not watched, are not clipped away.
            own = _norm(before[name] for name in used if name in before)
            metrics["Gradients/clip_coef"] = norm_used / own if own > 0 else 1.0
            metrics["Gradients/clipped"] = _flag(norm_used < 0.9999 * own, own)
        return metrics

    def _depth(
        self, name: str, ratio: str | None, norms: Mapping[str, float], divisors: Mapping[str, float]
    ) -> dict[str, float]:
        """Return a norm by block, divided by that of the same tensors if there are divisors, and first by last."""
        metrics: dict[str, float] = {}
        for index, names in enumerate(self.blocks):
            shared = [each for each in names if each in norms and (not divisors or each in divisors)]
            if shared:
                value = _norm(norms[each] for each in shared)
                if divisors:
                    value /= _norm(divisors[each] for each in shared) + _TINY
                metrics[name.format(index)] = value
        first, last = name.format(0), name.format(len(self.blocks) - 1)
        if ratio is not None and len(self.blocks) > 1 and first in metrics and last in metrics:
            metrics[ratio] = metrics[first] / (metrics[last] + _TINY)
        return metrics

    def _details(
        self,
        numbers: Numbers,
        used: Mapping[str, float],
        moved: Mapping[str, float],
        weights: Mapping[str, float],
    ) -> dict[str, float]:
        """Return the metrics of single parameters, and whether the optimizer's state is finite."""
        metrics: dict[str, float] = {}
        sums, after = _scaled(numbers.get(SUM, {}), numbers.get(SCALE, {}).get(USED)), numbers.get(AFTER, {})
        for name in self.detailed:
            if name in used:
                metrics[f"gradients/{name}/norm"] = norm = used[name]
                if name in sums and (size := self.sizes[name]):
                    metrics[f"gradients/{name}/mean"] = mean = sums[name] / size
                    metrics[f"gradients/{name}/std"] = math.sqrt(max(norm * norm / size - mean * mean, 0.0))
            if name in moved and name in weights:
                metrics[f"updates/{name}/update_norm"] = moved[name]
                metrics[f"updates/{name}/weight_norm"] = weights[name]
                is_known = weights[name] > _NO_WEIGHT or math.isnan(weights[name])
                metrics[f"updates/{name}/ratio"] = moved[name] / weights[name] if is_known else math.nan
            if name in after:
                metrics[f"weights/{name}/norm"] = after[name]
        if states := numbers.get(STATE):
            metrics["Optimizer/opt_state_finite"] = float(not any(states.values()))
        return metrics


def _scaled(norms: Mapping[str, float], scale: float | None) -> Mapping[str, float]:
    return {name: norm / scale for name, norm in norms.items()} if scale else norms


def _norm(norms: Iterable[float]) -> float:
    """Return the L2 norm of the whole, from the norms of its parts."""
    return math.hypot(*norms)


def _least(bound: float, value: float) -> float:
    """Return the smaller one; NaN if the value is NaN, which ``min`` would hide."""
    return value if math.isnan(value) else min(bound, value)


def _flag(is_true: bool, of_value: float) -> float:
    """Return 1 or 0; NaN where the value that was compared is NaN."""
    return math.nan if math.isnan(of_value) else float(is_true)


def _quantiles(ratios: Sequence[float]) -> dict[str, float]:
    """Return the quantiles of sorted ratios, each the value at the nearest rank."""
    if not ratios:
        return {}
    last = len(ratios) - 1
    at = {"p50": round(0.5 * last), "p95": round(0.95 * last), "max": last}
    is_known = not any(map(math.isnan, ratios))
    return {f"Updates/ratio_{name}": ratios[index] if is_known else math.nan for name, index in at.items()}
