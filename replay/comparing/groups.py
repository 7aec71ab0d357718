"""Finds the runs of a group, counts the groups that were tried before it, and reads one metric of its runs.

Takes the ``run.json`` of a store's runs and the text that names a group, returns runs. Takes a snapshot of a run,
returns the course of a metric along steps, tokens or time; takes a course and a point, returns the value there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...rules.errors import suggestion
from ...store.errors import TelemetryError
from ...store.lineage import DECIDING_RANK
from ...store.metric_words import mode_of
from ...store.questions import parse_fields
from ...store.reading.catalog import Look
from ...store.reading.snapshot import Snapshot, events_table_along
from ...store.reading.summary import Entry
from ...store.reading.tally import NUM_TOKENS
from ...store.run_fields import Field, bound_field, config_value
from ...store.run_info import LIVE_STATUSES, RunInfo, flattened
from ..runs.event_stream import renamed_columns
from ..runs.metric_names import Renames
from .group_comparison import Axis, Standing

Floats = npt.NDArray[np.float64]

#: Words that name the seed in a configuration.
_SEED_KEYS: Final = ("seed", "random_seed", "manual_seed", "random_state", "rng_seed")

#: The end of a name that numbers the repeats of one configuration, such as ``-seed3``. Other numbers tell tries apart.
_REPEAT: Final = re.compile(r"(?:^|[\W_]+)(?:seed|rep|s)[\W_]*\d+$", re.IGNORECASE)

_NAME: Final = Field("run", "name")
_GROUP: Final = Field("run", "group")

#: Metrics that count the tokens so far, in order of preference.
_TOKENS_SEEN: Final = ("Tokens/seen", "num_input_tokens_seen", "tokens_seen")

_NS_PER_S: Final = 1e9

#: Statuses of runs that ended as their loop or their rules wanted.
FINISHED: Final = ("completed", "stopped")


@dataclass(frozen=True, slots=True)
class Selector:
    """What the runs of a group have in common.

    Attributes:
        field: The field, as questions for runs name it.
        value: Its value; for a name it may hold ``*`` and ``?``.
    """

    field: Field
    value: str

    def __str__(self) -> str:
        return f"{self.field.name}={self.value}"

    def matches(self, entry: Entry) -> bool:
        """Whether a run belongs to the group."""
        if self.field == _NAME:
            return self.value == entry.summary.run_id or fnmatchcase(entry.summary.name, self.value)
        return any(_is_value(value, self.value) for value in self._values(entry))

    def values_of(self, entry: Entry) -> tuple[str, ...]:
        """Return the values by which a run would belong to a group of this kind. A name counts without its repeat."""
        if self.field == _NAME:
            return (_REPEAT.sub("", entry.summary.name) or entry.summary.name,)
        return tuple(map(_text, self._values(entry)))

    def _values(self, entry: Entry) -> tuple[Any, ...]:
        (value,) = self.field.values([entry])
        if value is None:  # A setting may be null.
            return (None,) if self.field.kind == "config" and self.field.name in entry.config else ()
        return value if isinstance(value, tuple) else (value,)


def selector_of(text: str, look: Look, source: str) -> Selector:
    """Parse what names a group: ``FIELD=VALUE``, or a name, a pattern of names, a run's id, or a group.

    Args:
        text: The text. A plain one is a name if any run has it, else a group.
        look: The runs of the store.
        source: What the text is, for errors.

    Raises:
        TelemetryError: No run belongs to it. The error suggests what was meant.
    """
    for field in (_NAME, _GROUP):
        if any(map((plain := Selector(field, text)).matches, look.entries)):
            return plain
    key, equals, value = text.partition("=")
    if not (equals and key and value):
        names = {name for entry in look.entries for name in (entry.summary.name, entry.summary.group) if name}
        raise TelemetryError("no run has this name or group", where=source, got=text, fix=suggestion(text, names))
    given = Selector(bound_field(parse_fields(key, source=source)[0], look, source), value)
    if not any(map(given.matches, look.entries)):
        known = {found for entry in look.entries for found in _known_values(given, entry)}
        what = f"no run has this {given.field.name}"
        raise TelemetryError(what, where=source, got=value, fix=suggestion(value, known))
    return given


def members(selector: Selector, entries: Iterable[Entry]) -> frozenset[str]:
    """Return the ids of the runs of a group."""
    return frozenset(entry.summary.run_id for entry in entries if selector.matches(entry))


def groups_like(candidate: Selector, entries: Iterable[Entry]) -> set[frozenset[str]]:
    """Return the groups of a selector's kind, each as the ids of its runs.

    Args:
        candidate: The selector.
        entries: The runs of the store.
    """
    runs: dict[str, set[str]] = {}
    for entry in entries:
        for value in candidate.values_of(entry):
            runs.setdefault(value, set()).add(entry.summary.run_id)
    return {frozenset(group) for group in runs.values()}


def tries_before(
    candidate: frozenset[str], baseline: frozenset[str], groups: Iterable[frozenset[str]], infos: Sequence[RunInfo]
) -> list[frozenset[str]]:
    """Return the groups that were tried against a baseline before a candidate.

    A try has no run of either group. It began no earlier than the baseline, or than the candidate if that began first.
    What begins later changes nothing.

    Args:
        candidate, baseline: Ids of the runs of both groups.
        groups: The groups of the candidate's kind.
        infos: The runs of the store.
    """
    began = {info.run_id: info.attempts[0].started_ns for info in infos}
    since = min(began[run] for run in baseline | candidate)
    first = min(began[run] for run in candidate)
    others = {group for group in groups if not group & (baseline | candidate)}
    return [group for group in others if since <= min(began[run] for run in group) < first]


def seed_of(info: RunInfo, key: str | None = None) -> str | None:
    """Return the seed that a run's configuration names; None without one.

    Args:
        info: The run.
        key: The key of the seed, or its last part; by default ``seed`` or a similar word, the least nested first.
    """
    entries = flattened(info.config)
    if key is not None:
        value = config_value(entries, key)
        return None if value is None else _text(value)
    found = [name for name in entries if name.rpartition(".")[2].casefold() in _SEED_KEYS]
    found.sort(key=lambda name: (name.count("."), _SEED_KEYS.index(name.rpartition(".")[2].casefold()), name))
    return None if not found or entries[found[0]] is None else _text(entries[found[0]])


def _known_values(selector: Selector, entry: Entry) -> tuple[str, ...]:
    return (entry.summary.name,) if selector.field == _NAME else selector.values_of(entry)


def _is_value(entry: Any, text: str) -> bool:
    """Whether an entry of a configuration is the value that a text writes: as JSON, as text, or as an equal number."""
    if _text(entry) == text or str(entry) == text:
        return True
    try:
        return isinstance(entry, (int, float)) and not isinstance(entry, bool) and float(text) == entry
    except ValueError:
        return False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class MetricCourse:
    """The values of one metric in one run.

    Attributes:
        positions: Position of each value on the axis. Shape (n,), ascending.
        values: The values; may be NaN. Shape (n,).
        reached: Position of the newest event.
        status: Status of the run.
    """

    positions: Floats
    values: Floats
    reached: float
    status: str

    @property
    def is_live(self) -> bool:
        """Whether the run may still record values."""
        return self.status in LIVE_STATUSES

    @property
    def is_finished(self) -> bool:
        """Whether the run ended as its loop or its rules wanted."""
        return self.status in FINISHED

    def at(self, point: float) -> tuple[Standing, float]:
        """Return the newest value up to a point; NaN unless it counts.

        A live run has passed the point once it recorded anything beyond it, or a value exactly there.
        """
        before = int(np.searchsorted(self.positions, point, side="right"))
        if self.reached < point:
            return (Standing.WAITING if self.is_live else Standing.NO_VALUE), math.nan
        if self.is_live and self.reached == point and not (before and self.positions[before - 1] == point):
            return Standing.WAITING, math.nan
        if before == 0 or not math.isfinite(self.values[before - 1]):
            return Standing.NO_VALUE, math.nan
        return Standing.COUNTED, float(self.values[before - 1])


def evaluated_metrics(snapshot: Snapshot, renames: Renames) -> set[str]:
    """Return the metrics of a run's evaluations whose names say whether lower or higher is better."""
    columns = {name: column for name, column in renamed_columns(snapshot, renames).items() if mode_of(name) is not None}
    table = _own_rows(events_table_along(snapshot, ("kind", "rank", *columns.values())))
    rows = _kinds(table) == "evaluate"
    return {name for name, column in columns.items() if bool((_is_known(table, column) & rows).any())}


