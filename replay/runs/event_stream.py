"""A recorded stream as replays and sweeps read it: facts apart from recorded rule outcomes, with columns such as kinds.

Takes snapshots of runs, or events in memory. Most events of a long run matter only by kind, step and time: only the
others are built as event objects from the rows of a table. Metrics are renamed while they are read, as policies call
them; files stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from ...rules.errors import suggestion
from ...store.errors import TelemetryError
from ...store.events import (
    AWAITED,
    LATE_FOR,
    OUTCOME_KINDS,
    PLAN,
    RANKS,
    RULE_KINDS,
    STEP_TIME,
    Event,
    awaited_names,
)
from ...store.lineage import DECIDING_RANK
from ...store.own_process import collection_paused
from ...store.parquet.event_rows import EventList, EventRows, Numbers, with_columns
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot, deciding_stream, events_along, ranks_of, rows_along
from ...store.reading.tally import NewestValues, OwnValues, made_up
from ...store.run import Run
from ...store.run_info import RunInfo
from .metric_names import Renames

_NO_ROWS: Final = np.zeros(0, np.int64)


#: The events of each other rank.
Others = Callable[[], Mapping[int, Iterable[Event]]]


class EventStream:
    """One stream of the deciding rank's events, in which the events of an attempt are contiguous.

    Args:
        facts: All events except the outcomes of recorded rules. An event's index is its position among these.
        recorded: The outcomes of recorded rules, in order.
        gathered: The ``ranks`` events that were made up, by the index of the fact that each follows. They are no facts.
            One at the index of a recorded ``ranks`` event has its values and others, and replaces it.
        plans: What each attempt but the newest declared at its start, where that is known.
        unplaced: The metrics that an import could not place among the steps of the training.

    Attributes:
        facts, recorded, gathered, plans, unplaced: As given.
    """

    def __init__(
        self,
        facts: EventRows | EventList,
        recorded: Sequence[Event],
        gathered: Mapping[int, Event] = MappingProxyType({}),
        plans: Mapping[int, Plan] = MappingProxyType({}),
        unplaced: frozenset[str] = frozenset(),
    ) -> None:
        self.plans = plans
        self.unplaced = unplaced
        self.facts = facts
        self.recorded = recorded
        self.gathered = gathered
        self._rows: dict[str, npt.NDArray[np.int64]] = {}
        self._numbers: dict[str, Numbers] = {}

    @cached_property
    def made_up_names(self) -> frozenset[str]:
        """The metrics that have values of all ranks which nobody gathered."""
        labels = (
            label
            for index, event in self.gathered.items()
            for label in event.metrics
            if self.kinds[index] != RANKS or label not in self.facts[index].metrics
        )
        return frozenset(label.rpartition("@")[0] for label in labels)

    def __len__(self) -> int:
        return len(self.facts)

    @cached_property
    def kinds(self) -> Sequence[str]:
        """Kind of each fact."""
        return self.facts.column("kind")

    @cached_property
    def coded_kinds(self) -> tuple[npt.NDArray[np.integer], tuple[str, ...]]:
        """The kind of each fact, as an index into the kinds that follow."""
        return self.facts.coded_kinds

    @cached_property
    def with_attrs(self) -> frozenset[int]:
        """Indices of the facts that have attributes."""
        return frozenset(self.facts.rows_with_attrs)

    @cached_property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step of each fact; shape (facts,)."""
        return self.facts.whole("step")

    @cached_property
    def attempts(self) -> npt.NDArray[np.integer]:
        """Attempt of each fact; shape (facts,)."""
        return self.facts.whole("attempt")

    @cached_property
    def elapsed_ns(self) -> npt.NDArray[np.int64]:
        """Elapsed time of each fact within its attempt, in ns; shape (facts,)."""
        return self.facts.whole("elapsed_ns")

    @property
    def last_step(self) -> int:
        """The highest step of any fact; 0 without one."""
        return int(self.steps.max(initial=0))

    def rows(self, kind: str) -> npt.NDArray[np.int64]:
        """Return the indices of the facts of a kind, ascending."""
        if kind not in self._rows:
            codes, names = self.coded_kinds
            self._rows[kind] = np.flatnonzero(codes == names.index(kind)) if kind in names else _NO_ROWS
        return self._rows[kind]

    def of_kind(self, kind: str) -> Iterator[tuple[int, Event]]:
        """Yield the facts of a kind, each with its index."""
        for index in self.rows(kind).tolist():
            yield index, self.facts[index]

    def numbers(self, metric: str) -> Numbers:
        """Return the values of a metric, with the indices of the facts that logged it."""
        if metric not in self._numbers:
            self._numbers[metric] = self.facts.numbers(metric)
        return self._numbers[metric]

    def values_at(self, kind: str, metric: str) -> Numbers:
        """Return the values that facts of a kind have of a metric, with their indices."""
        found, codes = self.numbers(metric), self.coded_kinds
        if kind not in codes[1]:
            return Numbers(_NO_ROWS, np.zeros(0))
        own = codes[0][found.rows] == codes[1].index(kind)
        if own.all():
            return found
        return Numbers(found.rows[own], found.values[own])

    @cached_property
    def duration_ns(self) -> int | None:
        """Time from the begin of each attempt to its last fact, summed, in ns; None when the log has no times."""
        return sum(self._spans.values()) or None

    def is_late(self, index: int) -> bool:
        """Whether a fact only delivers values that an earlier one awaited."""
        return index in self.with_attrs and LATE_FOR in self.facts.attrs_at(index)

    def steps_at(self, index: int) -> int:
        """Return the updates finished when a fact was emitted: more than its own step if it brings late values."""
        return int(self.steps[index]) + (self.facts[index].value_lag if self.is_late(index) else 0)

    @cached_property
    def updates(self) -> npt.NDArray[np.int64]:
        """Indices of the facts that finish an update; late values of an earlier one do not."""
        rows = self.rows("step_end")
        if not self.facts.mentions_late_values:
            return rows
        return np.array([row for row in rows.tolist() if not self.is_late(row)], np.int64)

    @cached_property
    def tail_ns(self) -> int | None:
        """Time after the last step, such as a final test or an upload, in ns; None when the log has no times."""
        at = last_step_at(self.steps, self.updates[-1:])
        passed = 0 if at is None else self.time_up_to(at)
        return None if self.duration_ns is None or passed is None else self.duration_ns - passed

    def time_up_to(self, index: int) -> int | None:
        """Return the training time up to a fact, summed over the attempts that led to it, in ns.

        It is zero before the first fact, at index -1, and None when the log has no times.
        """
        if self.duration_ns is None:
            return None
        return 0 if index < 0 else self._before_ns[int(self.attempts[index])] + int(self.elapsed_ns[index])

    @cached_property
    def _spans(self) -> dict[int, int]:
        """Time from the begin of each attempt to its last fact, in ns, in order of attempts."""
        spans: dict[int, int] = {}
        for start, end in self.stretches():
            attempt = int(self.attempts[start])
            spans[attempt] = max(spans.get(attempt, 0), int(self.elapsed_ns[start:end].max()))
        return spans

    @cached_property
    def _before_ns(self) -> dict[int, int]:
        """Training time before each attempt began, in ns."""
        return dict(zip(self._spans, accumulate(self._spans.values(), initial=0), strict=False))

    def stretches(self) -> list[tuple[int, int]]:
        """Return for each attempt the index of its first fact and the index after its last."""
        begins = np.flatnonzero(np.diff(self.attempts)) + 1
        return list(pairwise([0, *begins.tolist(), len(self)])) if len(self) else []


