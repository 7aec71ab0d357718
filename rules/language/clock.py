"""How far a run has come: steps, epochs, time and samples, facts about it, and spans such as ``for`` and ``cooldown``.

Takes events in order; returns numbers. Everything is derived from the events and from what the loop declared, so a
replay knows the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from ...store.events import APPLIED, OPERATION_APPLIED, RANKS, RESTORE_POINT, Event
from ...store.plan import Plan
from ..functions.undefined import Undefined
from ..readings.milestone import MilestoneTracker, Reached
from ..readings.reading import Extent

_NS_PER_S: Final = 1e9
#: The same as a whole number, so that spans of whole seconds are exact.
_WHOLE_NS_PER_S: Final = 1_000_000_000

#: The restore points whose steps are kept: more than any training keeps.
_MAX_POINTS: Final = 100

_Number = TypeVar("_Number", int, float)


class UnitCount(NamedTuple):
    """How many samples, or tokens, a run has counted. Clocks copy each other, so it does not change.

    Attributes:
        total: The metric that holds the number so far.
        part: The metric that holds the number of one update.
        reported: The newest value of the former.
        added: The sum of the latter.
    """

    total: str
    part: str
    reported: float | None = None
    added: float | None = None

    def after(self, event: Event) -> UnitCount:
        """Return the count after an event."""
        reported, more = event.metrics.get(self.total), event.metrics.get(self.part)
        count = self if reported is None else self._replace(reported=float(reported))
        if event.kind == "step_end" and more is not None:
            count = count._replace(added=(count.added or 0.0) + more)
        return count

    @property
    def known(self) -> float | None:
        """The number so far: as reported, or else as added up; None where a run has neither metric."""
        return self.added if self.reported is None else self.reported


class Clock:
    """Counts steps, evaluations, time and samples along one stream of events, and knows the plan at its place.

    Args:
        plan: What the newest attempt declared at its start.
        trackers: What counts the milestones that rules ask for.
        earlier: What earlier attempts declared at their start, where that is known.

    Attributes:
        evaluations: ``evaluate`` events so far.
        updates_applied, updates_skipped: ``step_end`` events so far, by whether their update changed the model.
        undos, rollbacks: How often the training went back to a restore point, or to a checkpoint.
        undos_to_point: How often to the newest restore point.
        points: The steps of the newest restore points of the process, oldest first.
        reached_step: The highest step so far.
        reached_epoch: The highest epoch so far; None before the first.
        plan: What the loop has declared so far, where each attempt begins with the plan of the newest.
        own_plan: The same, where each attempt begins with its own plan. Milestones are reached under that.
    """

    def __init__(
        self,
        plan: Plan = Plan(),  # noqa: B008 - a Plan is immutable
        trackers: Iterable[MilestoneTracker] = (),
        earlier: Mapping[int, Plan] = MappingProxyType({}),
    ) -> None:
        self._first_plan = plan
        self._earlier = earlier
        self.plan = plan
        self.own_plan = earlier.get(0, plan)
        self._trackers = tuple(trackers)
        self._reached = tuple(Reached() for _ in self._trackers)
        self.evaluations = 0
        self.updates_applied = 0
        self.updates_skipped = 0
        self.undos = self.rollbacks = self.undos_to_point = 0
        self.points: tuple[int, ...] = ()
        self._points_left: tuple[tuple[int, ...], int] = ((), 0)
        self.reached_step = 0
        self.reached_epoch: float | None = None
        self._attempt = 0
        self._elapsed_ns = 0
        self._before_ns = 0
        self._samples = UnitCount("samples_seen", "batch_size")
        self._tokens = UnitCount("tokens_seen", "num_tokens")

    def take(self, event: Event) -> None:
        """Advance to an event."""
        if event.attempt != self._attempt:
            self._before_ns += self._elapsed_ns
            self._attempt, self._elapsed_ns = event.attempt, 0
            self._points_left = self.points, self.undos_to_point
            self.points, self.undos_to_point = (), 0  # Another process holds none of them.
            self.own_plan = self._earlier.get(event.attempt, self._first_plan)
        self._elapsed_ns = max(self._elapsed_ns, event.elapsed_ns)
        self.reached_step = max(self.reached_step, event.step)
        epoch = event.epoch if event.epoch is not None else event.metrics.get("epoch")
        if epoch is not None and not epoch < (self.reached_epoch or 0.0) and epoch == epoch:
            self.reached_epoch = epoch
        if event.kind == "evaluate":
            self.evaluations += 1
        elif event.kind == "step_end":
            is_skipped = bool(event.attrs) and event.attrs.get(APPLIED) is False
            self.updates_skipped += is_skipped
            self.updates_applied += not is_skipped
        self._samples = self._samples.after(event)
        self._tokens = self._tokens.after(event)
        if self._trackers:
            self._reached = tuple(
                tracker.after(reached, event, self.own_plan, self.reached)
                for tracker, reached in zip(self._trackers, self._reached, strict=True)
            )

    def take_fact(self, event: Event) -> None:
        """Take a restore point, or a receipt, which says how often the training went back in all."""
        if event.kind == RESTORE_POINT:
            self.points, self.undos_to_point = (*self.points, event.step)[-_MAX_POINTS:], 0
        elif event.kind == OPERATION_APPLIED:
            self.undos = event.attrs.get("undos", self.undos)
            if "rollbacks" in event.attrs:  # Which began an attempt in the process that holds the points.
                self.rollbacks = event.attrs["rollbacks"]
                self.points, self.undos_to_point = self._points_left
            if (back := event.attrs.get("point_step")) is not None:
                self.points = tuple(step for step in self.points if step <= back)
                self.undos_to_point = event.attrs["times"]

    def declare(self, attrs: Mapping[str, Any]) -> Plan:
        """Take the attributes of a ``plan`` event, and return the plan."""
        self.plan, self.own_plan = self.plan.updated(attrs), self.own_plan.updated(attrs)
        return self.plan

    def reaches(self, milestone: int) -> bool:
        """Return whether the newest event reached another share of a milestone, by its number.

        Raises:
            Undefined: The run's position or its length were not known there.
        """
        return self._reached[milestone].read()

    def become(self, other: Clock) -> None:
        """Take over the position of another clock."""
        vars(self).update(vars(other))

    @contextmanager
    def behind(self, other: Clock) -> Iterator[None]:
        """Work at the position of another clock, which advances in place of this one."""
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__
        try:
            yield
        finally:
            self.__dict__, other.__dict__ = other.__dict__, self.__dict__

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds of training up to the newest event, over all attempts."""
        return self._before_ns + self._elapsed_ns

    def reached(self, extent: Extent) -> float | None:
        """Return how far the run has come in a unit; None where it has not said so. Values have no such position."""
        match extent:
            case Extent.STEPS:
                return self.reached_step
            case Extent.EPOCHS:
                return self.reached_epoch
            case Extent.SECONDS:
                return self.elapsed_ns / _NS_PER_S
            case Extent.SAMPLES:
                return self._samples.known
            case Extent.TOKENS:
                return self._tokens.known
        raise ValueError(extent)


