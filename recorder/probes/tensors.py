"""Measures gradients, parameters and the optimizer's state around the update of an emission.

Gradients are measured at the end of each backward pass, before the loop can clip them, and again when the optimizer
begins its step. All results stay on their devices until ``finish``; ``UpdateNumbers`` then computes the metrics of the
update from norms and sums on the host, by the formulas of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..device_values import Bundle
from ..loop_values import is_distributed
from .hooks import Hook
from .model_structure import ModelStructure
from .norms import Measurements, Numbers, histogram, is_measurable, tails
from .probe_values import Readings

_DEBUG: Final = 2

#: Tensors of an output that may lead the backward pass to a model whose parameters show no gradients of their own.
_MOST_OUTPUTS: Final = 8

#: Gradients of a backward pass after the optimizer's step, before another step follows.
_LATER: Final = "gradient of a later pass"
_NO_UPDATE: Final = "no optimizer made a step in the update: it was skipped, or it comes after rec.step"
_NO_GRADIENTS: Final = "no parameter of the optimizers had a gradient at their step"
_OF_UPDATE: Final = ("Gradients/norm_used", "Updates/*", "gradients/*")
_NO_BACKWARD: Final = "no backward pass filled the gradients: the loop sets them by itself"
_OF_BACKWARD: Final = ("Gradients/norm", "Gradients/clip_coef", "Gradients/clipped", "Gradients/block_*/norm")

#: What is measured of each parameter: the gradient's norm before and after clipping, its sum, the weight's norm before
#: and after the update, the norm of what the update moved, and the parts of the optimizer's state that are not finite.
_BEFORE: Final = "gradient before clipping"
_USED: Final = "gradient"
_SUM: Final = "sum of the gradient"
_WEIGHT: Final = "weight"
_AFTER: Final = "weight after the update"
_MOVED: Final = "update"
_STATE: Final = "optimizer state"

#: What is measured once: the loss scale of gradients before clipping and at the optimizer, and rates in tensors.
_SCALE: Final = "scale"
_RATE: Final = "rate"

#: The kind of numbers that are metrics as they are, by name.
_GIVEN: Final = ""

#: The group whose rate is the metric ``LR``: optimizer and group, both from 0.
FIRST_GROUP: Final = "0/0"
_TINY: Final = 1e-12

#: A weight whose norm is not above this, such as a bias that begins at 0, has no update ratio.
_NO_WEIGHT: Final = 1e-6
_CLIP_TINY: Final = 1e-6


@dataclass(frozen=True)
class Watched:
    """The model, optimizers and options of one emission.

    Attributes:
        model: The innermost module.
        optimizers: Those that update it.
        structure: Its blocks and sentinel tensors.
        clip_norm, scaler: As for ``Recorder.watch``.
        sharded: Parameters that ranks share in parts, by name. They are kept here: after an evaluation, the modules of
            FSDP2 hold whole ones in their place, whose memory is freed with the next backward pass.
    """

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    structure: ModelStructure | None
    clip_norm: float | None
    scaler: Any
    sharded: MutableMapping[str, nn.Parameter]


def _unguarded(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class TensorProbe:
    """Measures the tensors of one emission. Not used again after ``finish``.

    Args:
        watched: What is watched.
        readings: Take the metrics.
        guard: Returns a context that keeps a failure in a backward pass out of the training.
    """

    def __init__(
        self, watched: Watched, readings: Readings, guard: Callable[[str], AbstractContextManager[None]] = _unguarded
    ) -> None:
        self._watched, self._readings, self._guard = watched, readings, guard
        structure, level = watched.structure, readings.level
        known = {id(each): name for name, each in structure.parameters.items()} if structure else {}
        listed = ((name, self._lasting(name, each)) for name, each in watched.model.named_parameters())
        parameters = {known.get(id(each), name): each for name, each in listed if is_measurable(each)}
        self._parameters: dict[str, nn.Parameter] = parameters
        self._names = {id(each): name for name, each in parameters.items()}
        self._detailed = [name for name in structure.parameters_at(level) if name in parameters] if structure else []
        self._measured = Measurements()
        self._handles: list[RemovableHandle] = []
        self._copies: dict[str, Tensor] = {}
        self._rates: dict[str, float] = {}
        self._scales: dict[str, Tensor] = {}
        self._is_queued = self._is_stepping = self._has_stepped = False
        self._attach()

    def _lasting(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """Return the part of this rank, if ranks share the parameter."""
        sharded = self._watched.sharded
        if is_distributed(parameter):
            return sharded.setdefault(name, parameter)
        return sharded.get(name, parameter)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Attach to what ends a backward pass. A parameter that FSDP shards gets its gradient without a hook."""
        begun = Hook(self._begin_backward)
        for parameter in self._parameters.values():
            if parameter.requires_grad and parameter.is_leaf and not is_distributed(parameter):
                handle = parameter.register_post_accumulate_grad_hook(begun)  # type: ignore[no-untyped-call]
                self._handles.append(handle)
        if any(map(is_distributed, self._parameters.values())):
            self._handles.append(self._watched.model.register_forward_hook(Hook(self._follow_output)))

    def detach(self) -> None:
        """Remove the hooks. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _follow_output(self, *given: Any) -> None:
        *_, output = given
        for tensor in _tensors(output)[:_MOST_OUTPUTS]:
            if tensor.requires_grad:
                tensor.register_hook(Hook(self._begin_backward))  # type: ignore[no-untyped-call]

    def _begin_backward(self, *_: Any) -> None:
        """Have the gradients measured once this backward pass is over, and once more is queued behind it."""
        if not self._is_queued and self._handles:
            self._is_queued = True
            # DDP averages the gradients in a callback of its own, perhaps queued after this one. So queue again there.
            _at_end_of_backward(lambda: _at_end_of_backward(self._end_backward))

    def begin_forward(self) -> None:
        """Note that a forward pass begins: a backward pass that raised is over, without its end."""
        self._is_queued = False

    def _end_backward(self) -> None:
        self._is_queued = False
        with self._guard("the backward pass"):
            self._measure_backward()

    def _measure_backward(self) -> None:
        if self._handles:
            # Without a further step of an optimizer, a later backward pass belongs to another model's update.
            what = _BEFORE if self._is_stepping or not self._has_stepped else _LATER
            self._measure_gradients(what, self._parameters, _loss_scale(self._watched.scaler, self._parameters))
            if self._is_stepping:  # The optimizer's closure has run the backward pass.
                self._has_stepped = False

    # --- the optimizer's step -----------------------------------------------------------------------------------------

    def before_update(self, optimizer: Optimizer) -> None:
        """Measure what the optimizer is about to use."""
        self._is_queued, self._is_stepping = False, True
        if self._measured.rename(_LATER, _BEFORE) and (scale := self._scales.pop(_LATER, None)) is not None:
            self._scales[_BEFORE] = scale
        level, own = self._readings.level, self._of(optimizer)
        if level and not self._measured.has(_WEIGHT):
            self._measured.norms(_WEIGHT, self._parameters)
            if level == _DEBUG:
                self._copies = {
                    name: self._parameters[name].detach().clone()
                    for name in self._detailed
                    if self._parameters[name].dtype.itemsize > 1  # torch cannot subtract those of eight bits.
                }
        self._note_rates(optimizer)
        self._measure_used(optimizer, own)

    def after_update(self, optimizer: Optimizer) -> None:
        """Measure what a closure has made anew meanwhile."""
        self._is_stepping = False
        if not self._has_stepped:
            self._measure_used(optimizer, self._of(optimizer))

    def _measure_used(self, optimizer: Optimizer, own: Mapping[str, nn.Parameter]) -> None:
        self._has_stepped = True
        self._measure_gradients(_USED, own, getattr(optimizer, "grad_scale", None), str(id(optimizer)))
        detailed = {name: own[name] for name in self._detailed if name in own}
        self._measured.sums(_SUM, _gradients(detailed), str(id(optimizer)))

    def _measure_gradients(
        self, what: str, own: Mapping[str, nn.Parameter], scale: Tensor | None, part: str = ""
    ) -> None:
        if gradients := _gradients(own):
            self._measured.norms(what, gradients, part)
            if scale is not None:
                self._scales[what] = scale

    def _of(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the watched parameters of an optimizer."""
        listed = (each for group in optimizer.param_groups for each in group["params"])
        return {self._names[id(each)]: each for each in listed if id(each) in self._names}

    def _note_rates(self, optimizer: Optimizer) -> None:
        number = self._watched.optimizers.index(optimizer)
        for index, group in enumerate(optimizer.param_groups):
            if isinstance(rate := group["lr"], Tensor):
                self._measured.scalars(_RATE, {f"{number}/{index}": rate})
            else:
                self._rates[f"{number}/{index}"] = float(rate)

    # --- the end of the update ----------------------------------------------------------------------------------------

    def explain(self) -> None:
        """Say why what belongs to the backward pass or to the optimizer's step is missing."""
        if self._watched.optimizers and not self._has_stepped:
            self._readings.absent |= dict.fromkeys(("LR", *_OF_UPDATE), _NO_UPDATE)
        elif self._has_stepped and not self._measured.has(_USED):
            self._readings.absent |= dict.fromkeys(_OF_UPDATE, _NO_GRADIENTS)
        if self._measured.has(_USED) and not self._measured.has(_BEFORE):
            self._readings.absent |= dict.fromkeys(_OF_BACKWARD, _NO_BACKWARD)

    def finish(self, rates: Mapping[str, float]) -> Bundle | None:
        """Measure the finished update and return all metrics; None if nothing was measured.

        Collective in a job whose ranks share parameters in parts.

        Args:
            rates: Rates that replace those of the optimizer's groups, as rules have changed them.
        """
        self.detach()
        readings, structure = self._readings, self._watched.structure
        blocks = [tuple(block.main_weights) for block in structure.blocks] if structure and readings.level else []
        if readings.level and self._measured.has(_WEIGHT):
            shown = dict.fromkeys([*self._detailed, *(name for names in blocks for name in names)])
            self._measured.norms(_AFTER, {name: self._parameters[name] for name in shown if name in self._parameters})
            with torch.no_grad():
                moved = {name: self._parameters[name].detach() - copy for name, copy in self._copies.items()}
            self._measured.norms(_MOVED, moved)
        if readings.level and readings.is_check:
            self._measured.finiteness(_STATE, self._state())
            self._add_histograms()
        self._measured.drop(_LATER)
        self._measured.scalars(_SCALE, self._scales)
        self._measured.scalars(_GIVEN, readings.scalars)
        numbers = UpdateNumbers(
            blocks=blocks,
            detailed=self._detailed,
            sizes={name: _size(self._parameters[name]) for name in self._detailed if name in self._parameters},
            groups=self._groups(),
            rates={**self._rates, **rates},
            clip_norm=self._watched.clip_norm,
            is_minimal=not readings.level,
        )
        return self._measured.bundle(numbers.metrics)

    def _groups(self) -> dict[str, str]:
        return {
            self._names[id(each)]: f"{number}/{index}"
            for number, optimizer in enumerate(self._watched.optimizers)
            for index, group in enumerate(optimizer.param_groups)
            for each in group["params"]
            if id(each) in self._names
        }

    def _state(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizers' state, by parameter and name."""
        chosen = {name: self._parameters[name] for name in self._detailed if name in self._parameters}
        return {
            f"{name}/{key}": value
            for optimizer in self._watched.optimizers
            for name, parameter in chosen.items()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor) and value.dim() and is_measurable(value)
        }

    def _add_histograms(self) -> None:
        for name in self._detailed:
            parameter = self._parameters.get(name)
            if parameter is None or is_distributed(parameter):
                continue
            for kind, tensor in (("weights", parameter), ("gradients", parameter.grad)):
                if tensor is not None:
                    self._readings.vector(f"{kind}_hist/{name}", histogram(tensor))
                    outliers, zeros = tails(tensor)
                    self._readings.scalar(f"{kind}/{name}/outlier_rate_k10", outliers)
                    if kind == "gradients":
                        self._readings.scalar(f"gradients/{name}/near_zero_rate", zeros)


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
        scales = numbers.get(_SCALE, {})
        before = _scaled(numbers.get(_BEFORE, {}), scales.get(_BEFORE))
        used = _scaled(numbers.get(_USED, {}), scales.get(_USED))
        rates = {**self.rates, **numbers.get(_RATE, {})}
        metrics = {**numbers.get(_GIVEN, {}), **self._clipping(before, used)}
        if FIRST_GROUP in rates:
            metrics["LR"] = rates[FIRST_GROUP]
        if self.is_minimal:
            return metrics
        weights = numbers.get(_WEIGHT, {})
        moved = {name: rates[self.groups[name]] * norm for name, norm in used.items() if self.groups.get(name) in rates}
        metrics |= self._depth("Gradients/block_{}/norm", "Gradients/depth_ratio_first_last", before, {})
        metrics |= self._depth("Weights/block_{}/norm", None, numbers.get(_AFTER, {}), {})
        if weights:
            metrics["Parameters/norm"] = _norm(weights.values())
        if moved and weights:
            metrics["Updates/ratio_global"] = _norm(moved.values()) / (_norm(weights.values()) + _TINY)
            metrics |= self._depth("Updates/block_{}/ratio", "Updates/depth_ratio_first_last", moved, weights)
            main = [name for names in self.blocks for name in names if name in moved and name in weights]
            metrics |= _quantiles(sorted(moved[name] / (weights[name] + _TINY) for name in main))
        return metrics | self._details(numbers, used, {**moved, **numbers.get(_MOVED, {})}, weights)

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
        sums, after = _scaled(numbers.get(_SUM, {}), numbers.get(_SCALE, {}).get(_USED)), numbers.get(_AFTER, {})
        for name in self.detailed:
            if name in used:
                metrics[f"gradients/{name}/norm"] = norm = used[name]
                if name in sums and (size := self.sizes[name]):
                    metrics[f"gradients/{name}/mean"] = mean = sums[name] / size
                    if size > 1:  # A single element is its mean.
                        metrics[f"gradients/{name}/std"] = math.sqrt(max(norm * norm / size - mean * mean, 0.0))
                        metrics[f"gradients/{name}/mean_share"] = size * mean * mean / (norm * norm) if norm else 0.0
            if name in moved and name in weights:
                metrics[f"updates/{name}/update_norm"] = moved[name]
                metrics[f"updates/{name}/weight_norm"] = weights[name]
                is_known = weights[name] > _NO_WEIGHT or math.isnan(weights[name])
                metrics[f"updates/{name}/ratio"] = moved[name] / weights[name] if is_known else math.nan
            if name in after:
                metrics[f"weights/{name}/norm"] = after[name]
        if states := numbers.get(_STATE):
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


def _size(parameter: Tensor) -> int:
    """Return the number of elements, both parts of complex ones."""
    return parameter.numel() * (1 + parameter.is_complex())


def _gradients(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: each.grad for name, each in parameters.items() if each.grad is not None and is_measurable(each.grad)}


def _loss_scale(scaler: Any, parameters: Mapping[str, nn.Parameter]) -> Tensor | None:
    """Return the factor of the loss, as ``GradScaler`` has it on the device; None without one."""
    if scaler is None or not scaler.is_enabled():
        return None
    device = next(iter(parameters.values())).device
    scaled: Tensor = scaler.scale(torch.ones((), device=device))
    return scaled


def _at_end_of_backward(call: Any) -> None:
    # torch has no public name for it. Its own DDP and FSDP depend on this one.
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _tensors(output: Any) -> list[Tensor]:
    """Return the tensors of a module's output: itself, or the values of a sequence or mapping."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for each in output.values() for tensor in _tensors(each)]
    if isinstance(output, (tuple, list)):
        return [tensor for each in output for tensor in _tensors(each)]
    return []
