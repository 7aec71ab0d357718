"""A fact about the run as of the event, such as ``step`` or ``elapsed_s``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from .first_events import START, First, Never, any_of
from .generated import EVENT, attribute, call, name
from .ranges import ANY, NATURAL, Range
from .reading import (
    AnyTerm,
    Code,
    Extent,
    NotColumnar,
    Reading,
    RunColumns,
    RunSeries,
    SeriesKey,
    Sightings,
    TermMaker,
    ValueLimits,
    ValueType,
    exact_float,
)

if TYPE_CHECKING:
    from .vectors import Ints, Vector

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
        "undos": "How often the training went back to a restore point, as `undo.to` orders. No undo changes it.",
        "undos_to_point": "How often it went back to the newest restore point. 0 without one, as after a resume.",
        "rollbacks": "How often the run was rolled back to a checkpoint, over all its attempts.",
        "undefined": "Never known, as in `loss if isfinite(loss) else undefined`.",
    }
)
#: Facts that events are counted for, one by one.
_COUNTED: Final = frozenset({"updates_applied", "updates_skipped", "undos", "undos_to_point", "rollbacks"})
_NS_PER_S: Final = 1e9
#: Facts that are whole numbers; the others are floats.
_WHOLE: Final = _COUNTED | {"step", "max_steps", "world_size"}


@dataclass(frozen=True, slots=True)
class ContextValue(Reading):
    """A fact about the run as of the event."""

    name: str

    examples: ClassVar[tuple[str, ...]] = tuple(CONTEXT)
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
        return self.name == "step"

    def live(self, code: Code, node: ast.expr) -> ast.expr:
        if self.name == "step":
            return attribute(name(EVENT), "step")
        return call(name(code.names.fact_of(self.name)), name(EVENT))

    def term(self, terms: TermMaker[AnyTerm], text: str) -> AnyTerm:
        if self.name in _COUNTED:
            raise NotColumnar(f"it reads the fact {self.name!r}")
        return terms.of_fact(self)

    def column(self, columns: RunSeries, kind: str) -> Vector:
        from .vectors import Vector, nowhere

        stream, plan, rows = columns.stream, columns.stream.plan, columns.rows(kind)
        match self.name:
            case "step":
                return Vector(stream.steps[rows].astype("float64"), None)
            case "elapsed_s":
                return Vector(stream.clock_ns[rows] / _NS_PER_S, None)
            case "samples_seen" | "tokens_seen":
                extent = Extent.SAMPLES if self.name == "samples_seen" else Extent.TOKENS
                counted = columns.positions(extent)[rows]
                return Vector(counted, counted == counted)
            case "max_steps":
                return _declared(plan.max_steps(), len(rows))
            case "world_size":
                return _declared(plan.world_size, len(rows))
            case "progress" if plan.max_steps():
                return Vector(stream.steps[rows] / exact_float(plan.max_steps() or 0), None)
            case "epoch" | "progress":
                return _epochs(
                    stream, rows, _declared(plan.total_epochs, len(rows)) if self.name == "progress" else None
                )
        return nowhere(len(rows))

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
                return START if plan.max_steps() is not None else self._unplanned()
            case "world_size":
                return START if plan.world_size is not None else Never("no declared world size")
            case "progress" if plan.max_steps():
                return START
            case "progress" if plan.total_epochs is None:
                return self._unplanned()
            case "epoch" | "progress":
                first = seen.run.first_epoch()
                return Never("no epoch", is_absent=True) if first is None else first
            case "samples_seen":
                keys = (SeriesKey("samples_seen"), SeriesKey("batch_size", "step_end"))
                return any_of(seen.values(key, 1) for key in keys)
            case "undefined":
                return Never("what is undefined is never known")
        return START

    def _unplanned(self) -> Never:
        return Never(f"no plan, so '{self.name}' is unknown", is_absent=True, is_unplanned=True)


def _declared(value: int | None, rows: int) -> Vector:
    from .vectors import Vector, nowhere

    return Vector(0.0, nowhere(rows).defined) if value is None else Vector(exact_float(value), None)


def _epochs(stream: RunColumns, rows: Ints, total: Vector | None) -> Vector:
    """Return the epoch at each row: its own, or else its metric of that name; with a total, the share of it."""
    import numpy as np

    from .vectors import Vector

    own, logged, epochs = stream.has_epoch[rows], stream.metrics.get("epoch"), stream.epochs[rows]
    if logged is not None:
        place = np.minimum(np.searchsorted(logged.at, rows), len(logged.at) - 1)
        epochs, own = np.where(own, epochs, logged.values[place]), own | (logged.at[place] == rows)
    if total is None:
        return Vector(epochs, own)
    if not total.values:
        return Vector(epochs, np.zeros(len(rows), np.bool_))
    return Vector(epochs / total.values, own)
