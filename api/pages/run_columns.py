"""Columns of the runs table: which fields suit the runs, what their cells show, and their means over groups of runs.

Entries of a scan and fields of the question language go in; cells come out, as text and the kind of their markup.
"""

from __future__ import annotations

import heapq
import json
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple

from ...replay.runs.objective import Objective, guessed_objective
from ...store.amounts import short_duration
from ...store.errors import TelemetryError
from ...store.questions import parse_fields
from ...store.reading.catalog import Look
from ...store.reading.summary import Entry, leading_metric
from ...store.run_fields import Field, bound_field, finite_of, group_word, texts_of
from ...store.run_info import LIVE_STATUSES
from .layout import number, time_taken
from .sparkline import sparkline

#: Most configuration keys that the table shows unasked.
_MOST_KEYS: Final = 6

#: Runs among which the metric that judges most of them is looked for.
_SAMPLED: Final = 200

#: The newest runs, which say which columns would be empty.
_NEWEST: Final = 50

#: Fewer runs than this may differ in a text without any two having the same.
_FEW: Final = 6

#: Values of settings that a set can hold.
_PLAIN: Final = (str, int, float, type(None))

#: Most columns: a page draws a cell for each of them and each run.
MOST_COLUMNS: Final = 60

#: Most different texts that a cell of a group lists.
_MOST_TEXTS: Final = 3

#: The column of small curves, which has no values.
CURVE: Final = "curve"

#: Headings of fields, and what they mean.
_HEADINGS: Final[dict[str, tuple[str, str]]] = {
    "status": ("State", "Click a state for why, and since when"),
    "steps": ("Steps", "Updates finished, of those planned"),
    "steps_per_s": ("Steps/s", "Updates per second, over the newest hundred"),
    "eta": ("Left", "Time to the end of the plan at the present speed"),
    "age": ("Last event", "Age of the newest event"),
    "fired": ("Fired", "Rules that fired, each with its number of episodes"),
    "started": ("Started", "Start of the first attempt"),
    "ended": ("Ended", "End of the last attempt"),
    "time": ("Time", "Time of training, without pauses"),
    CURVE: ("Curve", "The leading metric of each run, over its steps"),
}

#: Fields that the table shows unasked, if any run has them, after those of metrics and configurations.
_BEHIND: Final = ("fired", "steps", "age", "eta", "steps_per_s", "time", "started")

#: Fields among these that say something of runs that go on.
_OF_LIVE: Final = ("eta", "steps_per_s")


class TableCell(NamedTuple):
    """The content of a cell.

    Attributes:
        kind: The kind of its markup: ``number``, ``text``, ``time``, ``age``, ``status`` or ``curve``.
        text: What it shows; empty without a value.
        more: What follows in a lighter colour.
    """

    kind: str
    text: str = ""
    more: str = ""


class TableColumn(NamedTuple):
    """A column.

    Attributes:
        field: Its field; None for the column of curves.
        label, title: Its heading, and what that means.
        is_left: Whether its cells are flush left.
        first: ``-`` if the first click on the heading sorts in descending order; else empty.
    """

    field: Field | None
    label: str
    title: str
    is_left: bool
    first: str

    @property
    def name(self) -> str:
        """The field as an address has it."""
        return CURVE if self.field is None else str(self.field)


class RunGroup(NamedTuple):
    """Runs with the same value of a field.

    Attributes:
        value: The value as text; empty without one.
        entries: The runs, in the order of the table.
        cells: The mean and the deviation of each column.
    """

    value: str
    entries: list[Entry]
    cells: list[TableCell]


def judged_by(entries: Sequence[Entry]) -> Objective | None:
    """Return the metric by which a backtest judges most of these runs; None if no metric says how good a run is.

    Of many runs some are sampled evenly.
    """
    found = Counter(filter(None, (_guessed(frozenset(entry.columns.of_loop)) for entry in _sample(entries))))
    return found.most_common(1)[0][0] if found else None


_guessed = lru_cache(maxsize=1024)(guessed_objective)


