"""Runs a model between two updates so that its training is afterwards the same to the bit."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

#: Where torch's random numbers begin in each run, so that runs of a model that draws some in evaluation are comparable.
_SEED: Final = 0


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate a model, and leave no trace of it.

    Meanwhile all submodules are in evaluation mode, gradients and autocast are off, compiled regions run eagerly, and
    buffers are copies. Random numbers of torch on the host and on the model's devices, of Python and of NumPy continue
    afterwards where they were.
    """
    # Saving and restoring the generators of torch and Python takes 30 us in all.
    with contextlib.ExitStack() as stack:
        devices = {each.device for each in (*model.parameters(), *model.buffers())}
        stack.enter_context(torch.no_grad())
        for kind in sorted({"cpu", *(device.type for device in devices)}):
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(_eager())
        stack.enter_context(_same_random_numbers(devices))
        stack.enter_context(_evaluation_mode(model))
        stack.enter_context(_copied_buffers(model))
        yield


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    # Not by eval(): a model may do work there, such as merging adapters into weights.
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def _copied_buffers(model: nn.Module) -> Iterator[None]:
    """Give the model copies of its buffers: some modules change them in evaluation, too."""
    copies: dict[int, Tensor] = {}
    owned: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]] = []
    try:
        for module in model.modules():
            if isinstance(buffers := module._buffers, dict) and buffers:  # Those of a script module are not.
                owned.append((buffers, dict(buffers)))
                for name, buffer in buffers.items():
                    if buffer is not None and not _is_lazy(buffer):
                        buffers[name] = copies.setdefault(id(buffer), buffer.clone())
        yield
    finally:
        for buffers, own in owned:
            buffers.clear()
            buffers.update(own)


@contextlib.contextmanager
def _same_random_numbers(devices: set[torch.device]) -> Iterator[None]:
    numpy = sys.modules.get("numpy.random")
    python_state, numpy_state = random.getstate(), numpy.get_state() if numpy else None
    generators = [torch.default_generator, *(each for device in devices for each in _generators(device))]
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(_SEED)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python_state)
        if numpy:
            numpy.set_state(numpy_state)


def _generators(device: torch.device) -> list[Any]:
    """Return the default generator of a device. Its state is on the host."""
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    return [generators[device.index]] if device.index is not None and len(generators) > device.index else []


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Run compiled regions eagerly: without gradients, each would be compiled anew."""
    # set_stance is new in torch 2.6. To ask for it loads the compiler, which takes seconds; so only if it is loaded.
    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None or "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return set_stance("force_eager")  # type: ignore[no-any-return]


def _is_lazy(buffer: Tensor) -> bool:
    return isinstance(buffer, nn.parameter.UninitializedBuffer)