def last_step_at(steps: npt.NDArray[np.int64], updates: npt.NDArray[np.int64]) -> int | None:
    """Return the index of the fact that finished the last step; None where no fact did.

    Args:
        steps: The step of each fact.
        updates: The indices of ``step_end`` facts that are not late, the last among them. A log without them has
            its last step where the step rises for the last time.
    """
    rises = np.flatnonzero(steps > np.maximum.accumulate(np.append(0, steps[:-1]))) if len(steps) else steps
    found = [int(places.max()) for places in (rises, updates) if len(places)]
    return max(found, default=None)


def plan_of(info: RunInfo, *, by_length: bool = False) -> Plan:
    """Return what a run declared at its start.

    Args:
        info: The run.
        by_length: Whether a completed run that never declared its length counts as planned for the steps that it made.
    """
    plan, newest, steps = info.last.plan, info.last.newest_plan, info.last.steps
    is_unplanned = newest.max_steps() is None and newest.total_epochs is None
    if by_length and is_unplanned and steps and info.last.status == "completed":
        return replace(plan, total_steps=steps)
    return plan


def newest_plan(plan: Plan, stream: EventStream) -> Plan:
    """Return a plan with what the newest attempt of a stream declared late, as its engine knows it at the end."""
    late = [event for _, event in stream.of_kind(PLAN)]
    for event in late:
        plan = plan.updated(event.attrs) if event.attempt == int(stream.attempts[-1]) else plan
    return plan


