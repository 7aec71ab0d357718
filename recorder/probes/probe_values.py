"""Defines a group of probes, the readings that it fills, and the values that the event of an update gets of them.

It loads without torch, which is there only where models are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..device_values import Bundle

if TYPE_CHECKING:
    from torch import Tensor

_Value = TypeVar("_Value")


class Readings:
    """The values of one emission, which the next ``rec.step`` records.

    Attributes:
        level: The level of detail: 0 minimal, 1 standard, 2 debug.
        is_check: Whether the metrics of the slower cadence (``Cadence.CHECK``) are read, too.
        numbers: Values of the host, by name.
        scalars: Tensors with one element on any device, by name. All of a device are copied together.
        vectors: Tensors of one dimension, by name.
        texts: Attributes of the event, by name.
        absent: Why metrics of the catalogue have no value, by name or pattern.
    """

    def __init__(self, level: int, *, is_check: bool) -> None:
        self.level, self.is_check = level, is_check
        self.numbers: dict[str, float] = {}
        self.scalars: dict[str, Tensor] = {}
        self.vectors: dict[str, Tensor] = {}
        self.texts: dict[str, str] = {}
        self.absent: dict[str, str] = {}

    def number(self, name: str, value: float) -> None:
        """Take a value of the host."""
        self.numbers[name] = math.nan if value is None else float(value)

    def scalar(self, name: str, value: Tensor) -> None:
        """Take a tensor with one element. Nothing reads it before the copy to the host."""
        self.scalars[name] = value.detach()

    def vector(self, name: str, values: Tensor) -> None:
        """Take a vector. Shape (n,)."""
        self.vectors[name] = values.detach()


class ProbeGroup:
    """A group of probes. The watch calls it on the training thread and guards every call.

    An update that emits goes through ``arm``, the loop's own forward, backward and optimizer step, and ``read``.
    """

    def arm(self, readings: Readings) -> None:
        """Attach hooks for the next update, which emits into these readings."""

    def read(self, readings: Readings) -> None:
        """Add values, now that the update is finished and ``rec.step`` is about to record it. Never synchronise."""

    def disarm(self) -> None:
        """Remove the hooks of ``arm``. Idempotent."""

    def close(self) -> None:
        """Remove everything. Idempotent."""
        self.disarm()


class ProbeValues(NamedTuple):
    """The values that probes add to one event.

    Attributes:
        numbers: Metrics on the host.
        vectors: Vectors by name.
        texts: Attributes of the event.
        bundles: Metrics on devices.
    """

    numbers: Mapping[str, float] = {}
    vectors: Mapping[str, Any] = {}
    texts: Mapping[str, str] = {}
    bundles: tuple[Bundle, ...] = ()

    @classmethod
    def joined(cls, emissions: Iterable[ProbeValues]) -> ProbeValues:
        """Return the values of several watches as those of one."""
        joined = NO_VALUES
        for each in emissions:
            joined = cls(
                {**joined.numbers, **each.numbers},
                {**joined.vectors, **each.vectors},
                {**joined.texts, **each.texts},
                (*joined.bundles, *each.bundles),
            )
        return joined

    def prefixed(self, prefix: str) -> ProbeValues:
        """Return the same values, with a prefix before the names of numbers and vectors."""
        if not prefix:
            return self
        bundles = tuple(_prefixed_bundle(prefix, bundle) for bundle in self.bundles)
        return ProbeValues(prefixed(prefix, self.numbers), prefixed(prefix, self.vectors), self.texts, bundles)


NO_VALUES: Final = ProbeValues()


def prefixed(prefix: str, values: Mapping[str, _Value]) -> Mapping[str, _Value]:
    """Return values with a prefix before their names."""
    return {prefix + name: value for name, value in values.items()} if prefix else values


def _prefixed_bundle(prefix: str, bundle: Bundle) -> Bundle:
    derive = bundle.derive
    names = tuple(prefix + name for name in bundle.names)
    return Bundle(names, bundle.tensors, lambda host: prefixed(prefix, derive(host)))
