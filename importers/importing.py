"""Imports sources into a store as runs, and reports one outcome for each run."""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from ..store.columns import read_columns
from ..store.errors import TelemetryError
from ..store.metric_words import is_evaluation
from ..store.run_folder import locked_folder
from ..store.run_info import RunInfo, read_run_info
from ..store.store import open_run
from .discovery import Source
from .plain_tables import PlainFacts
from .rows import PLACE_NAMES
from .run_writing import (
    Course,
    Courses,
    SourceRewritten,
    is_update,
    news_of,
    storable,
    storable_config,
    storable_time,
    write_grown,
    write_new,
)
from .source import REST_IMPORTED, Fact, ImportedRun, ReadOptions, StepAxis, UnreadableSource

#: Ids of imported runs: start time, or ``import`` where it is unknown, then ``Source.identity``.
_IMPORTED: Final = re.compile(r"(?:\d{8}T\d{6}|import)-([0-9a-f]{10})")

#: Problem of a readable source that holds no event, such as a table with nothing but headings.
NO_EVENT: Final = "the source holds no events"


class State(StrEnum):
    """The effect of an import on a run."""

    NEW = "new"
    GROWN = "grown"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of importing one run of a source, or a source that holds none.

    Attributes:
        state: The effect on the run.
        kind: The source's kind; empty where no reader reads it.
        path: The source.
        run_id, name: The run; empty where nothing was imported.
        events: Number of events written.
        steps: The highest step of the run.
        problem: The part that could not be read; everything else was imported. Of a skipped file, what it lacks.
        evaluated: The run's evaluation metrics, by their names or as the user said.
        evaluations: Number of its evaluations; None for an unchanged run with evaluation metrics.
        held_out: The files whose values are evaluations as their paths say.
        updates: Number of its events with a value of the training; None for an unchanged run.
        rolled_back: How many of them its resumes rolled back.
        rewritten: Folder of the unchanged run whose values the source no longer holds.
        plan_from: The key of its configuration that is its plan; empty where none is.
        axes: What its metrics count that count something else than the training; empty for an unchanged run.
        unplaced: The metrics of which nothing proves at which step they were logged.
        doubt: A sentence about what its steps or its configuration may not be; empty where nothing is doubtful.
        setbacks: Number of its events whose wall clock is far behind an earlier one's.
    """

    state: State
    kind: str
    path: Path
    run_id: str = ""
    name: str = ""
    events: int = 0
    steps: int = 0
    problem: str | None = None
    evaluated: tuple[str, ...] = ()
    updates: int | None = None
    rolled_back: int = 0
    rewritten: Path | None = None
    plan_from: str = ""
    evaluations: int | None = None
    held_out: tuple[Path, ...] = ()
    axes: Mapping[StepAxis, tuple[str, ...]] = field(default_factory=dict)
    unplaced: tuple[str, ...] = ()
    doubt: str = ""
    setbacks: int = 0


def import_source(store: Path, source: Source, options: ReadOptions, known: dict[str, Path]) -> Iterator[Outcome]:
    """Import the runs of one source.

    A bad source never raises: its errors are reported in the outcomes.

    Args:
        store: The store's existing folder.
        source: The source to import.
        options: What the user said about the source.
        known: Folders of imported runs by identity, from ``imported_runs``; updated.

    Raises:
        OSError: The store cannot be written.
    """
    told: set[str | None] = set()
    try:
        digest = source.digest()
        for run in source.runs(options):
            outcome = _import_run(store, source, run, digest, known, options)
            told.add(outcome.problem)
            yield outcome
        if not told and not options.is_growing:
            raise UnreadableSource(NO_EVENT)
    except TelemetryError as error:
        # An unchanged run reports its stored problem, and the reader raises the same one at the end: report it once.
        if (problem := _failure(error, source, is_all=not told)) not in told:
            yield Outcome(State.FAILED, source.reader.kind, source.path, problem=problem)


def imported_runs(store: Path) -> dict[str, Path]:
    """Return the folders of imported runs, by ``Source.identity``."""
    with os.scandir(store) as entries:
        return {match[1]: Path(entry) for entry in entries if (match := _IMPORTED.fullmatch(entry.name))}


#: Maps a function over sources, in order: ``map``, or the ``mapped`` of a pool of workers.
Mapped: TypeAlias = Callable[[Callable[[Source], tuple[Outcome, ...]], Sequence[Source]], Iterable[tuple[Outcome, ...]]]


def import_sources(
    store: Path,
    sources: Sequence[Source],
    options: ReadOptions,
    on_source: Callable[[Source], object] | None = None,
    mapped: Mapped | None = None,
) -> Iterator[Outcome]:
    """Import sources into a store, and create the store if it is missing. A lock allows one import at a time.

    Args:
        store: The store's folder.
        sources: The sources to import.
        options: What the user said about the sources.
        on_source: Called with each source when it is done.
        mapped: Imports several sources at a time, in other processes. By default one after the other, here.

    Raises:
        TelemetryError: The store cannot be written, or a worker does not see it.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        with locked_folder(store):
            known = imported_runs(store)
            done = _imported_here(store, sources, options, known)
            if mapped is not None:
                done = _imported_elsewhere(store, sources, options, known, mapped)
            for source, outcomes in zip(sources, done, strict=True):
                yield from outcomes
                if on_source is not None:
                    on_source(source)
    except OSError as error:
        raise TelemetryError(f"cannot be written ({error.strerror or error})", where=str(store)) from None


