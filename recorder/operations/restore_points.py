"""Keeps restore points of a training in memory, and returns to one of them in place.

Modules, optimizers and a gradient scaler in; copies of their tensors, and the same tensors with older values out. Data,
steps and schedules go on: only what an update changes goes back. Each rank keeps the shards that it holds.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import torch

from ...store.errors import TelemetryError
from ...store.events import POINT_EVERY

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

logger = logging.getLogger("steptape")

#: Modules and optimizers whose tensors are not the weights and moments, by a part of the full name of their class, and
#: what to use in their place.
_REFUSED: Final[Mapping[str, str]] = {
    "FullyShardedDataParallel": "FSDP1 flattens the weights. Shard with fully_shard (FSDP2), or load a checkpoint with "
    "rollback.to",
    "deepspeed.runtime.": "DeepSpeed keeps its own copies of the weights. Load a checkpoint with rollback.to",
}


@dataclass(slots=True)
class RestorePoint:
    """The copies of one moment.

    Attributes:
        step: Updates that it contains.
        tensors: A copy of each tensor of the modules, in their order.
        states: For each optimizer, the state of each of its parameters, in their order; None for one without.
        scaler: The state of the gradient scaler; None without one.
        ready: Events of the devices after which the copies are whole.
    """

    step: int
    tensors: list[Tensor]
    states: list[list[Any]]
    scaler: Any = None
    ready: list[Any] = field(default_factory=list)


class RestorePoints:
    """The restore points of one process, newest last.

    Args:
        models: The modules, or one, whose parameters and buffers go back.
        optimizers: The optimizers, or one, whose states go back. Their learning rates do not.
        scaler: A ``GradScaler``, whose scale goes back; None without one.
        every: Updates between two points.
        keep: The most points.
        on_device: Whether copies stay on the device. Otherwise those of a GPU lie in pinned memory of the host.

    Raises:
        TelemetryError: An argument is wrong, or its weights cannot be copied in this way.
    """

    def __init__(
        self,
        models: Module | Iterable[Module],
        optimizers: Optimizer | Iterable[Optimizer],
        scaler: Any = None,
        *,
        every: int = POINT_EVERY,
        keep: int = 3,
        on_device: bool = False,
    ) -> None:
        self._models: list[Module] = _several(models)
        several = _several(optimizers)
        if not all(isinstance(model, torch.nn.Module) for model in self._models):
            raise TelemetryError("restore_points: a model is a torch.nn.Module, several are a list", got=models)
        if not all(hasattr(optimizer, "param_groups") for optimizer in several):
            raise TelemetryError("restore_points: an optimizer has param_groups, several are a list", got=optimizers)
        layers = [[*_layers(optimizer)] for optimizer in several]
        self._optimizers = [innermost for *_, innermost in layers]
        self._scaler, self.every, self._keep, self._on_device = scaler, every, keep, on_device
        self._require_plain(layers)
        self._points: list[RestorePoint] = []
        self._streams: dict[torch.device, Any] = {}
        self._spare: list[RestorePoint] = []
        self._taken_at: int | None = None
        self._hooks = [
            optimizer.register_step_pre_hook(self._wait_for_copies)
            for optimizer in self._optimizers
            if hasattr(optimizer, "register_step_pre_hook")
        ]

    def _require_plain(self, optimizers: Iterable[Iterable[Any]]) -> None:
        for name in ("every", "keep"):
            value = getattr(self, name.replace("keep", "_keep"))
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise TelemetryError(f"restore_points: {name} must be a whole number from 1", got=value)
        if not self._models or not self._optimizers:
            raise TelemetryError("restore_points needs a model and an optimizer")
        modules = (inner for model in self._models for inner in model.modules())
        for each in chain.from_iterable(type(part).__mro__ for part in chain(modules, *optimizers)):
            name = f"{each.__module__}.{each.__name__}"
            if fix := next((fix for part, fix in _REFUSED.items() if part in name), None):
                raise TelemetryError(f"restore_points: {each.__name__} is not supported", fix=fix)

    # --- taking -------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[int]:
        """The steps of the points, oldest first."""
        return [point.step for point in self._points]

    def is_due(self, step: int) -> bool:
        """Whether enough updates have passed since the newest point, or since the first look."""
        if self._taken_at is None:
            self._taken_at = step - step % self.every
        return step - self._taken_at >= self.every

    def take(self, step: int) -> int:
        """Copy everything, and drop the oldest point beyond the most.

        Returns:
            The bytes of the copies.

        Raises:
            MemoryError, RuntimeError: There is no room. Points taken before stay, and one fewer is kept from now on.
        """
        self._taken_at = step
        while len(self._points) >= self._keep:
            self._spare.append(self._points.pop(0))
        spare = self._spare.pop() if self._spare else None
        try:
            point = self._copied(step, spare)
        except (MemoryError, RuntimeError):
            self._keep = max(len(self._points), 1)
            self._spare.clear()
            raise
        self._points.append(point)
        return sum(tensor.numel() * tensor.element_size() for tensor in _tensors_of([point.tensors, point.states]))

    def _copied(self, step: int, spare: RestorePoint | None) -> RestorePoint:
        into = iter(_tensors_of([] if spare is None else [spare.tensors, spare.states]))
        point = RestorePoint(step, [], [])
        with torch.no_grad(), _Copying(self._streams, self._on_device, into) as copying:
            # Buffers change in the forward pass, which does not wait for copies.
            point.tensors = [copying.of(tensor, waits=is_buffer) for tensor, is_buffer in self._module_tensors()]
            point.states = [
                [
                    copying.of_tree(optimizer.state[each]) if optimizer.state.get(each) else None
                    for each in _parameters(optimizer)
                ]
                for optimizer in self._optimizers
            ]
        point.ready = copying.ready
        point.scaler = None if self._scaler is None else copy.deepcopy(self._scaler.state_dict())
        return point

    def _module_tensors(self) -> Iterator[tuple[Tensor, bool]]:
        """Yield each tensor of the modules once, tied ones included, and whether it is a buffer.

        Optimizers may train what is in no module: the weights of a loss, or a copy of weights in full precision.
        """
        seen: set[int] = set()
        for model in self._models:
            _reshard(model)
        of_models = ([(model.parameters(), False), (model.buffers(), True)] for model in self._models)
        of_optimizers = ((_parameters(optimizer), False) for optimizer in self._optimizers)
        for tensors, is_buffer in chain(chain.from_iterable(of_models), of_optimizers):
            for tensor in tensors:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor, is_buffer

    def _wait_for_copies(self, *_: Any) -> None:
        """Let the coming update of the weights wait, on their device, for the copies of the newest point."""
        if self._points and (ready := self._points[-1].ready):
            for event in ready:
                event.wait()
            ready.clear()

    # --- returning ----------------------------------------------------------------------------------------------------

    def newest(self, latest: int) -> int | None:
        """Return the step of the newest point up to a step; None without one."""
        return next((point.step for point in reversed(self._points) if point.step <= latest), None)

    def drop_after(self, step: int) -> None:
        """Drop the points after a step: they belong to a training that was left."""
        self._spare += [point for point in self._points if point.step > step]
        self._points = [point for point in self._points if point.step <= step]

    def why_not(self, step: int) -> str:
        """Return why the training cannot return to the point of this step; empty if it can."""
        point = next((each for each in self._points if each.step == step), None)
        if point is None:
            return f"there is no restore point of step {step}"
        shapes = [_local(tensor).shape for tensor, _ in self._module_tensors()]
        groups = [len(_parameters(optimizer)) for optimizer in self._optimizers]
        if shapes != [tensor.shape for tensor in point.tensors] or groups != [len(each) for each in point.states]:
            return f"the model has other parameters than at step {step}"
        return ""

    def restore(self, step: int, *, now: int) -> None:
        """Give all tensors the values of a point, and clear the gradients. Later points are dropped.

        Args:
            step: The step of the point.
            now: Updates finished. The next point is due after as many updates as any other.
        """
        self.drop_after(step)
        point = self._points[-1]
        for event in point.ready:
            event.synchronize()
        with torch.no_grad():
            for (tensor, _), kept in zip(self._module_tensors(), point.tensors, strict=True):
                _local(tensor).copy_(kept, non_blocking=True)
            for optimizer, states in zip(self._optimizers, point.states, strict=True):
                for parameter, kept in zip(_parameters(optimizer), states, strict=True):
                    if kept is None:
                        optimizer.state.pop(parameter, None)
                    else:
                        optimizer.state[parameter] = _with_values(optimizer.state.get(parameter), kept, parameter)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        for model in self._models:
            model.zero_grad(set_to_none=True)
        if self._scaler is not None and point.scaler:
            self._scaler.load_state_dict(point.scaler)
        self._taken_at = now

    def close(self) -> None:
        """Give back the memory."""
        for hook in self._hooks:
            hook.remove()
        self._points.clear()
        self._spare.clear()


def _reshard(model: Module) -> None:
    """Free the whole parameters that FSDP2 holds between a forward and a backward pass: shards are what is trained."""
    for module in model.modules():
        if any(each.__name__ == "FSDPModule" for each in type(module).__mro__):
            module.reshard()  # type: ignore[operator]


def _layers(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer, or the wrappers of frameworks around one, the outermost first, and then it."""
    yield optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
        yield optimizer


