"""The state of one policy over one run, and the steps by which an event changes it.

Takes events, or parts of one whose values arrive at two times; returns outcomes. For each event, in this order: series
append its values, metrics of its kind compute in file order, and controllers with its trigger decide in file order:
rule, then patience, then the decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from ...store.errors import TelemetryError
from ...store.events import FACT_KINDS, INIT_END, PLAN, RANKS, Event, is_loop_kind, lag_of
from ...store.plan import Plan, constants_in
from ...store.reading.tally import OwnValues
from ..compiled.program import clearing_name, explanation_name, gate_name, news_name
from ..compiled.workspace import SLACK, Cell, News, Series, Workspace
from ..language.clock import Clock
from ..policy_file.declarations import Controller, StateDeclaration
from ..policy_file.policy import Policy
from ..readings.past_decisions import Past
from ..readings.reading import SeriesKey
from .computed_values import MetricRunner, StateRunner, expected_keys
from .controller_states import ControllerState, MemberAnswers, MemberControllers, TriggeredController
from .decisions import DerivedValues, Outcome, RuleWarning
from .gates import FiringGate, FiringLimits, Ladder, RaisedState, SpanTimer, shared_timers
from .listeners import CachedAnswers, Listener, SeriesIntake
from .outcomes import (
    MISSING_SERIES_AFTER,
    LogMessages,
    OutcomeMaker,
    crowded_family,
    fields_of,
    missing_series,
    never_recorded,
)

#: The kind of event with which each attempt begins. What earlier ones declared late no longer holds.
_BEGIN: Final = "train_begin"

_NOTHING: Final[tuple[Outcome, ...]] = ()


class EventFold:
    """The state of one policy over one run.

    Args:
        policy: The policy that decides.
        plan: What the loop declared at the start: the length of the run, which ``TrainingState`` shows, and constants.
            ``plan`` events update it until the next attempt begins.
        earlier: What earlier attempts declared at their start, by attempt.
        records: Whether to collect the values of the definitions and states that the run records.

    Attributes:
        policy: The policy.
        derived: These values, until somebody takes them.
        clock: Its position in the run.
        needs_clock: Whether anything reads the clock.
        listeners: What an event of each kind updates and asks.
        gauges: What computes its controller metrics.
        cached: The cached answers.
        pasts: The answers and decisions of each controller, as far as rules or the recorder ask for them.
        has_metrics: Whether the policy declares controller metrics.
        own: What an agreement would gather, in a training of one process; None if others are to be asked, or nobody.
    """

    def __init__(
        self,
        policy: Policy,
        plan: Plan = Plan(),  # noqa: B008 - a Plan is immutable
        earlier: Mapping[int, Plan] = MappingProxyType({}),
        *,
        records: bool = False,
    ) -> None:
        self.policy, self.derived = policy, list[DerivedValues]()
        blueprint = policy.blueprint
        clock = Clock(plan, blueprint.trackers(), earlier)
        self._workspace = Workspace(blueprint.names, blueprint.needs, clock, policy.reads_ranks, blueprint.families)
        self._series = self._workspace.series
        self.clock = self._workspace.clock
        self.needs_clock = blueprint.needs_clock
        self.listeners: defaultdict[str, Listener] = defaultdict(Listener)
        self.gauges: list[MetricRunner] = []
        self._reads: dict[str, frozenset[str]] = {}
        self._build_metrics(plan)
        self._classifiers = [self._build_state(state) for state in policy.states]
        recorded = policy.recorded if records else ()
        for state in (each for each in self._classifiers if each.declaration in recorded):
            for kind in self._reads[state.name]:
                self.listeners[kind].values_to_record().add_state(state)
        self.has_metrics = bool(self.gauges or self._classifiers)
        # A training of one process has no agreements: its own values are those of all ranks.
        self.own = OwnValues(policy.reads_ranks) if policy.reads_ranks and plan.world_size == 1 else None
        if policy.reads_ranks:
            self.listeners[RANKS].gauges.append(self._workspace.ranks)
        self.cached = CachedAnswers()
        self._intake = SeriesIntake(blueprint, policy.source, self._workspace, self.listeners, self.cached, recorded)
        self._first_plan = plan
        timers = shared_timers([controller.cooldown for controller in policy.controllers])
        self._of_members: dict[str, MemberControllers] = {}
        self._states = [self._build_controller(controller, timers) for controller in policy.controllers]
        variables, name_of = self._workspace.variables, self._workspace.past_name
        self.pasts: dict[str, Past] = {each.name: variables[name_of(each.name)] for each in policy.controllers}
        self._build_watches()
        self._conclusions = OutcomeMaker(policy.source, LogMessages(policy.operations, policy.params), self._workspace)
        self._intake.declare(plan.constants)
        self._required = {
            state: [self._series[key.whole] for key in state.declaration.requires] for state in self._states
        }
        self._awaits = self._reminds = self._await_series()

    def _build_metrics(self, plan: Plan) -> None:
        expected = expected_keys(self.policy.metrics, self.policy.controllers)
        for declaration in self.policy.metrics:
            metric = declaration.metric(plan)
            cell = self._workspace.cells.setdefault(declaration.name, Cell())
            gauge = MetricRunner(declaration.name, metric, cell, self.policy.source, expected[declaration.name])
            self.gauges.append(gauge)
            self._reads[declaration.name] = self._reads.get(declaration.name, frozenset()) | metric.reads
            for kind in metric.kinds:
                self.listeners[kind].gauges.append(gauge)

    def _build_state(self, declaration: StateDeclaration) -> StateRunner:
        cell, held = self._workspace.cells[declaration.name], self._workspace.held_states[declaration.name]
        conditions = [self._workspace.function(rule.code) for _, rule in declaration.classes]
        runner = StateRunner(declaration, conditions, cell, held, self.policy.source)
        self._reads[declaration.name] = frozenset(trigger.removeprefix("on_") for trigger in declaration.triggers)
        for kind in self._reads[declaration.name]:
            self.listeners[kind].gauges.append(runner)
        return runner

    def declare(self, event: Event, concerns: Callable[[str], bool] = lambda _: True, *, is_whole: bool = True) -> None:
        """Fold a ``plan`` event, or a part of it.

        Args:
            concerns: Whether to take a constant, by its name.
            is_whole: Whether controller metrics take the plan, too.
        """
        constants = {name: value for name, value in constants_in(event.attrs).items() if concerns(name)}
        self._take_plan(self.clock.declare(event.attrs), constants, self.gauges if is_whole else ())

    def _take_plan(self, plan: Plan, constants: Mapping[str, float], gauges: Iterable[MetricRunner]) -> None:
        """Continue under another plan, of which these constants are new."""
        self.cached.forget()
        self.clock.plan = plan
        for gauge in gauges:
            gauge.take_plan(plan)
        self._intake.declare(constants)
        self._reminds = self._awaits

    def _begin_anew(self) -> None:
        """Return to the plan of the start."""
        before, first = self.clock.plan.constants, self._first_plan
        changed = {name: value for name, value in first.constants.items() if before[name] != value}
        self._take_plan(first, changed, self.gauges)

    def _build_controller(self, controller: Controller, timers: Mapping[str, SpanTimer]) -> ControllerState:
        cooldown = controller.cooldown
        timer = None if cooldown is None else timers.get(cooldown.name) or SpanTimer(cooldown.span)
        past = self._workspace.pasts[controller.name]
        raised = None if controller.clear is None else RaisedState()
        ladder = None if controller.escalation is None else Ladder(controller.escalation)
        limits = FiringLimits(past, is_once=controller.is_once, cooldown=timer, raised=raised, ladder=ladder)
        state = ControllerState(controller, self._workspace.function, limits)
        if controller.each is not None:
            shared = timer if cooldown is not None and cooldown.name else None
            members = self._of_members[controller.name] = MemberControllers(state, self._workspace, shared)
            self._workspace.variables[self._workspace.past_name(controller.name)] = members.past
        return state

    def _await_series(self) -> bool:
        """Let controllers warn of series that never appear; return whether any may have to."""
        for state in self._states:
            state.forget(self._unseen_of(state.declaration))
        return any(state.unseen for state in self._states)

    def _build_watches(self) -> None:
        for kind, asked in self.policy.blueprint.asked.items():
            listener = self.listeners[kind]
            for index, trigger in zip(asked.controllers, asked.triggers, strict=True):
                state = self._states[index]
                declared = state.declaration
                gate = FiringGate(state.restraint, self.clock, declared.patience, declared.hold)
                name = gate_name(kind, len(listener.watches))
                self._workspace.variables[name] = gate
                driver = declared.rule.bound.driver
                if declared.each is not None:
                    self._of_members[declared.name].add_trigger(kind, len(listener.watches), trigger, asked.of_members)
                elif declared.awaits_value and driver is not None:
                    self._workspace.variables[news_name(name)] = News(self._series[driver])
                watch = TriggeredController(state, trigger, gate)
                self._workspace.variables[explanation_name(name)] = watch.explain
                self._workspace.variables[clearing_name(name)] = watch.clear
                listener.watches.append(watch)
            listener.ask = self._workspace.function(asked.code)
            listener.keeps_answers = asked.keeps_answers
        for state in self._states:
            if state.declaration.each is not None:
                self._workspace.families[state.declaration.each].follow(self._of_members[state.declaration.name])

    def _unseen_of(self, controller: Controller) -> tuple[Series, ...]:
        """Return the series that a controller awaits and no event has fed yet, to warn if none ever does."""
        series = (self._series[key] for key in controller.series_awaited if not key.is_of_member)
        return tuple(each for each in series if each.bound_kind is None)

    # --- input --------------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> Sequence[Outcome]:
        """Fold an event whose values are all there."""
        kind = event.kind
        if is_loop_kind(kind):
            if self.needs_clock:
                self.clock.take(event)
            if self._intake.is_open:
                self.greet(event.metrics, kind)
            if self.own is not None:
                event = self.own.whole(event)
            if kind == _BEGIN and self.clock.plan is not self._first_plan:
                self._begin_anew()
        elif kind == PLAN:
            self.declare(event)
        elif kind in FACT_KINDS:
            self.cached.forget()
            self.clock.take_fact(event)
        listener = self.listeners.get(kind)
        if listener is None or kind == INIT_END:
            self._rest(kind)
            return _NOTHING
        outcomes = self.fold_values(listener, event)
        if listener.recorded is not None:
            listener.record(event, self.derived)
        return outcomes if listener.admissions is None else listener.admit(event, outcomes)

    def renew_controllers(self) -> None:
        """Let all controllers start fresh: patience, past decisions, and what was already reported."""
        self.cached.forget()
        for gauge in self.gauges:
            gauge.renew()
        for classifier in self._classifiers:
            classifier.renew()
        for members in self._of_members.values():
            members.renew()
        for gatekeeper in self._intake.gatekeepers:
            gatekeeper.renew()
        for state in self._states:
            state.restraint.renew()
        self._awaits = self._reminds = self._await_series()
        for listener in self.listeners.values():
            for watch in listener.watches:
                watch.gate.renew()

    def greet(self, metrics: Mapping[str, float | None], kind: str) -> None:
        """Bind each unbound series that these metrics contain to this kind of event, which feeds it from now on."""
        if not metrics or not self._intake.is_open:
            return
        if self._intake.greet(metrics, kind, remembers=self._awaits):
            self._reminds = self._awaits
        for family in self._intake.crowded():
            for state in self._states:
                if any(key in (family.key, family.key.whole) for key in state.declaration.series_read):
                    state.notices += (crowded_family(family.key),)
                    self._awaits = self._reminds = True

    def fold_values(self, listener: Listener, event: Event) -> Sequence[Outcome]:
        """Fold an event after clock and bindings: series, metrics, rules."""
        changes = listener.series or listener.gauges
        if changes and self.cached.listeners:
            self.cached.forget()
        if listener.series:
            self.append(listener, event.metrics, event)
        failures = listener.compute(event) if listener.gauges else _NOTHING
        if listener.ask is None:
            if not changes:
                self._rest(event.kind)
            return failures
        answers = listener.answers
        if answers is None:
            answers = listener.ask(event)
            if listener.keeps_answers and not changes:
                self.cached.keep(listener, answers)
                if not answers:
                    self._rest(event.kind)
        if not answers and not self._reminds:
            return failures
        outcomes = self._judge(listener.watches, range(len(listener.watches)), answers, event)
        return [*failures, *outcomes] if failures else outcomes

    def _lacks(self, state: ControllerState) -> bool:
        """Whether a metric that a controller requires has had no value."""
        return any(not series.values for series in self._required[state])

    def _rest(self, kind: str) -> None:
        """Mark a kind of event as idle for now, unless something else looks at every event."""
        if not (self.needs_clock or self._intake.is_open or self._reminds):
            self.cached.idle_kinds.add(kind)

    def append(self, listener: Listener, metrics: Mapping[str, float], event: Event, *, trims: bool = True) -> None:
        """Append values to the series, then to the series computed from them.

        Args:
            trims: Whether values that no window reads again may be dropped now and then.
        """
        listener.feed(metrics)
        for family in listener.families:
            family.append_values(metrics)
        for computed in listener.computed:
            computed.update(event)
        listener.until_trim -= trims
        if not listener.until_trim:
            listener.until_trim = SLACK
            self._workspace.trim(listener.series)

    def _judge(
        self,
        watches: Sequence[TriggeredController],
        numbers: Iterable[int],
        answered: Iterable[tuple[int, object]],
        event: Event,
    ) -> Sequence[Outcome]:
        """Return the outcomes of the answers that the rules with these numbers gave at one event, in rule order."""
        if not self._reminds:
            concluded = [self._concluded(watches[number], event, answer) for number, answer in answered]
            return [outcome for outcomes in concluded for outcome in outcomes] or _NOTHING
        answers: dict[int, list[object]] = {}
        for number, answer in answered:
            answers.setdefault(number, []).append(answer)
        made: list[Outcome] = []
        for number in numbers:
            watch = watches[number]
            state = watch.state
            # Rules that wait for a metric which never comes are pending for the whole run.
            if (state.unseen or state.notices) and not self._lacks(state) and watch.is_asked(event):
                made += self._remind(watch, event)
            for answer in answers.get(number, ()):
                made += self._concluded(watch, event, answer)
        awaiting = [state for state in self._states if state.unseen or state.notices]
        self._awaits = bool(awaiting)
        # One that requires a metric which no event has carried has nothing to say until one does.
        self._reminds = any(
            all(series.bound_kind is not None for series in self._required[state]) for state in awaiting
        )
        return made or _NOTHING

    def _concluded(self, watch: TriggeredController, event: Event, answer: object) -> Iterable[Outcome]:
        given = answer.answers if isinstance(answer, MemberAnswers) else ((watch, answer),)
        return filter(None, [self._conclusions.of(asked, event, own) for asked, own in given])

    def ask(self, listener: Listener, numbers: tuple[int, ...], event: Event) -> Sequence[Outcome]:
        """Evaluate the rules with these numbers and return their outcomes."""
        if listener.ask is None or not numbers:
            return _NOTHING
        ask = listener.ask if len(numbers) == len(listener.watches) else listener.parts.get(numbers)
        if ask is None:
            code = self.policy.blueprint.part(event.kind, numbers)
            ask = listener.parts[numbers] = self._workspace.function(code)
        answers = ask(event)
        return self._judge(listener.watches, numbers, answers, event) if answers or self._reminds else _NOTHING

    def reading(self, kind: str, names: frozenset[str]) -> tuple[int, ...]:
        """Return the numbers of the rules that read one of these values of an event of this kind, or its metrics."""
        listener = self.listeners[kind]
        computed = {gauge.name for gauge in listener.gauges}
        return tuple(
            number
            for number, watch in enumerate(listener.watches)
            if any(
                not computed.isdisjoint(bound.metrics) or self._intake.brings(kind, names, bound.series)
                for bound in watch.state.declaration.bound_rules
            )
        )

    # --- warnings -----------------------------------------------------------------------------------------------

    def _remind(self, watch: TriggeredController, event: Event) -> list[RuleWarning]:
        """Warn once of each series that has not appeared after ``MISSING_SERIES_AFTER`` evaluations, and as noted."""
        state, place, lag = watch.state, fields_of(watch, event), lag_of(event)
        texts, state.notices = list(state.notices), ()
        if state.unseen:
            state.evaluations += 1
            missing = tuple(series for series in state.unseen if series.bound_kind is None)
            state.unseen = missing if state.evaluations < MISSING_SERIES_AFTER else ()
            if not state.unseen:
                texts += [missing_series(state.declaration, series.key, self._intake.seen) for series in missing]
        return [RuleWarning(*place, warning=text, value_lag=lag) for text in texts]

    # --- queries ------------------------------------------------------------------------------------------------

    def never_recorded(self) -> list[str]:
        """Return one line for each series that rules read and no event has carried, if no warning has named it.

        Also for each that a controller requires and does not read, if all that it reads have come and one that is
        called nearly so: a run need not have what rules require, but a misspelt name waits in vain.
        """
        readers: dict[SeriesKey, list[Controller]] = {}
        for state in self._states:
            missing = [series.key for series in state.unseen if series.bound_kind is None]
            if self._lacks(state):
                required = [series.key for series in self._required[state] if series.bound_kind is None]
                waiting = [] if missing else [key for key in required if key not in state.declaration.series_read]
                missing = [key for key in waiting if get_close_matches(key.name, self._intake.seen, n=1, cutoff=0.8)]
            for key in missing:
                readers.setdefault(key, []).append(state.declaration)
        return [never_recorded(declared, key, self._intake.seen) for key, declared in readers.items()]

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Failures of each controller's rule and each metric, by name; those that never failed are left out."""
        counts: dict[str, int] = {}
        named = [(state.declaration.name, state.error_count) for state in self._states]
        named += [(classifier.name, classifier.error_count) for classifier in self._classifiers]
        named += [(gatekeeper.name, gatekeeper.error_count) for gatekeeper in self._intake.gatekeepers]
        for name, count in [*named, *((gauge.name, gauge.error_count) for gauge in self.gauges)]:
            if count:
                counts[name] = counts.get(name, 0) + count
        return MappingProxyType(counts)

    def kinds_read(self, controller: str) -> frozenset[str]:
        """Return the kinds of events whose numbers a controller's conditions read.

        Includes those that its metrics read; its series count as bound so far. For controllers that share a name,
        returns the kinds that any of them reads.

        Raises:
            TelemetryError: The policy has no such controller.
        """
        declared = [state.declaration for state in self._states if state.declaration.name == controller]
        rules = [rule.bound for each in declared for rule in each.conditions]
        if not rules:
            raise TelemetryError("no such controller", where=self.policy.source, got=controller)
        kinds: set[str] = set()
        for bound in rules:
            kinds.update(*(self._reads[name] for name in bound.metrics))
            kinds |= self._intake.kinds_read(bound.series)
        return frozenset(kinds)