def _imported_here(
    store: Path, sources: Sequence[Source], options: ReadOptions, known: dict[str, Path]
) -> Iterator[Iterable[Outcome]]:
    for source in sources:
        yield import_source(store, source, options, known)


def _imported_elsewhere(
    store: Path, sources: Sequence[Source], options: ReadOptions, known: dict[str, Path], mapped: Mapped
) -> Iterator[Iterable[Outcome]]:
    mark = store / f".import-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield from mapped(_SourceImport(store, options, known, mark), sources)
    finally:
        mark.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _SourceImport:
    """The function mapped over sources: imports one in another process, and returns its outcomes.

    Attributes:
        store, options, known: As for ``import_source``.
        mark: A file in the store. A machine where it is missing has another folder of the same name.
    """

    store: Path
    options: ReadOptions
    known: dict[str, Path]
    mark: Path

    def __call__(self, source: Source) -> tuple[Outcome, ...]:
        for path in (self.mark, source.path):
            if not path.exists():
                what = "a worker does not see the store" if path is self.mark else "a worker does not see this log"
                where = self.store if path is self.mark else source.path
                fix = "Keep logs and store on a disk that all machines share"
                raise TelemetryError(what, where=str(where), got=socket.gethostname(), fix=fix)
        return tuple(import_source(self.store, source, self.options, self.known))


def _import_run(
    store: Path, source: Source, run: ImportedRun, digest: str, known: dict[str, Path], options: ReadOptions
) -> Outcome:
    identity = source.identity(run.identity)
    run = replace(run, started_ns=storable_time(run.started_ns), ended_ns=storable_time(run.ended_ns))
    folder = known.get(identity)
    try:
        if folder is not None:
            return _grow(folder, source, run, digest, options.steps_per_epoch)
        renamed = options.renamed
        evaluations = {renamed.get(name, name) for name in options.evaluations}
        evaluations |= {new for old, new in renamed.items() if is_evaluation(new) and not is_evaluation(old)}
        provenance = _provenance(source, run, digest, renamed, sorted(evaluations))

        def named(facts: Iterator[Fact]) -> Iterator[Fact]:
            return with_evaluations(with_names(facts, renamed), evaluations)

        facts = run.facts
        run = replace(run, facts=facts.mapped(named) if isinstance(facts, PlainFacts) else named(facts))
        return _make(store, identity, source, run, provenance, known)
    except TelemetryError as error:
        problem = _failure(error, source, is_all=True)
        rewritten = folder if isinstance(error, SourceRewritten) else None
        return Outcome(State.FAILED, source.reader.kind, source.path, problem=problem, rewritten=rewritten)


def _make(
    store: Path, identity: str, source: Source, run: ImportedRun, provenance: _Provenance, known: dict[str, Path]
) -> Outcome:
    facts = run.facts
    if isinstance(facts, PlainFacts):
        first_ns = int(facts.table.time_ns[0])
    else:
        first = next(facts, None)
        if first is None:
            raise UnreadableSource(NO_EVENT)
        facts, first_ns = chain((first,), facts), first.time_ns
    began_ns = run.started_ns or first_ns
    run_id = f"{_stamp(began_ns)}-{identity}"
    info = RunInfo(
        run_id,
        storable(run.name or source.name + (f"-{int(run.identity) + 1}" if run.identity.isdecimal() else "")),
        attempts=(),
        group=storable(run.group),
        tags=tuple(map(storable, run.tags)),
        config=storable_config(run.config),
        source=asdict(provenance),
    )
    folder = store / run_id
    courses, told = write_new(folder, info, run, facts)
    known[identity] = folder
    return replace(_outcome(State.NEW, source, folder, told, courses, courses.events), doubt=run.doubt)


