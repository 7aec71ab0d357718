"""The history of a recorded run: its length, checkpoints, evaluations and curves, and which logs hold one training.

Streams follow one lineage: the events of each attempt are contiguous, and those that a resume rolled back are absent.
Several logs of one training, such as a tracker's and a CSV logger's, hold the same series, which digests find.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...store.events import Event
from ...store.parquet.event_rows import Numbers
from ...store.run_info import Attempt
from .event_stream import EventStream
from .metric_names import mode_of
from .objective import UPDATES, Curve, Evaluation, Objective

#: Maximum number of points in a curve: about one per pixel of a plot's width.
POINTS: Final = 600


#: The training series that is drawn with the evaluations.
TRAINING_SERIES: Final = "loss"


#: A series of fewer values, or of fewer distinct ones, may equal another training's by chance.
FEWEST_VALUES: Final = 20


FEWEST_DISTINCT: Final = 10


#: Number of values that usually show that a series has enough distinct ones.
_FIRST: Final = 64


#: Maximum number of metrics of a run that are digested: one in common suffices.
MOST_METRICS: Final = 32


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


class Knowledge(NamedTuple):
    """How much a log of a training knows, in an order that no path decides.

    Attributes:
        evaluations: Number of evaluations of the objective.
        clocks: Number of its clocks: of the training, and of the wall.
        events: Number of events.
        log_digest: Digest of the log.
    """

    evaluations: int
    clocks: int
    events: int
    log_digest: str


def digested(metrics: Iterable[str]) -> list[str]:
    """Return the metrics whose series are digested: losses and scores.

    Schedules and counters, which different trainings share, are left out: their names tell no direction.
    """
    return sorted(name for name in metrics if mode_of(name) is not None)[:MOST_METRICS]


def stream_digests(stream: EventStream, metrics: Iterable[str]) -> frozenset[str]:
    """Return a digest of each series of a stream, whatever its name: of its steps and its values.

    Values are compared at 32 bits, because TensorBoard stores no more; NaN counts as no value. Evaluations of a name
    and its other values are two series.

    Args:
        stream: The stream.
        metrics: The metrics to digest, from ``digested``.
    """
    is_evaluation = np.zeros(len(stream), np.bool_)
    is_evaluation[stream.rows("evaluate")] = True
    return frozenset(digest for name in metrics for digest in _digests(stream, is_evaluation, stream.numbers(name)))


def _digests(stream: EventStream, is_evaluation: npt.NDArray[np.bool_], logged: Numbers) -> Iterator[str]:
    is_known = ~np.isnan(logged.values)
    of_evaluations = is_evaluation[logged.rows]
    for own in (of_evaluations & is_known, ~of_evaluations & is_known):
        is_long = np.count_nonzero(own) >= FEWEST_VALUES
        if is_long and (digest := _digest(stream.steps[logged.rows[own]], logged.values[own])):
            yield digest


def _digest(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> str:
    """Return the digest of a series; empty for one of few distinct values."""
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32) + np.float32(0)  # One bit pattern for zero.
    if _distinct(singles[:_FIRST]) < FEWEST_DISTINCT and _distinct(singles) < FEWEST_DISTINCT:
        return ""
    return hashlib.sha256(steps.tobytes() + singles.tobytes()).hexdigest()[:32]


def _distinct(values: npt.NDArray[np.float32]) -> int:
    """Count the distinct values of a series without NaN. ``np.unique`` would load ``numpy.ma``, in 45 ms."""
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1


def repeated_by(series: Sequence[frozenset[str]], weights: Sequence[Knowledge]) -> dict[int, int]:
    """Return for each run that repeats another's series the run that counts for both, by index.

    Args:
        series: The digests of each run. Runs with one in common hold the same training.
        weights: How much each run knows. The one of a training that knows most counts.
    """
    chosen: dict[str, int] = {}
    repeats: dict[int, int] = {}
    for index in sorted(range(len(series)), key=weights.__getitem__, reverse=True):
        same = {chosen[digest] for digest in series[index] if digest in chosen}
        first = max(same, key=weights.__getitem__, default=index)
        if first != index:
            repeats[index] = first
        for digest in series[index]:
            chosen.setdefault(digest, first)
    return repeats


def repeats(name: str, run_id: str) -> str:
    """Return why a run that repeats the series of the named one does not count."""
    return f"it repeats the series of {name} ({run_id})"
