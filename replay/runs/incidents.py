"""Labelled incidents: the step ranges of a run in which something was wrong, and the scores of alarms against them.

Labels come from a CSV file or from annotations. An annotation with the attribute ``incident`` is a label::

    rec.annotate("loss spike after the restart", incident="spike", first_step=1200, last_step=1260)

One of ``first_step`` and ``last_step`` may be left out, and is then the step of the annotation. An annotation without a
range of steps labels nothing. Annotations added after the run (``POST /api/v1/runs/{id}/annotations``) count too; one
without a step covers the whole run.

Some scores credit every step of an incident as soon as one alarm falls inside it. Such scores reward random alarms.
Here an incident counts once and an alarm counts once. The share of steps inside incidents is the chance level.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...store.annotations import INCIDENT, Notes, labelled_steps
from ...store.errors import InvalidEvent, TelemetryError
from ...store.events import Event

#: Columns of a label file; ``name`` is optional.
COLUMNS: Final = ("run", "first_step", "last_step", "name")

_LAST_STEP: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Incident:
    """One labelled range of steps of a run, both ends included.

    Attributes:
        first_step, last_step: Optimizer updates finished.
        name: Name of the incident; may be empty.
    """

    first_step: int
    last_step: int
    name: str = ""


class IncidentLabels:
    """Incidents by run, from a label file.

    A run that the file names counts as labelled, with or without an incident: a row with empty steps says that the run
    was healthy throughout.

    Args:
        by_run: Incidents by the run's id or name.
    """

    def __init__(self, by_run: Mapping[str, Sequence[Incident]]) -> None:
        self._by_run = by_run

    @property
    def runs(self) -> list[str]:
        """The ids and names of the labelled runs."""
        return [*self._by_run]

    def of(self, run_id: str, name: str) -> tuple[Incident, ...] | None:
        """Return the incidents of a run in order, looked up by id, else by name; None for an unlabelled run."""
        found = self._by_run.get(run_id, self._by_run.get(name))
        return None if found is None else tuple(sorted(found))


def read_labels(path: str | Path) -> IncidentLabels:
    """Read a CSV file of labels with the columns ``run, first_step, last_step`` and optionally ``name``.

    Raises:
        TelemetryError: The file cannot be read, a column is missing, or a row is invalid; the error names the line.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS[:3] if column not in (reader.fieldnames or ())]
            if missing:
                raise TelemetryError(
                    f"a column is missing: {', '.join(missing)}", where=str(path), got=reader.fieldnames or "nothing"
                )
            by_run: dict[str, list[Incident]] = {}
            for row in reader:
                by_run.setdefault(row["run"], []).extend(_incident(row, f"{path}:{reader.line_num}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TelemetryError(f"the labels cannot be read ({error})", where=str(path)) from None
    return IncidentLabels(by_run)


def incidents_in(annotations: Iterable[Event]) -> list[Incident]:
    """Return the incidents that annotations of the training program label with a range of steps."""
    found = []
    for event in annotations:
        if INCIDENT in event.attrs:
            with suppress(InvalidEvent):
                first_step, last_step = labelled_steps(event.attrs, event.step)
                found.append(Incident(first_step, last_step, str(event.attrs[INCIDENT])))
    return found


def incidents_noted(notes: Notes) -> list[Incident]:
    """Return the incidents that notes on a run label.

    Raises:
        DamagedLog: The annotations cannot be read.
    """
    labels = (note for note in notes.required() if INCIDENT in note.attrs)
    return [
        Incident(0, _LAST_STEP, str(note.attrs[INCIDENT]))
        if note.first_step is None
        else _incident_between(note.first_step, note.last_step, note.attrs)
        for note in labels
    ]


def _incident_between(first_step: int, last_step: int | None, attrs: Mapping[str, object]) -> Incident:
    last_step = first_step if last_step is None else last_step
    return Incident(first_step, max(first_step, last_step), str(attrs[INCIDENT]))


def _incident(row: Mapping[str, str | None], where: str) -> list[Incident]:
    if not row["first_step"] and not row["last_step"]:
        return []
    try:
        first, last = int(row["first_step"] or ""), int(row["last_step"] or "")
    except ValueError:
        got = f"{row['first_step']!r} and {row['last_step']!r}"
        raise TelemetryError("first_step and last_step must be whole numbers", where=where, got=got) from None
    if last < first:
        raise TelemetryError("an incident ends before it begins", where=where, got=f"{first} to {last}")
    return [Incident(first, last, row.get("name") or "")]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm: its step, and the training time up to it in seconds; None when the log has no times."""

    step: int
    elapsed_s: float | None


@dataclass(frozen=True, slots=True)
class Detection:
    """The detection counts of one run, or of many together.

    Attributes:
        incidents: Labelled incidents that began before the run ended under the policy.
        found: Those with an alarm inside, or within the tolerance around them.
        unreached: Incidents that began after the run's end under the policy.
        alarms: Number of alarms; several at one step count as one.
        true_alarms: Alarms inside an incident or the tolerance around it.
        healthy_steps: Steps outside every incident and its tolerance, up to the end under the policy.
        steps: All steps up to that end.
        delays_steps: For each found incident, steps from its first step to its first alarm; negative for a lead.
        delays_s: The same in seconds, where the log has times.
        runs: Number of runs counted.
    """

    incidents: int = 0
    found: int = 0
    unreached: int = 0
    alarms: int = 0
    true_alarms: int = 0
    healthy_steps: int = 0
    steps: int = 0
    delays_steps: tuple[int, ...] = ()
    delays_s: tuple[float, ...] = ()
    runs: int = 0

    @property
    def precision(self) -> float | None:
        """True alarms over alarms; None without any alarm."""
        return self.true_alarms / self.alarms if self.alarms else None

    @property
    def recall(self) -> float | None:
        """Found incidents over incidents; None without any incident."""
        return self.found / self.incidents if self.incidents else None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; None where either is None."""
        if self.precision is None or self.recall is None:
            return None
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    @property
    def false_alarms(self) -> int:
        """Alarms outside every incident and its tolerance."""
        return self.alarms - self.true_alarms

    @property
    def false_alarms_per_1000_steps(self) -> float | None:
        """False alarms per 1,000 healthy steps; None without a healthy step."""
        return 1000 * self.false_alarms / self.healthy_steps if self.healthy_steps else None

    @property
    def chance_precision(self) -> float | None:
        """The precision of alarms at random steps: the share of steps inside an incident or its tolerance."""
        return 1 - self.healthy_steps / self.steps if self.steps else None


def detect(
    incidents: Sequence[Incident],
    alarms: Iterable[Alarm],
    seconds_at: Mapping[int, float],
    last_step: int,
    tolerance_steps: int = 0,
) -> Detection:
    """Count incidents and alarms of one run.

    Args:
        incidents: Its labels.
        alarms: The alarms in order, up to the end under the policy.
        seconds_at: Training time at each incident's first step, where known.
        last_step: The last step under the policy.
        tolerance_steps: Steps before and after an incident within which an alarm still counts as true.
    """
    by_step = {alarm.step: alarm for alarm in reversed(list(alarms))}
    reached = [incident for incident in incidents if incident.first_step <= last_step]
    spans = [
        (incident, incident.first_step - tolerance_steps, incident.last_step + tolerance_steps) for incident in reached
    ]
    rung = sorted(by_step)
    first_alarms = [(incident, next((s for s in rung if low <= s <= high), None)) for incident, low, high in spans]
    found = [(incident, by_step[step]) for incident, step in first_alarms if step is not None]
    true_alarms = sum(any(low <= step <= high for _, low, high in spans) for step in rung)
    return Detection(
        incidents=len(reached),
        found=len(found),
        unreached=len(incidents) - len(reached),
        alarms=len(rung),
        true_alarms=true_alarms,
        healthy_steps=last_step - _covered([(low, high) for _, low, high in spans], last_step),
        steps=last_step,
        delays_steps=tuple(alarm.step - incident.first_step for incident, alarm in found),
        delays_s=tuple(
            alarm.elapsed_s - seconds_at[incident.first_step]
            for incident, alarm in found
            if alarm.elapsed_s is not None and incident.first_step in seconds_at
        ),
        runs=1,
    )


def together(detections: Iterable[Detection]) -> Detection:
    """Sum the counts of many runs."""
    every = list(detections)
    return Detection(
        incidents=sum(one.incidents for one in every),
        found=sum(one.found for one in every),
        unreached=sum(one.unreached for one in every),
        alarms=sum(one.alarms for one in every),
        true_alarms=sum(one.true_alarms for one in every),
        healthy_steps=sum(one.healthy_steps for one in every),
        steps=sum(one.steps for one in every),
        delays_steps=tuple(delay for one in every for delay in one.delays_steps),
        delays_s=tuple(delay for one in every for delay in one.delays_s),
        runs=sum(one.runs for one in every),
    )


def middle_and_p90(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the median and the 90th percentile; None without values.

    The percentile is the smallest of the values such that at least 90 % of them are not above it.
    """
    if not values:
        return None
    ranked = sorted(values)
    return statistics.median(ranked), ranked[-(-9 * len(ranked) // 10) - 1]


def _covered(spans: Iterable[tuple[int, int]], last_step: int) -> int:
    """Count the steps from 1 to the last that lie in any of the spans, ends included."""
    covered, reached = 0, 0
    for low, high in sorted(spans):
        low, high = max(low, reached + 1), min(high, last_step)
        if high >= low:
            covered += high - low + 1
            reached = high
    return covered