def read_course(snapshot: Snapshot, metric: str, axis: Axis, renames: Renames) -> MetricCourse:
    """Return the values of a metric in a run: those of its evaluations, else of the first kind of event that has any.

    Args:
        snapshot: The run.
        metric: The metric, under its new name.
        axis: What to order values by.
        renames: The metrics to rename.

    Returns:
        The course; one that reached nothing if the run has no value of the metric.

    Raises:
        TelemetryError: The run lacks the axis.
    """
    columns = renamed_columns(snapshot, renames)
    if metric not in columns:
        return MetricCourse(np.zeros(0), np.zeros(0), 0.0, snapshot.status)
    clocks = [columns[name] for name in (NUM_TOKENS, *_TOKENS_SEEN) if name in columns] if axis is Axis.TOKENS else []
    wanted = dict.fromkeys(("kind", "rank", "attempt", "step", "elapsed_ns", columns[metric], *clocks))
    table = _own_rows(events_table_along(snapshot, tuple(wanted)))
    kinds, rows = _kinds(table), np.flatnonzero(_is_known(table, columns[metric]))
    if not len(rows):
        return MetricCourse(np.zeros(0), np.zeros(0), 0.0, snapshot.status)
    first_kind = "evaluate" if (kinds[rows] == "evaluate").any() else kinds[rows[0]]
    rows = rows[kinds[rows] == first_kind]
    steps = np.maximum.accumulate(_numbers(table, "step"))
    positions = steps if axis is Axis.STEP else _positions(table, axis, columns, snapshot.info.run_id)
    # A late value arrives some updates later with its own step: it belongs where that step ended.
    at = np.minimum(rows, np.searchsorted(steps, _numbers(table, "step")[rows], side="right") - 1)
    order = np.argsort(at, kind="stable")
    values = _numbers(table, columns[metric])[rows][order]
    return MetricCourse(positions[at][order], values, float(positions[-1]), snapshot.status)


