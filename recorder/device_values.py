"""Copies device values to the host without stalling training; the recorder reads the copies some steps later.

Neither the device nor the training thread waits for the other, unless a copy takes longer than the lag.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from .loop_values import is_on_device

#: Steps that may await values at the same time; the oldest then counts as one that awaits none. Rules give up as early.
_MOST_AWAITING: Final = 10_000

#: The default lag: updates between a step and the event with its late values.
VALUE_LAG: Final = 2


class Copy(Protocol):
    """Tensors that are being copied to the host."""

    def wait(self) -> Sequence[Any]:
        """Wait for the copy. Return the tensors on the host, in the order in which they were given."""


class Bundle(NamedTuple):
    """Metrics that are computed on the host from a few tensors, so that many metrics cost one copy.

    Attributes:
        names: Names of the metrics.
        tensors: The tensors, one for each device.
        derive: Computes the metrics from the tensors on the host. It never raises.
    """

    names: tuple[str, ...]
    tensors: Sequence[Any]
    derive: Callable[[Sequence[Any]], Mapping[str, float]]

    @property
    def is_on_host(self) -> bool:
        """Whether nothing has to be copied."""
        return not any(is_on_device(tensor) for tensor in self.tensors)


def bundled_names(bundles: Sequence[Bundle]) -> tuple[str, ...]:
    """Return the names of all metrics of some bundles."""
    return tuple(name for bundle in bundles for name in bundle.names)


class Awaited(NamedTuple):
    """The late values of one event.

    Attributes:
        kind, seq, step, micro_step, epoch: Of the event.
        metrics: Names of its metrics on the device.
        arguments: Its sample arguments and vectors that are on the host, by name.
        argument_names: Names of those on the device.
        bundles: Metrics that are computed from further tensors.
        copy: The tensors of all three: metrics, arguments, bundles.
    """

    kind: str
    seq: int
    step: int
    micro_step: int
    epoch: float | None
    metrics: tuple[str, ...]
    arguments: Mapping[str, Any]
    argument_names: tuple[str, ...]
    bundles: Sequence[Bundle]
    copy: Copy

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all metrics."""
        return (*self.metrics, *bundled_names(self.bundles))

    def arrived(self) -> tuple[dict[str, object], dict[str, object]]:
        """Wait for the copy. Return metrics, and sample arguments and vectors, as host values."""
        tensors = iter(self.copy.wait())
        metrics = {name: next(tensors) for name in self.metrics}
        arguments = {name: next(tensors) for name in self.argument_names}
        for bundle in self.bundles:
            metrics |= bundle.derive([next(tensors) for _ in bundle.tensors])
        return metrics, {**self.arguments, **arguments}


class LateValues:
    """A queue of late values, in the order of their events.

    Args:
        lag: Updates after which values are recorded, however fast they were copied. What rules see therefore does not
            depend on copy speed.
    """

    def __init__(self, lag: int = VALUE_LAG) -> None:
        self._lag = lag
        self._awaited: deque[Awaited] = deque()

    def __len__(self) -> int:
        return len(self._awaited)

    def start(
        self,
        event: tuple[str, int, int, int, float | None],
        metrics: Mapping[str, Any],
        arguments: Mapping[str, Any],
        bundles: Sequence[Bundle] = (),
    ) -> None:
        """Start to copy what an event left on the device.

        Args:
            event: Its kind, seq, step, micro_step and epoch.
            metrics: Its metrics on the device.
            arguments: Its sample arguments and vectors by name, if any is on the device.
            bundles: Metrics that are computed from further tensors.
        """
        on_device = {name: value for name, value in arguments.items() if is_on_device(value)}
        bundled = [tensor for bundle in bundles for tensor in bundle.tensors]
        copy = start_copy([*metrics.values(), *on_device.values(), *bundled])
        host = {name: value for name, value in arguments.items() if name not in on_device}
        self._awaited.append(Awaited(*event, tuple(metrics), host, tuple(on_device), bundles, copy))

    def next_due(self, step: int) -> Awaited | None:
        """Pop the oldest entry if it is due at this step; else return None."""
        # A loop may restart its step count in each epoch, so an entry of a later step than this one is due, too.
        if self._awaited and not 0 <= step - self._awaited[0].step < self._lag:
            return self._awaited.popleft()
        return None

    def next_of_all(self) -> Awaited | None:
        """Pop the oldest entry, whatever its step; None if the queue is empty."""
        return self._awaited.popleft() if self._awaited else None

    def put_back(self, awaited: Awaited) -> None:
        """Put the oldest entry back, because the wait for it was interrupted."""
        self._awaited.appendleft(awaited)


