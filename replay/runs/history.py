"""The history of a recorded run: its length, checkpoints, evaluations and curves, and what resumes rolled back.

Streams follow one lineage: the events of each attempt are contiguous, and those that a resume rolled back are absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...store.events import Event
from ...store.lineage import DECIDING_RANK
from ...store.own_process import collection_paused
from ...store.reading.snapshot import Snapshot, deciding_stream
from ...store.run_info import Attempt
from .curves import Curve, curves_of
from .event_stream import EventStream, event_stream, other_ranks
from .objective import Evaluation, Objective
from .renaming import Renames, renamed_events, renames_in


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A recorded checkpoint.

    Attributes:
        event_index: Index of its event among the stream's events, recorded decisions not counted.
        step: Optimizer updates it holds.
        size_bytes: Its size; None when the run did not record it.
    """

    event_index: int
    step: int
    size_bytes: int | None


class EvaluatedValues(NamedTuple):
    """The values of one evaluation metric, in order.

    Attributes:
        rows: Indices of their events among the stream's events, recorded decisions not counted.
        steps: Optimizer updates finished by then.
        values: The values.
        times_ns: Wall clock when they were recorded; 0 where the log has no times.
    """

    rows: tuple[int, ...]
    steps: tuple[int, ...]
    values: tuple[float, ...]
    times_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The facts of a run that a backtest needs.

    Attributes:
        steps: Optimizer updates finished at the end.
        elapsed_ns: Monotonic time from the first event to the last, summed over the attempts that led to it; None when
            the log has no times.
        tail_ns: The part of it that comes after the last step, and would come after an early stop; None likewise.
        checkpoints: The checkpoints, in order.
        evaluations: Values of each evaluation metric, in order.
        curves: Downsampled curves of the training loss and of those metrics, for plots.
        annotations: Annotation events, in order.
        evaluated_at: Index of each evaluation among the stream's events, whatever metrics it carries.
        evaluated_steps: The steps of those evaluations.
        began_ns, ended_ns: Wall clock at the first and the last event; 0 when the log has none.
    """

    steps: int
    elapsed_ns: int | None
    tail_ns: int | None
    checkpoints: tuple[Checkpoint, ...]
    evaluations: Mapping[str, EvaluatedValues]
    curves: tuple[Curve, ...] = ()
    annotations: tuple[Event, ...] = ()
    evaluated_at: tuple[int, ...] = ()
    evaluated_steps: frozenset[int] = frozenset()
    began_ns: int = 0
    ended_ns: int = 0

    def merit(self, objective: Objective | None) -> tuple[Evaluation, ...]:
        """Return the values of the objective in order; empty without one."""
        found = None if objective is None else self.evaluations.get(objective.metric)
        return () if found is None else tuple(map(Evaluation, *found))


def history_of(stream: EventStream, *, with_curves: bool = True) -> History:
    """Return the facts of a stream. Outcomes of recorded rules take no index, as in a replay.

    Args:
        stream: The stream.
        with_curves: Whether to downsample curves for plots.
    """
    evaluated, saved = stream.rows("evaluate"), stream.rows("save")
    facts, times_ns = stream.facts, stream.facts.whole("time_ns")
    return History(
        steps=stream.last_step,
        elapsed_ns=stream.duration_ns,
        tail_ns=stream.tail_ns,
        checkpoints=tuple(
            Checkpoint(index, step, size_of(facts.attrs_at(index)))
            for index, step in zip(saved.tolist(), stream.steps[saved].tolist(), strict=True)
        ),
        evaluations=_evaluations(stream),
        curves=curves_of(stream) if with_curves else (),
        # Copy the metrics: those of a stream's event keep all columns of the stream alive.
        annotations=tuple(event._replace(metrics=dict(event.metrics)) for _, event in stream.of_kind("annotation")),
        evaluated_at=tuple(evaluated.tolist()),
        evaluated_steps=frozenset(stream.steps[evaluated].tolist()),
        began_ns=int(times_ns[0]) if len(times_ns) else 0,
        ended_ns=int(times_ns[-1]) if len(times_ns) else 0,
    )


def _evaluations(stream: EventStream) -> dict[str, EvaluatedValues]:
    """Return the values of each evaluation metric; the metrics in the order of their first evaluation."""
    if not len(stream.rows("evaluate")):
        return {}
    found = {name: stream.values_at("evaluate", name) for name in stream.facts.metrics}
    first = {name: int(values.rows[0]) for name, values in found.items() if len(values.rows)}
    times_ns = stream.facts.whole("time_ns")
    # Most metrics have values at the same evaluations, and share these columns.
    clocks: dict[bytes, tuple[tuple[int, ...], ...]] = {}
    evaluations: dict[str, EvaluatedValues] = {}
    for name in sorted(first, key=first.__getitem__):
        rows, values = found[name]
        key = rows.tobytes()
        if key not in clocks:
            clocks[key] = tuple(tuple(column.tolist()) for column in (rows, stream.steps[rows], times_ns[rows]))
        indices, steps, times = clocks[key]
        evaluations[name] = EvaluatedValues(indices, steps, tuple(values.tolist()), times)
    return evaluations


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Work that was lost because the run resumed from an earlier checkpoint.

    Attributes:
        steps: Optimizer updates by attempt; attempts without any are left out.
        elapsed_ns: Time they took; 0 when the log has no times.
    """

    steps: Mapping[int, int]
    elapsed_ns: int


