"""Names the fields of runs, and reads their values: facts of every run, configuration keys and metrics.

In: entries of a catalog. Out: values, and what fields there are, for completion and for errors.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from .errors import QuestionRefused, TelemetryError
from .parquet.event_summary import MetricSummary
from .reading.catalog import Look
from .reading.summary import Entry

#: What a field holds. ``texts`` are several, an ``age`` is counted from now, a ``value`` is any value of JSON.
FieldType = Literal["text", "texts", "number", "span", "age", "moment", "value"]

#: ``run`` is one of ``RUN_FIELDS``. A ``name`` is a configuration key if any run has it, else a metric.
FieldKind = Literal["run", "name", "config", "metric", "min", "max"]

#: Most names that an error suggests.
_SUGGESTED: Final = 3

#: Names that need no quotes.
PLAIN_NAME: Final = re.compile(r"[^\s:=<>~!(),\"'-][^\s:=<>~!(),\"']*")

#: What says whether a name is of a key or a metric.
PREFIX: Final = re.compile(r"(config|metric)\.")
_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+|(?:\d+\.\d*|\.\d+|\d+)(?:e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII
)
#: Whole floats below this are exact integers.
_EXACT: Final = 2.0**53

#: What parts the values of a list, or begins one.
_LISTED: Final = re.compile(r'[,"\[{]')
_INTEGER: Final = re.compile(r"[+-]?\d{1,100}", re.ASCII)


class RunField(NamedTuple):
    """A field that every run has or may have: its type, and how an entry gives it; None where it is unknown."""

    type: FieldType
    of: Callable[[Entry], Any]


def _fired(entry: Entry) -> tuple[str, ...] | None:
    try:
        return tuple(dict.fromkeys(rule.controller for rule in entry.firings)) or None
    except (TelemetryError, OSError):
        return None


def _hosts(entry: Entry) -> tuple[str, ...] | None:
    known = dict.fromkeys(host for host in entry.summary.hosts or () if host is not None)
    return tuple(known) or None


RUN_FIELDS: Final[dict[str, RunField]] = {
    "name": RunField("text", attrgetter("summary.name")),
    "id": RunField("text", attrgetter("summary.run_id")),
    "group": RunField("text", attrgetter("summary.group")),
    "tag": RunField("texts", lambda entry: entry.summary.tags or None),
    "status": RunField("text", attrgetter("summary.status")),
    "started": RunField("moment", attrgetter("summary.started")),
    "ended": RunField("moment", attrgetter("summary.ended")),
    "age": RunField("age", attrgetter("summary.last_event")),
    "fired": RunField("texts", _fired),
    "health": RunField("text", attrgetter("health")),
    "steps": RunField("number", attrgetter("summary.steps")),
    "planned_steps": RunField("number", attrgetter("summary.planned_steps")),
    "attempts": RunField("number", attrgetter("summary.attempts")),
    "time": RunField("span", attrgetter("summary.duration_s")),
    "eta": RunField("span", attrgetter("summary.eta_s")),
    "steps_per_s": RunField("number", attrgetter("summary.steps_per_s")),
    "source": RunField("text", attrgetter("summary.source")),
    "host": RunField("texts", _hosts),
    "policy_digest": RunField("text", attrgetter("summary.policy_digest")),
    "archived": RunField("value", attrgetter("summary.archived")),
}


_OF_METRIC: Final[dict[str, Callable[[MetricSummary], float | None]]] = {
    "name": attrgetter("last"),
    "metric": attrgetter("last"),
    "min": attrgetter("least"),
    "max": attrgetter("greatest"),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a question or an order names. Its text parses to itself.

    Attributes:
        kind: What the name is of.
        name: The name, without prefix and quotes.
        place: Where it begins in the text, from 1.
    """

    kind: FieldKind
    name: str
    place: int = dataclasses.field(default=1, compare=False)

    def __str__(self) -> str:
        is_plain = PLAIN_NAME.fullmatch(self.name) is not None
        if self.kind == "name" and is_plain:
            is_plain = self.name not in RUN_FIELDS and not PREFIX.match(self.name)
        name = self.name if is_plain else quoted(self.name)
        if self.kind in ("min", "max"):
            return f"{self.kind}({name})"
        return f"{self.kind}.{name}" if self.kind in ("config", "metric") else name

    @property
    def type(self) -> FieldType:
        """The type of its values."""
        if self.kind == "run":
            return RUN_FIELDS[self.name].type
        return "value" if self.kind in ("name", "config") else "number"

    def values(self, entries: Sequence[Entry]) -> list[Any]:
        """Return the value of each entry; None where the run lacks the field or cannot be read.

        A name is taken for a key or, in a run that lacks it, for a metric.
        """
        if self.kind == "run":
            return list(map(RUN_FIELDS[self.name].of, entries))
        if self.kind == "config":
            return [config_value(entry.config, self.name) for entry in entries]
        if self.kind == "name":
            values = [config_value(entry.config, self.name) for entry in entries]
            return [
                self._of_metric(entry) if value is None else value for value, entry in zip(values, entries, strict=True)
            ]
        return list(map(self._of_metric, entries))

    def _of_metric(self, entry: Entry) -> float | None:
        try:
            found = entry.metric(self.name)
        except (TelemetryError, OSError):
            return None
        return None if found is None else _OF_METRIC[self.kind](found)


