"""Defines ``Hook``, the form in which probes attach to a model: it never hinders pickling, copying or deleting it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch


class Hook:
    """Calls a bound method as a hook, as long as its object lives. A pickle or a copy of the model holds a no-op.

    Args:
        method: The bound method. Its object is referenced weakly.
        *bound: Arguments that precede those of the hook.
    """

    def __init__(self, method: Callable[..., object], *bound: Any) -> None:
        self._method = weakref.WeakMethod(method)
        self._bound = bound

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Call the method. The hook's own result is None, so that it changes nothing.

        ``torch.compile`` traces a hook that is attached inside of its region, and cannot trace a weak reference.
        """
        if torch.compiler.is_compiling():
            return
        method = self._method()
        if method is not None:
            method(*self._bound, *args, **kwargs)

    def __reduce__(self) -> tuple[type[NoHook], tuple[()]]:
        return NoHook, ()


class NoHook:
    """Does nothing: a hook in a pickle or a copy of a watched model."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""