NOTHING_ROLLED_BACK = RolledBack({}, 0)


def read_lineage(
    snapshot: Snapshot, *, samples: bool = False, renames: Renames = (), ranks: Collection[str] = ()
) -> tuple[EventStream, RolledBack]:
    """Return the deciding rank's events along the lineage of a run's newest attempt, and what was rolled back.

    Args:
        snapshot: The run.
        samples: Whether to load the events' sample losses and vectors.
        renames: The metrics to rename.
        ranks: The metrics that rules read on all ranks.
    """
    called = renames_in(snapshot.columns.by_metric, renames)
    events, rolled_back = _lineage(snapshot, samples=samples)

    def others() -> dict[int, Sequence[Event]]:
        return {rank: renamed_events(own, called) for rank, own in other_ranks(snapshot).items()}

    info = snapshot.info
    return event_stream(renamed_events(events, called), others, ranks, info.last.plan, info.earlier_plans), rolled_back


def _lineage(snapshot: Snapshot, *, samples: bool) -> tuple[Sequence[Event], RolledBack]:
    lineage = snapshot.lineage
    if not lineage.cuts:
        return deciding_stream(snapshot, samples=samples), NOTHING_ROLLED_BACK
    with collection_paused():
        recorded = list(snapshot.events(DECIDING_RANK, samples=samples))
    held = list(lineage.events(recorded))
    steps = _steps(recorded)
    for attempt, count in _steps(held).items():
        steps[attempt] -= count
    elapsed_ns = sum(_spans(recorded).values()) - sum(_spans(held).values())
    rolled_back = RolledBack({attempt: count for attempt, count in steps.items() if count}, elapsed_ns)
    return held, rolled_back


#: What the steps of a recorded run count.
UPDATES: Final = "updates"


def step_unit_of(source: Mapping[str, Any] | None) -> str:
    """Return what the steps of a run count: updates, epochs, or the counter of the tool that wrote its source.

    Args:
        source: What the run was imported from; None for a recorded run.
    """
    if source is None:
        return UPDATES
    return str(source.get("step_unit") or f"{source.get('kind')} steps")


def restored_steps(attempts: Iterable[Attempt]) -> frozenset[int]:
    """Return the steps of the checkpoints from which an attempt resumed."""
    return frozenset(a.from_step for a in attempts if a.parent is not None and a.from_step is not None)


def _steps(events: Iterable[Event]) -> Counter[int]:
    return Counter(event.attempt for event in events if event.kind == "step_end" and not event.is_late)


def _spans(events: Iterable[Event]) -> dict[int, int]:
    """Return the time from the begin of each attempt to its last event, in ns, in order of attempts."""
    spans: dict[int, int] = {}
    for event in events:
        if event.elapsed_ns > spans.setdefault(event.attempt, 0):
            spans[event.attempt] = event.elapsed_ns
    return spans


def size_of(attrs: Mapping[str, Any]) -> int | None:
    """Return the size of a checkpoint in bytes from its ``save`` event; None if the event does not give it."""
    size = attrs.get("size_bytes")
    return size if isinstance(size, int) else None
