"""Replays a policy over a recorded run: takes events and a policy, returns labelled decisions. Acts on nothing.

A label says how far the recorded run supports a decision.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from math import inf
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from ...rules.effects import Effect, orders_undo
from ...rules.engine.decisions import Decision, DerivedValues, Outcome
from ...rules.engine.engine import Engine
from ...rules.language.clock import Unit
from ...rules.language.name_patterns import is_pattern, matches
from ...rules.policy_file.declarations import ACT, Controller
from ...rules.policy_file.metrics import METRIC_CLASSES, TrainingState
from ...rules.policy_file.policy import Policy
from ...rules.readings.milestone import Milestone
from ...rules.readings.reading import Extent, Reading
from ...store.errors import TelemetryError
from ...store.events import (
    BEFORE_STREAM,
    CUSTOM,
    FACT_KINDS,
    INIT_END,
    NOTE_KINDS,
    OPERATION_REFUSED,
    POINT_EVERY,
    RANKS,
    RESTORE_POINT,
    SPAN,
    SYSTEM,
    Event,
)
from ...store.lineage import DECIDING_RANK
from ...store.own_process import collection_paused
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from .appearances import StreamAppearances, counting_controllers, step_interval
from .event_stream import EventStream, RolledBack, event_stream, read_lineage
from .metric_names import Renames
from .objective import Saves
from .run_result import DIVERTING, Ending, LabelledOutcome, Replay, Validity, drops_own_checkpoints, effects_of

#: Kinds of events before the update of an iteration, and kinds after it within the iteration.
BEFORE_A_STEP: Final = frozenset(
    (INIT_END, "train_begin", "epoch_begin", "step_begin", "substep_end", "pre_optimizer_step", "optimizer_step")
)


_WITHIN_A_STEP: Final = frozenset(
    ("ranks", "log", "prediction_step", "evaluate", "predict", "save", SPAN, SYSTEM, *NOTE_KINDS)
) - {"failure"}


#: Events that are processed together; fewer at first, since rules that have seen nothing soon become idle.
_STRETCH: Final = 512


_FIRST_STRETCH: Final = 64


#: Effects that take run time: a different number of them shifts every later clock reading.
_TAKING_TIME: Final = frozenset((Effect.SAVE, Effect.EVALUATE))


#: Actions of steptape's own operations, which leave a run as it is or end it. The recorded run may have decided
#: operations that the replayed policy does not define. Of these, one with any other action may have diverted the run.
_KNOWN_ACTIONS: Final = frozenset(
    ("should_training_stop", "should_save", "should_evaluate", "should_log", "should_notify")
)

#: Makes what decides a policy on one stream, given the plan that the loop declared.
DeciderOf: TypeAlias = "Callable[[Policy, EventStream, Plan], Decider]"


def replay(
    policy: Policy, source: Run | Sequence[Event], *, plan: Plan | None = None, saves: Saves | str = Saves.KEEP
) -> Replay:
    """Replay a policy over a recorded run.

    Args:
        policy: The rules.
        source: A run, whose newest attempt's lineage is folded, or its events in order, which may begin with
            ``RunInfo.plan_events``. Only events of the deciding rank (0) are folded; rules may read what these hold of
            other ranks.
        plan: What the run declared; defaults to the run's own plan.
        saves: ``keep`` if the loop's own checkpoints remain when rules order some, ``replace`` if these replace them.
            Validity labels depend on it.
    """
    stream, known = _stream_and_plan(policy, source, plan)
    return replay_events(policy, stream, known, saves=Saves(saves))


def derived_values(policy: Policy, source: Run | Sequence[Event]) -> list[DerivedValues]:
    """Return what a recorded run would hold of the definitions and states that a policy records.

    Args:
        policy, source: As for ``replay``.

    Raises:
        TelemetryError: The policy records nothing.
    """
    if not policy.recorded:
        fix = "List definitions or states: record: [NAME]"
        raise TelemetryError("the rule file records nothing", where=policy.source, fix=fix)
    stream, plan = _stream_and_plan(policy, source, None)
    engine = Engine(policy, plan, stream.plans, records=True)
    engine.start()
    with collection_paused():
        deque(observed_in(engine, stream, everything=False), maxlen=0)
    return engine.derived


def _stream_and_plan(policy: Policy, source: Run | Sequence[Event], plan: Plan | None) -> tuple[EventStream, Plan]:
    """Return the deciding rank's events with all that a policy reads, and the plan that they follow."""
    if isinstance(source, Run):
        stream, declared = source.read(lambda snapshot: (stream_for(policy, snapshot), snapshot.info.last.plan))
        return stream, plan or declared
    by_rank: dict[int, list[Event]] = {DECIDING_RANK: []}
    plans: dict[int, Plan] = {}
    for event in source:
        if event.seq == BEFORE_STREAM:
            plans[event.attempt] = Plan().updated(event.attrs)
        else:
            by_rank.setdefault(event.rank, []).append(event)
    own = by_rank.pop(DECIDING_RANK)
    newest = max([*plans, *(event.attempt for event in own[-1:])], default=0)
    known = plan or plans.pop(newest, Plan())
    return event_stream(own, lambda: by_rank, policy.reads_ranks, known, plans), known


