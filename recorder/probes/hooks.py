"""Defines ``Hook``, the form in which probes attach to a model: it never hinders pickling, copying or deleting it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch


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


def _is_abstract() -> bool:
    """Whether tensors have no values now, or none that hold outside of ``torch.func.grad`` and ``vmap``."""
    # torch has no public names for either.
    is_fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    return is_fake or torch._C._functorch.peek_interpreter_stack() is not None


class NoHook:
    """Does nothing: a hook in a pickle or a copy of a watched model."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""
