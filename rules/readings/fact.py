"""A fact about the run as of the event, such as ``step`` or ``elapsed_s``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from .first_events import START, First, Never, any_of
from .generated import EVENT, attribute, call, name
from .ranges import ANY, NATURAL, Range
from .reading import Code, Reading, SeriesKey, Sightings, ValueLimits, ValueType

#: The facts about the run: name to meaning.
CONTEXT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "step": "The event's step: the number of finished optimizer updates.",
        "epoch": "Finished epochs, as a fraction: the event's own, or else its metric called `epoch`.",
        "progress": "The step divided by `max_steps`. Without a declared `max_steps`, the epoch divided by the "
        "declared epochs.",
        "max_steps": "The number of updates that the loop declared for the run.",
        "elapsed_s": "Seconds of training up to the event, summed over the attempts that led to it.",
        "samples_seen": "The newest value of the metric `samples_seen`. In a run without it, the sum of the metric "
        "`batch_size` over the updates so far.",
        "tokens_seen": "The newest value of the metric `tokens_seen`. In a run without it, the sum of the metric "
        "`num_tokens` over the updates so far.",
        "world_size": "The number of processes that train together, as the loop declared.",
        "updates_applied": "The updates so far that changed the model.",
        "updates_skipped": "The updates so far that the loop attempted and skipped, as mixed precision does where a "
        "gradient is not finite: `rec.step(..., applied=False)`.",
        "undefined": "Never known, as in `loss if isfinite(loss) else undefined`.",
    }
)
#: Facts that are whole numbers; the others are floats.
_WHOLE: Final = frozenset({"step", "max_steps", "world_size", "updates_applied", "updates_skipped"})


@dataclass(frozen=True, slots=True)
class ContextValue(Reading):
    """A fact about the run as of the event."""

    name: str

    is_shown_by_name: ClassVar[bool] = True

    @property
    def value_type(self) -> ValueType:
        """A whole number for steps and updates; others are floats but for what a loop declares."""
        return ValueType.WHOLE if self.name in _WHOLE else ValueType.NUMBER

    @property
    def fact(self) -> str:
        return self.name

    @property
    def is_count(self) -> bool:
        """Whether it is the step."""
        return self.name == "step"

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        if self.name == "step":
            return attribute(name(EVENT), "step")
        return call(name(code.names.fact_of(self.name)), name(EVENT))

    def bounds(self, limits: ValueLimits) -> Range:
        """Return the range of the step; whole numbers are not negative."""
        if self.name == "step":
            return limits.steps
        return NATURAL if self.name in _WHOLE else ANY

    def first(self, seen: Sightings, wanted: bool | None) -> First:
        """Return when the run has said it."""
        plan = seen.run.plan
        match self.name:
            case "max_steps":
                return START if plan.max_steps() is not None else Never("no planned number of steps")
            case "world_size":
                return START if plan.world_size is not None else Never("no declared world size")
            case "progress" if plan.max_steps():
                return START
            case "progress" if plan.total_epochs is None:
                return Never("no planned length")
            case "epoch" | "progress":
                first = seen.run.first_epoch()
                return Never("no epoch", is_absent=True) if first is None else first
            case "samples_seen":
                keys = (SeriesKey("samples_seen"), SeriesKey("batch_size", "step_end"))
                return any_of(seen.values(key, 1) for key in keys)
        return START
