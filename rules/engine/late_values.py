"""Judges late values in the order of their steps, so that they decide like values that are there at once.

Takes the events that await values, the events that bring them, and all events in between. Controllers that wait, with
the series, metrics and past decisions that they read, see each event once, complete, in its order. All others decide at
once. The two parts share no state but the clock, which therefore has two positions.

Which controllers wait together is decided once for each set of awaited names: controllers are grouped by what they
share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...store.events import BY_CALL, LATE_FOR, PLAN, SPAN, SYSTEM, Event, awaited_names
from ..language.bound_rule import BoundRule
from ..language.context import Clock
from ..language.families import MetricNames
from ..policy_file.declarations import AdmittedSeries, Controller, Declaration, StateDeclaration
from ..policy_file.policy import Policy
from ..readings.reading import ALSO_CALLED, Extent, SeriesKey, SeriesReading
from .decisions import Outcome
from .event_fold import EventFold

#: The metrics from which facts about the run may be computed.
METRICS_OF_FACTS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "epoch": frozenset({"epoch"}),
        "progress": frozenset({"epoch"}),
        "samples_seen": frozenset({"samples_seen", "batch_size"}),
        "tokens_seen": frozenset({"tokens_seen", "num_tokens"}),
    }
)

#: The facts that say how far a run has come in a unit, for those that depend on metrics.
_FACTS_OF_UNITS: Final = MappingProxyType(
    {Extent.EPOCHS: "epoch", Extent.SAMPLES: "samples_seen", Extent.TOKENS: "tokens_seen"}
)

#: Kinds of events before which a recorder does not bring all values that it copies from a device.
_MAY_COME_BETWEEN: Final = frozenset(("step_end", "log", "ranks", PLAN, SPAN, SYSTEM))

#: Kinds of events after which a loop brings no value that it awaited before.
_BOUNDS: Final = frozenset(("train_begin", "train_end"))

#: Events that may wait. A value that has not arrived by then counts as lost. Far above the lag of any loop; it bounds
#: the memory where a copy has failed and no later value is awaited.
MAX_BACKLOG: Final = 10_000


# --- which controllers wait together ---------------------------------------------------------------------------------


class Held(NamedTuple):
    """The part of a policy that waits.

    Attributes:
        controllers: Controllers, by their index in the file.
        names: Metrics whose values are held back.
    """

    controllers: frozenset[int] = frozenset()
    names: MetricNames = MetricNames()


class _Group(NamedTuple):
    """Controllers that share series, metrics, cooldowns or decisions, directly or through others.

    Attributes:
        shared: What they share.
        series: The metrics among that: listed, and those of families.
        awaits: The metrics for which they wait.
        controllers: Their indices.
    """

    shared: frozenset[tuple[str, str]]
    series: MetricNames
    awaits: MetricNames
    controllers: frozenset[int]

    def shares_with(self, other: _Group) -> bool:
        """Whether they have to be one group."""
        return not self.shared.isdisjoint(other.shared) or self.series.overlaps(other.series)

    def joined(self, other: _Group) -> _Group:
        """Return both as one."""
        return _Group(
            self.shared | other.shared,
            self.series | other.series,
            self.awaits | other.awaits,
            self.controllers | other.controllers,
        )


class WaitingGroups:
    """The groups of one policy.

    Args:
        policy: The policy.
        is_alone: Whether the values of all ranks are those of this one.
    """

    def __init__(self, policy: Policy, *, is_alone: bool = False) -> None:
        self._groups = _groups(policy, is_alone)
        self._readable = MetricNames()
        for group in self._groups:
            self._readable |= group.awaits
        self._held: dict[frozenset[str], Held] = {}

    def are_awaited(self, names: frozenset[str]) -> bool:
        """Whether a group waits for one of these values."""
        return bool(self._readable.within(names))

    def held(self, awaited: frozenset[str]) -> Held:
        """Return the part that waits while events with these awaited values are incomplete.

        A group that reads a controller metric, or all ranks, always waits, because these take only complete events.
        """
        names = self._readable.within(awaited)
        held = self._held.get(names)
        if held is None:
            held = Held()
            for group in self._groups:
                if group.awaits.within(names) or _reads_metrics(group):
                    held = Held(held.controllers | group.controllers, held.names | group.series)
            self._held[names] = held
        return held


def _reads_metrics(group: _Group) -> bool:
    return any(what == "metric" for what, _ in group.shared)


def _groups(policy: Policy, is_alone: bool) -> list[_Group]:
    groups: list[_Group] = []
    every: list[Declaration] = [*policy.controllers, *policy.states, *policy.admitted]
    for index, declared in enumerate(every):
        rules = declared.bound_rules
        shared = frozenset((*_shared_by(declared), *_shared_in(rules, is_alone)))
        names, patterns = ([name for what, name in shared if what == each] for each in ("series", "family"))
        series = MetricNames(frozenset(names), frozenset(patterns))
        awaits = series | MetricNames(_read_by_facts(rules))
        joined = _Group(shared, series, awaits, frozenset({index} if isinstance(declared, Controller) else ()))
        apart = []
        for group in groups:
            if group.shares_with(joined):
                joined = group.joined(joined)
            else:
                apart.append(group)
        groups = [*apart, joined]
    return groups


def _shared_by(declared: Declaration) -> Iterable[tuple[str, str]]:
    """Yield what the keys of a declaration may share with others, each as a category and a name."""
    match declared:
        case StateDeclaration():
            yield "metric", declared.name
        case AdmittedSeries():
            yield "derived", declared.name
        case Controller():
            yield "controller", declared.name
            yield from ((_what(key), key.name) for key in declared.series_named)
            if declared.cooldown is not None and declared.cooldown.name:
                yield "cooldown", declared.cooldown.name
            if declared.changing:
                yield "metric", declared.changing


def _shared_in(rules: Iterable[BoundRule], is_alone: bool) -> Iterable[tuple[str, str]]:
    """Yield what rules may share with those of others, each as a category and a name."""
    for rule in rules:
        yield from (("metric", name) for name in rule.metrics)
        if rule.ranks:
            # Like a metric, the values of all ranks take only complete events. No metric has this name.
            yield "metric", ""
        # A rule waits for values of its own rank, not for those of its rank that come with the values of others.
        read = {reference.key for reference in rule.references.values() if isinstance(reference, SeriesReading)}
        members = {key.whole for key in rule.series if key.is_of_member}
        for key in (key for key in rule.series if is_alone or key in read or key.name not in rule.ranks):
            if key not in members:
                yield _what(key), key.name
            if key.name in ALSO_CALLED:
                yield "series", ALSO_CALLED[key.name]
        for reference in rule.references.values():
            if reference.asks_about:
                yield "controller", reference.asks_about


def _what(key: SeriesKey) -> str:
    if key.is_derived:
        return "derived"
    return "family" if key.is_of_member else "series"


def _read_by_facts(rules: Iterable[BoundRule]) -> frozenset[str]:
    """Return the metrics that rules read by way of facts about the run, or of windows by epochs."""
    names: set[str] = set()
    for rule in rules:
        for reference in rule.references.values():
            facts = (reference.fact, _FACTS_OF_UNITS.get(reference.unit or Extent.VALUES, ""))
            names.update(*(METRICS_OF_FACTS.get(fact, ()) for fact in facts))
    return frozenset(names)


# --- the backlog -----------------------------------------------------------------------------------------------------


class _Waiting:
    """One event of the backlog.

    Attributes:
        event: The event.
        late: The event that brought its late values.
        held: The part of the policy that sees it in step order.
        awaited: The names of its late values.
        is_by_call: Whether the loop brings them, and not the recorder.
        is_incomplete: Whether the backlog waits for them.
        is_lost: Whether they never arrived.
    """

    __slots__ = ("awaited", "event", "held", "is_by_call", "is_incomplete", "is_lost", "late")

    def __init__(self, event: Event, held: Held, awaited: frozenset[str], *, is_incomplete: bool) -> None:
        self.event = event
        self.held = held
        self.awaited = awaited
        self.is_by_call = event.attrs.get(BY_CALL) is True
        self.is_incomplete = is_incomplete
        self.is_lost = False
        self.late: Event | None = None

    def lose(self) -> None:
        """Give up what it awaits."""
        self.is_lost |= self.is_incomplete
        self.is_incomplete = False

    def complete(self, late: Event) -> None:
        """Keep the event that brings its late values."""
        self.late = late
        self.is_incomplete = False

    def seen_at(self, event: Event) -> Event:
        """Return it as the rules that waited see it: whole and of its own step, but decided at another event."""
        first, late = self.event, self.late
        reached = event.step + event.value_lag if event.is_late else event.step
        changed: dict[str, Any] = {"seq": event.seq, "value_lag": max(reached - first.step, 0)}
        if late is None:
            return first._replace(**changed, attrs={**first.attrs, LATE_FOR: first.seq})
        changed["metrics"], changed["attrs"] = {**first.metrics, **late.metrics}, {**first.attrs, **late.attrs}
        changed["samples"], changed["vectors"] = late.samples or first.samples, {**first.vectors, **late.vectors}
        return first._replace(**changed)


class StepOrder:
    """The events of one engine that wait, for late values of their own or for an earlier event.

    Args:
        fold: The engine's state.

    Attributes:
        backlog: These events, oldest first.
    """

    def __init__(self, fold: EventFold) -> None:
        self.backlog: deque[_Waiting] = deque()
        self._fold = fold
        self._groups = WaitingGroups(fold.policy, is_alone=fold.own is not None)
        self._behind = Clock()
        self._awaited: frozenset[str] = frozenset()
        self._numbers: dict[tuple[str, Held, bool], tuple[int, ...]] = {}
        self._has_copies = False
        self._arrived: dict[bool, tuple[int, int]] = {}

    def observe(self, event: Event) -> Sequence[Outcome]:
        """Fold an event that awaits values, the late values of an earlier one, or an event while others wait."""
        awaited = awaited_names(event.attrs)
        if awaited and event.is_late:
            return self._arrive(event)
        if self.backlog and self.backlog[0].event.attempt != event.attempt:
            self._abandon()
        outcomes = self._give_up(event)
        is_incomplete = bool(awaited) and (self._fold.has_metrics or self._groups.are_awaited(awaited))
        if self.backlog or is_incomplete:
            return [*outcomes, *self._begin(event, awaited, is_incomplete=is_incomplete)]
        made = self._fold.observe(event)
        return [*outcomes, *made] if outcomes else made

    def _begin(self, event: Event, awaited: frozenset[str], *, is_incomplete: bool) -> Sequence[Outcome]:
        """Put an event into the backlog, and fold the part of it that waits for nothing."""
        fold = self._fold
        fold.cached.forget()
        if not self.backlog:
            self._behind.become(fold.clock)
            self._awaited = frozenset()
        self._awaited |= awaited
        held = self._groups.held(self._awaited)
        waiting = _Waiting(event, held, awaited, is_incomplete=is_incomplete)
        self.backlog.append(waiting)
        if event.kind == PLAN:
            fold.declare(event, lambda name: name not in held.names, is_whole=False)
            return ()
        self._has_copies |= is_incomplete and not waiting.is_by_call
        if fold.needs_clock:
            fold.clock.take(event)
        kept = held.names.within(event.metrics)
        metrics = {name: value for name, value in event.metrics.items() if name not in kept}
        listener = fold.listeners[event.kind]
        fold.greet(metrics, event.kind)
        # Values of the waiting part are read at an earlier position than that of the clock: none is dropped here.
        fold.append(listener, metrics, event, trims=False)
        outcomes = fold.ask(listener, self._rules(event.kind, held, waits=False), event)
        return listener.admit(event, outcomes)

    def _arrive(self, event: Event) -> Sequence[Outcome]:
        """Complete an event with its late values. Values arrive in the order of their events: older ones are lost.

        Those that the loop brings and those that the recorder copies have an order each.
        """
        fold, backlog = self._fold, self.backlog
        is_known = backlog and backlog[0].event.attempt == event.attempt
        seq, is_by_call = event.attrs[LATE_FOR], event.attrs.get(BY_CALL) is True
        if isinstance(seq, int):
            place, newest = (event.attempt, seq), self._arrived.get(is_by_call, (0, -1))
            if place < newest:
                return ()
            self._arrived[is_by_call] = place
        waiting = next((each for each in backlog if each.event.seq == seq), None) if is_known else None
        if waiting is None or not waiting.is_incomplete:
            # Nobody waits for these values, or nobody has seen their event: they are values all the same.
            fold.cached.forget()
            fold.greet(event.metrics, event.kind)
            whole = event if fold.own is None else fold.own.whole(event)
            listener = fold.listeners[event.kind]
            fold.append(listener, event.metrics, whole)
            return listener.admit(whole, ())
        for earlier in backlog:
            if earlier is waiting:
                break
            if earlier.is_by_call == waiting.is_by_call:
                earlier.lose()
        waiting.complete(event)
        return self._settle(event)

    def _give_up(self, event: Event) -> Sequence[Outcome]:
        """Lose what can no longer arrive when an event comes.

        Before most kinds, these are all values that the recorder copies. The loop may bring its own until the end of
        the attempt. What has waited too long is lost before every kind.
        """
        if not self.backlog:
            return ()
        is_bound = event.kind in _BOUNDS
        if is_bound or (self._has_copies and event.kind not in _MAY_COME_BETWEEN):
            self._has_copies = False
            for waiting in self.backlog:
                if is_bound or not waiting.is_by_call:
                    waiting.lose()
        if len(self.backlog) >= MAX_BACKLOG:
            self.backlog[0].lose()
        return self._settle(event)

    def _abandon(self) -> None:
        """Fold the backlog of an attempt that has ended. No rule is asked: the loop that it would steer is gone."""
        for waiting in self.backlog:
            waiting.lose()
            self._fold_waiting(waiting, waiting.event)
        self.backlog.clear()
        self._fold.clock.become(self._behind)

    def _settle(self, event: Event) -> Sequence[Outcome]:
        """Judge the events that wait for nothing any more, oldest first."""
        outcomes: list[Outcome] = []
        while self.backlog and not self.backlog[0].is_incomplete:
            waiting = self.backlog.popleft()
            outcomes += self._fold_waiting(waiting, event, asks=True)
        if not self.backlog:
            self._fold.clock.become(self._behind)
        return outcomes

    def _fold_waiting(self, waiting: _Waiting, at: Event, *, asks: bool = False) -> Sequence[Outcome]:
        """Fold the part of an event that waited."""
        fold, event, held = self._fold, waiting.seen_at(at), waiting.held
        listener = fold.listeners[event.kind]
        kept = held.names.within(event.metrics)
        metrics = {name: value for name, value in event.metrics.items() if name in kept}
        with fold.clock.behind(self._behind):
            if event.kind == PLAN:
                fold.declare(event, held.names.__contains__)
                return ()
            if fold.needs_clock:
                fold.clock.take(event)
            if fold.own is not None:
                event = fold.own.whole(event)
            fold.greet({**dict.fromkeys(held.names.within(waiting.awaited)), **metrics}, event.kind)
            fold.append(listener, metrics, event)
            failures = () if waiting.is_lost else listener.compute(event)
            if not asks:
                listener.admit(event, ())
                return ()
            # The rules that read what is lost do not judge its event.
            unjudged = fold.reading(event.kind, waiting.awaited) if waiting.is_lost else ()
            numbers = self._rules(event.kind, held, waits=True)
            judged = tuple(number for number in numbers if number not in unjudged) if unjudged else numbers
            return [*failures, *listener.admit(event, fold.ask(listener, judged, event))]

    def _rules(self, kind: str, held: Held, *, waits: bool) -> tuple[int, ...]:
        """Return the numbers of the rules at this kind of event that wait, or of those that do not."""
        numbers = self._numbers.get((kind, held, waits))
        if numbers is None:
            asked = self._fold.policy.blueprint.asked.get(kind)
            indices = enumerate(() if asked is None else asked.controllers)
            numbers = tuple(number for number, index in indices if (index in held.controllers) is waits)
            self._numbers[kind, held, waits] = numbers
        return numbers
