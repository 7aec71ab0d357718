"""Reads what retention needs of a run: its checkpoints on disk, its evaluations, its spikes and its pins.

Takes an entry of a store; returns a frozen value. Events are read as columns, once for each run.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..replay.runs.event_stream import EventStream
from ..replay.runs.history import history_of, read_lineage, restored_steps
from ..replay.runs.objective import Evaluation, Objective, best, objective_among, objective_of_study
from ..store.annotations import read_annotations
from ..store.events import Event
from ..store.reading.catalog import Entry
from ..store.reading.snapshot import Snapshot, read_snapshot, retrying
from ..store.run_info import RunInfo
from .disk import CheckpointPlace, Grounds
from .keep_file import KeepFile, Spike

PINNED: Final = "pinned"

#: How many values before a spike make its mean, and how many must be there: those of the policy ``loss_spike``.
_WINDOW: Final = 50
_LEAST_VALUES: Final = 5

_COLUMNS: Final = ("kind", "attempt", "rank", "seq", "step", "time_ns", "attrs")


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A path that a run saved a checkpoint to, as of the last time that it did.

    Attributes:
        recorded: The path, as the run gave it.
        place: What it names on disk.
        attempt, step: When it was saved last.
        saved_ns: Wall clock then, nanoseconds since 1970; 0 where the log has no times.
        is_effective: Whether no resume rolled that back.
    """

    recorded: str
    place: CheckpointPlace
    attempt: int
    step: int
    saved_ns: int
    is_effective: bool


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run, as far as retention looks at it.

    Attributes:
        entry: The run in its store.
        info: Its ``run.json``.
        is_live: Whether a process is writing to it.
        log_digest: The digest of its log; empty without one.
        files: Each path once that it saved checkpoints to.
        loaded: The paths that a live run loaded, without links.
        objective: The metric that judges it; None without one.
        evaluations: The values of the objective, in order.
        spikes: The first step of each spike.
        pins: The steps that notes pin, both ends included.
    """

    entry: Entry
    info: RunInfo
    is_live: bool
    log_digest: str
    files: tuple[SavedFile, ...]
    loaded: frozenset[Path]
    objective: Objective | None
    evaluations: tuple[Evaluation, ...]
    spikes: Mapping[Spike, tuple[int, ...]]
    pins: tuple[tuple[float, float], ...]

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.entry.folder

    @property
    def sound(self) -> list[SavedFile]:
        """The checkpoints that are on disk as they were recorded."""
        return [file for file in self.files if not file.place.fault]

    @property
    def is_pinned(self) -> bool:
        """Whether the whole run is pinned."""
        return PINNED in self.info.tags or (-math.inf, math.inf) in self.pins

    def best_of(self, steps: Iterable[int]) -> Evaluation | None:
        """Return the best evaluation at one of these steps; None without any."""
        if self.objective is None:
            return None
        among = set(steps)
        return best((one for one in self.evaluations if one.step in among), self.objective)

    def best_at_all(self) -> float | None:
        """Return the best value with a checkpoint, or without such a value the best one; None without any."""
        judged = self.best_of(file.step for file in self.sound) or self.best_of(one.step for one in self.evaluations)
        return None if judged is None else judged.value

    def points_to_resume_from(self) -> list[SavedFile]:
        """Return the checkpoints that must stay: those resumed from, and the newest if the run has not completed."""
        restored = restored_steps(self.info.attempts)
        needed = [file for file in self.sound if file.step in restored]
        among = [file for file in self.sound if file.is_effective] or self.sound
        if among and self.info.last.status != "completed":
            newest = max((file.attempt, file.step) for file in among)
            needed += [file for file in among if (file.attempt, file.step) == newest]
        return needed


def read_saved_run(entry: Entry, grounds: Grounds, keep: KeepFile) -> SavedRun:
    """Read a run.

    Raises:
        TelemetryError: It cannot be read.
    """
    return retrying(lambda: _read(entry, read_snapshot(entry.folder), grounds, keep))


def _read(entry: Entry, snapshot: Snapshot, grounds: Grounds, keep: KeepFile) -> SavedRun:
    stream, _ = read_lineage(snapshot)
    history = history_of(stream, with_curves=False)
    declared = () if keep.objective is None else (keep.objective,)
    objective = objective_among(history.evaluations.keys(), declared, objective_of_study(snapshot.info.source))
    rows = _rows(snapshot)
    return SavedRun(
        entry=entry,
        info=snapshot.info,
        is_live=snapshot.is_live,
        log_digest=snapshot.log_digest,
        files=tuple(_files(rows, snapshot, grounds)),
        loaded=frozenset(_loaded(rows, grounds) if snapshot.is_live else ()),
        objective=objective,
        evaluations=history.merit(objective),
        spikes={spike: tuple(spikes_in(_values(stream, spike.metric), spike)) for spike in keep.spikes},
        pins=tuple(_pins(history.annotations, snapshot.folder)),
    )


def _rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the events of all ranks that name paths, with parsed attributes."""
    table = snapshot.events_table(_COLUMNS)
    chosen = np.flatnonzero(np.isin(table["kind"].to_numpy(zero_copy_only=False), ["save", "load"]))
    rows: list[dict[str, Any]] = table.take(chosen).to_pylist()
    for row in rows:
        row["attrs"] = json.loads(row["attrs"] or "{}")
    return [row for row in rows if isinstance(row["attrs"].get("path"), str)]


