"""Compares a source with its stored events and yields the facts that are not stored yet."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ..store.errors import TelemetryError
from ..store.event_json import encoded_attrs
from ..store.events import Event
from .source import Fact

#: Attempt, kind, step, name and bits of a value. An event without metrics has an empty name and its attributes instead.
_Cell: TypeAlias = tuple[int, str, int, str, bytes]


class SourceRewritten(TelemetryError):
    """A source no longer contains a value that was imported from it."""


def news_of(stored: Iterable[Event], facts: Iterator[Fact], where: str) -> Iterator[Fact]:
    """Yield the facts that are not stored yet, in the order of the source.

    Usually the stored events are a prefix of the source. They need not be: values that reached a file late or out of
    order are matched wherever they are. A row that was read half-written is completed by its remaining values.

    Raises:
        SourceRewritten: A stored value is no longer in the source.
        TelemetryError: Raised while the source is read.
    """
    held = iter(stored)
    rest: list[Event] = []
    first: list[Fact] = []
    for event in held:
        fact = next(facts, None)
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
