"""The history of a recorded run: its length, checkpoints, evaluations and curves.

Streams follow one lineage: the events of each attempt are contiguous, and those that a resume rolled back are absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...store.events import Event
from ...store.parquet.event_rows import Numbers
from ...store.run_info import Attempt
from .event_stream import EventStream
from .objective import UPDATES, Curve, Evaluation, Objective

#: Maximum number of points in a curve: about one per pixel of a plot's width.
POINTS: Final = 600


#: The training series that is drawn with the evaluations.
TRAINING_SERIES: Final = "loss"


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


def size_of(attrs: Mapping[str, object]) -> int | None:
    """Return the size of a checkpoint in bytes from its ``save`` event; None if the event does not give it."""
    size = attrs.get("size_bytes")
    return size if isinstance(size, int) else None


def curves_of(stream: EventStream) -> tuple[Curve, ...]:
    """Return curves of the training loss (of ``step_end`` events, else of ``log``) and of each evaluation metric."""
    found: list[tuple[str, str, Numbers]] = []
    for kind in ("step_end", "log"):
        losses = stream.values_at(kind, TRAINING_SERIES)
        if len(losses.rows):
            found.append((TRAINING_SERIES, kind, losses))
            break
    if len(stream.rows("evaluate")):
        every = ((name, "evaluate", stream.values_at("evaluate", name)) for name in stream.facts.metrics)
        found += [each for each in every if len(each[2].rows)]
    found.sort(key=lambda each: int(each[2].rows[0]))
    return tuple(
        _thinned(name, kind, stream.steps[own.rows].tolist(), own.values.tolist()) for name, kind, own in found
    )


def _thinned(name: str, kind: str, steps: Sequence[int], values: Sequence[float]) -> Curve:
    """Keep the first and last value, and the minimum, maximum and first gap of each of ``POINTS / 2`` stretches."""
    if len(values) <= POINTS:
        return Curve(name, kind, tuple(steps), tuple(values))
    kept = {0, len(values) - 1}
    stretches = POINTS // 2
    for number in range(stretches):
        start, end = number * len(values) // stretches, (number + 1) * len(values) // stretches
        stretch = values[start:end]
        if all(map(math.isfinite, stretch)):
            kept |= {start + stretch.index(min(stretch)), start + stretch.index(max(stretch))}
            continue
        kept.add(next(index for index in range(start, end) if not math.isfinite(values[index])))
        finite = [index for index in range(start, end) if math.isfinite(values[index])]
        if finite:
            kept.add(min(finite, key=values.__getitem__))
            kept.add(max(finite, key=values.__getitem__))
    order = sorted(kept)
    return Curve(name, kind, tuple(steps[index] for index in order), tuple(values[index] for index in order))


def step_unit_of(source: Mapping[str, object] | None) -> str:
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