def quoted(text: str) -> str:
    """Return a text in quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def config_value(config: dict[str, Any], name: str) -> Any:
    """Return the value of a key, or else of the only key that ends in ``.name``; None without either, and for null.

    >>> config_value({"optimizer.lr": 0.1, "a.seed": 1, "b.seed": 2}, "lr")
    0.1
    """
    if name in config:
        return config[name]
    found = [key for key in config if key.endswith(name) and key.endswith(f".{name}")]
    return config[found[0]] if len(found) == 1 else None


def bound_field(named: Field, look: Look, source: str) -> Field:
    """Return the field with its kind as the runs have it.

    Raises:
        QuestionRefused: No run has it. In a store without runs, any name will do.
    """
    if named.kind == "run" or not look.entries:
        return named
    keys: list[str] = []
    if named.kind in ("name", "config"):
        ending = f".{named.name}"
        keys = [key for key in look.config_keys if key == named.name or key.endswith(ending)]
    if not keys:
        if named.kind != "config" and named.name in look.metric_names:
            return replace(named, kind="metric") if named.kind == "name" else named
        raise _refusal("no run has this field", named, source, _nearest(named, look))
    if len(keys) == 1:
        return replace(named, kind="config", name=keys[0])
    named = replace(named, kind="config")
    if named.name not in keys and all(value is None for value in named.values(look.entries)):
        fix = f"Write {' or '.join(str(Field('config', key)) for key in sorted(keys)[:_SUGGESTED])}"
        raise _refusal("several keys of each run end so", named, source, fix)
    return named


def _refusal(what: str, named: Field, source: str, fix: str) -> QuestionRefused:
    return QuestionRefused(what, where=f"{source}:{named.place}", got=named.name, fix=fix)


def _nearest(named: Field, look: Look) -> str:
    """Ask whether another field was meant: names that contain the text, else the most similar ones."""
    name, known = named.name, [*RUN_FIELDS] if named.kind == "name" else []
    known += look.config_keys if named.kind in ("name", "config") else ()
    known += look.metric_names if named.kind != "config" else ()
    known = list(dict.fromkeys(known))
    alike = [each for each in known if name.casefold() in each.casefold()]
    alike = alike or get_close_matches(name[:100], known, n=_SUGGESTED)
    if not alike:
        return f"Fields of every run: {', '.join(RUN_FIELDS)}. Others are keys of configurations and metrics"
    return f"Did you mean {' or '.join(alike[:_SUGGESTED])}?"


def texts_of(value: Any) -> Sequence[str]:
    """Return a value as texts: several for tags and the like, ISO 8601 for times, JSON for what is no text."""
    kind = type(value)
    if kind is str:
        return (value,)
    if kind is tuple:
        return tuple(value)
    if kind is datetime:
        return (value.isoformat(),)
    return (repr(value),) if kind is int or kind is float else (json.dumps(value, ensure_ascii=False),)


def group_word(value: Any) -> str:
    """Return a value in words that only equal values share: 1 and 1.0, as well as 1 and the text ``1``, are equal.

    >>> group_word(1.0), group_word(("a", "b")), group_word("a, b"), group_word("")
    ('1', 'a, b', '"a, b"', '""')
    """
    if type(value) is float and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    texts = texts_of(value)
    is_text = type(value) is str or type(value) is tuple
    return ", ".join(quoted(text) if is_text and (not text or _LISTED.search(text)) else text for text in texts)


def finite_of(value: Any) -> float | None:
    """Return a finite number as a float; None for all else, as for true and for an integer beyond all floats."""
    if type(value) is not float and type(value) is not int:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def number_of(value: Any) -> int | float | None:
    """Return a number, or the number that a text is; None for everything else, as for true."""
    if type(value) is float or type(value) is int:
        return value
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    return int(value) if _INTEGER.fullmatch(value) else float(value)