def event_stream(
    events: Sequence[Event] | EventStream,
    others: Others = dict,
    names: Collection[str] = (),
    plan: Plan = Plan(),  # noqa: B008 - a Plan is immutable
    plans: Mapping[int, Plan] = MappingProxyType({}),
    unplaced: frozenset[str] = frozenset(),
) -> EventStream:
    """Return a stream of events, with facts and rule outcomes separated; a stream itself as it is.

    Args:
        events: The deciding rank's events.
        others: Reads those of the other ranks.
        names: The metrics that rules read on all ranks.
        plan: What the loop declared.
        plans: What each attempt but the newest declared at its start.
        unplaced: As for ``EventStream``.
    """
    if isinstance(events, EventStream):
        return events
    recorded: Sequence[Event] = ()
    facts = with_columns(events)
    if not set(RULE_KINDS).isdisjoint(facts.coded_kinds[1]):
        facts, recorded = facts.of_kinds(RULE_KINDS, others=True), facts.of_kinds(OUTCOME_KINDS)
    # The engine takes the values of a single process for those of all ranks.
    gathered = {} if plan.world_size == 1 or not names else _gathered(facts, others, frozenset(names))
    return EventStream(facts, recorded, gathered, plans, unplaced)


def _gathered(facts: EventRows | EventList, others: Others, names: frozenset[str]) -> dict[int, Event]:
    """Return the ``ranks`` events that hold what was not gathered of these metrics; see ``EventStream``.

    An attempt without such events has one after each update. Those of another attempt are completed.
    """
    held: dict[int, set[str]] = {}
    for event in (facts[index] for index, kind in enumerate(facts.column("kind")) if kind == RANKS):
        held.setdefault(event.attempt, {STEP_TIME}).update(label.rpartition("@")[0] for label in event.metrics)
    lacking = {attempt: names.difference(held.get(attempt, ())) for attempt in set(facts.column("attempt"))}
    if not any(lacking.values()):
        return {}
    by_place, newest = _by_update(others(), names), dict[int, NewestValues]()
    found, own = dict[int, Event](), OwnValues(names)
    for index, event in enumerate(facts):
        own.add_values(event.metrics)
        is_update = event.kind == "step_end" and not event.is_late
        if is_update:
            for rank, values in by_place.get((event.attempt, event.step), {}).items():
                newest.setdefault(rank, NewestValues(names)).add_values(values)
        if event.kind == RANKS or (is_update and event.attempt not in held):
            by_rank = {
                event.rank: own.gathered(event),
                **{rank: values.pop_values() for rank, values in newest.items()},
            }
            wanted = lacking[event.attempt]
            made = made_up(event, {r: {n: v for n, v in had.items() if n in wanted} for r, had in by_rank.items()})
            if event.kind != RANKS:
                found[index] = made
            elif made.metrics:
                found[index] = event._replace(metrics={**event.metrics, **made.metrics})
    return found


