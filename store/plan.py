"""Holds the declared plan of a run: its intended length, world size and constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
