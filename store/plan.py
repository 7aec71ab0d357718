"""Holds the declared plan of a run: its intended length, world size and constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

_COUNTS: Final = ("total_steps", "total_epochs", "steps_per_epoch", "world_size")


@dataclass(frozen=True, slots=True)
class Plan:
    """The declared length of a run; None for fields that the loop did not declare.

    Attributes:
        total_steps: Optimizer updates that the run is meant to make.
        total_epochs: Passes over the data that the run is meant to make.
        steps_per_epoch: Optimizer updates in one pass.
        world_size: Processes that train together.
        constants: Numbers that describe the run, such as ``num_params``.
    """

    total_steps: int | None = None
    total_epochs: int | None = None
    steps_per_epoch: int | None = None
    world_size: int | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    def max_steps(self) -> int | None:
        """Planned updates: ``total_steps``, or else epochs times steps per epoch; None when unknown."""
        if self.total_steps is not None:
            return self.total_steps
        if self.total_epochs is not None and self.steps_per_epoch is not None:
            return self.total_epochs * self.steps_per_epoch
        return None

    def updated(self, attrs: Mapping[str, Any]) -> Plan:
        """Return the plan after a ``plan`` event with these attributes; values that are not numbers change nothing.

        >>> Plan(total_steps=10, constants={"a": 1.0}).updated({"total_steps": 20, "constants": {"b": 2}})
        Plan(total_steps=20, total_epochs=None, steps_per_epoch=None, world_size=None, constants={'a': 1.0, 'b': 2.0})
        """
        counts = {name: attrs[name] for name in _COUNTS if type(attrs.get(name)) is int}
        return replace(self, **counts, constants={**self.constants, **constants_in(attrs)})


def constants_in(attrs: Mapping[str, Any]) -> dict[str, float]:
    """Return the constants that the attributes of a ``plan`` event declare."""
    given = attrs.get("constants")
    if not isinstance(given, Mapping):
        return {}
    return {name: float(value) for name, value in given.items() if type(value) in (int, float)}
