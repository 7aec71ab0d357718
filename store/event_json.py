"""Encodes events as JSON lines and parses them: the text format for exporting and importing runs.

One event a line: ``{"event": "step_end", "step": 12, "epoch": 0.5, ..., "metrics": {"loss": 1.2}, "attrs": {}}``. A
``plan`` line before the events says what the loop declared at its start.
Non-finite numbers are the strings ``NaN``, ``Infinity`` and ``-Infinity``, so that every line is strict JSON; the
parser also accepts the bare tokens.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from .errors import DamagedLog, InvalidEvent, shortened
from .events import BEFORE_STREAM, INIT_END, KINDS, MOST_VALUES, PLAN, Event, JsonObject, is_kind, kind_advice

_KINDS: Final = KINDS | {INIT_END}
_TO_TEXT: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
#: The numbers that JSON lacks, by their names in it.
NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_WRITTEN_AS_THEY_ARE: Final = (str, int, bool, type(None))

_INTEGERS: Final = ("step", "seq", "attempt", "rank", "micro_step", "time_ns", "elapsed_ns", "value_lag")
_INT32: Final = ("attempt", "rank", "micro_step", "value_lag")
#: What a page of the HTTP interface adds: a mark on each event, and an object as its last line.
ROLLED_BACK: Final = "rolled_back"
_TRAILER: Final = "trailer"
_KEYS: Final = frozenset(("event", "epoch", "metrics", "attrs", "vectors", "run_id", ROLLED_BACK, *_INTEGERS))


def encoded_float(value: float) -> float | str:
    """Return the number, or its name when JSON cannot hold it."""
    return value if math.isfinite(value) else _TO_TEXT.get(value, "NaN")


def encoded(value: Any) -> Any:
    """Return the value with every non-finite number replaced by its name, recursing into mappings and sequences."""
    if type(value) in _WRITTEN_AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return encoded_float(value)
    if isinstance(value, Mapping):
        return {str(key): encoded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(entry) for entry in value]
    return value


#: Made once: ``json.dumps`` would make an encoder for each call, which costs an event of 20 us another 3 us.
_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encoded_attrs(attrs: Mapping[str, Any]) -> str:
    """Encode attributes as strict JSON text.

    Raises:
        InvalidEvent: JSON cannot hold a value.
    """
    try:
        text = _encode(encoded(attrs))
        text.encode()  # Python alone accepts a lone surrogate as text.
        return text
    except (TypeError, ValueError) as error:
        raise InvalidEvent(f"attributes must be JSON values ({error})") from None
    except RecursionError:
        raise InvalidEvent("attributes are nested too deeply") from None


def restated_attrs(text: bytes) -> str | None:
    """Convert attributes from their journal form to their table form; None when empty.

    Attributes that could be written never exceed the recursion limit here: this conversion takes one call level per
    nesting level, and writing takes two.

    Raises:
        ValueError, RecursionError: The text is not JSON, or nested more deeply than any writer allows.
    """
    attrs = json.loads(text, parse_constant=str)
    if not attrs:
        return None
    try:
        restated = json.dumps(attrs, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        restated.encode()
        return restated
    except ValueError:  # A number beyond the range of doubles, or a lone surrogate.
        return encoded_attrs(attrs)


def decoded_attrs(text: str) -> JsonObject:
    """Parse attributes from their JSON text.

    Raises:
        DamagedLog: The text is not a JSON object.
    """
    try:
        attrs = json.loads(text)
    except (ValueError, RecursionError):
        attrs = None
    if not isinstance(attrs, dict):
        raise DamagedLog("attributes must be a JSON object", got=text)
    return attrs


def event_to_line(event: Event) -> str:
    """Encode the event as one line of strict JSON, without the line end."""
    document = {
        "event": event.kind,
        "step": event.step,
        "epoch": None if event.epoch is None else encoded_float(event.epoch),
        "attempt": event.attempt,
        "rank": event.rank,
        "seq": event.seq,
        "micro_step": event.micro_step,
        "time_ns": event.time_ns,
        "elapsed_ns": event.elapsed_ns,
        "value_lag": event.value_lag,
        "metrics": {name: encoded_float(value) for name, value in event.metrics.items()},
        "attrs": encoded(event.attrs),
    }
    if event.vectors:
        document["vectors"] = {name: encoded([*values]) for name, values in event.vectors.items()}
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def events_from_lines(lines: Iterable[str], *, source: str) -> Iterator[Event]:
    """Parse events from JSON lines; blank lines are skipped.

    Every key but ``event`` may be missing. A missing ``step`` is one more than the previous at ``step_end``, else the
    previous (0 at first). A missing ``seq`` is the event's index, or ``BEFORE_STREAM`` for a ``plan`` before others.
    Other missing numbers are 0, a missing ``epoch`` is None. An ``init_end`` precedes every stream, so its line adds no
    event. Neither do the events that a page of ``/runs/{id}/events`` marks as rolled back, nor its trailer.

    Raises:
        InvalidEvent: A line is not an event, or the last page has a successor; the error names ``source`` and the line
            number.
    """
    step = 0
    index = 0
    following: object = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        document = _document(line, where)
        if _TRAILER in document:
            following = _mapping(document, _TRAILER, where).get("next")
            continue
        kind = document["event"]
        if kind == INIT_END or document.get(ROLLED_BACK):
            continue
        begins = kind == PLAN and not index
        defaults = {"step": step + 1 if kind == "step_end" else step, "seq": BEFORE_STREAM if begins else index}
        event = Event(
            kind=kind,
            epoch=_epoch(document, where),
            metrics=_metrics(document, where),
            attrs=_mapping(document, "attrs", where),
            samples=None,
            vectors=_vectors(document, where),
            **{name: _integer(document, name, defaults.get(name, 0), where) for name in _INTEGERS},
        )
        yield event
        step = event.step
        index += event.seq != BEFORE_STREAM
    if following is not None:
        raise InvalidEvent("the log goes on", where=where, got=f"next: {following}", fix="Add the pages that follow")


def _document(line: str, where: str) -> JsonObject:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"not JSON ({error})", where=where, got=line.rstrip()) from None
    if isinstance(document, dict) and document.keys() == {_TRAILER}:
        return document
    if not isinstance(document, dict) or not isinstance(document.get("event"), str):
        raise InvalidEvent('a line must be an object with the key "event"', where=where, got=line.rstrip())
    if not is_kind(document["event"], _KINDS):
        fix = kind_advice(document["event"], _KINDS)
        raise InvalidEvent("unknown kind of event", where=where, got=document["event"], fix=fix)
    unknown = sorted(document.keys() - _KEYS)
    if unknown:
        raise InvalidEvent("unknown key", where=where, got=unknown[0], fix='Metrics belong under "metrics"')
    return document


def _integer(document: Mapping[str, object], name: str, default: int, where: str) -> int:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidEvent(f"{name!r} must be a whole number", where=where, got=value)
    limit = 2 ** (31 if name in _INT32 else 63)
    if not -limit <= value < limit:
        raise InvalidEvent(f"{name!r} is out of range", where=where, got=value)
    return value


def _epoch(document: Mapping[str, object], where: str) -> float | None:
    value = document.get("epoch")
    return None if value is None else _number(value, "'epoch'", where)


def _metrics(document: Mapping[str, object], where: str) -> dict[str, float]:
    metrics = _mapping(document, "metrics", where)
    return {name: _number(value, f"metric {name!r}", where) for name, value in metrics.items() if value is not None}


def _vectors(document: Mapping[str, object], where: str) -> dict[str, array[float]]:
    return {name: _vector(name, values, where) for name, values in _mapping(document, "vectors", where).items()}


def _vector(name: str, values: Any, where: str) -> array[float]:
    what = f"vector {name!r}"
    if not isinstance(values, list):
        raise InvalidEvent(f"{what} must be a list of numbers", where=where, got=shortened(repr(values), 100))
    if len(values) > MOST_VALUES:
        raise InvalidEvent(f"{what} is longer than {MOST_VALUES:,} values", where=where, got=len(values))
    return array("d", (_number(value, f"a value of {what}", where) for value in values))


def _number(value: Any, what: str, where: str) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            pass
    raise InvalidEvent(f"{what} must be a number", where=where, got=value)


def _mapping(document: Mapping[str, object], name: str, where: str) -> Mapping[str, object]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidEvent(f"{name!r} must be an object", where=where, got=value)
    return value
