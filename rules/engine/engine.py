"""The rule engine: a pure fold over a run's events.

Takes a policy, and events in the order in which the deciding rank wrote them; returns outcomes. It reads no clock,
random number, file or environment, and acts on nothing. So the same events give the same decisions, live and in replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ...store.events import (
    AWAITED,
    BEFORE_STREAM,
    BY_CALL,
    FACT_KINDS,
    INIT_END,
    LATE_FOR,
    PLAN,
    SPAN,
    SYSTEM,
    Event,
    awaited_names,
    is_loop_kind,
)
from ...store.plan import Plan
from ...store.reading.tally import made_up
from ...store.run_info import Attempt
from ..language.clock import Clock
from ..policy_file.declarations import Declaration
from ..policy_file.policy import Policy
from .decisions import DerivedValues, Outcome
from .event_fold import EventFold
from .waiting_controllers import Held, WaitingGroups

_NOTHING: Final[tuple[Outcome, ...]] = ()
_BEFORE_STREAM: Final = Event(INIT_END, seq=BEFORE_STREAM)

#: Kinds of events before which a recorder does not bring all values that it copies from a device.
_MAY_COME_BETWEEN: Final = frozenset(("step_end", "log", "ranks", PLAN, SPAN, SYSTEM, *FACT_KINDS))

#: Kinds of events after which a loop brings no value that it awaited before.
_BOUNDS: Final = frozenset(("train_begin", "train_end"))

#: Events that may wait. A value that has not arrived by then counts as lost. Far above the lag of any loop; it bounds
#: the memory where a copy has failed and no later value is awaited.
MAX_BACKLOG: Final = 10_000


class Engine:
    """One policy over one run.

    Args:
        policy: The policy that decides.
        plan: What the loop declared: the length of the run, which ``TrainingState`` shows, and constants.
        earlier: What earlier attempts declared at their start, by attempt; the plan where that is unknown.
        records: Whether to collect the values of the definitions and states that the run records.
    """

    def __init__(
        self,
        policy: Policy,
        plan: Plan = Plan(),  # noqa: B008 - a Plan is immutable
        earlier: Mapping[int, Plan] = MappingProxyType({}),
        *,
        records: bool = False,
    ) -> None:
        self.policy = policy
        self._fold = EventFold(policy, plan, earlier, records=records)
        self._has_started = False
        self._is_alone = self._fold.own is not None
        self._late = StepOrder(self._fold)

    def start(self) -> Sequence[Outcome]:
        """Fire the ``init_end`` trigger, which precedes the stream: its outcomes have seq -1.

        A second call does nothing, and neither does a call after ``resume``: the stream has begun by then.
        """
        if self._has_started:
            return _NOTHING
        self._has_started = True
        return self._fold.fold_values(self._fold.listeners[INIT_END], _BEFORE_STREAM)

    def observe(self, event: Event) -> Sequence[Outcome]:
        """Fold the next event into the state; return its outcomes in order, almost always none."""
        if not self._is_alone or event.kind != "step_end" or event.is_late:
            return self._observe(event)
        return [*self._observe(event), *self._observe(made_up(event, {}))]

    def _observe(self, event: Event) -> Sequence[Outcome]:
        waits = (event.attrs and AWAITED in event.attrs) or self._late.backlog
        if waits and (is_loop_kind(event.kind) or event.kind == PLAN or event.kind in FACT_KINDS):
            return self._late.observe(event)
        return self._fold.observe(event)

    @property
    def derived(self) -> list[DerivedValues]:
        """The values to record, in order, until somebody removes them: always the same list."""
        return self._fold.derived

    @property
    def idle_kinds(self) -> Collection[str]:
        """Kinds whose events, if they have no attributes, currently change no state and produce no outcome.

        It is a live view: observing events changes it.
        """
        return self._fold.cached.idle_kinds

    def resume(self, events: Iterable[Event], *, keeps_controllers: bool) -> None:
        """Fold events from before a resume, and discard their outcomes.

        Call it once per earlier attempt, oldest first, before anything is observed.

        Args:
            events: The events of one attempt that still count, in order.
            keeps_controllers: Whether the attempt that follows has this attempt's policy. If so, controllers keep their
                patience, and the errors and warnings already reported. If not, they start fresh, and only series and
                metrics keep their state.
        """
        listeners = self._fold.listeners
        asking = {} if keeps_controllers else {kind: listener.ask for kind, listener in listeners.items()}
        for kind in asking:
            # Skip the rules of these events: their answers would be discarded.
            listeners[kind].ask = None
        self.start()
        for event in events:
            self.observe(event)
            self.derived.clear()
        for kind, ask in asking.items():
            listeners[kind].ask = ask
        if not keeps_controllers:
            self._fold.renew_controllers()

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Failures of each controller's rule and each metric, by name; those that never failed are left out."""
        return self._fold.error_counts

    def is_true(self, controller: str) -> bool:
        """Whether the rule of a controller that orders an undo was true when it was last judged."""
        return self._fold.pasts[controller].streak > 0

    def never_recorded(self) -> list[str]:
        """Return one line for each series that rules read and no event has carried, if no warning has named it."""
        return self._fold.never_recorded()

    @property
    def lacking_samples(self) -> list[str]:
        """The metrics that read sample losses and have had none yet, by name."""
        return [gauge.name for gauge in self._fold.gauges if gauge.lacks_samples]

    def kinds_read(self, controller: str) -> frozenset[str]:
        """Return the kinds of events whose numbers a controller's rule reads.

        Includes those that its metrics read; its series count as bound so far. For controllers that share a name,
        returns the kinds that any of them reads.

        Raises:
            TelemetryError: The policy has no such controller.
        """
        return self._fold.kinds_read(controller)


