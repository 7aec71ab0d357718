"""Reveals which updates a loop of PyTorch skipped, computes sample losses, and lets rules steer an optimizer.

An optimizer and the recorder's operations in; ``applied=False``, a changed learning rate or an update without effect
out, as far as it can be true. Logits and labels in, sample arguments of ``Recorder.step`` out.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch.nn import functional

from ..recorder.arguments import Arguments
from ..rules.effects import SKIP, changes_rate, orders_undo
from ..store.errors import TelemetryError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..recorder.recorder import Recorder

logger = logging.getLogger("steptape")

#: The open watches, by each of their optimizers.
_WATCHES: Final[weakref.WeakKeyDictionary[Any, StepWatch]] = weakref.WeakKeyDictionary()

#: Optimizers whose ``step`` is not the update: it happens in the backward pass.
_ELSEWHERE: Final = (
    "DeepSpeedOptimizerWrapper",
    "DeepSpeedOptimizer",
    "LayerWiseDummyOptimizer",
    "Lomo",
    "AdaLomo",
)


#: The most logits that are converted to float32 at a time: 128 MiB.
_LOGITS_AT_A_TIME: Final = 2**25


def sample_losses(logits: Any, labels: Any, *, shift: bool = False, tokens: bool = False) -> Arguments:
    """Return the cross-entropy of each sample of a batch, as arguments of ``Recorder.step``.

        rec.step(loss=loss, sample_ids=ids, **sample_losses(logits, labels))

    The loss of a sample is the mean over its labels that count, without smoothing, weights or auxiliary losses; 0.0 if
    none counts. Gradients, random numbers and the logits stay as they are, and no tensor on a device is waited for.

    Args:
        logits: Shape (n, classes), or (n, t, classes).
        labels: Classes. Shape (n,), or (n, t). Negative ones, such as -100, do not count.
        shift: Whether the logits of a token predict the label of the next one, as in Hugging Face's causal language
            models, whose labels are their inputs.
        tokens: Return the loss of each label that counts as well.

    Returns:
        ``samples``; for labels of tokens also ``sample_tokens``, how many of them count, and on request
        ``token_losses``.

    Raises:
        TelemetryError: The shapes do not fit, or the labels are no classes.
    """
    return samples_of_tokens(*label_losses(logits, labels, shift=shift), tokens=tokens)


def label_losses(logits: Any, labels: Any, *, shift: bool) -> tuple[Any, Any]:
    """Return the loss of each label, and whether it counts. Both have the shape of the labels.

    Args, raises: As for ``sample_losses``.
    """
    shape = tuple(labels.shape)
    if tuple(logits.shape[:-1]) != shape or len(shape) not in (1, 2) or logits.shape[-1] < 2:
        what = "logits must have shape (n, classes) and labels (n,), or (n, t, classes) and (n, t)"
        raise TelemetryError(f"sample_losses: {what}", got=f"{tuple(logits.shape)} and {shape}")
    if labels.is_floating_point() or (shift and len(shape) == 1):
        what = "labels must be whole numbers" if labels.is_floating_point() else "only labels of tokens can be shifted"
        raise TelemetryError(f"sample_losses: {what}", got=f"{labels.dtype}, shape {shape}")
    with torch.no_grad():
        labels = labels.to(logits.device)
        if shift:
            labels = functional.pad(labels[:, 1:], (0, 1), value=-1)
        rows, classes = logits.reshape(-1, logits.shape[-1]), labels.clamp(0, logits.shape[-1] - 1).reshape(-1)
        size = max(1, _LOGITS_AT_A_TIME // rows.shape[-1])
        parts = [
            functional.cross_entropy(
                rows[begin : begin + size].float(), classes[begin : begin + size], reduction="none"
            )
            for begin in range(0, len(rows), size)
        ]
        losses = torch.cat(parts).view(shape) if parts else torch.zeros(shape)
    return losses, labels >= 0


def samples_of_tokens(losses: Any, counts: Any, *, tokens: bool) -> Arguments:
    """Return what ``sample_losses`` does.

    Args:
        losses: The loss of each label. Shape (n,) or (n, t).
        counts: Whether it counts. Of the same shape.
        tokens: As for ``sample_losses``.
    """
    with torch.no_grad():
        losses = losses.detach().float().masked_fill(~counts, 0.0)
        if losses.ndim == 1:
            return {"samples": losses}
        number = counts.sum(1)
        found: Arguments = {"samples": losses.sum(1) / number.clamp(min=1), "sample_tokens": number}
        if tokens:  # ``step`` takes as many leading ones of each row as count.
            found["token_losses"] = losses.gather(1, counts.logical_not().byte().argsort(dim=1, stable=True))
        return found


def joined_samples(parts: Sequence[Mapping[str, Any]]) -> Arguments:
    """Return the sample arguments of the micro-batches of an update as those of one batch.

    Args:
        parts: Results of ``sample_losses``, with ``sample_ids`` where they are known. What one lacks is left out.
    """
    names = [name for name in (parts[0] if parts else ()) if all(name in part for part in parts)]
    if "samples" not in names:
        names = [name for name in names if name == "sample_ids"]
    return {name: _joined([part[name] for part in parts]) for name in names}


def _joined(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    if not all(map(torch.is_tensor, values)):
        return [one for each in values for one in each]
    if values[0].ndim == 2:
        width = max(each.shape[1] for each in values)
        values = [functional.pad(each, (0, width - each.shape[1])) for each in values]
    return torch.cat(values)


def watch_steps(rec: Recorder, *optimizers: Optimizer) -> StepWatch:
    """Record an update that no optimizer applied with ``applied=False``, so that the loop need not say it.

    ``GradScaler`` skips an update when a gradient is infinite or NaN: either it does not call the optimizer, or it
    sets ``found_inf`` of a fused one. Call ``rec.step`` after the optimizers' turn.

    Args:
        rec: The recorder, whose ``step`` is wrapped until ``close``. An ``applied=`` that the loop gives still counts.
        *optimizers: An update counts as applied if one of them applied it. A watch that another recorder has of one of
            them is closed: a cell of a notebook may run twice.

    Raises:
        TelemetryError: No optimizer is given, or the recorder has a watch already.
    """
    if not optimizers:
        raise TelemetryError("watch_steps: no optimizer is given", fix="Call watch_steps(rec, optimizer)")
    if isinstance(getattr(rec.step, "__self__", None), StepWatch):
        fix = "Give all optimizers to one call of watch_steps, or close the first watch"
        raise TelemetryError("watch_steps: the recorder is watched already", fix=fix)
    for earlier in {id(watch): watch for each in optimizers if (watch := _WATCHES.get(each)) is not None}.values():
        if not earlier._rec.is_closed:
            logger.warning("watch_steps: the run %s had an optimizer of these; its watch ends", earlier._rec.run_id)
        earlier.close()
    return StepWatch(rec, optimizers)


class StepWatch:
    """Watches optimizers until ``close``; also a context manager. Made by ``watch_steps``."""

    def __init__(self, rec: Recorder, optimizers: tuple[Optimizer, ...]) -> None:
        # The recorder's own step, because rules that steer and rollbacks change how it is called.
        self._rec, self._step = rec, type(rec).step.__get__(rec)
        #: What each optimizer's turn said since the last step: None, or a ``found_inf`` that may be on the device.
        self._turns: list[Any] = []
        self._hooks = [optimizer.register_step_post_hook(self._note_turn) for optimizer in optimizers]
        _WATCHES.update(dict.fromkeys(optimizers, self))
        rec.__dict__["step"] = self._watched_step

    def close(self) -> None:
        """Remove the hooks. The loop says ``applied=`` itself from here on. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        for optimizer in [each for each, watch in _WATCHES.items() if watch is self]:
            del _WATCHES[optimizer]
        if self._rec.__dict__.get("step") == self._watched_step:
            del self._rec.__dict__["step"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _note_turn(self, optimizer: Optimizer, *_: Any) -> None:
        self._turns.append(getattr(optimizer, "found_inf", None))

    def _watched_step(self, *metrics: Any, **named: Any) -> Any:
        if named.get("applied") is None and not self._is_applied():
            named["applied"] = False
        self._turns.clear()
        return self._step(*metrics, **named)

    def _is_applied(self) -> bool:
        return any(found is None or not found.item() for found in self._turns)


def steer_learning_rate(rec: Recorder, optimizer: Any, scheduler: Any) -> Callable[[], Sequence[float]] | None:
    """Let rules change the learning rate, if the policy orders that and the optimizer makes the updates itself.

    Args:
        rec: The recorder.
        optimizer: The optimizer, perhaps in a wrapper of the framework.
        scheduler: Its scheduler; None without one.

    Returns:
        A function that returns the rates of the newest update, one a parameter group; None if rules do not change them.
    """
    if makes_updates(optimizer) and any(map(changes_rate, rec.operations)):
        rate = rec.learning_rate(optimizer, scheduler)
        return lambda: rate.used
    return None


def handle_skips(rec: Recorder, optimizer: Any) -> bool:
    """Say that the loop leaves out batches, if the policy orders that and the optimizer makes the updates itself.

    Returns:
        Whether it does. ``leave_out`` is to be called before an update then.
    """
    handles = any(each.startswith(SKIP) for each in rec.operations) and makes_updates(optimizer)
    if handles:
        rec.handle(SKIP)
    return handles


def keep_restore_points(rec: Recorder, model: Any, optimizer: Any) -> None:
    """Keep restore points, if the policy orders undos and the optimizer makes the updates itself."""
    if orders_undo(rec.operations) and makes_updates(optimizer):
        rec.restore_points(model, optimizer, getattr(optimizer, "scaler", None))


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