def _sample(entries: Sequence[Entry]) -> Sequence[Entry]:
    return entries[:: max(1, len(entries) // _SAMPLED)]


def differing_keys(entries: Sequence[Entry]) -> list[str]:
    """Return the configuration keys whose values differ between runs: those of the most runs first.

    Texts that differ in every run, such as the paths of outputs, are left out: they say no more than a run's name.
    """
    counts: Counter[str] = Counter()
    distinct: dict[str, set[Any]] = {}
    for entry in entries:
        counts.update(entry.config.keys())
        for key, value in entry.config.items():
            distinct.setdefault(key, set()).add(value if isinstance(value, _PLAIN) else json.dumps(value))
    differing = [key for key, own in distinct.items() if len(own) > 1 and not _are_names(own, counts[key])]
    return sorted(differing, key=lambda key: -counts[key])


def _are_names(distinct: Collection[Any], runs: int) -> bool:
    return len(distinct) == runs >= _FEW and all(isinstance(value, str) for value in distinct)


def first_columns(entries: Sequence[Entry]) -> list[TableColumn]:
    """Return the columns that a table of these runs has unasked."""
    judged, sample = judged_by(entries), _sample(entries)
    metric = judged.metric if judged else leading_metric([name for entry in sample for name in entry.columns.of_loop])
    best: Literal["min", "max"] = "max" if judged and judged.mode == "max" else "min"
    fields: list[Field | None] = [Field("run", "status")]
    fields += [] if metric is None else [Field("metric", metric), Field(best, metric), None]
    fields += [Field("config", key) for key in differing_keys(entries)[:_MOST_KEYS]]
    newest = heapq.nlargest(_NEWEST, entries, key=lambda entry: entry.summary.age_order)
    live = [entry for entry in newest if entry.summary.status in LIVE_STATUSES]
    for name in _BEHIND:
        if any(value is not None for value in Field("run", name).values(live if name in _OF_LIVE else newest)):
            fields.append(Field("run", name))
    return columns_of(fields, entries)


def asked_columns(text: str, look: Look, entries: Sequence[Entry]) -> list[TableColumn]:
    """Return the columns that an address names.

    Raises:
        QuestionRefused: The text does not parse, or no run has a field.
    """
    curve = Field("name", CURVE)
    fields = parse_fields(text)[:MOST_COLUMNS]
    return columns_of([None if one == curve else bound_field(one, look, "columns") for one in fields], entries)


def columns_of(fields: Sequence[Field | None], entries: Sequence[Entry]) -> list[TableColumn]:
    """Return the columns of these fields."""
    ends = Counter("" if one is None else one.name.rpartition(".")[2] for one in fields if one and one.kind == "config")
    sample = _sample(entries)
    judged = judged_by(sample)
    return [_column(one, ends, judged, is_number=_is_number(one, sample)) for one in fields]


def _column(named: Field | None, ends: Mapping[str, int], judged: Objective | None, *, is_number: bool) -> TableColumn:
    if named is None:
        return TableColumn(None, *_HEADINGS[CURVE], is_left=True, first="")
    is_left = not is_number and named.type not in ("age", "moment", "span")
    if named.kind == "run":
        label, title = _HEADINGS.get(named.name, (named.name.replace("_", " ").capitalize(), named.name))
        is_descending = named.type in ("number", "moment", "span")
        return TableColumn(named, label, title, is_left, "-" if is_descending and named.name != "eta" else "")
    if named.kind == "config":
        end = named.name.rpartition(".")[2]
        label = end if end and ends[end] < 2 else named.name
        return TableColumn(named, label, f"{named.name}, of the configuration", is_left, "")
    best = guessed_objective({named.name})
    is_best_high = best is not None and best.mode == "max"
    words = {"metric": "last value", "min": "least value", "max": "greatest value"}[named.kind]
    title = f"{named.name}: {words}"
    if judged is not None and judged.metric == named.name:
        title += f"; a backtest judges by it, {'higher' if judged.mode == 'max' else 'lower'} is better"
    label = named.name if named.kind == "metric" else f"{named.kind} {named.name}"
    return TableColumn(named, label, title, False, "-" if is_best_high or named.kind == "max" else "")


def _is_number(named: Field | None, sample: Sequence[Entry]) -> bool:
    if named is None or named.type != "value":
        return named is not None and named.type == "number"
    return all(value is None or _is_real(value) for value in named.values(sample))


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def rows_of(columns: Sequence[TableColumn], entries: Sequence[Entry]) -> list[list[TableCell]]:
    """Return the cells of each run."""
    of_columns = [_cells(column, entries) for column in columns]
    return [list(row) for row in zip(*of_columns, strict=True)] if of_columns else [[] for _ in entries]


def _cells(column: TableColumn, entries: Sequence[Entry]) -> Iterator[TableCell]:
    if column.field is None:
        return (TableCell("curve", sparkline(entry), _leading(entry)) for entry in entries)
    values = column.field.values(entries)
    return (_cell(column.field, value, entry) for value, entry in zip(values, entries, strict=True))


def _leading(entry: Entry) -> str:
    return leading_metric(list(entry.columns.of_loop)) or ""


def _rules(entry: Entry) -> list[tuple[str, int, bool]]:
    """Return of each rule that fired its name, episodes, and whether it stopped the run; nothing if damaged."""
    try:
        return [(one.controller, one.episodes, one.has_stopped) for one in entry.firings]
    except (TelemetryError, OSError):
        return []


def _cell(named: Field, value: Any, entry: Entry) -> TableCell:
    run = entry.summary
    if named == Field("run", "status"):
        stopped = [name for name, _, has_stopped in _rules(entry) if has_stopped] if run.status == "stopped" else []
        return TableCell("status", run.status, ", ".join(stopped))
    if named == Field("run", "fired"):
        return TableCell("text", ", ".join(f"{name} {episodes}" for name, episodes, _ in _rules(entry)))
    if named == Field("run", "steps"):
        return TableCell(
            "number",
            number(run.steps),
            f" / {run.planned_steps:,}" if run.planned_steps not in (None, run.steps) else "",
        )
    if named == Field("run", "time"):
        return TableCell("number", time_taken(run))
    if value is None:
        return TableCell("number" if named.type != "text" else "text")
    return (
        TableCell(_KINDS.get(named.type, "text"), text_of(named, value))
        if named.type != "value"
        else _value_cell(value)
    )


_KINDS: Final = {"number": "number", "span": "number", "age": "age", "moment": "time"}


def _value_cell(value: Any) -> TableCell:
    return TableCell("number", number(value)) if _is_real(value) else TableCell("text", ", ".join(texts_of(value)))


def text_of(named: Field, value: Any) -> str:
    """Return a value of a field as text: a time as ISO 8601, a span in words."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if named.type == "span":
        return short_duration(value)
    return number(value) if _is_real(value) else ", ".join(texts_of(value))


def groups_of(by: Field, columns: Sequence[TableColumn], entries: Sequence[Entry]) -> list[RunGroup]:
    """Return the runs by the values of a field, in the order of each group's first run."""
    words = partial(text_of, by) if by.type in ("moment", "age", "span") else group_word
    members: dict[str, list[Entry]] = {}
    for value, entry in zip(by.values(entries), entries, strict=True):
        members.setdefault("" if value is None else words(value), []).append(entry)
    return [RunGroup(value, own, [_mean_cell(column, own) for column in columns]) for value, own in members.items()]


def _mean_cell(column: TableColumn, entries: Sequence[Entry]) -> TableCell:
    """Return what a column says of a group: mean and deviation of its finite numbers, or its texts if there are few.

    A number of a configuration is a setting. A group shows the range of its settings, not their mean.
    """
    if column.field is None or column.field.type in ("age", "moment"):
        return TableCell("text")
    values = [value for value in column.field.values(entries) if value is not None]
    numbers = [number for value in values if (number := finite_of(value)) is not None]
    if not numbers:
        texts = Counter(text for value in values for text in texts_of(value))
        many = f"{len(texts):,} values"
        return TableCell("text", many if len(texts) > _MOST_TEXTS else ", ".join(_counted(texts, len(entries))))
    missing = f" ({len(numbers)} of {len(entries)})" if len(numbers) < len(entries) else ""
    if column.field.kind == "config":
        settings = sorted(set(numbers))
        ends = [text_of(column.field, int(one) if one.is_integer() else one) for one in (settings[0], settings[-1])]
        return TableCell("number", " to ".join(dict.fromkeys(ends)), missing)
    mean, deviation = mean_and_deviation(numbers)
    spread = "" if not deviation else f" ± {_rounded(column.field, deviation)}"
    return TableCell("number", text_of(column.field, mean), spread + missing)


def mean_of(named: Field, entries: Sequence[Entry]) -> float | None:
    """Return the mean of the finite numbers of a field; None if it has none."""
    numbers = [number for value in named.values(entries) if (number := finite_of(value)) is not None]
    return mean_and_deviation(numbers)[0] if numbers else None


def _rounded(named: Field, deviation: float) -> str:
    return text_of(named, float(f"{deviation:.2g}"))


def _counted(texts: Mapping[str, int], runs: int) -> Iterator[str]:
    return (text if count == runs else f"{count} {text}" for text, count in texts.items())


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of finite numbers and their sample deviation, which one number has not.

    >>> mean_and_deviation([1.0, 1.0]), mean_and_deviation([1.7e308, 1.7e308]), mean_and_deviation([2.0])
    ((1.0, 0.0), (1.7e+308, 0.0), (2.0, None))
    """
    scale = max(map(abs, values)) or 1.0  # Sums of numbers near the greatest overflow.
    scaled = [value / scale for value in values]
    return statistics.fmean(scaled) * scale, statistics.stdev(scaled) * scale if len(scaled) > 1 else None