def resumed_engine(
    policy: Policy, plan: Plan, ancestry: Iterable[tuple[Attempt, Iterable[Event]]], *, records: bool = False
) -> Engine:
    """Return the engine of an attempt that continues others, as of its first event.

    State comes back in this way live and in replay: it is never saved, but folded anew from the log.

    Args:
        policy: The policy of the attempt.
        plan: The plan that the attempt declared.
        ancestry: The attempts that it continues, oldest first, each with its events that still count, as
            ``Run.ancestry`` returns them.
        records: As for ``Engine``.
    """
    earlier = list(ancestry)
    engine = Engine(policy, plan, {attempt.attempt: attempt.plan for attempt, _ in earlier}, records=records)
    digests = [None if attempt.policy is None else attempt.policy.digest for attempt, _ in earlier]
    for (_, events), own, following in zip(earlier, digests, [*digests, policy.digest][1:], strict=True):
        engine.resume(events, keeps_controllers=own == following)
    return engine


# --- late values -----------------------------------------------------------------------------------------------------


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

    Late values are judged in the order of their steps, so that they decide like values that are there at once.
    Controllers that wait, with the series, metrics and past decisions that they read, see each event once, complete, in
    its order. All others decide at once. The two parts share no state but the clock, which therefore has two positions.

    Args:
        fold: The engine's state.

    Attributes:
        backlog: These events, oldest first.
    """

    def __init__(self, fold: EventFold) -> None:
        self.backlog: deque[_Waiting] = deque()
        self._fold = fold
        policy = fold.policy
        declared: list[Declaration] = [*policy.controllers, *policy.states, *policy.admitted, *policy.recorded]
        self._groups = WaitingGroups(declared, is_alone=fold.own is not None)
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
        if event.kind in FACT_KINDS:
            fold.clock.take_fact(event)
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
        listener.record(event, fold.derived)
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
            listener.record(whole, fold.derived)
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
            if event.kind in FACT_KINDS:
                fold.clock.take_fact(event)
                return ()
            if fold.needs_clock:
                fold.clock.take(event)
            if fold.own is not None:
                event = fold.own.whole(event)
            fold.greet({**dict.fromkeys(held.names.within(waiting.awaited)), **metrics}, event.kind)
            fold.append(listener, metrics, event)
            failures = () if waiting.is_lost else listener.compute(event)
            if not asks:
                listener.record(event, [])
                listener.admit(event, ())
                return ()
            # The rules that read what is lost do not judge its event.
            unjudged = fold.reading(event.kind, waiting.awaited) if waiting.is_lost else ()
            numbers = self._rules(event.kind, held, waits=True)
            judged = tuple(number for number in numbers if number not in unjudged) if unjudged else numbers
            outcomes = fold.ask(listener, judged, event)
            listener.record(event, [] if waiting.is_lost else fold.derived)
            return [*failures, *listener.admit(event, outcomes)]

    def _rules(self, kind: str, held: Held, *, waits: bool) -> tuple[int, ...]:
        """Return the numbers of the rules at this kind of event that wait, or of those that do not."""
        numbers = self._numbers.get((kind, held, waits))
        if numbers is None:
            asked = self._fold.policy.blueprint.asked.get(kind)
            indices = enumerate(() if asked is None else asked.controllers)
            numbers = tuple(number for number, index in indices if (index in held.controllers) is waits)
            self._numbers[kind, held, waits] = numbers
        return numbers
