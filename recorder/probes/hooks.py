"""Attaches probes to a model: ``Hook`` never hinders pickling, copying or deleting it.

``HookedProbes`` is what groups with forward hooks share: which forward passes count, failures, reading.
"""

from __future__ import annotations

import re
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from .probe_values import ProbeGroup, Readings

NOT_RUN: Final = (
    "no forward pass in training mode with gradients ran through it in the update, or only inside of torch.compile"
)
_BLOCK: Final = re.compile(r"block_\d+")


class Hook:
    """Calls a bound method as a hook, as long as its object lives. A pickle or a copy of the model holds a no-op.

    Within a region that ``torch.compile`` traces, a transform of ``torch.func``, or on fake tensors, it does nothing.

    Args:
        method: The bound method. Its object is referenced weakly.
        *bound: Arguments that precede those of the hook.

    Attributes:
        spent_ns: Time that all hooks have taken so far on the host, in nanoseconds.
    """

    spent_ns: ClassVar[int] = 0

    def __init__(self, method: Callable[..., object], *bound: Any) -> None:
        self._method = weakref.WeakMethod(method)
        self._bound = bound

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Call the method. The hook's own result is None, so that it changes nothing.

        ``torch.compile`` traces a hook that is attached inside of its region, and cannot trace a weak reference.
        """
        if torch.compiler.is_compiling() or _is_abstract():
            return
        if (method := self._method()) is None:
            return
        begun_ns = time.perf_counter_ns()
        try:
            method(*self._bound, *args, **kwargs)
        finally:
            Hook.spent_ns += time.perf_counter_ns() - begun_ns

    def __reduce__(self) -> tuple[type[NoHook], tuple[()]]:
        return NoHook, ()


class NoHook:
    """Does nothing: a hook in a pickle or a copy of a watched model."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def _is_abstract() -> bool:
    """Whether tensors have no values now, or none that hold outside of ``torch.func.grad`` and ``vmap``."""
    # torch has no public names for either.
    is_fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    return is_fake or torch._C._functorch.peek_interpreter_stack() is not None


class Pass(NamedTuple):
    """A call of a module: what a hook is given."""

    module: Module
    arguments: tuple[Any, ...]
    output: Any = None


class HookedProbes(ProbeGroup):
    """Reads values in forward hooks, which are attached for one update.

    Forward passes in training mode and with gradients count, the last of an update wins: with several micro-batches
    the last one, with reentrant checkpointing the recomputation.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._values: dict[str, Tensor] = {}
        self._absent: dict[str, str] = {}

    def disarm(self) -> None:
        """Remove the hooks and what they saw. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._values.clear()
        self._absent.clear()

    def read(self, readings: Readings) -> None:
        """Add what the hooks saw, and why the rest has no value."""
        missing = {name: reason for name, reason in self._absent.items() if name not in self._values}
        seen = {_BLOCK.sub("block_*", name) for name in self._values}
        reasons: dict[str, set[str]] = defaultdict(set)
        for name, reason in missing.items():
            reasons[_BLOCK.sub("block_*", name)].add(reason)
        for name, reason in missing.items():
            pattern = _BLOCK.sub("block_*", name)
            # One line for all blocks, as long as it holds for all of them.
            is_common = pattern not in seen and len(reasons[pattern]) == 1
            readings.absent[pattern if is_common else name] = reason
        for name, value in self._values.items():
            readings.scalar(name, value)

    def _expect(self, *names: str) -> None:
        """Promise values of these names. Without any value they are absent, since no forward pass counted."""
        self._absent.update(dict.fromkeys(names, NOT_RUN))

    def _miss(self, reason: str, *names: str) -> None:
        """Drop the values of these names, for a reason."""
        for name in names:
            self._values.pop(name, None)
            self._absent[name] = reason

    def _after(self, module: Module, take: Callable[..., None], *bound: Any, needs_gradients: bool = True) -> None:
        """Call a function of the class with ``bound`` and the pass, after each pass that counts."""
        self._handles.append(module.register_forward_hook(Hook(self._observe, take, bound, needs_gradients)))

    def _before(self, module: Module, take: Callable[..., None], *bound: Any, needs_gradients: bool = True) -> None:
        """Call a function of the class with ``bound`` and the pass, before each pass that counts."""
        self._handles.append(module.register_forward_pre_hook(Hook(self._observe, take, bound, needs_gradients)))

    def _observe(
        self, take: Callable[..., None], bound: tuple[Any, ...], needs_gradients: bool, module: Module, *seen: Any
    ) -> None:
        if not module.training:
            return
        if needs_gradients and not torch.is_grad_enabled():
            return
        try:
            with torch.no_grad():
                take(self, *bound, Pass(module, *seen))
        except Exception as failure:  # An error in a hook would end the loop's forward pass.
            self._fail(bound, f"its probe failed: {type(failure).__name__}: {failure}")

    def _fail(self, bound: tuple[Any, ...], reason: str) -> None:
        """Drop the values of a hook, for a reason. The first of its bound arguments is the prefix of their names."""
        for name in [name for name in self._absent if name.startswith(str(bound[0]))]:
            self._miss(reason, name)


def first_tensor(output: Any) -> Tensor | None:
    """Return an output, or the first tensor of a tuple, list or mapping; None without any."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if hasattr(output, "values") else output
    return next((each for each in values if isinstance(each, Tensor)), None) if _is_collection(values) else None


def unreadable(value: Tensor | None) -> str:
    """Return why a tensor has no statistics; empty if it has."""
    if value is None:
        return "its output holds no tensor"
    if hasattr(value, "to_local"):
        return "its output is distributed over processes"
    if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_meta:
        return "its output is no dense tensor"
    if not (value.is_floating_point() or value.is_complex()):
        return f"its output is of type {str(value.dtype).removeprefix('torch.')}"
    return "" if value.numel() else "its output is empty"


def without_autocast(value: Tensor) -> AbstractContextManager[object]:
    """Return a context that computes in the types of its arguments: autocast would copy them to float32."""
    kind = value.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _is_collection(values: Any) -> bool:
    return hasattr(values, "__iter__") and not isinstance(values, (str, bytes))