def replay_events(
    policy: Policy,
    events: Sequence[Event] | EventStream,
    plan: Plan,
    *,
    delay_steps: int = 0,
    saves: Saves = Saves.KEEP,
) -> Replay:
    """Replay a policy over the deciding rank's events.

    Args:
        policy, events, plan: As for ``replay``.
        delay_steps: Updates that the loop still makes between the decision to stop and the stop.
        saves: Whether the loop's own checkpoints remain.
    """
    with collection_paused():
        return replay_stream(policy, event_stream(events), plan, delay_steps=delay_steps, saves=saves)


class Decider(Protocol):
    """What decides a policy on one stream: the event engine, or columns."""

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Rule errors by controller, once all outcomes are taken."""

    def kinds_read(self, controller: str) -> frozenset[str]:
        """Return the kinds of events whose numbers a controller's rule reads, as of the newest outcome."""

    def outcomes(self, *, everything: bool) -> Iterator[tuple[int, Event | None, Sequence[Outcome]]]:
        """Yield outcomes with the index of their event, in stream order; ``BEFORE_STREAM`` for ``init_end``.

        Args:
            everything: Whether to yield every event, with or without outcomes. If not, None may replace an event.
        """


class ByEngine:
    """The event engine as a decider."""

    def __init__(self, policy: Policy, stream: EventStream, plan: Plan) -> None:
        self._engine, self._stream = Engine(policy, plan, stream.plans), stream
        self.kinds_read = self._engine.kinds_read

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Rule errors by controller."""
        return self._engine.error_counts

    def outcomes(self, *, everything: bool) -> Iterator[tuple[int, Event | None, Sequence[Outcome]]]:
        """Yield outcomes, as ``Decider``."""
        yield BEFORE_STREAM, None, self._engine.start()
        yield from observed_in(self._engine, self._stream, everything=everything)


def replay_stream(
    policy: Policy,
    stream: EventStream,
    plan: Plan,
    decider_of: DeciderOf = ByEngine,
    *,
    delay_steps: int = 0,
    saves: Saves = Saves.KEEP,
    is_plan_assumed: bool = False,
) -> Replay:
    """Replay a policy over a stream that the caller shares with other readers.

    Labels the outcomes, and finds where they end the run and where the record no longer shows it.

    Args:
        policy, stream, plan, delay_steps, saves: As for ``replay_events``.
        decider_of: Makes what decides the policy: the event engine, or ``by_columns``.
        is_plan_assumed: Whether nobody declared the plan.
    """
    decider = decider_of(policy, stream, plan)
    interval = step_interval(stream)
    counting = counting_controllers(policy, StreamAppearances(stream, plan)) if interval > 1 else frozenset[str]()
    on_made_up, on_unplaced = _controllers_on_made_up(policy, stream), _controllers_on_unplaced(policy, stream)
    on_assumed_plan = planned_controllers(policy) if is_plan_assumed else frozenset[str]()
    judge = ValidityLabeler(
        policy,
        decider.kinds_read,
        stream,
        saves,
        with_those_that_ask(policy.controllers, counting | on_made_up | on_assumed_plan),
        with_those_that_ask(policy.controllers, on_unplaced),
    )
    outcomes: list[LabelledOutcome] = []
    codes, kinds = stream.coded_kinds
    for index, event, observed in decider.outcomes(everything=judge.looks_at_every_event):
        if observed:
            kind = INIT_END if index < 0 else kinds[codes[index]]
            outcomes += [_judged(judge, stream, index, kind, outcome) for outcome in observed]
        if judge.looks_at_every_event and event is not None:
            judge.pass_event(event, index, _decisions(observed))
    censored_from = judge.censored_from()
    stop = next((judged for judged in outcomes if Effect.STOP in effects_of(policy, judged.outcome)), None)
    return Replay(
        policy,
        tuple(outcomes),
        dict(decider.error_counts),
        len(stream),
        censored_from,
        None if stop is None else ending_after(stop.event_index, stream, delay_steps),
        None if censored_from is None else _place(censored_from, stream),
        judge.approximate_from(),
        interval,
        counting,
        saves,
        judge.saves_differ_from(),
        on_made_up,
        stream.unplaced if judge.is_on_unplaced else frozenset(),
        on_assumed_plan,
    )


def _controllers_on_made_up(policy: Policy, stream: EventStream) -> frozenset[str]:
    """Return the names of the controllers that read values of all ranks which were made up."""
    made_up = stream.made_up_names
    if not made_up:
        return frozenset()
    return frozenset(each.name for each in policy.controllers if not made_up.isdisjoint(each.ranks))


def _controllers_on_unplaced(policy: Policy, stream: EventStream) -> frozenset[str]:
    """Return the names of the controllers that read or await values at unknown steps."""
    if not stream.unplaced:
        return frozenset()
    on_evaluations = {one.name for one in policy.metrics if "evaluate" in one.metric_class.reads}
    return frozenset(
        each.name
        for each in policy.controllers
        if "on_evaluate" in each.triggers
        or any(not on_evaluations.isdisjoint(rule.metrics) for rule in each.bound_rules)
        or any(_is_among(key.name, stream.unplaced) for rule in each.bound_rules for key in rule.series)
    )


def _is_among(name: str, metrics: Set[str]) -> bool:
    return name in metrics or (is_pattern(name) and any(matches(metric, name) for metric in metrics))


def observed_in(
    engine: Engine, stream: EventStream, *, everything: bool = False, start: int = 0
) -> Iterator[tuple[int, Event, Sequence[Outcome]]]:
    """Yield the facts of a stream with their index and the engine's outcomes at each, and at what was made up after it.

    For rules that order undos, a loop that kept no restore points is taken to keep one every ``POINT_EVERY`` updates.

    Args:
        engine: The engine that observes the facts.
        stream: The stream.
        everything: Whether to yield also facts that change no state and cause no outcome.
        start: The index of the first fact to observe.
    """
    idle, with_attrs = (frozenset() if everything else engine.idle_kinds), stream.with_attrs
    # A loop that kept restore points, or answered an order, has said itself to what its rules could go back.
    imagines, point = orders_undo(engine.policy.calls) and FACT_KINDS.isdisjoint(stream.kinds), 0
    observe, facts, gathered = engine.observe, stream.facts, stream.gathered
    most_are_idle = not everything
    bounds = [start, *range(start + _FIRST_STRETCH, len(stream), _STRETCH), len(stream)]
    for begin, end in itertools.pairwise(bounds):
        kinds = stream.kinds[begin:end]
        # Building a whole stretch of events costs half as much per event as building some of them one by one.
        made = () if most_are_idle else facts[begin:end]
        passed = 0
        for index, kind in enumerate(kinds, begin):
            if kind in idle and index not in with_attrs:
                passed += 1
                continue
            event = made[index - begin] if made else facts[index]
            if kind == RANKS and index in gathered:
                event = gathered[index]
            observed = observe(event)
            if kind != RANKS and index in gathered:
                observed = [*observed, *observe(gathered[index])]
            yield index, event, observed
            if imagines and kind == "step_end" and event.step >= point + POINT_EVERY:
                point = event.step
                observe(event._replace(kind=RESTORE_POINT, metrics={}, attrs={}))
        most_are_idle = 2 * passed > len(kinds)


def is_within_a_step(kind: str) -> bool:
    """Whether events of a kind belong to the iteration whose update precedes them."""
    return kind in _WITHIN_A_STEP or kind.startswith(CUSTOM)


def ending_after(stop: int, stream: EventStream, delay_steps: int = 0) -> Ending:
    """Return where a stop takes effect.

    After a stop at or after a step, the evaluation and the checkpoint due at that step are still made. After a stop
    before a step, that step is made first.

    Args:
        stop: Index of the event at which a rule asks for the stop; ``BEFORE_STREAM`` for ``init_end``.
        stream: The run's stream.
        delay_steps: Further steps that the loop makes.
    """
    codes, kinds = stream.coded_kinds
    last, end = stop, len(stream) - 1
    steps_made = delay_steps + (stop < 0 or kinds[codes[stop]] in BEFORE_A_STEP)
    if steps_made:
        following = stream.updates[np.searchsorted(stream.updates, stop, side="right") :]
        last = int(following[steps_made - 1]) if len(following) >= steps_made else end
    while last < end and (
        stream.is_late(last + 1)
        or (is_within_a_step(kinds[codes[last + 1]]) and stream.steps_at(last + 1) <= stream.steps_at(last))
    ):
        last += 1
    return _place(last, stream)


def _place(index: int, stream: EventStream) -> Ending:
    """Return an event's index with the steps and the time up to it."""
    return Ending(index, stream.steps_at(index) if index >= 0 else 0, stream.time_up_to(index))


