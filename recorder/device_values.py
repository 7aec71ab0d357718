"""Copies device values to the host without stalling training; the recorder reads the copies some steps later.

Values of consecutive updates are stacked on the device and copied together. Neither the device nor the training thread
waits for the other, unless the device is further behind than a copy has time for.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from .loop_values import is_on_device

#: Steps that may await values at the same time; the oldest then counts as one that awaits none. Rules give up as early.
_MOST_AWAITING: Final = 10_000

#: The default lag: the most updates between a step and the event with its late values. In a loop that is bound by
#: launches, caches are cold: the first event of a batch costs 150 us, each further one 35 us.
VALUE_LAG: Final = 5

_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}


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
        first: The first step of its batch.
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
    first: int

    @property
    def is_stacked(self) -> bool:
        """Whether its values arrive as floats."""
        return type(self.copy) is _Share and self.copy.stack.holds_floats

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

    The values of ``lag - 1`` consecutive updates are a batch: they are copied together at its last update, and recorded
    at the second one after it. What rules see therefore does not depend on copy speed.

    Args:
        lag: The most updates after which values are recorded, however fast they were copied.
        is_batched: Copy each update by itself, and record it ``lag`` updates later, if false.

    Attributes:
        next_step: The step from which on ``next_due`` has something to do; infinity if the queue is empty.
    """

    def __init__(self, lag: int = VALUE_LAG, *, is_batched: bool = True) -> None:
        self._lag, self._span = lag, max(lag - 1, 1) if is_batched else 1
        self._awaited: deque[Awaited] = deque()
        self._stack: _Stack | None = None
        self._first = self._latest = -1
        self.next_step: float = math.inf

    def __len__(self) -> int:
        return len(self._awaited)

    def start(
        self,
        event: tuple[str, int, int, int, float | None],
        metrics: Mapping[str, Any],
        arguments: Mapping[str, Any] = _NO_ARGUMENTS,
        bundles: Sequence[Bundle] = (),
    ) -> None:
        """Copy what an event left on the device: at once, or together with the values of the following updates.

        Args:
            event: Its kind, seq, step, micro_step and epoch.
            metrics: Its metrics on the device.
            arguments: Its sample arguments and vectors by name, if any is on the device.
            bundles: Metrics that are computed from further tensors.
        """
        step, stack = event[2], self._stack
        if stack is None or not 0 <= step - self._first < self._span:
            stack = self._open(step)
        copy = None if arguments or bundles else stack.add([*metrics.values()])
        if copy is not None:
            self._awaited.append(Awaited(*event, tuple(metrics), _NO_ARGUMENTS, (), (), copy, self._first))
        else:
            on_device = {name: value for name, value in arguments.items() if is_on_device(value)}
            bundled = [tensor for bundle in bundles for tensor in bundle.tensors]
            copy = start_copy([*metrics.values(), *on_device.values(), *bundled])
            host = {name: value for name, value in arguments.items() if name not in on_device}
            self._awaited.append(Awaited(*event, tuple(metrics), host, tuple(on_device), bundles, copy, self._first))
        stride, self._latest = max(step - self._latest, 1) if self._latest >= 0 else 1, step
        if step + stride - self._first >= self._span:  # The next update belongs to another batch.
            self._close()

    def next_due(self, step: int) -> Awaited | None:
        """Pop the oldest entry if it is due at this step; else return None."""
        if self._stack is not None and not 0 <= step - self._first < self._span - 1:
            self._close()
        # A loop may restart its step count in each epoch, so an entry of a later step than this one is due, too.
        if self._awaited and not 0 <= step - self._awaited[0].first < self._lag:
            return self._awaited.popleft()
        self._plan()
        return None

    def next_of_all(self) -> Awaited | None:
        """Pop the oldest entry, whatever its step; None if the queue is empty."""
        self._close()
        oldest = self._awaited.popleft() if self._awaited else None
        self._plan()
        return oldest

    def put_back(self, awaited: Awaited) -> None:
        """Put the oldest entry back, because the wait for it was interrupted."""
        self._awaited.appendleft(awaited)
        self._plan()

    def _open(self, step: int) -> _Stack:
        """Begin a batch with this step."""
        self._close()
        self._stack, self._first = _Stack(), step
        self.next_step = min(self.next_step, step + self._span - 1)
        return self._stack

    def _close(self) -> None:
        """Start to copy the batch, which is complete."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.start()
            self._plan()

    def _plan(self) -> None:
        if not self._awaited:
            self.next_step = math.inf
            return
        due = self._awaited[0].first + self._lag
        self.next_step = due if self._stack is None else min(due, self._first + self._span - 1)


class _Stack:
    """The metrics of a batch: a vector for each update, and one copy of all. The values of an update wait for it."""

    def __init__(self) -> None:
        self._torch = torch = sys.modules["torch"]
        # A vector of several of these types holds each value as it was.
        self._types = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        self._device: Any = None
        self._count = 0
        self._vectors: list[Any] = []
        self._copy: Copy | None = None
        self._values: Sequence[Any] | None = None

    def add(self, tensors: Sequence[Any]) -> Copy | None:
        """Stack the values of an update on the device; None if they are not scalars of floating point of one device.

        The loop may write into its tensors afterwards.
        """
        if self._device is None:
            self._device = tensors[0].device
        for each in tensors:
            if getattr(each, "dtype", None) not in self._types or each.ndim or each.device != self._device:
                return None
        self._vectors.append(self._torch.stack([each.detach() if each.requires_grad else each for each in tensors]))
        begin, self._count = self._count, self._count + len(tensors)
        return _Share(self, begin, self._count)

    @property
    def holds_floats(self) -> bool:
        """Whether the copy has brought values, and no error in their place."""
        return self._values is not None and type(self._values[0]) is float

    def start(self) -> None:
        """Start the copy. Idempotent."""
        if self._copy is None and self._vectors:
            vectors, self._vectors = self._vectors, []
            self._copy = start_copy([self._torch.cat(vectors) if len(vectors) > 1 else vectors[0]])

    def values(self) -> Sequence[Any]:
        """Wait for the copy, and return the values of all updates."""
        if self._values is None:
            self.start()
            assert self._copy is not None
            (host,) = self._copy.wait()
            # An error in place of the vector is one in place of each value.
            self._values = host.tolist() if hasattr(host, "tolist") else [host] * self._count
        return self._values


class _Share(NamedTuple):
    """The values of one update in a stack."""

    stack: _Stack
    begin: int
    end: int

    def wait(self) -> Sequence[Any]:
        return self.stack.values()[self.begin : self.end]


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
    """A copy into pinned memory, in the order of the training's stream. The training's thread does not wait for it."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        torch = sys.modules["torch"]
        self._host = []
        with torch.no_grad():
            for tensor in tensors:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                self._host.append(host.copy_(tensor, non_blocking=True))
        devices = dict.fromkeys(tensor.device for tensor in tensors)
        self._done = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait(self) -> Sequence[Any]:
        for done in self._done:
            if not done.query():
                done.synchronize()
        return self._host


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
