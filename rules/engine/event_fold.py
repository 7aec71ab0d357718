"""The state of one policy over one run, and the steps by which an event changes it.

Takes events, or parts of one whose values arrive at two times; returns outcomes. For each event, in this order: series
append its values, metrics of its kind compute in file order, and controllers with its trigger decide in file order:
rule, then patience, then the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...store.errors import TelemetryError
from ...store.events import INIT_END, PLAN, RANKS, Event, is_loop_kind
from ...store.plan import Plan, constants_in
from ..compiled.feeding import feed
from ..compiled.program import gate_name, news_name
from ..compiled.series import SLACK, News, Series
from ..compiled.workspace import Cell, Workspace
from ..language.metric_keys import keys_read
from ..language.references import ALSO_CALLED, SeriesKey
from ..language.timing import SpanTimer
from ..late_events import lag_of
from ..policy_file.declarations import Controller
from ..policy_file.policy import Policy
from ..policy_file.registration import METRIC_CLASSES
from ..semantics import FIRST_WITH_CONTEXT, FIRST_WITH_KEY_WARNINGS
from .computed_series import ComputedSeries
from .decisions import Outcome, RuleError, RuleWarning
from .gates import FiringGate, FiringLimits, shared_timers
from .metric_runners import MetricRunner, compute_all
from .missing_keys import ExpectedKeys
from .missing_series import MISSING_SERIES_AFTER, REMEMBERED_NAMES, missing_series, never_recorded
from .outcomes import OutcomeMaker, place_of
from .own_values import OwnValues
from .standing_answers import StandingAnswers
from .triggered_controllers import ControllerState, Listener, TriggeredController

#: The kind of event with which each attempt begins. What earlier ones declared late no longer holds.
_BEGIN: Final = "train_begin"

_NOTHING: Final[tuple[Outcome, ...]] = ()


class EventFold:
    """The state of one policy over one run.

    Args:
        policy: The policy that decides.
        plan: What the loop declared at the start: the length of the run, which ``TrainingState`` shows, and constants.
            ``plan`` events update it until the next attempt begins.

    Attributes:
        policy: The policy.
        clock: Its position in the run.
        needs_clock: Whether anything reads the clock.
        listeners: What an event of each kind updates and asks.
        standing: The cached answers.
        has_metrics: Whether the policy declares controller metrics.
        own: What an agreement would gather, in a training of one process; None if others are to be asked, or nobody.
    """

    def __init__(self, policy: Policy, plan: Plan = Plan()) -> None:  # noqa: B008 - a Plan is immutable
        self.policy = policy
        blueprint = policy.blueprint
        self._workspace = Workspace(blueprint.names, blueprint.needs, plan, policy.reads_ranks)
        self._series = self._workspace.series
        self.clock = self._workspace.clock
        self.needs_clock = blueprint.needs_clock
        self.listeners: dict[str, Listener] = {}
        self._gauges: list[MetricRunner] = []
        self._reads: dict[str, frozenset[str]] = {}
        self._build_metrics(plan)
        self.has_metrics = bool(self._gauges)
        # A training of one process has no agreements: its own values are those of all ranks.
        self.own = OwnValues(policy.reads_ranks) if policy.reads_ranks and plan.world_size == 1 else None
        if policy.reads_ranks:
            self.listener(RANKS).gauges.append(self._workspace.ranks)
        self._unseen = [series for series in self._series.values() if not series.key.is_derived]
        self._first_plan = plan
        self._take_constants(plan.constants)
        timers = shared_timers([controller.cooldown for controller in policy.controllers])
        self._states = [self._build_controller(controller, timers) for controller in policy.controllers]
        self._build_watches()
        self._conclusions = OutcomeMaker(policy, self._workspace)
        self._seen: dict[str, str] = {}
        self.standing = StandingAnswers()
        self._reminds = any(state.unseen for state in self._states)

    def _build_metrics(self, plan: Plan) -> None:
        expected = self._expected_keys()
        for declaration in self.policy.metrics:
            metric = METRIC_CLASSES[declaration.class_name](declaration.arguments, plan)
            cell = self._workspace.cells.setdefault(declaration.name, Cell())
            gauge = MetricRunner(declaration.name, metric, cell, self.policy.source, expected[declaration.name])
            self._gauges.append(gauge)
            self._reads[declaration.name] = self._reads.get(declaration.name, frozenset()) | metric.reads
            for kind in metric.kinds:
                self.listener(kind).gauges.append(gauge)

    def _expected_keys(self) -> dict[str, ExpectedKeys]:
        """Return the keys that rules read of each metric; none under semantics that do not warn of missing ones."""
        reads: dict[str, dict[tuple[str, ...], str]] = {metric.name: {} for metric in self.policy.metrics}
        if self.policy.semantics_version >= FIRST_WITH_KEY_WARNINGS:
            for controller in self.policy.controllers:
                for read in (read for rule in controller.bound_rules for read in keys_read(rule)):
                    reads[read.metric].setdefault(read.path, controller.name)
        return {name: ExpectedKeys(name, paths) for name, paths in reads.items()}

    def _take_constants(self, constants: Mapping[str, float]) -> None:
        """Append constants that the loop declared to their series, unless an event feeds these."""
        for key, series in self._series.items():
            if key.kind is None and key.name in constants and series.bound_kind in (None, PLAN):
                series.bound_kind = PLAN
                series.append(float(constants[key.name]))
        self._unseen = [series for series in self._unseen if series.bound_kind is None]

    def declare(self, event: Event, concerns: Callable[[str], bool] = lambda _: True, *, is_whole: bool = True) -> None:
        """Fold a ``plan`` event, or a part of it.

        Args:
            concerns: Whether to take a constant, by its name.
            is_whole: Whether controller metrics take the plan, too.
        """
        constants = {name: value for name, value in constants_in(event.attrs).items() if concerns(name)}
        self._take_plan(self.clock.plan.updated(event.attrs), constants, self._gauges if is_whole else ())

    def _take_plan(self, plan: Plan, constants: Mapping[str, float], gauges: Iterable[MetricRunner]) -> None:
        """Continue under another plan, of which these constants are new."""
        self.standing.forget()
        self.clock.plan = plan
        for gauge in gauges:
            gauge.take_plan(plan)
        self._take_constants(constants)

    def _begin_anew(self) -> None:
        """Return to the plan of the start."""
        before, first = self.clock.plan.constants, self._first_plan
        changed = {name: value for name, value in first.constants.items() if before[name] != value}
        self._take_plan(first, changed, self._gauges)

    def _build_controller(self, controller: Controller, timers: Mapping[str, SpanTimer]) -> ControllerState:
        cooldown = controller.cooldown
        timer = None if cooldown is None else timers.get(cooldown.name) or SpanTimer(cooldown.span)
        past = self._workspace.pasts[controller.name]
        state = ControllerState(
            controller, self._workspace, FiringLimits(past, is_once=controller.is_once, cooldown=timer)
        )
        state.unseen = self._unseen_of(controller)
        return state

    def _build_watches(self) -> None:
        for kind, asked in self.policy.blueprint.asked.items():
            listener = self.listener(kind)
            for index, trigger in zip(asked.controllers, asked.triggers, strict=True):
                state = self._states[index]
                declared = state.declaration
                gate = FiringGate(state.restraint, self.clock, declared.patience, declared.hold)
                name = gate_name(kind, len(listener.watches))
                self._workspace.variables[name] = gate
                if declared.awaits_value and declared.rule.bound.driver is not None:
                    self._workspace.variables[news_name(name)] = News(self._series[declared.rule.bound.driver])
                listener.watches.append(TriggeredController(state, trigger, gate))
            listener.ask = self._workspace.function(asked.code)
            listener.keeps_answers = asked.keeps_answers

    def _unseen_of(self, controller: Controller) -> tuple[Series, ...]:
        """Return the series that a controller's rule reads and that no event has fed yet, to warn if none ever does.

        Empty if the policy lists its series. Derived series are left out.
        """
        if self.policy.series is not None:
            return ()
        series = (self._series[key] for key in controller.rule.bound.series)
        return tuple(each for each in series if not each.key.is_derived and each.bound_kind is None)

    def listener(self, kind: str) -> Listener:
        """Return what an event of this kind updates and asks."""
        return self.listeners.setdefault(kind, Listener())

    # --- input --------------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> Sequence[Outcome]:
        """Fold an event whose values are all there."""
        kind = event.kind
        if is_loop_kind(kind):
            if self.needs_clock:
                self.clock.take(event)
            if self._unseen:
                self.greet(event.metrics, kind)
            if self.own is not None:
                event = self.own.whole(event)
            if kind == _BEGIN and self.clock.plan is not self._first_plan:
                self._begin_anew()
        elif kind == PLAN:
            self.declare(event)
        listener = self.listeners.get(kind)
        if listener is None:
            self._rest(kind)
            return _NOTHING
        return _NOTHING if kind == INIT_END else self.take_whole(listener, event)

    def renew_controllers(self) -> None:
        """Let all controllers start fresh: patience, past decisions, and what was already reported."""
        self.standing.forget()
        for gauge in self._gauges:
            gauge.renew()
        for state in self._states:
            state.forget(self._unseen_of(state.declaration))
            state.restraint.renew()
        self._reminds = any(state.unseen for state in self._states)
        for listener in self.listeners.values():
            for watch in listener.watches:
                watch.gate.renew()

    def greet(self, metrics: Mapping[str, float | None], kind: str) -> None:
        """Bind each unbound series that these metrics contain to this kind of event, which feeds it from now on.

        Also remembers the metrics' names, for the warning about missing series.
        """
        if not metrics or not self._unseen:
            return
        if self._reminds and len(self._seen) < REMEMBERED_NAMES:
            self._seen.update(dict.fromkeys(metrics, kind))
        for series in self._unseen:
            name = self._name_among(series.key, metrics)
            if name is not None and series.key.kind in (None, kind):
                self._bind(series, name, kind)
        still_unseen = [series for series in self._unseen if series.bound_kind is None]
        if len(still_unseen) < len(self._unseen):
            listener = self.listener(kind)
            listener.feed = feed([name for name, _ in listener.feeds], [taker for _, taker in listener.feeds])
        self._unseen = still_unseen

    def _name_among(self, key: SeriesKey, metrics: Collection[str]) -> str | None:
        """Return the name under which an event carries a series; None when it does not."""
        if key.name in metrics:
            return key.name
        other = ALSO_CALLED.get(key.name)
        return other if other in metrics and self.policy.semantics_version >= FIRST_WITH_CONTEXT else None

    def _bind(self, series: Series, name: str, kind: str) -> None:
        """Let events of a kind feed a series and the series computed from it."""
        self.standing.forget()
        listener = self.listener(kind)
        series.bound_kind = kind
        listener.series.append(series)
        listener.feeds.append((name, series.values.append if series.is_plain else series.append))
        for computation in self.policy.blueprint.computations:
            target = self._series[computation.key]
            if target.bound_kind is None and self._series[computation.driver].bound_kind == kind:
                target.bound_kind = kind
                function = self._workspace.function(computation.code)
                listener.computed.append(ComputedSeries(function, self._series[computation.driver], target))
                listener.series.append(target)

    def take_whole(self, listener: Listener, event: Event) -> Sequence[Outcome]:
        """Fold an event after clock and bindings: series, metrics, rules."""
        changes = listener.series or listener.gauges
        if changes and self.standing.listeners:
            self.standing.forget()
        if listener.series:
            self.append(listener, event.metrics, event)
        failures = self.compute(listener, event) if listener.gauges else _NOTHING
        if listener.ask is None:
            if not changes:
                self._rest(event.kind)
            return failures
        answers = listener.answers
        if answers is None:
            answers = listener.ask(event)
            if listener.keeps_answers and not changes:
                self.standing.keep(listener, answers)
                if not answers:
                    self._rest(event.kind)
        if not answers and not self._reminds:
            return failures
        outcomes = self._judge(listener.watches, range(len(listener.watches)), answers, event)
        return [*failures, *outcomes] if failures else outcomes

    def _lacks(self, controller: Controller) -> bool:
        """Whether a metric that a controller requires has had no value."""
        return any(not self._series[SeriesKey(name)].values for name in controller.requires)

    def _rest(self, kind: str) -> None:
        """Mark a kind of event as idle for now, unless something else looks at every event."""
        if not (self.needs_clock or self._unseen or self._reminds):
            self.standing.idle_kinds.add(kind)

    def append(self, listener: Listener, metrics: Mapping[str, float], event: Event, *, trims: bool = True) -> None:
        """Append values to the series, then to the series computed from them.

        Args:
            trims: Whether values that no window reads again may be dropped now and then.
        """
        listener.feed(metrics)
        for computed in listener.computed:
            computed.update(event)
        listener.until_trim -= trims
        if not listener.until_trim:
            listener.until_trim = SLACK
            self._workspace.trim(listener.series)

    def compute(self, listener: Listener, event: Event) -> Sequence[RuleError | RuleWarning]:
        """Compute the controller metrics of an event's kind; return first failures and warnings."""
        return compute_all(listener.gauges, event)

    def _judge(
        self,
        watches: Sequence[TriggeredController],
        numbers: Iterable[int],
        answered: Iterable[tuple[int, object]],
        event: Event,
    ) -> Sequence[Outcome]:
        """Return the outcomes of the answers that the rules with these numbers gave at one event, in rule order."""
        conclude = self._conclusions.of
        if not self._reminds:
            concluded = [conclude(watches[number], event, answer) for number, answer in answered]
            return [outcome for outcome in concluded if outcome is not None] or _NOTHING
        answers = dict(answered)
        outcomes: list[Outcome] = []
        for number in numbers:
            watch = watches[number]
            if watch.state.unseen and watch.is_asked(event) and not self._lacks(watch.state.declaration):
                outcomes += self._remind(watch, event)
            outcome = conclude(watch, event, answers[number]) if number in answers else None
            if outcome is not None:
                outcomes.append(outcome)
        self._reminds = any(state.unseen for state in self._states)
        return outcomes or _NOTHING

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
        listener = self.listener(kind)
        computed = {gauge.name for gauge in listener.gauges}
        return tuple(
            number
            for number, watch in enumerate(listener.watches)
            if any(
                not computed.isdisjoint(bound.metrics) or any(self._is_among(key, kind, names) for key in bound.series)
                for bound in watch.state.declaration.bound_rules
            )
        )

    def _is_among(self, key: SeriesKey, kind: str, names: frozenset[str]) -> bool:
        is_fed = key.kind in (None, kind) and self._series[key].bound_kind in (None, kind)
        return is_fed and not key.is_derived and not names.isdisjoint((key.name, ALSO_CALLED.get(key.name, key.name)))

    # --- warnings -----------------------------------------------------------------------------------------------

    def _remind(self, watch: TriggeredController, event: Event) -> list[RuleWarning]:
        """Warn once of each series that has not appeared after ``MISSING_SERIES_AFTER`` evaluations."""
        state = watch.state
        state.evaluations += 1
        if state.evaluations < MISSING_SERIES_AFTER:
            state.unseen = tuple(series for series in state.unseen if series.bound_kind is None)
            return []
        missing = [series for series in state.unseen if series.bound_kind is None]
        state.unseen = ()
        place, lag = place_of(watch, event), lag_of(event)
        return [
            RuleWarning(*place, warning=missing_series(state.declaration, series.key, self._seen), value_lag=lag)
            for series in missing
        ]

    # --- queries ------------------------------------------------------------------------------------------------

    def never_recorded(self) -> list[str]:
        """Return one line for each series that rules read and no event has carried, if no warning has named it."""
        readers: dict[SeriesKey, list[Controller]] = {}
        for state in self._states:
            for series in () if self._lacks(state.declaration) else state.unseen:
                if series.bound_kind is None:
                    readers.setdefault(series.key, []).append(state.declaration)
        return [never_recorded(declared, key, self._seen) for key, declared in readers.items()]

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Failures of each controller's rule and each metric, by name; those that never failed are left out."""
        counts: dict[str, int] = {}
        named = [(state.declaration.name, state.error_count) for state in self._states]
        for name, count in [*named, *((gauge.name, gauge.error_count) for gauge in self._gauges)]:
            if count:
                counts[name] = counts.get(name, 0) + count
        return MappingProxyType(counts)

    def kinds_read(self, controller: str) -> frozenset[str]:
        """Return the kinds of events whose numbers a controller's rule reads.

        Includes those that its metrics read; its series count as bound so far. For controllers that share a name,
        returns the kinds that any of them reads.

        Raises:
            TelemetryError: The policy has no such controller.
        """
        rules = [s.declaration.rule.bound for s in self._states if s.declaration.name == controller]
        if not rules:
            raise TelemetryError("no such controller", where=self.policy.source, got=controller)
        kinds: set[str] = set()
        for bound in rules:
            kinds.update(*(self._reads[name] for name in bound.metrics))
            kinds.update(kind for key in bound.series if (kind := self._series[key].bound_kind or key.kind))
        return frozenset(kinds)
