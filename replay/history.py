"""What a recorded run came to: its length, checkpoints and evaluations, whole and up to an event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..store.events import RULE_KINDS, Event
from .objective import Evaluation, Objective


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A recorded checkpoint.

    Attributes:
        event_index: Index of its event among the stream's events, recorded decisions not counted.
        step: Optimizer updates it holds.
        size_bytes: Its size; None when the run did not say.
    """

    event_index: int
    step: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class History:
    """The facts of a run that a backtest weighs.

    Attributes:
        steps: Optimizer updates finished at the end.
        elapsed_ns: Monotonic time from the first event to the last; None when the log has no times.
        checkpoints: In order.
        evaluations: Values of the metric of merit, in order; empty without one.
    """

    steps: int
    elapsed_ns: int | None
    checkpoints: tuple[Checkpoint, ...]
    evaluations: tuple[Evaluation, ...]


def history_of(events: Sequence[Event], objective: Objective | None) -> History:
    """The facts of a stream. Recorded decisions take no index, as in a replay."""
    facts = [event for event in events if event.kind != "decision"]
    checkpoints = [
        Checkpoint(index, event.step, _size(event)) for index, event in enumerate(facts) if event.kind == "save"
    ]
    metric = objective.metric if objective else None
    evaluations = [
        Evaluation(index, event.step, event.metrics[metric])
        for index, event in enumerate(facts)
        if metric is not None and event.kind == "evaluate" and metric in event.metrics
    ]
    loop = [event for event in facts if event.kind not in RULE_KINDS]
    elapsed = [event.elapsed_ns for event in loop]
    return History(
        steps=max((event.step for event in loop), default=0),
        elapsed_ns=max(elapsed) if any(elapsed) else None,
        checkpoints=tuple(checkpoints),
        evaluations=tuple(evaluations),
    )


def _size(event: Event) -> int | None:
    size = event.attrs.get("size_bytes")
    return size if isinstance(size, int) else None