class RunContext:
    """The facts of ``CONTEXT`` for one engine.

    Args:
        clock: Advanced to each event before a fact about the event is read.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def readers(self) -> dict[str, Callable[[Event], float]]:
        """Return a function from an event to the fact, for each name but ``step``, which is a field of the event."""
        return {
            "epoch": self._epoch,
            "progress": self._progress,
            "max_steps": lambda _: _declared(self._clock.plan.max_steps()),
            "elapsed_s": lambda _: self._clock.elapsed_ns / _NS_PER_S,
            "samples_seen": lambda _: _declared(self._clock.reached(Extent.SAMPLES)),
            "tokens_seen": lambda _: _declared(self._clock.reached(Extent.TOKENS)),
            "world_size": lambda _: _declared(self._clock.plan.world_size),
            "undefined": _undefined,
            "updates_applied": lambda _: self._clock.updates_applied,
            "updates_skipped": lambda _: self._clock.updates_skipped,
            "undos": lambda _: self._clock.undos,
            "undos_to_point": lambda _: self._clock.undos_to_point,
            "rollbacks": lambda _: self._clock.rollbacks,
        }

    def _progress(self, event: Event) -> float:
        plan = self._clock.plan
        steps = plan.max_steps()
        if steps:
            return event.step / steps
        return self._epoch(event) / _declared(plan.total_epochs)

    def _epoch(self, event: Event) -> float:
        epoch = event.epoch if event.epoch is not None else event.metrics.get("epoch")
        if epoch is None and event.kind == RANKS:
            # It stands for a step, whose event has told the epoch.
            epoch = self._clock.reached_epoch
        if epoch is None:
            raise Undefined("no epoch")
        return epoch


def _declared(value: _Number | None) -> _Number:
    if value is None:
        raise Undefined("not declared")
    return value


def _undefined(_: Event) -> float:
    raise Undefined("said to be undefined")


RESET_ON_FAILURE: Final = "reset_on_failure"
NO_RESET_ON_FAILURE: Final = "no_reset_on_failure"
MODES: Final = (RESET_ON_FAILURE, NO_RESET_ON_FAILURE)


class Unit(StrEnum):
    """The unit of a span."""

    STEPS = "steps"
    EVALUATIONS = "evaluations"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Span:
    """A length of a run.

    Attributes:
        amount: In the unit; seconds may be fractions.
        unit: Steps, ``evaluate`` events, or seconds of training time over all attempts.
    """

    amount: float
    unit: Unit = Unit.STEPS

    @property
    def length(self) -> int:
        """The amount in whole steps, evaluations or nanoseconds."""
        return round(self.amount * _WHOLE_NS_PER_S) if self.unit is Unit.SECONDS else int(self.amount)


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The span after a decision in which a controller cannot fire.

    Attributes:
        span: Counted from the decision.
        name: The name under which controllers share it; empty for a cooldown of one controller alone.
    """

    span: Span
    name: str = ""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The steps at which a controller is evaluated, both ends included; None for an open end."""

    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """The patience that a controller declares.

    Attributes:
        threshold: True answers to tolerate before one fires; 0 and less tolerate none.
        mode: Whether a false answer restarts the count.
    """

    threshold: int = 1
    mode: str = RESET_ON_FAILURE