def _by_update(
    others: Mapping[int, Iterable[Event]], names: frozenset[str]
) -> dict[tuple[int, int], dict[int, Mapping[str, float]]]:
    """Return the values of other ranks after each of their updates, by attempt and step, then by rank."""
    found: dict[tuple[int, int], dict[int, Mapping[str, float]]] = {}
    for rank, events in others.items():
        own = OwnValues(names)
        for event in events:
            own.add_values(event.metrics)
            if event.kind == "step_end" and not event.is_late:
                found.setdefault((event.attempt, event.step), {})[rank] = own.gathered(event)
    return found


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Work that was lost because the run resumed from an earlier checkpoint.

    Attributes:
        steps: Optimizer updates by attempt; attempts without any are left out.
        elapsed_ns: Time they took; 0 when the log has no times.
    """

    steps: Mapping[int, int]
    elapsed_ns: int


NOTHING_ROLLED_BACK = RolledBack({}, 0)


def read_lineage(
    snapshot: Snapshot, *, samples: bool = False, renames: Renames = (), ranks: Collection[str] = ()
) -> tuple[EventStream, RolledBack]:
    """Return the deciding rank's events along the lineage of a run's newest attempt, and what was rolled back.

    Args:
        snapshot: The run.
        samples: Whether to load the events' sample losses and vectors.
        renames: The metrics to rename.
        ranks: The metrics that rules read on all ranks.
    """
    called = renames_in(snapshot.columns.of_loop, renames)
    events, rolled_back = _lineage(snapshot, samples=samples)

    def others() -> dict[int, Sequence[Event]]:
        return {rank: renamed_events(own, called) for rank, own in other_ranks(snapshot).items()}

    info, own = snapshot.info, renamed_events(events, called)
    unplaced = _unplaced_in(snapshot, called)
    return event_stream(own, others, ranks, info.last.plan, info.earlier_plans, unplaced), rolled_back


def _unplaced_in(snapshot: Snapshot, called: Mapping[str, str]) -> frozenset[str]:
    """Return the metrics that the import of a run could not place, by their new names."""
    names = (snapshot.info.source or {}).get("unplaced")
    return frozenset(called.get(name, name) for name in names) if isinstance(names, list) else frozenset()


def read_metrics(snapshot: Snapshot, metrics: Collection[str], renames: Renames = ()) -> EventStream:
    """Return the effective events of the deciding rank with only some of their metrics.

    Args:
        snapshot: The run.
        metrics: The metrics to read, by their new names; those that it lacks are left out.
        renames: The metrics to rename.

    Raises:
        TelemetryError: The run cannot be read.
    """
    known = renamed_columns(snapshot, renames)
    names = {column: name for name, column in known.items() if name in metrics}
    rows, info = rows_along(snapshot, DECIDING_RANK, names), snapshot.info
    unplaced = _unplaced_in(snapshot, renames_in(snapshot.columns.of_loop, renames))
    return event_stream(rows, plan=info.last.plan, plans=info.earlier_plans, unplaced=unplaced)


def _lineage(snapshot: Snapshot, *, samples: bool) -> tuple[Sequence[Event], RolledBack]:
    lineage = snapshot.lineage
    if not lineage.cuts:
        return deciding_stream(snapshot, samples=samples), NOTHING_ROLLED_BACK
    with collection_paused():
        recorded = list(snapshot.events(DECIDING_RANK, samples=samples))
    held = list(lineage.events(recorded))
    steps = _steps(recorded)
    for attempt, count in _steps(held).items():
        steps[attempt] -= count
    elapsed_ns = sum(_spans(recorded).values()) - sum(_spans(held).values())
    rolled_back = RolledBack({attempt: count for attempt, count in steps.items() if count}, elapsed_ns)
    return held, rolled_back


def _steps(events: Iterable[Event]) -> Counter[int]:
    return Counter(event.attempt for event in events if event.kind == "step_end" and not event.is_late)


def _spans(events: Iterable[Event]) -> dict[int, int]:
    """Return the time from the begin of each attempt to its last event, in ns, in order of attempts."""
    spans: dict[int, int] = {}
    for event in events:
        if event.elapsed_ns > spans.setdefault(event.attempt, 0):
            spans[event.attempt] = event.elapsed_ns
    return spans


def other_ranks(snapshot: Snapshot) -> dict[int, list[Event]]:
    """Return the effective events of all ranks of a run but the deciding one."""
    ranks = [rank for rank in ranks_of(snapshot) if rank != DECIDING_RANK]
    return {rank: list(events_along(snapshot, rank, "effective")) for rank in ranks}


def renames_in(names: Collection[str], renames: Renames) -> dict[str, str]:
    """Return the renames that apply to a run: new names by old ones.

    A run that recorded the new name keeps its own. Of several metrics for one new name, the first in the user's order
    gets it.

    Args:
        names: The metrics that the run recorded.
        renames: What the user asked for.

    >>> renames_in({"val_loss", "valid_loss"}, (("valid_loss", "eval_loss"), ("val_loss", "eval_loss")))
    {'valid_loss': 'eval_loss'}
    """
    found: dict[str, str] = {}
    for old, new in renames:
        if old in names and new not in names and new not in found.values():
            found[old] = new
    return found


def renamed_at_import(source: Mapping[str, object] | None) -> Renames:
    """Return the metrics that the import of a run was asked to rename.

    Args:
        source: What the run was imported from; None for a recorded run.
    """
    renamed = (source or {}).get("renamed")
    return tuple((str(old), str(new)) for old, new in renamed.items()) if isinstance(renamed, dict) else ()


def renamed_columns(snapshot: Snapshot, renames: Renames) -> dict[str, str]:
    """Return the column of each metric that a run recorded, by the metric's new name."""
    columns = snapshot.columns.of_loop
    called = renames_in(columns, renames)
    return {called.get(name, name): column for name, column in columns.items()}


