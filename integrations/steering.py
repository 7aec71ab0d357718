"""Carries out operations with arguments in frameworks: on the optimizer that a framework has, as far as it can be true.

An optimizer of a framework and the recorder's operations in; a changed learning rate or an update without effect out.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from ..recorder.recorder import Recorder

if TYPE_CHECKING:
    from ..recorder.operations.learning_rate import LearningRate

#: The operation that leaves out an update.
SKIP: Final = "batch.skip()"

_LEARNING_RATE: Final = "lr."

#: Optimizers whose ``step`` is not the update: it happens in the backward pass.
_ELSEWHERE: Final = (
    "DeepSpeedOptimizerWrapper",
    "DeepSpeedOptimizer",
    "LayerWiseDummyOptimizer",
    "Lomo",
    "AdaLomo",
)


def steer_learning_rate(rec: Recorder, optimizer: Any, scheduler: Any) -> LearningRate | None:
    """Let rules change the learning rate, if the policy orders that and the optimizer makes the updates itself.

    Args:
        rec: The recorder.
        optimizer: The optimizer, perhaps in a wrapper of the framework.
        scheduler: Its scheduler; None without one.

    Returns:
        The learning rate; None if rules do not change it.
    """
    if makes_updates(optimizer) and any(each.startswith(_LEARNING_RATE) for each in rec.operations):
        return rec.learning_rate(optimizer, scheduler)
    return None


def handle_skips(rec: Recorder, optimizer: Any) -> bool:
    """Say that the loop leaves out batches, if the policy orders that and the optimizer makes the updates itself.

    Returns:
        Whether it does. ``leave_out`` is to be called before an update then.
    """
    handles = SKIP in rec.operations and makes_updates(optimizer)
    if handles:
        rec.handle(SKIP.removesuffix("()"))
    return handles


def makes_updates(optimizer: Any) -> bool:
    """Whether the update of a training is the ``step`` of this optimizer of PyTorch."""
    while True:
        if any(each.__name__ in _ELSEWHERE for each in type(optimizer).__mro__):
            return False
        if not hasattr(optimizer, "optimizer"):
            return hasattr(optimizer, "register_step_pre_hook")
        optimizer = optimizer.optimizer


def leave_out(optimizer: Any) -> None:
    """Let the coming ``step`` of an optimizer change nothing: it passes over weights without a gradient."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is not None:
        with contextlib.suppress(RuntimeError):  # The gradients are unscaled already. Its step checks that they were.
            scaler.unscale_(optimizer.optimizer)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = None
