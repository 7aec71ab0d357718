"""How much a decision of a replay says about what would have happened: one label each."""

from __future__ import annotations

from collections.abc import Iterable, Set
from enum import StrEnum
from typing import Final, NamedTuple

from ..rules import ACT, Decision, Effect, Engine, Policy
from ..store.errors import TelemetryError
from ..store.events import Event
from .event_stream import EventStream


class Validity(StrEnum):
    """What the recorded run can vouch for, when a policy that it did not run under decides something.

    Attributes:
        OBSERVED: The recorded run decided this too.
        EXACT: A message, log line, notice, checkpoint or evaluation: the trajectory stays what it was.
        PREFIX_EXACT: A stop: everything up to it is the truth, and what was recorded after it is what not stopping has
            cost.
        CENSORED: The run would have gone another way from here on, or before: nothing recorded tells how.
    """

    OBSERVED = "observed"
    EXACT = "exact"
    PREFIX_EXACT = "prefix-exact"
    CENSORED = "censored"


#: What takes a run another way, other than by ending it.
_DIVERTING: Final = frozenset((Effect.STOP_EPOCH, Effect.ACT))

#: Actions of steptape's own operations that leave a run as it is, or end it. What a run decided by operations that the
#: replayed policy does not know may have diverted it, if it is none of these.
_KNOWN_ACTIONS: Final = frozenset(("should_training_stop", "should_save", "should_evaluate", "should_log"))


class _Orders(NamedTuple):
    """What a decision orders, and whether it is to be carried out."""

    operations: tuple[str, ...]
    mode: str


def _orders_of(decision: Decision) -> _Orders:
    return _Orders(decision.operations, decision.mode)


class Judge:
    """Labels the decisions of one replay, in stream order.

    Args:
        policy: The policy being replayed.
        engine: Its engine, which knows what each rule reads.
        stream: The whole recorded stream.

    Attributes:
        looks_at_every_event: Whether events have to be passed at all: the recorded run decided something.
    """

    def __init__(self, policy: Policy, engine: Engine, stream: EventStream) -> None:
        self._policy = policy
        self._engine = engine
        self._effects_of: dict[tuple[str, ...], Set[Effect]] = {}
        self._diverted_at: int | None = None
        self._lacks_evaluation_from: int | None = None
        self._evaluated_steps = {event.step for _, event in stream.of_kind("evaluate")}
        self._recorded: dict[tuple[int, int, int], list[_Orders]] = {}
        for event in stream.recorded:
            if event.kind == "decision":
                where = (event.attempt, event.rank, event.attrs.get("event_seq", event.seq))
                orders = _Orders(tuple(event.attrs.get("operations", ())), event.attrs.get("mode", ACT))
                self._recorded.setdefault(where, []).append(orders)
        self.looks_at_every_event = bool(self._recorded)

    def label(self, decision: Decision, event_index: int) -> Validity:
        """The decision's label. Call it once for each decision, in order, with the engine as of that decision."""
        effects = self._effects(decision.operations) if decision.acts else frozenset[Effect]()
        label = self._label(decision, effects)
        if label is Validity.CENSORED and effects & _DIVERTING and self._diverted_at is None:
            self._diverted_at = event_index
        asks_in_vain = Effect.EVALUATE in effects and decision.step + decision.value_lag not in self._evaluated_steps
        if asks_in_vain and self._lacks_evaluation_from is None:
            self._lacks_evaluation_from = event_index
        return label

    def pass_event(self, event: Event, event_index: int, decisions: Iterable[Decision]) -> None:
        """Note what the recorded run did at an event and the replayed policy did not."""
        decided = {_orders_of(decision) for decision in decisions}
        for orders in self._recorded.get((event.attempt, event.rank, event.seq), ()):
            if orders not in decided and orders.mode == ACT and any(map(self._diverts, orders.operations)):
                self._diverted_at = event_index if self._diverted_at is None else self._diverted_at

    def censored_from(self) -> int | None:
        """Index of the event after which the record cannot vouch for this policy's run; None when it can throughout.

        That is where the policy first changes the trajectory other than by ending it, or first asks for an evaluation
        that the record lacks and that one of its rules would have read.
        """
        points = [self._diverted_at] if self._diverted_at is not None else []
        if self._lacks_evaluation_from is not None and any(
            self._reads_evaluations(controller.name) for controller in self._policy.controllers
        ):
            points.append(self._lacks_evaluation_from)
        return min(points, default=None)

    def _effects(self, operations: tuple[str, ...]) -> Set[Effect]:
        known = self._effects_of.get(operations)
        if known is None:
            known = self._effects_of[operations] = frozenset(map(self._policy.effects, operations))
        return known

    def _diverts(self, operation: str) -> bool:
        """Whether an operation that the recorded run decided may have taken it another way."""
        try:
            return self._policy.effects(operation) in _DIVERTING
        except TelemetryError:
            return operation.partition(".")[2] not in _KNOWN_ACTIONS

    def _label(self, decision: Decision, effects: Set[Effect]) -> Validity:
        if self._recorded and _orders_of(decision) in self._recorded.get(
            (decision.attempt, decision.rank, decision.seq), ()
        ):
            return Validity.OBSERVED
        if self._diverted_at is not None or effects & _DIVERTING:
            return Validity.CENSORED
        if self._lacks_evaluation_from is not None and self._reads_evaluations(decision.controller):
            return Validity.CENSORED
        return Validity.PREFIX_EXACT if Effect.STOP in effects else Validity.EXACT

    def _reads_evaluations(self, controller: str) -> bool:
        return "evaluate" in self._engine.kinds_read(controller)