def _several(given: Any) -> list[Any]:
    """Return the modules or optimizers of an argument that is one or several."""
    is_one = isinstance(given, (torch.nn.Module, Mapping)) or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds: all of it, or its shard of a ``DTensor``."""
    local = getattr(tensor, "to_local", None)
    return tensor.detach() if local is None else local().detach()


def _tensors_of(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists and mappings, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from _tensors_of(each)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _tensors_of(each)


def _with_values(own: Any, kept: Any, like: Tensor) -> Any:
    """Return the state of a parameter with the values of a point, in the tensors that it has where they fit."""
    if isinstance(kept, torch.Tensor):
        if isinstance(own, torch.Tensor) and _local(own).shape == kept.shape and own.dtype == kept.dtype:
            _local(own).copy_(kept, non_blocking=True)
            return own
        return kept.to(own.device if isinstance(own, torch.Tensor) else like.device, copy=True)
    if isinstance(kept, Mapping):
        owns = own if isinstance(own, Mapping) else {}
        return {key: _with_values(owns.get(key), value, like) for key, value in kept.items()}
    if isinstance(kept, (list, tuple)):
        parts: Sequence[Any] = own if isinstance(own, (list, tuple)) and len(own) == len(kept) else [None] * len(kept)
        return _like(kept, (_with_values(part, value, like) for part, value in zip(parts, kept, strict=True)))
    return copy.deepcopy(kept)


def _like(sequence: list[Any] | tuple[Any, ...], values: Iterable[Any]) -> Any:
    """Return a list or tuple of other values, of the type of one: that of a named tuple takes them one by one."""
    return sequence._make(values) if hasattr(sequence, "_make") else type(sequence)(values)


class _Copying:
    """Copies tensors of one moment, those of a GPU on a stream of its own.

    Args:
        streams: The stream of each device, kept from point to point.
        on_device: Whether copies stay on the device.
        into: Tensors of a dropped point, in the same order, to be written over.

    Attributes:
        ready: Events after which the copies are whole.
    """

    def __init__(self, streams: dict[torch.device, Any], on_device: bool, into: Iterator[Tensor]) -> None:
        self._streams, self._on_device, self._into = streams, on_device, into
        self._used: set[torch.device] = set()
        self.ready: list[Any] = []

    def __enter__(self) -> _Copying:
        return self

    def __exit__(self, *_: object) -> None:
        for device in self._used:
            self.ready.append(self._streams[device].record_event())

    def of(self, tensor: Tensor, *, waits: bool = False) -> Tensor:
        """Return a copy of the part of a tensor that this rank holds.

        Args:
            tensor: The tensor.
            waits: Whether what comes next on the device waits for the copy.
        """
        source = _local(tensor)
        goes_to_host = source.device.type != "cpu" and not self._on_device
        spare = next(self._into, None)
        fits = spare is not None and (spare.shape, spare.dtype) == (source.shape, source.dtype)
        if not fits:
            place = torch.device("cpu") if goes_to_host else source.device
            spare = torch.empty_like(source, device=place, pin_memory=goes_to_host)
        assert spare is not None
        if source.device.type != "cuda" or waits:
            return spare.copy_(source, non_blocking=source.device.type == "cuda")
        stream = self._streams.get(source.device) or torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
        self._streams[source.device] = stream
        if source.device not in self._used:
            self._used.add(source.device)
            stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            return spare.copy_(source, non_blocking=True)

    def of_tree(self, tree: Any) -> Any:
        """Return a copy of nested lists and mappings of tensors and numbers."""
        if isinstance(tree, torch.Tensor):
            return self.of(tree)
        if isinstance(tree, Mapping):
            return {key: self.of_tree(value) for key, value in tree.items()}
        if isinstance(tree, (list, tuple)):
            return _like(tree, map(self.of_tree, tree))
        return copy.deepcopy(tree)
