"""Finds where in a recorded stream values and events came, and what a thin or short log means for a policy.

Where values came decides whether a policy could fire. A late value counts at the event that awaited it. Where a log
holds only every n-th training step, patience at ``on_step_end`` and windows over a training series count logged values:
live, where every step counts, such a controller decides earlier or otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import numpy as np

from ...rules.language.bound_rule import BoundRule
from ...rules.language.expressions import links_of
from ...rules.language.name_patterns import is_pattern, matches
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import ALSO_CALLED, Appearances, Reading, SeriesKey, SeriesReading
from ...store.events import BEFORE_STREAM, LATE_FOR, PLAN, is_loop_kind
from ...store.plan import Plan, constants_in
from ...store.reading.snapshot import Snapshot
from .event_stream import EventStream, newest_plan, renames_in
from .metric_names import Renames

_STEP: Final = "step_end"


_TRIGGER: Final = f"on_{_STEP}"


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
    def has_clock(self) -> bool:
        """Whether any time passes in the stream."""
        return bool((self._stream.elapsed_ns > 0).any())

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
    called = renames_in(snapshot.columns.of_loop, renames)
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


def step_interval(stream: EventStream) -> int:
    """Return the median number of steps from one logged training step to the next; 1 if every step is logged."""
    rows = stream.rows(_STEP)
    count, last = len(rows), stream.last_step
    # With a median gap of 2 or more, a run has at least three steps for every two events.
    if count < 2 or 3 * count > 2 * last:
        return 1
    gaps = np.diff(stream.steps[rows])
    forward = np.sort(gaps[gaps > 0])
    return int(forward[(len(forward) - 1) // 2]) if len(forward) else 1


def thinning_note(interval: int) -> str:
    """Return the note on a run whose log holds only every n-th step, for a policy that counts logged steps."""
    return f"logged every {interval:,} steps: patience and windows count logged values"


def early_ends(policy: Policy, run: Appearances, steps: int) -> tuple[tuple[str, int] | None, ...]:
    """Return for each controller the series that ends before half of the run, and its last step; None if none does.

    Args:
        policy: The policy.
        run: Where the run recorded values and events.
        steps: Its length in steps.
    """
    return tuple(_early_end(controller, run, steps) for controller in policy.controllers)


def early_end_note(name: str, last: int, steps: int) -> str:
    """Return the note on a run one of whose series ends early."""
    return f"'{name}' ends at step {last:,} of {steps:,}: rules that read it saw no newer value"


def _early_end(controller: Controller, run: Appearances, steps: int) -> tuple[str, int] | None:
    read = {key.name: run.values(key) for key in controller.rule.bound.series if not key.is_derived}
    declared = {BEFORE_STREAM, *run.events(PLAN)}
    last = [(run.step(values[-1]), name) for name, values in read.items() if values and values[-1] not in declared]
    step, name = min(last, default=(steps, ""))
    return (name, step) if 2 * step < steps else None


def counting_controllers(policy: Policy, run: Appearances) -> frozenset[str]:
    """Return the names of the controllers whose decisions depend on the number of logged steps.

    Args:
        policy: The policy.
        run: Where the run recorded values and events.
    """
    return _Counting(policy, run).names()


class _Counting:
    def __init__(self, policy: Policy, run: Appearances) -> None:
        self._controllers = policy.controllers
        self._metrics = {one.name for one in policy.metrics if _STEP in one.metric_class.reads}
        self._steps = frozenset(run.events(_STEP))
        self._run = run
        self._sources = {series.key: series.source for series in policy.admitted}

    def names(self) -> frozenset[str]:
        """Return the controllers that count logged steps, and those that ask about the decisions of such a one."""
        found = {controller.name for controller in self._controllers if self._counts(controller)}
        asked = {
            (controller.name, reading.asks_about)
            for controller in self._controllers
            for reading in controller.rule.bound.references.values()
            if reading.asks_about
        }
        while more := {name for name, other in asked if other in found} - found:
            found |= more
        return frozenset(found)

    def _counts(self, controller: Controller) -> bool:
        patience, rule = controller.patience, controller.rule.bound
        is_patient = patience is not None and patience.threshold > 0 and _TRIGGER in controller.triggers
        if is_patient or not self._metrics.isdisjoint(rule.metrics):
            return True
        whether = set(_asked_whether(rule))
        return any(
            self._looks_back(reading, rule)
            for node, reading in rule.references.items()
            if not (reading.is_count and node in whether)
        )

    def _looks_back(self, reading: Reading, rule: BoundRule) -> bool:
        """Whether a reading reads more of a training series than its newest value, or counts decisions at steps."""
        if isinstance(reading, SeriesReading):
            return not reading.reads_newest and self._is_of_steps(reading.key, rule)
        asked = reading.asks_about if reading.is_count else ""
        return any(one.name == asked and _TRIGGER in one.triggers for one in self._controllers)

    def _is_of_steps(self, key: SeriesKey, rule: BoundRule) -> bool:
        while key.is_derived:
            key = rule.derived[key].driver if key in rule.derived else self._sources[key]
        return not self._steps.isdisjoint(self._run.values(key)[:1])


def _asked_whether(rule: BoundRule) -> Iterator[ast.expr]:
    """Yield the counts that a rule compares with 0 alone, as in ``times_fired("c") > 0``."""
    for node in ast.walk(rule.expression.tree):
        for left, sign, right in links_of(node) if isinstance(node, ast.Compare) else ():
            if isinstance(sign, (ast.Gt, ast.Eq, ast.NotEq)) and isinstance(right, ast.Constant) and right.value == 0:
                yield left
