"""An imagined run: a few series and their intervals, played as the events that a loop would emit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...store.events import CUSTOM, LOOP_KINDS, Event
from ...store.plan import Plan
from ...store.sample_losses import SampleLosses
from ...store.vectors import NO_VECTORS, Vectors

#: Most steps of one imagined run.
MAX_STEPS: Final = 1_000_000

#: Kinds of events that an imagined run may have, in the order in which a loop emits them within one step.
#: ``train_begin`` and ``train_end`` are always present. Custom kinds come before ``epoch_end``.
STEP_KINDS: Final = tuple(kind for kind in LOOP_KINDS if kind not in ("train_begin", "train_end"))

#: The kinds among ``STEP_KINDS`` that carry numbers.
SERIES_KINDS: Final = tuple(kind for kind in STEP_KINDS if kind != "epoch_begin")

_BEFORE_THE_STEP: Final = frozenset(STEP_KINDS[: STEP_KINDS.index("step_end")])


@dataclass(frozen=True, slots=True)
class ScenarioSeries:
    """The values of one metric.

    Attributes:
        name: The metric's name.
        kind: Kind of the events that carry it.
        every: Steps from one of those events to the next; the first is at this step.
        values: One for each of those events; None where the event does not carry the metric.
    """

    name: str
    kind: str
    every: int
    values: tuple[float | None, ...]

    def last_step(self) -> int:
        """Return the step of the last value."""
        return self.every * len(self.values)

    def value_at(self, step: int) -> float | None:
        """Return the value at a step; None where there is none."""
        index, rest = divmod(step, self.every)
        return self.values[index - 1] if rest == 0 and 0 < index <= len(self.values) else None


@dataclass(frozen=True, slots=True)
class Scenario:
    """An imagined run.

    Attributes:
        series: The series that its events carry.
        steps: The number of its steps.
        every: Interval, in steps, of each kind of event that occurs even without a series.
        samples: Sample losses of a step's batch, by step.
        vectors: Vectors of a step, by step.
        plan: The plan that the loop declared.
        step_s: Seconds that a step takes.
    """

    series: tuple[ScenarioSeries, ...]
    steps: int
    every: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[int, SampleLosses] = field(default_factory=dict)
    vectors: Mapping[int, Vectors] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    step_s: float = 1.0

    def iterations(self) -> Iterator[list[Event]]:
        """Yield the events, one list per turn of the loop: before the loop, each step with its events, after the loop.

        A step's list holds the events that precede its update (they have the previous step), the ``step_end``, and
        those that follow.
        """
        seq = 0
        named = (*self.every, *(entry.kind for entry in self.series))
        custom = sorted({kind for kind in named if kind.startswith(CUSTOM)})
        ordered = [*STEP_KINDS[:-1], *custom, STEP_KINDS[-1]]
        by_kind = {kind: [entry for entry in self.series if entry.kind == kind] for kind in ordered}
        kinds = [kind for kind in ordered if kind == "step_end" or kind in self.every or by_kind[kind]]
        yield [self._event("train_begin", 0, seq, ())]
        for step in range(1, self.steps + 1):
            events = []
            for kind in kinds:
                if self._is_due(kind, step, by_kind[kind]):
                    seq += 1
                    events.append(self._event(kind, step, seq, by_kind[kind]))
            yield events
        yield [self._event("train_end", self.steps, seq + 1, ())]

    def _is_due(self, kind: str, step: int, series: Sequence[ScenarioSeries]) -> bool:
        if kind == "step_end":
            return True
        # An epoch begins before its first step; everything else comes with the last step of its interval.
        position = step - 1 if kind == "epoch_begin" else step
        if kind in self.every and position % self.every[kind] == 0:
            return True
        return any(step % entry.every == 0 and step <= entry.last_step() for entry in series)

    def _event(self, kind: str, step: int, seq: int, series: Sequence[ScenarioSeries]) -> Event:
        values = ((entry.name, entry.value_at(step)) for entry in series)
        finished = step - 1 if kind in _BEFORE_THE_STEP else step
        epoch_steps = self.plan.steps_per_epoch
        return Event(
            kind,
            step=finished,
            seq=seq,
            epoch=finished / epoch_steps if epoch_steps else None,
            elapsed_ns=round(finished * self.step_s * 1e9),
            metrics={name: value for name, value in values if value is not None},
            samples=self.samples.get(step) if kind == "step_end" else None,
            vectors=self.vectors.get(step, NO_VECTORS) if kind == "step_end" else NO_VECTORS,
        )
