"""Finds where in a recorded stream values and events came, which decides whether a policy could fire in it.

Takes a stream; returns indices of its events. A late value counts at the event that awaited it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...rules.language.families import is_pattern, matches
from ...rules.readings.reading import ALSO_CALLED, SeriesKey
from ...store.events import BEFORE_STREAM, LATE_FOR, PLAN, is_loop_kind
from ...store.reading.snapshot import Snapshot
from ...store.run_info import Plan, constants_in
from .event_stream import EventStream, newest_plan
from .renaming import Renames, renames_in


class StreamAppearances:
    """Where in a stream values and events came; see ``steptape.rules.readings.reading.Appearances``.

    Args:
        stream: The stream.
        plan: What the loop declared at its start.
        nan_filtered: Names of training metrics whose values that are not finite were replaced before they were logged.
    """

    def __init__(self, stream: EventStream, plan: Plan, nan_filtered: Collection[str] = ()) -> None:
        self.plan = newest_plan(plan, stream)
        self._constants = plan.constants
        self._late_plans = list(stream.of_kind(PLAN))
        self.nan_filtered = nan_filtered
        self._stream = stream
        self._values: dict[SeriesKey, Sequence[int]] = {}
        self._events: dict[str, Sequence[int]] = {}
        self._early = dict(_late_events(stream))

    @property
    def has_samples(self) -> bool:
        """Whether any event has sample losses."""
        return any(event.samples for event in self._stream.facts)

    @property
    def vector_names(self) -> frozenset[str]:
        """The names of all vectors of its events."""
        return frozenset(name for event in self._stream.facts for name in event.vectors)

    def first_from(self, step: float) -> int | None:
        """Return the first event at a step or later; None without one."""
        reached = self._stream.steps >= step
        return int(reached.argmax()) if reached.any() else None

    def values(self, key: SeriesKey) -> Sequence[int]:
        """Return the events that brought the values of a series; ``BEFORE_STREAM`` for a declared constant."""
        if key not in self._values:
            self._values[key] = self._found(key)
        return self._values[key]

    def events(self, kind: str) -> Sequence[int]:
        """Return the events of a kind."""
        if kind not in self._events:
            rows = self._stream.rows(kind).tolist()
            self._events[kind] = [row for row in rows if row not in self._early] if self._early else rows
        return self._events[kind]

    def step(self, index: int) -> int:
        """Return the step of an event."""
        return int(self._stream.steps[index])

    def first_epoch(self) -> int | None:
        """Return the first event with a known epoch; None without one."""
        known = [found.rows for found in (self._stream.facts.known("epoch"), self._stream.numbers("epoch"))]
        return min((int(rows[0]) for rows in known if len(rows)), default=None)

    def _found(self, key: SeriesKey) -> Sequence[int]:
        if is_pattern(key.name) and (names := [name for name in self._stream.facts.metrics if matches(name, key.name)]):
            # The values of all members: a rule of one member may first be true where it could with all of them.
            members = {index for name in names for index in self.values(SeriesKey(name, key.kind))}
            return sorted(members)
        late = [] if key.kind else [i for i, own in self._late_plans if key.name in constants_in(own.attrs)]
        if key.kind is None and key.name in self._constants:
            return [BEFORE_STREAM, *late]
        codes, kinds = self._stream.coded_kinds
        wanted = [is_loop_kind(kind) if key.kind is None else kind == key.kind for kind in kinds]
        called = dict.fromkeys((key.name, ALSO_CALLED.get(key.name, key.name)))
        logged = [self._stream.numbers(name).rows for name in called]
        carried = [rows[np.array(wanted, np.bool_)[codes[rows]]] for rows in logged if len(rows)]
        found = min([*carried, np.array(late, np.int64)], key=lambda rows: int(rows[0]) if len(rows) else len(codes))
        own: list[int] = found[codes[found] == codes[found[:1]]].tolist() if len(found) else []
        return sorted(self._early.get(index, index) for index in own) if self._early else own


def nan_filtered_in(snapshot: Snapshot, renames: Renames = ()) -> tuple[str, ...]:
    """Return the metrics of an imported run whose tool replaced values that are not finite before it logged them."""
    names = (snapshot.info.source or {}).get("nan_filtered")
    called = renames_in(snapshot.columns.by_metric, renames)
    return tuple(called.get(name, str(name)) for name in names) if isinstance(names, list) else ()


def _late_events(stream: EventStream) -> list[tuple[int, int]]:
    """Return the index of each event that only brings late values, with that of the event that awaited them."""
    if not stream.facts.mentions_late_values:
        return []
    late = [(index, stream.facts[index]) for index in sorted(stream.with_attrs)]
    late = [(index, event) for index, event in late if event.is_late]
    if not late:
        return []
    seqs = zip(stream.facts.column("attempt"), stream.facts.column("seq"), strict=True)
    places = {place: index for index, place in enumerate(seqs)}
    return [(index, places.get((event.attempt, event.attrs[LATE_FOR]), index)) for index, event in late]