def _grow(folder: Path, source: Source, run: ImportedRun, digest: str, steps_per_epoch: int | None) -> Outcome:
    info = read_run_info(folder)
    before = info.source or {}
    if before.get("unplaced") and steps_per_epoch is not None:
        raise SourceRewritten(
            f"{', '.join(map(repr, before['unplaced']))} was imported without --steps-per-epoch",
            where=f"{source.path} ({info.run_id})",
            fix="The run is unchanged. To import the source again, delete the run first",
        )
    if before.get("sha256") == digest:
        problem = before.get("problem")
        evaluated, unplaced = _evaluated(info, folder), tuple(before.get("unplaced") or ())
        seen = (info.run_id, info.name, 0, info.last.steps or 0, problem, evaluated)
        evaluations = None if evaluated else open_run(folder).table()["kind"].to_pylist().count("evaluate")
        return Outcome(
            State.UNCHANGED, source.reader.kind, source.path, *seen, evaluations=evaluations, unplaced=unplaced
        )
    provenance = _provenance(source, run, digest, before.get("renamed") or {}, before.get("evaluations") or [])
    stored = list(open_run(folder).events(attempts="all"))
    courses = _courses_of(stored, info)
    count = courses.events
    # ``news_of`` detects a rewritten source before it yields the first new fact, so the run is still untouched.
    named = with_evaluations(with_names(run.facts, provenance.renamed), frozenset(provenance.evaluations))
    news = news_of(stored, courses.with_axes(named), f"{source.path} ({info.run_id})")
    first = next(news, None)
    facts = news if first is None else chain((first,), news)
    config = {**info.config, **storable_config(run.config)}
    told = write_grown(folder, replace(info, source=asdict(provenance), config=config), run, facts, courses)
    added = courses.events - count
    state = State.GROWN if added else State.UNCHANGED
    return replace(_outcome(state, source, folder, told, courses, added), doubt=run.doubt)


@dataclass(frozen=True, slots=True)
class _Provenance:
    """A run's origin, as ``source`` in ``run.json`` keeps it.

    Attributes:
        kind, path, folder: The source.
        sha256: Its digest.
        step_unit: What its steps count.
        renamed: The metrics' names in the run, by the source's names.
        evaluations: Metrics that are evaluations since the user said so, by their names in the run.
        objective: The metric that the source optimises, and ``min`` or ``max`` as its ``mode``.
        nan_filtered: As in ``ImportedRun``.
    """

    kind: str
    path: str
    folder: str
    sha256: str
    step_unit: str
    renamed: dict[str, str]
    evaluations: list[str]
    objective: dict[str, str] | None
    nan_filtered: list[str]


def _provenance(
    source: Source, run: ImportedRun, digest: str, renamed: Mapping[str, str], evaluations: Sequence[str]
) -> _Provenance:
    """Return the origin of a run, with the metrics' names in the run."""
    kind, (metric, mode) = source.reader.kind, run.objective or ("", "")
    return _Provenance(
        kind,
        storable(str(source.path)),
        storable(source.folder),
        digest,
        storable(run.step_unit) or f"{kind} steps",
        dict(renamed),
        [storable(name) for name in evaluations],
        {"metric": storable(renamed.get(metric, metric)), "mode": mode} if metric else None,
        [storable(renamed.get(name, name)) for name in run.nan_filtered],
    )


def with_names(facts: Iterator[Fact], renamed: Mapping[str, str]) -> Iterator[Fact]:
    """Rename the metrics of facts.

    A metric keeps its old name where its event already has the new one. Where two metrics of an event would get one
    name, the first gets it.

    Args:
        facts: Facts of one run.
        renamed: New names by old names.
    """
    if not renamed:
        yield from facts
        return
    for fact in facts:
        metrics = fact.metrics
        if not renamed.keys().isdisjoint(metrics):
            called: dict[str, float] = {}
            for name, value in metrics.items():
                new = renamed.get(name, name)
                called[name if new in metrics or new in called else new] = value
            fact = fact._replace(metrics=called)
        yield fact


