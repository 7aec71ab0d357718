"""Runs the model on a frozen batch now and then, so that losses and predictions are comparable over a whole run."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .frozen_batch import FrozenBatch, digest_number
from .outputs import Output, cross_entropy, divergence, entropy, kept, last_log_probabilities, output_of, top_mass
from .part import Part, Readings
from .undisturbed import undisturbed

logger = logging.getLogger("steptape")

_LABELS: Final = ("labels", "targets", "target")

_HASH: Final = "Eval/eval_artifact_hash"
_LOSS: Final = "Probes/fixed_probe_loss"
_ENTROPY: Final = "Probes/logit_entropy"
_TOP_MASS: Final = "Probes/topk_mass_k*"
_DIVERGENCE: Final = "Probes/output_kl_to_prev"

_NO_LOSS: Final = "the model returns no loss, and the probe batch has no targets that fit its logits; give probe_loss"
_NO_LOGITS: Final = "the model returns no logits with one score for each class"

_STANDARD, _DEBUG = 1, 2


class ProbeBatch(Part):
    """A frozen batch and its metrics, at the slower cadence and at the first emission.

    The model runs in evaluation mode, without gradients and without autocast. ``undisturbed`` lists what it leaves as
    it was. The module inside ``DistributedDataParallel`` runs alone; a model in FSDP runs on all ranks, so all of them
    must emit at the same updates. The model's own code may wait for the device.

    The loss is, in this order: that of ``probe_loss``; the one that the model returns; the mean cross-entropy of logits
    and targets. Targets are the second of a pair, ``labels`` or ``targets`` of a mapping, or the token ids themselves.
    Targets that equal the inputs are for the next position; all others are for their own.

    Predictions are those at the last position: give a batch without padding there. Logits of shape (n, classes) are
    predictions as they are.

    Args:
        model: The watched module. It is referenced weakly.
        batch: A mapping for ``model(**batch)``, a pair ``(inputs, targets)``, or a tensor of token ids. It is copied.
        probe_loss: Called with the model and the batch on the model's device. Returns the loss, or the loss and logits.
        paused: Returns a context in which nothing counts the forward pass.

    Raises:
        TelemetryError: The batch holds no tensor, or something else than tensors, numbers and texts.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        probe_loss: Callable[[nn.Module, Any], Any] | None = None,
        paused: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._model = weakref.ref(model)
        self._probe_loss, self._paused = probe_loss, paused
        self._batch: FrozenBatch | None = FrozenBatch(batch)
        self._is_shifted = _has_inputs_as_targets(self._batch.content)
        self._class_count = _class_count(self._batch.content)
        self._previous: Tensor | None = None
        self._has_run = False
        self._failure = ""

    def read(self, readings: Readings) -> None:
        """Run the batch if it is due, and add its metrics. A failure is logged, and the batch does not run again."""
        model, batch = self._model(), self._batch
        is_due = readings.level >= _STANDARD and (readings.is_check or not self._has_run)
        if model is None or batch is None or not is_due:
            return
        self._has_run = True
        try:
            self._run(_inner(model), batch, readings)
        except Exception as error:  # It runs the model's code, and its training continues whatever that does.
            self._batch = self._previous = None
            reason = f"the probe batch failed: {type(error).__name__}: {error}"
            logger.warning("probes: %s; it does not run again", reason, exc_info=error)
            readings.absent |= dict.fromkeys((_LOSS, _ENTROPY, _TOP_MASS, _DIVERGENCE), reason)

    def close(self) -> None:
        """Let go of the batch."""
        self._batch = self._previous = None

    def _run(self, model: nn.Module, batch: FrozenBatch, readings: Readings) -> None:
        digest = batch.digest()
        readings.number(_HASH, digest_number(digest))
        readings.texts[_HASH] = digest.hex()
        with undisturbed(model), self._paused():
            output = self._output(model, batch.on(_device(model)))
            self._add(output, readings)

    def _output(self, model: nn.Module, content: Any) -> Output:
        """Run the model and return its logits and the loss."""
        if self._probe_loss is not None:
            returned = self._probe_loss(model, content)
            return (
                output_of(returned) if isinstance(returned, (tuple, list)) else Output(torch.as_tensor(returned), None)
            )
        inputs, targets = _inputs_and_targets(content)
        output = output_of(_call(model, inputs))
        if output.loss is not None or output.logits is None or targets is None or targets.is_floating_point():
            return output
        loss = cross_entropy(output.logits, targets, is_shifted=self._is_shifted, class_count=self._class_count)
        return output._replace(loss=loss)

    def _add(self, output: Output, readings: Readings) -> None:
        if output.loss is None:
            readings.absent[_LOSS] = _NO_LOSS
        else:
            readings.scalar(_LOSS, output.loss)
        if output.logits is None or output.logits.dim() > 3:
            readings.absent |= dict.fromkeys((_ENTROPY, _TOP_MASS, _DIVERGENCE), _NO_LOGITS)
            return
        log_p = last_log_probabilities(output.logits)
        k, mass = top_mass(log_p)
        readings.scalar(_ENTROPY, entropy(log_p))
        readings.scalar(f"Probes/topk_mass_k{k}", mass)
        previous, self._previous = self._previous, kept(log_p)
        if readings.level >= _DEBUG and previous is not None and previous.shape == self._previous.shape:
            readings.scalar(
                _DIVERGENCE, divergence(self._previous, previous.to(self._previous.device, non_blocking=True))
            )


def _inner(model: nn.Module) -> nn.Module:
    """Return the module inside wrappers that run a forward pass on all ranks or compile it."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model


def _device(model: nn.Module) -> torch.device:
    first = next(model.parameters(), next(model.buffers(), None))
    return torch.device("cpu") if first is None else first.device


def _inputs_and_targets(content: Any) -> tuple[Any, Tensor | None]:
    """Split a batch. A mapping goes to the model whole, so that the model can compute its loss."""
    if isinstance(content, Mapping):
        named = (content.get(name) for name in _LABELS)
        return content, next((each for each in named if isinstance(each, Tensor)), None)
    if isinstance(content, (tuple, list)):
        inputs, targets = content if len(content) == 2 else (content, None)
        return inputs, targets if isinstance(targets, Tensor) else None
    return content, None if content.is_floating_point() else content


def _has_inputs_as_targets(content: Any) -> bool:
    """Whether the targets of a frozen batch are its token ids."""
    inputs, targets = _inputs_and_targets(content)
    if isinstance(inputs, Mapping):
        inputs = inputs.get("input_ids")
    return isinstance(inputs, Tensor) and targets is not None and torch.equal(inputs, targets)


def _class_count(content: Any) -> int:
    """Return the least number of classes with which the targets of a frozen batch are valid."""
    _, targets = _inputs_and_targets(content)
    return 0 if targets is None or not targets.numel() else int(targets.max()) + 1


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