def _positions(table: Any, axis: Axis, columns: dict[str, str], run_id: str) -> Floats:
    """Return how many tokens or seconds each event has behind it; shape (events,), ascending."""
    attempts = _numbers(table, "attempt")
    if axis is Axis.TIME:
        times = _along_attempts(_numbers(table, "elapsed_ns") / _NS_PER_S, attempts)
        if len(times) and not times.any():
            raise TelemetryError("the log has no times", where=run_id, fix="Compare at steps: --at step")
        return times
    if NUM_TOKENS in columns:
        return np.cumsum(np.nan_to_num(_numbers(table, columns[NUM_TOKENS])))
    for name in _TOKENS_SEEN:
        if name in columns:
            return _along_attempts(_numbers(table, columns[name]), attempts)
    fix = f"Record {NUM_TOKENS} at each step, or compare at steps: --at step"
    raise TelemetryError("the run counts no tokens", where=run_id, fix=fix)


def _along_attempts(values: Floats, attempts: Floats) -> Floats:
    """Add up a count that begins again with each attempt; a missing value repeats the one before."""
    found = np.zeros(len(values))
    before = 0.0
    for part in np.split(np.arange(len(values)), np.flatnonzero(np.diff(attempts)) + 1):
        if len(part):
            found[part] = before + np.maximum.accumulate(np.nan_to_num(values[part]))
            before = float(found[part[-1]])
    return found


def _own_rows(table: Any) -> Any:
    """Return the events of the deciding rank."""
    return table.take(np.flatnonzero(_numbers(table, "rank") == DECIDING_RANK))


def _kinds(table: Any) -> npt.NDArray[np.object_]:
    return np.array(table["kind"].to_pylist(), dtype=object)


def _is_known(table: Any, column: str) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = table[column].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    return known


def _numbers(table: Any, column: str) -> Floats:
    numbers: Floats = table[column].combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers
