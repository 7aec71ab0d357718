"""Labels each decision of a replay by how far the recorded run supports it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from ...rules.control import Effect
from ...rules.engine.decisions import Decision
from ...rules.language.timing import Unit
from ...rules.policy_file.declarations import ACT, Controller
from ...rules.policy_file.policy import Policy
from ...store.errors import TelemetryError
from ...store.events import OPERATION_REFUSED, Event
from .event_stream import EventStream
from .saves import Saves, drops_own_checkpoints


class Validity(StrEnum):
    """The degree to which the recorded run supports a decision of a policy that it did not run under.

    Attributes:
        OBSERVED: The recorded run decided this too.
        EXACT: A message, log line, notice, checkpoint or evaluation: the trajectory stays the same.
        PREFIX_EXACT: A stop: the record up to it is exact, and the rest of the record is the cost of not stopping.
        APPROXIMATE: As for EXACT or PREFIX_EXACT, but live the decision might have come at another step. Either the
            policy and the recorded run have by then made different checkpoints or evaluations, and the rule reads the
            clock, which these shift, or the events of the checkpoints. Or the controller counts training steps, and the
            log holds only some of them. Or it reads all ranks, and the log holds nothing gathered of them.
        CENSORED: The run would have diverged here or earlier: the record does not show how.
    """

    OBSERVED = "observed"
    EXACT = "exact"
    PREFIX_EXACT = "prefix-exact"
    APPROXIMATE = "approximate"
    CENSORED = "censored"


#: Effects that change a run's trajectory other than by ending it.
_DIVERTING: Final = frozenset((Effect.STOP_EPOCH, Effect.STEER, Effect.ACT))

#: Effects that take run time: a different number of them shifts every later clock reading.
_TAKING_TIME: Final = frozenset((Effect.SAVE, Effect.EVALUATE))

#: Actions of steptape's own operations, which leave a run as it is or end it. The recorded run may have decided
#: operations that the replayed policy does not define. Of these, one with any other action may have diverted the run.
_KNOWN_ACTIONS: Final = frozenset(("should_training_stop", "should_save", "should_evaluate", "should_log"))


class _Orders(NamedTuple):
    """The operations of a decision, and its mode: whether they are carried out."""

    operations: tuple[str, ...]
    mode: str


def _orders_of(decision: Decision) -> _Orders:
    return _Orders(decision.operations, decision.mode)


def clocked_controllers(controllers: Sequence[Controller]) -> frozenset[str]:
    """Return the names of the controllers that read the time, or that ask about a controller that does."""
    return with_those_that_ask(controllers, {each.name for each in controllers if _looks_at_clock(each)})


def with_those_that_ask(controllers: Sequence[Controller], names: Set[str]) -> frozenset[str]:
    """Return those controllers, and the ones that ask about their decisions, directly or not."""
    found = frozenset(names)
    if not found:
        return found
    asks = {
        (controller.name, reference.asks_about)
        for controller in controllers
        for rule in controller.bound_rules
        for reference in rule.references.values()
        if reference.asks_about
    }
    while more := {name for name, asked in asks if asked in found} - found:
        found |= more
    return found


def _looks_at_clock(controller: Controller) -> bool:
    spans = [controller.hold, None if controller.cooldown is None else controller.cooldown.span]
    spans += [] if controller.escalation is None else [controller.escalation.forget_after]
    references = (reference for rule in controller.bound_rules for reference in rule.references.values())
    return any(span is not None and span.unit is Unit.SECONDS for span in spans) or any(
        reference.fact == "elapsed_s" for reference in references
    )


class ValidityLabeler:
    """Labels the decisions of one replay, in stream order.

    Args:
        policy: The policy being replayed.
        kinds_read: Returns the kinds of events whose numbers a controller's rule reads, as of the newest decision.
        stream: The whole recorded stream.
        saves: Whether the loop's own checkpoints remain.
        counting: Names of the controllers whose decisions might come at another step for what the log lacks: logged
            steps, or values of all ranks.

    Attributes:
        looks_at_every_event: Whether ``pass_event`` must be called: the recorded run decided something.
    """

    def __init__(
        self,
        policy: Policy,
        kinds_read: Callable[[str], frozenset[str]],
        stream: EventStream,
        saves: Saves,
        counting: Set[str] = frozenset(),
    ) -> None:
        self._policy = policy
        self._counting = counting
        self._kinds_read = kinds_read
        self._asking: dict[frozenset[str], frozenset[str]] = {}
        self._effects_of: dict[tuple[str, ...], Set[Effect]] = {}
        self._diverted_at: int | None = None
        self._unsure_from: float = inf
        self._shifted_at: int | None = None
        self._clocked = clocked_controllers(policy.controllers)
        at_saves = stream.rows("save")
        own_saves = list(zip(at_saves.tolist(), stream.steps[at_saves].tolist(), strict=True))
        self._saved_steps = {step for _, step in own_saves}
        self._asked_saves: set[int] = set()
        self._droppable = deque(own_saves if drops_own_checkpoints(policy, saves) else ())
        self._saves_differ_at: int | None = None
        self._lacks_evaluation_from: int | None = None
        self._evaluated_steps = set(stream.steps[stream.rows("evaluate")].tolist())
        self._recorded: dict[tuple[int, int, int], list[_Orders]] = {}
        self._refused: set[tuple[tuple[int, int, int], str]] = set()
        refused = {
            (event.attempt, event.attrs.get("event_seq"), event.attrs.get("operation"))
            for _, event in stream.of_kind(OPERATION_REFUSED)
        }
        for event in stream.recorded:
            if event.kind == "decision":
                where = (event.attempt, event.rank, event.attrs.get("event_seq", event.seq))
                orders = _Orders(tuple(event.attrs.get("operations", ())), event.attrs.get("mode", ACT))
                self._refused |= {(where, name) for name in orders.operations if (where[0], where[2], name) in refused}
                self._recorded.setdefault(where, []).append(orders)
        self.looks_at_every_event = bool(self._recorded)

    def label(self, decision: Decision, event_index: int) -> Validity:
        """Return the decision's label. Call once per decision, in order, with the engine as of that decision."""
        effects = self._effects(decision.operations) if decision.acts else frozenset[Effect]()
        self._drop_saves(event_index)
        label = self._label(decision, effects)
        # Nobody knows whether the run would have come this far.
        if event_index > self._unsure_from and label is not Validity.OBSERVED:
            label = Validity.CENSORED
        if label is Validity.CENSORED and Effect.STOP in effects:
            self._unsure_from = min(self._unsure_from, event_index)
        if label is Validity.CENSORED and effects & _DIVERTING and self._diverted_at is None:
            self._diverted_at = event_index
        asks_in_vain = Effect.EVALUATE in effects and decision.step + decision.value_lag not in self._evaluated_steps
        if asks_in_vain and self._lacks_evaluation_from is None:
            self._lacks_evaluation_from = event_index
        step = decision.step + decision.value_lag
        if Effect.SAVE in effects:
            self._asked_saves.add(step)
            if step not in self._saved_steps:
                self._let_saves_differ(event_index)
        if asks_in_vain:
            self._shift(event_index)
        return label

    def pass_event(self, event: Event, event_index: int, decisions: Iterable[Decision]) -> None:
        """Note what the recorded run did at an event and the replayed policy did not."""
        where = (event.attempt, event.rank, event.seq)
        recorded = self._recorded.get(where)
        if recorded is None:
            return
        decided = {_orders_of(decision) for decision in decisions}
        for orders in recorded:
            if orders not in decided and orders.mode == ACT:
                done = [name for name in orders.operations if (where, name) not in self._refused]
                if any(map(self._diverts, done)):
                    self._diverted_at = event_index if self._diverted_at is None else self._diverted_at
                if any(map(self._takes_time, orders.operations)):
                    self._shift(event_index)

    def approximate_from(self) -> int | None:
        """Return the index of the event after which the policy's clock would have differed from the recorded one.

        None if it never would, or if no rule reads the clock.
        """
        self._drop_saves(inf)
        return self._shifted_at if self._clocked else None

    def saves_differ_from(self) -> int | None:
        """Return the index of the event from which the policy's checkpoints differ from the recorded ones.

        None if they never do, or if no rule depends on the events of checkpoints.
        """
        self._drop_saves(inf)
        return self._saves_differ_at if self._on_saves() else None

    def censored_from(self) -> int | None:
        """Return the index of the event after which the record does not show this policy's run; None if it always does.

        At that event the policy first changes the trajectory other than by ending it, or first asks for an evaluation
        that the record lacks and that one of its rules would have read. A recorded decision that the policy does not
        make, and that may have diverted the run, counts too.
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
        """Whether an operation that the recorded run decided may have changed its trajectory."""
        try:
            return self._policy.effects(operation) in _DIVERTING
        except TelemetryError:
            return operation.partition(".")[2] not in _KNOWN_ACTIONS

    def _takes_time(self, operation: str) -> bool:
        """Whether an operation that the recorded run decided takes run time."""
        try:
            return self._policy.effects(operation) in _TAKING_TIME
        except TelemetryError:
            return operation.partition(".")[2] in ("should_save", "should_evaluate")

    def _drop_saves(self, until: float) -> None:
        """Note the recorded checkpoints up to an event that the policy did not ask for, if its own replace them."""
        while self._droppable and self._droppable[0][0] <= until:
            event_index, step = self._droppable.popleft()
            if step not in self._asked_saves:
                self._let_saves_differ(event_index)

    def _let_saves_differ(self, event_index: int) -> None:
        self._saves_differ_at = event_index if self._saves_differ_at is None else self._saves_differ_at
        self._shift(event_index)

    def _shift(self, event_index: int) -> None:
        self._shifted_at = event_index if self._shifted_at is None else self._shifted_at

    def _label(self, decision: Decision, effects: Set[Effect]) -> Validity:
        if self._recorded and _orders_of(decision) in self._recorded.get(
            (decision.attempt, decision.rank, decision.seq), ()
        ):
            return Validity.OBSERVED
        if self._diverted_at is not None or effects & _DIVERTING:
            return Validity.CENSORED
        if self._lacks_evaluation_from is not None and self._reads_evaluations(decision.controller):
            return Validity.CENSORED
        is_shifted = self._shifted_at is not None and decision.controller in self._clocked
        is_shifted |= self._saves_differ_at is not None and decision.controller in self._on_saves()
        if is_shifted or decision.controller in self._counting:
            return Validity.APPROXIMATE
        return Validity.PREFIX_EXACT if Effect.STOP in effects else Validity.EXACT

    def _on_saves(self) -> frozenset[str]:
        """Return the controllers that depend on the events of checkpoints, as far as their series are bound."""
        every = self._policy.controllers
        own = frozenset(one.name for one in every if "on_save" in one.triggers or "save" in self._kinds_read(one.name))
        if own not in self._asking:
            self._asking[own] = with_those_that_ask(every, own)
        return self._asking[own]

    def _reads_evaluations(self, controller: str) -> bool:
        return "evaluate" in self._kinds_read(controller)
