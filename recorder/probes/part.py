"""Defines what a group of probes is (``Part``), and what it fills (``Readings``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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


class Part:
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