def with_evaluations(facts: Iterator[Fact], evaluations: Set[str]) -> Iterator[Fact]:
    """Move metrics from the events of the training to evaluations.

    Args:
        facts: Facts of one run.
        evaluations: The metrics to move.
    """
    held: Fact | None = None
    problem: TelemetryError | None = None
    try:
        for fact in facts:
            rest, moved = _parted(fact, evaluations) if evaluations else (fact, None)
            if held is not None and fact.kind == "evaluate" and _place(held) == _place(fact):
                rest, held = fact._replace(metrics={**held.metrics, **fact.metrics}), None
            elif held is not None and not (moved is not None and _is_copy(moved, held)):
                yield held
                held = None
            if rest is not None:
                yield rest
            held = held or moved
    except TelemetryError as error:
        problem = error
    if held is not None:
        yield held
    if problem is not None:
        raise problem


def _parted(fact: Fact, evaluations: Set[str]) -> tuple[Fact | None, Fact | None]:
    """Return what is left of an event of the training, and the evaluation that it holds, if there are such."""
    moved = {name: value for name, value in fact.metrics.items() if name in evaluations}
    if fact.kind not in ("step_end", "log") or not moved:
        return fact, None
    rest = {name: value for name, value in fact.metrics.items() if name not in evaluations}
    if PLACE_NAMES.issuperset(rest):
        return None, fact._replace(kind="evaluate")
    return fact._replace(metrics=rest), fact._replace(kind="evaluate", metrics=moved, attrs={})


def _place(fact: Fact) -> tuple[int, int]:
    return fact.attempt, fact.step


def _is_copy(fact: Fact, held: Fact) -> bool:
    """Whether an evaluation is of the same row: Hugging Face's Trainer has each row as two events."""
    return _place(fact) == _place(held) and fact.metrics.keys() <= held.metrics.keys()


def _courses_of(stored: Sequence[Any], info: RunInfo) -> Courses:
    """Rebuild the totals of a run's attempts from its stored events."""
    courses = Courses()
    for event in stored:
        course = courses.by_attempt.setdefault(event.attempt, Course(event.attempt, 0, event.step, event.step))
        course.add(event, event.elapsed_ns)
    for attempt in info.attempts:
        if attempt.attempt in courses.by_attempt:
            courses.by_attempt[attempt.attempt].started_ns = attempt.started_ns
    return courses


def _outcome(state: State, source: Source, folder: Path, told: RunInfo, courses: Courses, events: int) -> Outcome:
    steps = max(course.steps for course in courses.by_attempt.values())
    problem = None if courses.problem is None else str(_with_place(courses.problem, source))
    kept = sum(map(is_update, open_run(folder).events())) if len(courses.by_attempt) > 1 else courses.updates
    return Outcome(
        state,
        source.reader.kind,
        source.path,
        told.run_id,
        told.name,
        events,
        steps,
        problem,
        _evaluated(told, folder),
        courses.updates,
        courses.updates - kept,
        plan_from=str((told.source or {}).get("plan_from", "")),
        evaluations=courses.evaluations,
        held_out=tuple(
            file
            for file, word in zip(source.files, source.parts, strict=False)
            if word and any(name.startswith(f"{word}/") for name in _evaluated(told, folder))
        ),
        axes={axis: tuple(names) for axis, names in courses.axes.items()},
        unplaced=tuple(courses.unplaced),
        setbacks=courses.setbacks,
    )


def _evaluated(info: RunInfo, folder: Path) -> tuple[str, ...]:
    said = (info.source or {}).get("evaluations") or ()
    return tuple(name for name in read_columns(folder).by_metric if is_evaluation(name) or name in said)


def _failure(error: TelemetryError, source: Source, *, is_all: bool) -> str:
    """Return the message for a source that could not be read, or not to its end.

    Args:
        error: The error.
        source: The source.
        is_all: Whether nothing of the source was imported.
    """
    if is_all and error.fix == REST_IMPORTED:
        error = UnreadableSource(error.what, where=error.where, got=error.got, fix="Nothing was imported")
    return str(_with_place(error, source))


def _with_place(error: TelemetryError, source: Source) -> TelemetryError:
    """Return the error with the source as its place, where the reader named none."""
    if error.where:
        return error
    return UnreadableSource(error.what, where=str(source.path), got=error.got, fix=error.fix)


def _stamp(time_ns: int) -> str:
    """Return the UTC time for a run id, or ``import`` where it is unknown or out of range."""
    try:
        return time.strftime("%Y%m%dT%H%M%S", time.gmtime(time_ns // 1_000_000_000)) if time_ns > 0 else "import"
    except (OverflowError, ValueError, OSError):
        return "import"