def _files(rows: Sequence[Mapping[str, Any]], snapshot: Snapshot, grounds: Grounds) -> Iterator[SavedFile]:
    lineage = snapshot.lineage
    newest: dict[Path, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["attempt"], row["step"], row["seq"])):
        if row["kind"] == "save":
            newest[grounds.resolved(row["attrs"]["path"])] = row
    for row in newest.values():
        recorded, size = row["attrs"]["path"], row["attrs"].get("size_bytes")
        place = grounds.place(recorded, size if isinstance(size, int) else None)
        effective = lineage.holds(row["attempt"], row["rank"], row["seq"], row["step"])
        yield SavedFile(recorded, place, row["attempt"], row["step"], row["time_ns"], effective)


def _loaded(rows: Iterable[Mapping[str, Any]], grounds: Grounds) -> Iterator[Path]:
    return (grounds.resolved(row["attrs"]["path"]) for row in rows if row["kind"] == "load")


def _values(stream: EventStream, metric: str) -> Iterator[tuple[int, float]]:
    """Yield step and value of a metric, from the kind of event that carried it first, as rules read it."""
    rows = stream.numbers(metric).rows
    if len(rows):
        values = stream.values_at(stream.kinds[int(rows[0])], metric)
        yield from zip(stream.steps[values.rows].tolist(), values.values.tolist(), strict=True)


def spikes_in(values: Iterable[tuple[int, float]], spike: Spike) -> Iterator[int]:
    """Yield the first step of each spike. Its values do not count in the mean that later ones are compared with.

    Args:
        values: Step and value, in order.
        spike: What makes a spike.

    >>> list(spikes_in(enumerate([1.0] * 5 + [3.0, float("nan"), 1.0, 9.0]), Spike()))
    [5, 8]
    """
    window: deque[float] = deque(maxlen=_WINDOW)
    above: list[int] = []
    for step, value in values:
        mean = sum(window) / len(window) if len(window) >= _LEAST_VALUES else math.inf
        if not math.isfinite(value) or value > mean + (spike.factor - 1) * abs(mean):
            above.append(step)
            if len(above) == spike.steps:
                yield above[0]
        else:
            above.clear()
            window.append(value)


def _pins(recorded: Iterable[Event], folder: Path) -> Iterator[tuple[float, float]]:
    """Yield the steps that notes pin. A note without steps pins the whole run."""
    for event in recorded:
        if _is_pin(event.attrs.get("text"), event.attrs):
            yield _range(event.attrs.get("first_step"), event.attrs.get("last_step"))
    for note in read_annotations(folder):
        if _is_pin(note.text, note.attrs):
            yield _range(note.first_step, note.last_step)


def _is_pin(text: object, attrs: Mapping[str, Any]) -> bool:
    return bool(attrs.get(PINNED)) or (isinstance(text, str) and text.strip().casefold() == PINNED)


def _range(first: object, last: object) -> tuple[float, float]:
    ends = [float(end) if isinstance(end, (int, float)) else None for end in (first, last)]
    low, high = ends
    if low is None and high is None:
        return -math.inf, math.inf
    return (high if low is None else low) or 0.0, (low if high is None else high) or 0.0