def check_recorded(runs: Iterable[Run], renames: Renames) -> None:
    """Check that some run recorded each metric that is to be renamed, or its new name; without any run, all pass.

    Raises:
        TelemetryError: No run did. The error suggests a metric.
    """
    names = _recorded_until(runs, {old for old, _ in renames})
    for old, new in renames:
        if names and old not in names and new not in names:
            fix = suggestion(old, names).replace("Known here:", "They recorded:")
            raise TelemetryError("no run recorded the metric to rename", got=f"{old}={new}", fix=fix)


def idle_renames(runs: Iterable[Run], renames: Renames) -> Renames:
    """Return the renames of what no run recorded, where runs recorded the new name already."""
    names = _recorded_until(runs, {old for old, _ in renames})
    return tuple((old, new) for old, new in renames if old not in names and new in names)


def _recorded_until(runs: Iterable[Run], asked: set[str]) -> set[str]:
    """Return the metrics that runs recorded, up to the run with which all that are asked for are among them."""
    names = set[str]()
    for run in runs if asked else ():
        if asked <= names:
            break
        with suppress(TelemetryError):
            names.update(run.snapshot().columns.of_loop)
    return names


def renamed_events(events: Sequence[Event], called: Mapping[str, str]) -> Sequence[Event]:
    """Return the events with their metrics, and the names that they await, under the new names."""
    if not called:
        return events
    if isinstance(events, EventRows) and not events.mentions_late_values and RANKS not in events.coded_kinds[1]:
        rows = events.renamed(called)
        if rows is not None:
            return rows
    return [_renamed(event, called) for event in events]


def _renamed(event: Event, called: Mapping[str, str]) -> Event:
    if event.kind == RANKS:
        parts = ((*label.rpartition("@"), value) for label, value in event.metrics.items())
        return event._replace(metrics={f"{called.get(name, name)}@{rank}": value for name, _, rank, value in parts})
    if any(old in event.metrics for old in called):
        event = event._replace(metrics={called.get(name, name): value for name, value in event.metrics.items()})
    if awaited := awaited_names(event.attrs):
        event = event._replace(attrs={**event.attrs, AWAITED: [called.get(name, name) for name in sorted(awaited)]})
    return event