def _judged(judge: ValidityLabeler, stream: EventStream, index: int, kind: str, outcome: Outcome) -> LabelledOutcome:
    validity = judge.label(outcome, index) if isinstance(outcome, Decision) else None
    return LabelledOutcome(index, kind, outcome, validity, stream.time_up_to(index))


def _decisions(outcomes: Iterable[Outcome]) -> list[Decision]:
    return [outcome for outcome in outcomes if isinstance(outcome, Decision)]


class _Orders(NamedTuple):
    """The operations of a decision, and its mode: whether they are carried out."""

    operations: tuple[str, ...]
    mode: str


def _orders_of(decision: Decision) -> _Orders:
    return _Orders(decision.operations, decision.mode)


def clocked_controllers(controllers: Sequence[Controller]) -> frozenset[str]:
    """Return the names of the controllers that read the time, or that ask about a controller that does."""
    return with_those_that_ask(controllers, {each.name for each in controllers if _looks_at_clock(each)})


def planned_controllers(policy: Policy) -> frozenset[str]:
    """Return the names of the controllers that read how many updates the loop planned.

    A metric of a class that is not steptape's own may read it.
    """
    metrics = {
        declaration.name
        for declaration in policy.metrics
        if declaration.class_name == TrainingState.__name__ or not METRIC_CLASSES.is_own(declaration.class_name)
    }
    return frozenset(
        controller.name
        for controller in policy.controllers
        for rule in controller.bound_rules
        for reading in rule.references.values()
        if _reads_plan(reading) or reading.metric_read in metrics
    )


