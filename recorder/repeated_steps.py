"""Which step function a loop's calls have earned: those of a shape that repeats get one that was made for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .compiled_step import MOST_NAMES, StepShape
from .control import Control
from .values import float_at_hand

#: Shapes of a run's calls that get a function of their own.
_MOST_COMPILED: Final = 16


class RepeatedSteps:
    """The step functions of one recorder.

    Args:
        compile_for: Makes the function for a shape; None where it cannot yet.
        takes_samples: Whether such a function may record sample losses.
    """

    def __init__(
        self, compile_for: Callable[[StepShape], Callable[..., Control] | None], *, takes_samples: bool
    ) -> None:
        self._compile_for = compile_for
        self._takes_samples = takes_samples
        self._latest: StepShape | None = None
        self._compiled: dict[StepShape, Callable[..., Control]] = {}

    def quick_step(
        self, metrics: Mapping[str, Any], has_samples: bool, is_mapping: bool
    ) -> Callable[..., Control] | None:
        """The function for calls like this one, which took the general way, once two in a row are alike."""
        if len(metrics) > MOST_NAMES or (has_samples and not self._takes_samples):
            return None
        shape = StepShape((*metrics,), has_samples, is_mapping)
        if shape != self._latest:
            self._latest = shape
            return None
        known = self._compiled.get(shape)
        if known is None and len(self._compiled) < _MOST_COMPILED and shape.can_be_compiled:
            are_numbers = all(type(float_at_hand(value)) is float for value in metrics.values())
            known = self._compile_for(shape) if are_numbers else None
            if known is not None:
                self._compiled[shape] = known
        return known
