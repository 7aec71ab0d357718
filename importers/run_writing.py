"""Writes imported facts as a run's folder: journal, ``run.json`` and Parquet.

A new run is written to a hidden folder of the store and renamed once it is complete. A grown run gets a journal of its
new events, as a recorder would write it; readers see it as a live run.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from ..store.errors import TelemetryError, in_unicode
from ..store.event_json import encoded, encoded_attrs
from ..store.events import Event, JsonObject, is_kind
from ..store.journal.segment import EventColumns
from ..store.journal.writer import JournalWriter
from ..store.parquet.sealing import seal, seal_columns
from ..store.plan import Plan
from ..store.redaction import redacted
from ..store.run_folder import DIGESTS_JSON
from ..store.run_info import Attempt, RunInfo, flattened, write_run_info
from .encodings.numbers import INT64_MAX, NS
from .plain_tables import PlainFacts
from .source import EPOCHS, Fact, ImportedRun, Proof, RefusedRun, StepAxis, UnreadableSource

_UNKNOWN: Final = float("nan")

#: Keys of a configuration that hold the planned length of a training, in updates and in epochs.
_STEP_KEYS: Final = ("max_steps", "total_steps", "num_train_steps", "max_train_steps", "max_iters")
_EPOCH_KEYS: Final = ("epochs", "num_epochs", "max_epochs", "num_train_epochs", "total_epochs")
#: What separates the levels of a nested key, as in ``trainer.max_steps`` and ``training/total_steps``.
_LEVELS: Final = re.compile(r"[./]")
_UPDATES: Final = ("", "updates")


class SourceEnding(StrEnum):
    """How far the end of an imported run is known; FORMAT.md describes the values."""

    STATED = "stated"
    BEFORE_PLAN = "before_plan"
    OPEN = "open"
    UNKNOWN = "unknown"


#: The statuses of runs whose source does not say how they ended.
_ASSUMED: Final = {
    SourceEnding.BEFORE_PLAN: "interrupted",
    SourceEnding.OPEN: "interrupted",
    SourceEnding.UNKNOWN: "completed",
}


#: A wall clock may be set back by less: several processes log, and clocks are adjusted.
_SETBACK_NS: Final = 60 * NS


@dataclass(slots=True)
class Course:
    """The totals of one attempt's events that ``run.json`` needs.

    Attributes:
        attempt: Number of the attempt.
        events: Number of events.
        updates: Number of them that hold a value of the training.
        evaluations: Number of them that are evaluations.
        first_step: Step of the first event.
        steps: The highest step.
        spacing: The largest distance between two steps in succession.
        started_ns, ended_ns: Wall clock of the first event that has one, and the latest wall clock; 0 when no event has
            one.
        setbacks: Number of events whose wall clock is far behind an earlier one's.
        epochs: The highest epoch; negative where no event has one.
        elapsed_ns: The longest time since its begin. An event without a clock has it: at least so much had passed.
    """

    attempt: int
    events: int = 0
    updates: int = 0
    evaluations: int = 0
    first_step: int = 0
    steps: int = 0
    spacing: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    setbacks: int = 0
    elapsed_ns: int = 0
    epochs: float = -1.0

    def add(self, event: Fact | Event, elapsed_ns: int) -> None:
        """Count an event."""
        self.setbacks += 0 < event.time_ns < self.ended_ns - _SETBACK_NS
        self.events += 1
        self.updates += is_update(event)
        self.evaluations += event.kind == "evaluate"
        self.spacing = max(self.spacing, event.step - self.steps)
        self.steps = max(self.steps, event.step)
        self.epochs = max(self.epochs, event.metrics.get("epoch", -1.0) if event.epoch is None else event.epoch)
        self.ended_ns = max(self.ended_ns, event.time_ns)
        self.elapsed_ns = max(self.elapsed_ns, elapsed_ns)


def is_update(event: Fact | Event) -> bool:
    """Whether an event holds a value of the training."""
    return event.kind == "step_end" and bool(event.metrics)


@dataclass(slots=True)
class Courses:
    """The totals of all attempts of a run, the error that cut the source short, and the metrics of each axis."""

    by_attempt: dict[int, Course] = field(default_factory=dict)
    problem: TelemetryError | None = None
    axes: dict[StepAxis, dict[str, None]] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """Number of events in all attempts."""
        return sum(course.events for course in self.by_attempt.values())

    @property
    def updates(self) -> int:
        """Number of events with a value of the training, in all attempts."""
        return sum(course.updates for course in self.by_attempt.values())

    @property
    def setbacks(self) -> int:
        """Number of events whose wall clock is far behind an earlier one's of their attempt."""
        return sum(course.setbacks for course in self.by_attempt.values())

    @property
    def evaluations(self) -> int:
        """Number of evaluations in all attempts."""
        return sum(course.evaluations for course in self.by_attempt.values())

    @property
    def unplaced(self) -> list[str]:
        """The metrics of which nothing proves at which step they were logged."""
        return sorted({name for axis, names in self.axes.items() if axis.proof is Proof.NONE for name in names})

    def with_axes(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """Yield facts, and note what they count."""
        for fact in facts:
            if fact.axis is not None:
                self.axes.setdefault(fact.axis, {}).update(dict.fromkeys(fact.metrics))
            yield fact

    @property
    def unclocked_ns(self) -> int:
        """Time that the attempts without a wall clock took, in nanoseconds; 0 if their source counts none."""
        return sum(course.elapsed_ns for course in self.by_attempt.values() if not course.started_ns)

    def attempts(self, run: ImportedRun) -> tuple[Attempt, ...]:
        """Return the attempts as ``run.json`` lists them.

        An attempt that another one followed is ``interrupted``: no more is known of its end. The last attempt has the
        source's status or, where the source does not say, the one that its ending suggests. A later attempt continues
        from the step before the first one that it logged.
        """
        courses = sorted((number, course) for number, course in self.by_attempt.items() if course.events)
        last, plan = courses[-1][0], self.planned(run)[1]
        entries: list[Attempt] = []
        for number, course in courses:
            entry = Attempt(
                number,
                "interrupted" if number < last else self._status(run),
                (run.started_ns if number == 0 else None) or course.started_ns,
                (run.ended_ns if number == last else None) or course.ended_ns or None,
                plan=plan,
                steps=course.steps,
                failure=redacted(run.failure) if number == last else None,
            )
            if entries:
                entry = replace(entry, parent=entries[-1].attempt, from_step=course.first_step - 1)
            entries.append(entry)
        return tuple(entries)

    def _status(self, run: ImportedRun) -> str:
        return _ASSUMED.get(self.ending(run)) or run.status or "completed"

    def planned(self, run: ImportedRun) -> tuple[str, Plan]:
        """Return the plan of a run, with the key of its configuration where the source has no other.

        A number that a completed run did not reach, or that a run went beyond, counts something else: it is no plan.
        """
        plan = run.known_plan()
        if plan.total_steps is not None or plan.total_epochs is not None:
            return "", plan
        newest = self.by_attempt[max(self.by_attempt)]
        spacing, is_complete = max(one.spacing for one in self.by_attempt.values()), self._status(run) == "completed"
        counts_epochs, counts_updates = run.step_unit == EPOCHS, run.step_unit in _UPDATES
        for name in (*_STEP_KEYS, *_EPOCH_KEYS):
            key, total = _configured(run.config, name)
            in_steps = counts_updates if name in _STEP_KEYS else counts_epochs
            if total is None or (name in _STEP_KEYS and not in_steps):
                continue
            done, short = (newest.steps, max(spacing, 1)) if in_steps else (newest.epochs, 1)
            if 0 <= done <= total and not (is_complete and total - done > short):
                own = replace(plan, total_steps=total) if in_steps else replace(plan, total_epochs=total)
                return key, own
        return "", plan

    def ending(self, run: ImportedRun) -> SourceEnding:
        """Return how far the run's end is known.

        A log of every hundredth step need not hold the last one: it ends before its plan only if it lacks more steps
        than it skips elsewhere.
        """
        if run.status is not None:
            return SourceEnding.OPEN if run.status == "running" else SourceEnding.STATED
        planned, done = run.known_plan().max_steps(), self.by_attempt[max(self.by_attempt)].steps
        spacing = max(course.spacing for course in self.by_attempt.values())
        is_short = planned is not None and planned - done > spacing
        return SourceEnding.BEFORE_PLAN if is_short else SourceEnding.UNKNOWN


def _configured(config: JsonObject, name: str) -> tuple[str, int | None]:
    """Return the key and the number of a configuration under a name, nested or not; None if two of them differ."""
    numbers = {
        key: total
        for key, value in flattened(config).items()
        if _LEVELS.split(key)[-1] == name and (total := _whole(value)) is not None
    }
    return next(iter(numbers.items())) if len(set(numbers.values())) == 1 else ("", None)


def _whole(value: object) -> int | None:
    """Return a positive whole number of a configuration, which may be text; None for anything else."""
    number = float(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return int(number) if 0 < number <= INT64_MAX and number == int(number) else None


def write_new(folder: Path, info: RunInfo, run: ImportedRun, facts: Iterable[Fact]) -> tuple[Courses, RunInfo]:
    """Write a complete new run, or nothing.

    Args:
        folder: The run's folder, which must not exist.
        info: What is known of it ahead of its attempts.
        run: The run as the source describes it.
        facts: Its facts.

    Raises:
        TelemetryError: The source holds no event, or none that a run can hold; or the run is refused.
    """
    aside = folder.with_name(f".{info.run_id}.importing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        courses = Courses()
        columns = _columns_of(facts, courses) if isinstance(facts, PlainFacts) else ()
        if not columns:
            append_facts(aside, info.run_id, courses.with_axes(facts), courses, run.started_ns)
        if not courses.events or isinstance(courses.problem, RefusedRun):
            raise courses.problem or UnreadableSource("the source holds no events")
        told = _told(replace(info, attempts=courses.attempts(run)), courses, run)
        write_run_info(aside, told)
        if columns:
            seal_columns(aside, told, columns)
        else:
            seal(aside)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return courses, told


def write_grown(folder: Path, known: RunInfo, run: ImportedRun, news: Iterable[Fact], courses: Courses) -> RunInfo:
    """Append the new facts of a source to its run.

    Digests cover runs that have ended. A growing run had not, so its digests are computed again.

    Args:
        folder: The run's folder.
        known: Its ``run.json``, with the source as it is now.
        run: The run as the source describes it now.
        news: The new facts, grouped by attempt.
        courses: Totals of the stored events; updated.
    """
    (folder / DIGESTS_JSON).unlink(missing_ok=True)
    append_facts(folder, known.run_id, news, courses, run.started_ns)
    told = _told(replace(known, attempts=courses.attempts(run)), courses, run)
    write_run_info(folder, told)
    seal(folder)
    return told


def _told(info: RunInfo, courses: Courses, run: ImportedRun) -> RunInfo:
    """Return the run info with what is known of its end, and its problem, so that the next import reports it again."""
    problem = None if courses.problem is None else storable(str(courses.problem))
    key = courses.planned(run)[0]
    source = {**(info.source or {}), "ending": str(courses.ending(run)), "problem": problem}
    source |= {"plan_from": key} if key else {}
    source |= {"elapsed_ns": courses.unclocked_ns} if courses.unclocked_ns else {}
    return replace(info, source=source | ({"unplaced": courses.unplaced} if courses.unplaced else {}))


def _columns_of(facts: PlainFacts, courses: Courses) -> Sequence[EventColumns]:
    """Return the events of a plain table by columns, and count them, as ``append_facts`` does.

    Raises:
        UnreadableSource: A log cannot hold them.
    """
    table, columns = facts.table, facts.table.events()
    steps, time_ns = table.steps, table.time_ns
    course = Course(0, first_step=int(steps[0]), steps=int(steps[-1]))
    course.spacing = int((steps[1:] - steps[:-1]).max(initial=0))
    course.started_ns, course.ended_ns = int(time_ns[0]), int(time_ns.max())
    times = time_ns.tolist()
    newest = itertools.accumulate(times, max)
    course.setbacks = sum(0 < one < most - _SETBACK_NS for one, most in zip(times, newest, strict=True))
    for events in columns:
        _check(events.kind, events.names)
        course.events += len(events.seq)
        course.elapsed_ns = max(course.elapsed_ns, int(events.elapsed_ns.max()))
        course.updates += len(events.seq) * is_update(Fact(events.kind, 0, dict.fromkeys(events.names, 0.0)))
        course.evaluations += len(events.seq) * (events.kind == "evaluate")
        if "epoch" in events.names:
            epochs = events.values[:, events.names.index("epoch")].tolist()
            course.epochs = max([course.epochs, *epochs])  # In this order, NaN is none.
    courses.by_attempt[0] = course
    return columns


def append_facts(
    folder: Path, run_id: str, facts: Iterable[Fact], courses: Courses, started_ns: int | None = None
) -> None:
    """Append facts to the journals of their attempts, numbered after the events already counted in ``courses``.

    An error of the source ends the facts and is stored in ``courses.problem``.

    Raises:
        OSError: The journal cannot be written.
    """
    writer: JournalWriter | None = None
    course = Course(-1)
    checked: set[tuple[str, tuple[str, ...]]] = set()
    try:
        for fact in _until_error(facts, courses):
            if writer is None or fact.attempt != course.attempt:
                if writer is not None:
                    writer.close()
                course = _course(courses, fact, started_ns)
                writer = JournalWriter(folder, run_id=run_id, attempt=fact.attempt, first_seq=course.events)
            names = tuple(fact.metrics)
            if (fact.kind, names) not in checked:
                _check(fact.kind, names)
                checked.add((fact.kind, names))
            has_wall_clock = fact.time_ns and course.started_ns
            told_ns = max(0, fact.time_ns - course.started_ns) if has_wall_clock else course.elapsed_ns
            elapsed_ns = told_ns if fact.elapsed_ns is None else fact.elapsed_ns
            writer.append(
                fact.kind,
                names,
                tuple(fact.metrics.values()),
                step=fact.step,
                epoch=_UNKNOWN if fact.epoch is None else fact.epoch,
                time_ns=fact.time_ns,
                elapsed_ns=elapsed_ns,
                attrs=encoded_attrs(fact.attrs).encode() if fact.attrs else b"",
            )
            course.add(fact, elapsed_ns)
            course.started_ns = course.started_ns or fact.time_ns
    except TelemetryError as error:
        courses.problem = error
    except (struct.error, RecursionError) as error:
        courses.problem = UnreadableSource(f"a log cannot hold one of its events ({error})")
    finally:
        if writer is not None:
            writer.close()


def _course(courses: Courses, fact: Fact, started_ns: int | None) -> Course:
    """Return the totals of the fact's attempt, created if missing.

    The clock of attempt 0 starts at the run's own start, unless that is later than the fact.
    """
    known = courses.by_attempt.get(fact.attempt)
    if known is None:
        began_ns = started_ns if fact.attempt == 0 and started_ns and started_ns <= fact.time_ns else fact.time_ns
        known = Course(fact.attempt, first_step=fact.step, steps=fact.step, started_ns=began_ns)
        courses.by_attempt[fact.attempt] = known
    return known


def _until_error(facts: Iterable[Fact], courses: Courses) -> Iterator[Fact]:
    try:
        yield from facts
    except TelemetryError as error:
        courses.problem = error


def _check(kind: str, names: tuple[str, ...]) -> None:
    """Refuse an event that a log cannot hold.

    Raises:
        UnreadableSource: The kind is unknown, or a metric's name is not valid Unicode.
    """
    if not is_kind(kind):
        raise UnreadableSource("a reader returned an event of an unknown kind", got=kind)
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise UnreadableSource("the name of a metric is not valid text: a lone surrogate") from None


# --- what is not stored yet -----------------------------------------------------------------------------------------

#: Attempt, kind, step, name and bits of a value. An event without metrics has an empty name and its attributes instead.
_Cell: TypeAlias = tuple[int, str, int, str, bytes]


class SourceRewritten(TelemetryError):
    """A source no longer contains a value that was imported from it, or is the log of another training."""


def news_of(stored: Iterable[Event], facts: Iterator[Fact], where: str) -> Iterator[Fact]:
    """Yield the facts that are not stored yet, in the order of the source.

    Usually the stored events are a prefix of the source. They need not be: values that reached a file late or out of
    order are matched wherever they are. A row that was read half-written is completed by its remaining values.

    Raises:
        SourceRewritten: A stored value is no longer in the source, or the first ones have another time.
        TelemetryError: Raised while the source is read.
    """
    held = iter(stored)
    rest: list[Event] = []
    first: list[Fact] = []
    for event in held:
        fact = next(facts, None)
        if event.seq == 0 and fact is not None and _is_same(event, fact) and 0 != event.time_ns != fact.time_ns != 0:
            raise SourceRewritten(
                f"the source is the log of another training, from {fact.time_ns} ns on and not from {event.time_ns}",
                where=where,
                fix="The run is unchanged. To import the source again, delete the run first",
            )
        if fact is None or not _is_same(event, fact):
            rest = [event, *held]
            first = [] if fact is None else [fact]
            break
    if not rest:
        yield from facts
        return
    missing: Counter[_Cell] = Counter(cell for event in rest for cell in _cells(event.attempt, event))
    kept = [fact for each in itertools.chain(first, facts) if (fact := _unseen(each, missing)) is not None]
    lost = next((cell for cell, count in missing.items() if count > 0 and cell[3]), None)
    if lost is not None:
        _, _, step, name, bits = lost
        raise SourceRewritten(
            f"the source no longer holds the imported value of {name!r} at step {step}: {struct.unpack('<d', bits)[0]}",
            where=where,
            fix="The run is unchanged. To import the source again, delete the run first",
        )
    yield from kept


def _is_same(event: Event, fact: Fact) -> bool:
    return (
        event.step == fact.step
        and event.kind == fact.kind
        and event.attempt == fact.attempt
        and len(event.metrics) == len(fact.metrics)
        and all(name in event.metrics and _bits(event.metrics[name]) == _bits(v) for name, v in fact.metrics.items())
        and (bool(fact.metrics) or _attrs(event) == _attrs(fact))
    )


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def _attrs(entry: Event | Fact) -> bytes:
    return encoded_attrs(entry.attrs).encode()


def _cells(attempt: int, entry: Event | Fact) -> Iterator[_Cell]:
    for name, value in entry.metrics.items():
        yield attempt, entry.kind, entry.step, name, _bits(value)
    if not entry.metrics:
        yield attempt, entry.kind, entry.step, "", _attrs(entry)


def _unseen(fact: Fact, missing: Counter[_Cell]) -> Fact | None:
    """Return the fact with only the values that are not stored; None when all are stored."""
    unseen = {}
    for cell in _cells(fact.attempt, fact):
        if missing[cell] > 0:
            missing[cell] -= 1
        elif cell[3]:
            unseen[cell[3]] = fact.metrics[cell[3]]
        else:
            return fact
    return fact._replace(metrics=unseen) if unseen else None


# --- what run.json can hold -----------------------------------------------------------------------------------------

_Text = TypeVar("_Text", str, str | None)


def storable(text: _Text) -> _Text:
    r"""Replace each half of a surrogate pair, as names of files may hold, with a question mark.

    >>> storable("a\udcff")
    'a?'

    """
    return in_unicode(text) if isinstance(text, str) else text


def storable_config(config: dict[str, object]) -> dict[str, object]:
    """Return a configuration with secrets redacted, and with text in place of numbers that JSON cannot hold.

    Raises:
        UnreadableSource: It is nested too deep.
    """
    try:
        text = json.dumps(encoded(redacted(config)), ensure_ascii=False, default=str)
        document: dict[str, object] = json.loads(storable(text))
    except (RecursionError, ValueError) as error:
        raise UnreadableSource(f"a run cannot hold its configuration ({error})") from None
    return document


def storable_time(time_ns: int | None) -> int | None:
    """Return nanoseconds since 1970; None where an event could not have that time.

    >>> storable_time(10**30), storable_time(-1), storable_time(5)
    (None, None, 5)

    """
    return time_ns if time_ns is not None and 0 < time_ns <= INT64_MAX else None