def _reads_plan(reading: Reading) -> bool:
    return reading.fact in ("max_steps", "progress") or (
        isinstance(reading, Milestone) and reading.extent is Extent.STEPS
    )


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
        unsure: Names of the controllers whose decisions might come at another step for what the log lacks: logged
            steps, values of all ranks, or a plan.
        on_unplaced: Names of the controllers that depend on values at unknown steps.

    Attributes:
        looks_at_every_event: Whether ``pass_event`` must be called: the recorded run decided something.
        is_on_unplaced: Whether a decision so far depends on values at unknown steps.
    """

    def __init__(
        self,
        policy: Policy,
        kinds_read: Callable[[str], frozenset[str]],
        stream: EventStream,
        saves: Saves,
        unsure: Set[str] = frozenset(),
        on_unplaced: Set[str] = frozenset(),
    ) -> None:
        self._on_unplaced = on_unplaced
        self.is_on_unplaced = False
        self._policy = policy
        self._unsure = unsure
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
        if decision.controller in self._on_unplaced:
            # It might come at any step, and what it orders with it.
            label, self.is_on_unplaced = Validity.CENSORED, True
            if effects & {Effect.STOP, *DIVERTING} and self._diverted_at is None:
                self._diverted_at = event_index
        # Nobody knows whether the run would have come this far.
        if event_index > self._unsure_from and label is not Validity.OBSERVED:
            label = Validity.CENSORED
        if label is Validity.CENSORED and Effect.STOP in effects:
            self._unsure_from = min(self._unsure_from, event_index)
        if label is Validity.CENSORED and effects & DIVERTING and self._diverted_at is None:
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
            return self._policy.effects(operation) in DIVERTING
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
        if self._diverted_at is not None or effects & DIVERTING:
            return Validity.CENSORED
        if self._lacks_evaluation_from is not None and self._reads_evaluations(decision.controller):
            return Validity.CENSORED
        is_shifted = self._shifted_at is not None and decision.controller in self._clocked
        is_shifted |= self._saves_differ_at is not None and decision.controller in self._on_saves()
        if is_shifted or decision.controller in self._unsure:
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


def stream_for(policy: Policy, snapshot: Snapshot, renames: Renames = ()) -> EventStream:
    """Return the effective events of the deciding rank over which a policy is folded."""
    return stream_under([policy], snapshot, renames)[0]


def stream_under(
    policies: Sequence[Policy], snapshot: Snapshot, renames: Renames = ()
) -> tuple[EventStream, RolledBack]:
    """Return the effective events of the deciding rank with all that some policies read, and what was rolled back."""
    return read_lineage(
        snapshot,
        samples=any(policy.reads_samples for policy in policies),
        renames=renames,
        ranks=frozenset[str]().union(*(policy.reads_ranks for policy in policies)),
    )