class AwaitingStep(NamedTuple):
    """A step whose host values come later, by a call of the loop.

    Attributes:
        seq, micro_step, epoch: Of its event.
        mark: The attributes of both its events.
    """

    seq: int
    micro_step: int
    epoch: float | None
    mark: Mapping[str, object]


class AwaitingSteps:
    """The steps whose host values come later."""

    def __init__(self) -> None:
        self._steps: dict[int, AwaitingStep] = {}

    def add(self, step: int, awaiting: AwaitingStep) -> None:
        """Add a step. Of very many the oldest then awaits nothing."""
        self._steps[step] = awaiting
        if len(self._steps) > _MOST_AWAITING:
            del self._steps[next(iter(self._steps))]

    def pop(self, step: int) -> AwaitingStep | None:
        """Return what a step awaits, once; None if it awaits nothing."""
        return self._steps.pop(step, None)


def start_copy(tensors: Sequence[Any]) -> Copy:
    """Start to copy tensors to the host, with the copy class of each device type."""
    types = [tensor.device.type for tensor in tensors]
    if types.count(types[0]) == len(types):
        return COPIES.get(types[0], _HostValues)(tensors)
    return _Mixed(types, tensors)


class _Mixed:
    """Copies from several types of devices."""

    def __init__(self, types: Sequence[str], tensors: Sequence[Any]) -> None:
        self._types = types
        self._copies = {
            each: start_copy([tensor for of, tensor in zip(types, tensors, strict=True) if of == each])
            for each in dict.fromkeys(types)
        }

    def wait(self) -> Sequence[Any]:
        arrived = {of: iter(copy.wait()) for of, copy in self._copies.items()}
        return [next(arrived[of]) for of in self._types]


class _CudaCopy:
    """A copy on separate streams into pinned memory. Neither the training's stream nor its thread waits."""

    _streams: ClassVar[dict[Any, Any]] = {}

    def __init__(self, tensors: Sequence[Any]) -> None:
        torch = sys.modules["torch"]
        self._host = []
        self._done = []
        streams = {device: self._stream(torch, device) for device in dict.fromkeys(tensor.device for tensor in tensors)}
        with torch.no_grad():
            for tensor in tensors:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                with torch.cuda.stream(streams[tensor.device]):
                    self._host.append(host.copy_(tensor, non_blocking=True))
                # The training may free the tensor at once. Its memory must not be reused before the copy is done.
                tensor.record_stream(streams[tensor.device])
        for stream in streams.values():
            self._done.append(stream.record_event())

    def wait(self) -> Sequence[Any]:
        for done in self._done:
            if not done.query():
                done.synchronize()
        return self._host

    def _stream(self, torch: Any, device: Any) -> Any:
        """Return this device's copy stream, ordered after everything that the training has queued so far."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        return stream


class _HostValues:
    """A copy on the device, read when it is due, for devices without streams of their own.

    A tensor that has no values, as on torch's ``meta`` device, gives the error in its place.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = [tensor.detach().clone() for tensor in tensors]

    def wait(self) -> Sequence[Any]:
        return [_on_host(tensor) for tensor in self._tensors]


def _on_host(tensor: Any) -> Any:
    try:
        return tensor.cpu()
    except NotImplementedError as error:
        return error


#: The copy class of each device type; others take ``_HostValues``.
COPIES: Final[dict[str, Callable[[Sequence[Any]], Copy]]] = {"cuda": _CudaCopy}
