"""The rule engine: a pure fold over a run's events.

Takes a policy, and events in the order in which the deciding rank wrote them; returns outcomes. It reads no clock,
random number, file or environment, and acts on nothing. So the same events give the same decisions, live and in replay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...store.events import AWAITED, BEFORE_STREAM, INIT_END, PLAN, Event, is_loop_kind
from ...store.reading.tally import made_up
from ...store.run_info import Attempt, Plan
from ..policy_file.policy import Policy
from .decisions import Outcome
from .event_fold import EventFold
from .late_values import StepOrder

_NOTHING: Final[tuple[Outcome, ...]] = ()
_BEFORE_STREAM: Final = Event(INIT_END, seq=BEFORE_STREAM)


class Engine:
    """One policy over one run.

    Args:
        policy: The policy that decides.
        plan: What the loop declared: the length of the run, which ``TrainingState`` shows, and constants.
        earlier: What earlier attempts declared at their start, by attempt; the plan where that is unknown.
    """

    def __init__(
        self,
        policy: Policy,
        plan: Plan = Plan(),  # noqa: B008 - a Plan is immutable
        earlier: Mapping[int, Plan] = MappingProxyType({}),
    ) -> None:
        self.policy = policy
        self._fold = EventFold(policy, plan, earlier)
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
        if waits and (is_loop_kind(event.kind) or event.kind == PLAN):
            return self._late.observe(event)
        return self._fold.observe(event)

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
        for kind, ask in asking.items():
            listeners[kind].ask = ask
        if not keeps_controllers:
            self._fold.renew_controllers()

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Failures of each controller's rule and each metric, by name; those that never failed are left out."""
        return self._fold.error_counts

    def never_recorded(self) -> list[str]:
        """Return one line for each series that rules read and no event has carried, if no warning has named it."""
        return self._fold.never_recorded()

    def kinds_read(self, controller: str) -> frozenset[str]:
        """Return the kinds of events whose numbers a controller's rule reads.

        Includes those that its metrics read; its series count as bound so far. For controllers that share a name,
        returns the kinds that any of them reads.

        Raises:
            TelemetryError: The policy has no such controller.
        """
        return self._fold.kinds_read(controller)


def resumed_engine(policy: Policy, plan: Plan, ancestry: Iterable[tuple[Attempt, Iterable[Event]]]) -> Engine:
    """Return the engine of an attempt that continues others, as of its first event.

    State comes back in this way live and in replay: it is never saved, but folded anew from the log.

    Args:
        policy: The policy of the attempt.
        plan: The plan that the attempt declared.
        ancestry: The attempts that it continues, oldest first, each with its events that still count, as
            ``Run.ancestry`` returns them.
    """
    earlier = list(ancestry)
    engine = Engine(policy, plan, {attempt.attempt: attempt.plan for attempt, _ in earlier})
    digests = [None if attempt.policy is None else attempt.policy.digest for attempt, _ in earlier]
    for (_, events), own, following in zip(earlier, digests, [*digests, policy.digest][1:], strict=True):
        engine.resume(events, keeps_controllers=own == following)
    return engine
