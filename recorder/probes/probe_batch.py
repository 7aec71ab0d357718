"""Runs the model on a frozen batch now and then, so that losses and predictions are comparable over a whole run.

The training is afterwards the same to the bit (``undisturbed``), nothing keeps a graph, and nothing but the model's own
code waits for a device.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import hashlib
import logging
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ...store.errors import TelemetryError
from ..loop_values import is_distributed
from .batch_counts import IGNORED, LABELS
from .probe_values import ProbeGroup, Readings

logger = logging.getLogger("steptape")

_HASH: Final = "Eval/eval_artifact_hash"
_LOSS: Final = "Probes/fixed_probe_loss"
_ENTROPY: Final = "Probes/logit_entropy"
_TOP_MASS: Final = "Probes/topk_mass_k*"
_DIVERGENCE: Final = "Probes/output_kl_to_prev"
_NO_LOSS: Final = "the model returns no loss, and the probe batch has no targets that fit its logits; give probe_loss"
_NO_LOGITS: Final = "the model returns no logits with one score for each class"
_STANDARD, _DEBUG = 1, 2

#: Where torch's random numbers begin in each run, so that runs of a model that draws some in evaluation are comparable.
_SEED: Final = 0
_TOP: Final = 10

#: Log-probabilities that are kept from one run to the next: 16 MiB.
_MOST_KEPT: Final = 1 << 22

#: Bits of the digest that a float64 holds exactly.
_HASH_BYTES: Final = 6
_LENGTH_BYTES: Final = 8
_FIX: Final = "Give a mapping for model(**batch), a pair (inputs, targets), or a tensor of token ids"


class ProbeBatch(ProbeGroup):
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
        readings.number(_HASH, _digest_number(digest))
        readings.texts[_HASH] = digest.hex()
        with undisturbed(model), self._paused():
            output = self._output(model, batch.on(_device(model)))
            self._add(output, readings)

    def _output(self, model: nn.Module, content: Any) -> Output:
        """Run the model and return its logits and the loss."""
        if self._probe_loss is not None:
            returned = self._probe_loss(model, content)
            return (
                _output_of(returned) if isinstance(returned, (tuple, list)) else Output(torch.as_tensor(returned), None)
            )
        inputs, targets = _inputs_and_targets(content)
        output = _output_of(_call(model, inputs))
        if output.loss is not None or output.logits is None or targets is None or targets.is_floating_point():
            return output
        loss = _cross_entropy(output.logits, targets, is_shifted=self._is_shifted, class_count=self._class_count)
        return output._replace(loss=loss)

    def _add(self, output: Output, readings: Readings) -> None:
        if output.loss is None:
            readings.absent[_LOSS] = _NO_LOSS
        else:
            readings.scalar(_LOSS, output.loss)
        if output.logits is None or output.logits.dim() > 3:
            readings.absent |= dict.fromkeys((_ENTROPY, _TOP_MASS, _DIVERGENCE), _NO_LOGITS)
            return
        log_p = _last_log_probabilities(output.logits)
        k, mass = _top_mass(log_p)
        readings.scalar(_ENTROPY, _entropy(log_p))
        readings.scalar(f"Probes/topk_mass_k{k}", mass)
        previous, self._previous = self._previous, _kept(log_p)
        if readings.level >= _DEBUG and previous is not None and previous.shape == self._previous.shape:
            readings.scalar(
                _DIVERGENCE, _divergence(self._previous, previous.to(self._previous.device, non_blocking=True))
            )


class FrozenBatch:
    """A batch of tensors, and of numbers and texts between them, in mappings and sequences.

    Args:
        batch: The batch. It is copied: later changes of its tensors have no effect.

    Raises:
        TelemetryError: It holds no tensor, or something else.
    """

    def __init__(self, batch: Any) -> None:
        self.content = _frozen(batch)
        if not any(isinstance(leaf, Tensor) for _, leaf in _leaves(self.content)):
            raise TelemetryError("watch: probe_batch holds no tensor", got=type(batch).__name__, fix=f"{_FIX}.")

    def digest(self) -> bytes:
        """Return the SHA-256 of what the batch holds now.

        It covers each tensor, number and text, those of mappings by sorted name and those of sequences by index. Each
        adds four fields: its path of names and indexes joined by ``/``, its type, its shape, and its bytes, or the
        ``repr`` of a number or text. The length of each field precedes it, in 8 bytes, least first.
        """
        digest = hashlib.sha256()
        for path, leaf in _leaves(self.content):
            if isinstance(leaf, Tensor):
                fields = (str(leaf.dtype).encode(), str(tuple(leaf.shape)).encode(), _bytes(leaf))
            else:
                fields = (type(leaf).__name__.encode(), b"", repr(leaf).encode())
            for field in (path.encode(), *fields):
                digest.update(len(field).to_bytes(_LENGTH_BYTES, "little"))
                digest.update(field)
        return digest.digest()

    def on(self, device: torch.device) -> Any:
        """Return a copy on a device. What a model makes of it does not change the batch."""
        return _mapped(self.content, lambda tensor: tensor.to(device, non_blocking=True, copy=True))


def _digest_number(digest: bytes) -> float:
    """Return the first 48 bits of a digest as a number."""
    return float(int.from_bytes(digest[:_HASH_BYTES], "big"))


def _frozen(value: Any) -> Any:
    """Copy a batch to the host.

    Raises:
        TelemetryError: It holds a value of another kind.
    """
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized or is_distributed(value):
            raise TelemetryError("watch: probe_batch holds a tensor without plain values", got=value.layout)
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, Mapping):
        return {_name(name): _frozen(value[name]) for name in value}
    if isinstance(value, (tuple, list)):
        frozen = [_frozen(each) for each in value]
        return frozen if isinstance(value, list) else tuple(frozen)
    if value is None or isinstance(value, (bool, int, float, str)):
        return copy.copy(value)
    raise TelemetryError("watch: probe_batch holds a value that is no tensor", got=type(value).__name__, fix=f"{_FIX}.")


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(each, change) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(each, change) for each in value)
    return value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a batch holds with its path, in a fixed order."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from _leaves(value[name], f"{path}/{name}")
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}/{index}")
    else:
        yield path, value


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TelemetryError("watch: a name in probe_batch is no text", got=name)
    return name


def _bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a contiguous tensor on the host. NumPy may be absent."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


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


class Output(NamedTuple):
    """The loss and logits that a model returned.

    Attributes:
        loss: A tensor with one element; None if there is none.
        logits: Scores of classes. Shape (n, classes), or (n, positions, classes); None if there are none.
    """

    loss: Tensor | None
    logits: Tensor | None


def _output_of(returned: Any) -> Output:
    """Read what a model returned.

    The loss is the entry ``loss``, or the one element without dimensions of a sequence. Logits are the entry
    ``logits``, the first tensor of a sequence with at least two dimensions, or the tensor itself.
    """
    if isinstance(returned, Tensor):
        return Output(None, _scores(returned)) if returned.dim() else Output(returned, None)
    if isinstance(returned, (tuple, list)) and not hasattr(returned, "logits"):
        tensors = [each for each in returned if isinstance(each, Tensor) and each.is_floating_point()]
        loss = next((each for each in tensors if each.dim() == 0), None)
        return Output(loss, next((each for each in map(_scores, tensors) if each is not None), None))
    loss, logits = _entry(returned, "loss"), _entry(returned, "logits")
    return Output(
        loss if isinstance(loss, Tensor) and loss.numel() == 1 and not is_distributed(loss) else None,
        _scores(logits) if isinstance(logits, Tensor) else None,
    )


def _scores(tensor: Tensor) -> Tensor | None:
    return tensor if tensor.dim() > 1 and tensor.is_floating_point() and not is_distributed(tensor) else None


def _entry(returned: Any, name: str) -> Any:
    return returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)


def _cross_entropy(logits: Tensor, targets: Tensor, *, is_shifted: bool, class_count: int) -> Tensor | None:
    """Return the mean cross-entropy in 32 bits; None if targets do not fit the logits.

    Args:
        logits: Classes are the last dimension, or the second one, as in images.
        targets: Shape of the logits without the classes. Label -100 does not count.
        is_shifted: Whether the logits of a position are for the next one, as with token ids as targets.
        class_count: The number of classes that the targets need. On a GPU, one target beyond them ends the process.
    """
    if logits.shape[:-1] == targets.shape:
        if is_shifted:
            logits, targets = logits[:, :-1], targets[:, 1:]
        logits, targets = logits.flatten(0, -2), targets.flatten()
    elif is_shifted or logits.shape[:1] + logits.shape[2:] != targets.shape:
        return None
    if logits.shape[1] < class_count:
        return None
    loss: Tensor = functional.cross_entropy(logits.float(), targets.long(), ignore_index=IGNORED)
    return loss


def _last_log_probabilities(logits: Tensor) -> Tensor:
    """Return the log-probabilities at the last position, in 32 bits. Shape (n, classes)."""
    last = logits[:, -1] if logits.dim() == 3 else logits
    log_p: Tensor = functional.log_softmax(last.float(), -1)
    return log_p


def _entropy(log_p: Tensor) -> Tensor:
    """Return the mean entropy of rows of log-probabilities, in nats."""
    rows: Tensor = torch.special.entr(log_p.exp()).sum(-1)
    return rows.mean()


def _top_mass(log_p: Tensor) -> tuple[int, Tensor]:
    """Return k, which is 10 or the number of classes, and the mean sum of the k greatest probabilities."""
    k = min(_TOP, log_p.shape[-1])
    return k, log_p.topk(k).values.exp().sum(-1).mean()


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the mean KL divergence of rows, KL(p, q), in nats."""
    p = log_p.exp()
    return (p * (log_p - log_q)).where(p != 0, 0).sum(-1).mean()


def _kept(log_p: Tensor) -> Tensor:
    """Return as many first rows as are kept for the next run."""
    return log_p[: max(1, _MOST_KEPT // log_p.shape[-1])].clone()


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
        named = (content.get(name) for name in LABELS)
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
