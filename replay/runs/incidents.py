"""Labelled incidents: the step ranges of a run in which something was wrong, from a CSV file or from annotations.

An annotation with the attribute ``incident`` is a label::

    rec.annotate("loss spike after the restart", incident="spike", first_step=1200, last_step=1260)

One of ``first_step`` and ``last_step`` may be left out, and is then the step of the annotation. An annotation without a
range of steps labels nothing. Annotations added after the run (``POST /api/v1/runs/{id}/annotations``) count too; one
without a step covers the whole run.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...store.annotations import INCIDENT, labelled_steps, read_annotations
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


def incidents_noted(folder: Path) -> list[Incident]:
    """Return the incidents labelled by annotations that were added to a run's folder after the run.

    Raises:
        DamagedLog: The annotations cannot be read.
    """
    notes = (note for note in read_annotations(folder) if INCIDENT in note.attrs)
    return [
        Incident(0, _LAST_STEP, str(note.attrs[INCIDENT]))
        if note.first_step is None
        else _incident_between(note.first_step, note.last_step, note.attrs)
        for note in notes
    ]


def _incident_between(first_step: int, last_step: int | None, attrs: Mapping[str, Any]) -> Incident:
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
