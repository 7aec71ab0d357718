"""Passes live events to the rule engine and applies its decisions to the loop's control flags and callbacks.

At the end of a run it warns of rules that never decided.

Loaded only when rules are given: the rule engine is more than half of the modules that a recorder with rules loads.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..rules.checks.finding_codes import FindingCode
from ..rules.checks.findings import findings_of
from ..rules.effects import NOTICE, Effect, in_order, is_call, orders_undo
from ..rules.engine.decisions import Cleared, Decision, DecisionDigest, Outcome, RuleError, outcome_payload
from ..rules.engine.engine import Engine
from ..rules.language.name_patterns import MetricNames
from ..rules.policy_file.declarations import Controller
from ..rules.policy_file.policy import Policy
from ..rules.readings.milestone import Milestone
from ..rules.readings.reading import Extent, Reading
from ..store.events import INIT_END, RANKS, Event, is_loop_kind
from .advice import Advice
from .control import FLAGS, Callbacks

logger = logging.getLogger("steptape.rules")

_ORDER: Final = "step %d, %s: controller '%s' orders %s"
_CLEARED: Final = "step %d, %s: controller '%s', raised at step %d, is cleared"
_LEVELS: Final[Mapping[str, int]] = logging.getLevelNamesMapping()

#: The logging level of a decision's message, by its severity.
_SEVERITY_LEVELS: Final[Mapping[str, int]] = {"warning": logging.WARNING, "critical": logging.CRITICAL}

#: Updates after which a loop that continues is taken to ignore a stop.
_IGNORED_STEPS: Final = 10

#: Kinds that need no call of the loop.
_RECORDERS_OWN: Final = ("train_begin", "train_end")

#: The facts that need the length of the run.
_LENGTHS: Final = ("max_steps", "progress")

#: What is said of rules that read them in vain.
_LENGTH: Final = (
    "the length of the run is read, but this run has none. Write Recorder(..., total_steps=...), or call "
    "rec.declare(total_steps=...)"
)


class Steering:
    """The engine of one attempt, with the flags and callbacks through which it steers the loop.

    User-defined operations are constructed here and called after their flag is set. Their exceptions do not reach the
    loop.

    Args:
        engine: The rules in force, in the state in which earlier attempts left them.
        callbacks: Called when an operation with their effect is decided, after its flag is set.
        order_flag: Sets the flag of an order at a step of the loop.
        order_operation: Orders the loop an operation with arguments.
        notify: Sends a notice of a decision; None if its rules order none.
        is_agreed: Whether ranks must agree on orders. No callback is called here then.
        advice: The calls that warnings name.

    Attributes:
        reads_samples: Whether the rules read sample losses.
        reads: The metrics that the rules read.
        reads_ranks: Whether the rules read all ranks.
        reads_at_evaluations: Those that no rule with another trigger than ``on_evaluate`` reads.
        derived: The values that the run records of definitions and states, until they are written.
        observe: Returns what rules decide at an event that is already in the journal. It is replaced for as long as a
            stop waits for the loop, so that other events cost no check.
    """

    def __init__(
        self,
        engine: Engine,
        callbacks: Callbacks,
        order_flag: Callable[[str, int], None],
        order_operation: Callable[[str, Decision], None],
        notify: Callable[[Decision], None] | None,
        advice: Advice,
        *,
        is_agreed: bool,
    ) -> None:
        self._advice = advice
        self._engine = engine
        self._policy = engine.policy
        self.derived = engine.derived
        self.reads_samples = engine.policy.reads_samples
        read = frozenset(key.name for key in engine.policy.blueprint.needs if not key.is_derived)
        families = frozenset(key.name for key in engine.policy.blueprint.families)
        self.reads = MetricNames(read - families, families)
        self.reads_ranks = bool(engine.policy.reads_ranks)
        self.reads_at_evaluations = self.reads.listed - {
            key.name
            for controller in engine.policy.controllers
            for bound in controller.bound_rules
            for key in bound.series
            if key.kind == "step_end" or set(controller.triggers) != {"on_evaluate"}
        }
        self._digest = DecisionDigest()
        self._order_flag, self._order_operation, self._notify = order_flag, order_operation, notify
        self._is_agreed, self._callbacks = is_agreed, callbacks
        self._operations = {entry.name: entry.operation() for entry in engine.policy.operations}
        self.observe: Callable[[Event], Sequence[Outcome]] = engine.observe
        self._stop_asked_at: int | None = None
        own = engine.policy.controllers
        self._undoing = [each.name for each in own if orders_undo(each.operations) and not each.is_shadow]

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Rule errors so far, by controller."""
        return self._engine.error_counts

    def start(self) -> Sequence[Outcome]:
        """Log what is probably wrong in the policy, and return what rules decide before the first event."""
        _warn_of(self._policy)
        return self._engine.start()

    def end(self, kinds: Collection[str] = (), unknown: Collection[str] = ()) -> None:
        """Log which rules decided nothing for want of a series, a trigger or a fact.

        Args:
            kinds: The kinds of events of a whole run; empty for a part of one. A run without any of the loop's is none.
            unknown: The facts that the loop never gave, of ``epoch``, ``max_steps`` and ``progress``.
        """
        try:
            lines = [
                *self._engine.never_recorded(),
                *_unfired_rules(self._policy.controllers, kinds, unknown, self._advice),
                *_without_samples(self._engine.lacking_samples if "step_end" in kinds else (), self._advice),
            ]
            for line in lines:
                logger.warning("%s", line)
        except Exception:  # The run has ended: no failure of this advice may reach the loop.
            logger.exception("what rules awaited could not be checked")

    @property
    def is_alarmed(self) -> bool:
        """Whether a rule that orders an undo was true when it was last judged."""
        return any(self._engine.is_true(name) for name in self._undoing)

    @property
    def decision_digest(self) -> str:
        """Digest of the outcomes that were noted as written."""
        return self._digest.hexdigest()

    def event_of(self, outcome: Outcome) -> tuple[str, Mapping[str, object]]:
        """Return kind and attributes of the event that records an outcome."""
        return outcome_payload(outcome)

    def add_written(self, outcome: Outcome) -> None:
        """Take an outcome that is in the journal into the digest."""
        self._digest.add(outcome)

    def apply(self, outcomes: Iterable[Outcome]) -> list[str]:
        """Carry out decisions in order, except shadow decisions; log all other outcomes.

        Returns:
            One line for each user-defined operation that failed.
        """
        failures: list[str] = []
        for outcome in outcomes:
            if isinstance(outcome, Decision):
                failures += self._carry_out(outcome)
            elif isinstance(outcome, Cleared):
                logger.debug(_CLEARED, outcome.step, outcome.trigger, outcome.controller, outcome.raised_at)
            elif isinstance(outcome, RuleError):
                logger.warning("%s", outcome.error)
            else:
                logger.warning("controller '%s': %s", outcome.controller, outcome.warning)
        return failures

    def _carry_out(self, decision: Decision) -> list[str]:
        if not decision.acts:
            return []
        if decision.message:
            severity_level = _SEVERITY_LEVELS.get(decision.severity, logging.INFO)
            logger.log(severity_level, "%s at step %d: %s", decision.controller, decision.step, decision.message)
        level = _LEVELS[self._policy.trigger_log_level(decision.controller, decision.trigger, decision.operations)]
        messages = iter(decision.messages)
        failures: list[str] = []
        for operation in decision.not_ordered:
            self._order_operation(operation, decision)
        for operation in in_order(decision.operations):
            logger.log(level, _ORDER, decision.step, decision.trigger, decision.controller, operation)
            effect = self._policy.effects(operation)
            if effect is Effect.MESSAGE:
                message = next(messages)
                logger.log(_LEVELS[message.level], "%s", message.text)
            if effect in FLAGS:
                self._order_flag(effect, decision.step + decision.value_lag)
            if effect is Effect.STOP and not self._is_agreed:
                self.await_stop(decision.step + decision.value_lag)
            if is_call(operation):
                self._order_operation(operation, decision)
            failures += self._act(operation, decision)
            if not self._is_agreed:
                self._callbacks.serve(effect)
        return failures

    def await_stop(self, step: int) -> None:
        """Note that the loop is asked to stop. Without a callback that may do it, watch whether the loop continues."""
        if self._stop_asked_at is None:
            self._stop_asked_at = step
            if Effect.STOP not in self._callbacks:
                self.observe = self._observe_ignored_stop

    def _observe_ignored_stop(self, event: Event) -> Sequence[Outcome]:
        """Observe an event after a stop, and warn once when the loop has ignored it for some steps."""
        asked_at = self._stop_asked_at or 0
        if event.step >= asked_at + _IGNORED_STEPS and event.kind == "step_end":
            self.observe = self._engine.observe
            what = f"a rule asked for a stop at step {asked_at}, but the loop continues at step {event.step}"
            fix = f"End it when {self._advice.control}.should_stop is true, or give callbacks={{'stop': function}}"
            fix = self._advice.serve.get("stop", fix)
            logger.warning("%s. %s", what, fix)
        return self._engine.observe(event)

    def _act(self, operation: str, decision: Decision) -> list[str]:
        """Send a notice, or call the method of a user-defined operation. Return a line if that failed."""
        name, _, action = operation.partition(".")
        method = self._notify if operation == NOTICE else getattr(self._operations.get(name), action, None)
        if method is None:
            return []
        try:
            self._callbacks.call(operation, method, decision)
        except Exception as error:  # A pager that cannot be reached must not end the training.
            logger.exception("operation %s failed; training continues", operation)
            return [f"operation {operation} failed: {traceback.format_exception_only(error)[-1].strip()}"]
        return []


def _warn_of(policy: Policy) -> None:
    """Log the findings of a policy as warnings, except the advice about NaN, which most rules of one line would get."""
    try:
        findings = findings_of(policy)
    except Exception:  # The policy has loaded: no failure of its lint may keep a training from beginning.
        logger.exception("the rules could not be checked")
        return
    for finding in findings:
        if finding.code is not FindingCode.NAN_GUARD:
            logger.warning("%s", finding)


def _unfired_rules(
    controllers: Sequence[Controller], kinds: Collection[str], unknown: Collection[str], advice: Advice
) -> Iterator[str]:
    """Yield a line for the controllers that decided nothing for want of a trigger, a fact or the values of ranks.

    Args:
        controllers: Of the policy.
        kinds: The kinds of events that the run has; nothing is yielded if the loop recorded none.
        unknown: The facts that the loop never gave.
        advice: The calls that the lines name.
    """
    if not any(is_loop_kind(kind) for kind in kinds if kind not in _RECORDERS_OWN):
        return
    yield from _never_triggered(controllers, kinds, advice)
    yield from _without_facts(controllers, unknown, advice)
    names = [each.name for each in controllers if each.ranks and {*each.triggers} != {"on_ranks"}]
    if names and RANKS not in kinds:
        what = f"{_subject(names)}: the values of all ranks are read, but this run never gathered any"
        yield f"{what}. {advice.agree}"


def _never_triggered(controllers: Iterable[Controller], kinds: Collection[str], advice: Advice) -> Iterator[str]:
    """Yield a line for the controllers whose triggers did not occur, one for each choice of triggers."""
    named: dict[tuple[str, ...], list[str]] = {}
    for controller in controllers:
        awaited = tuple(trigger.removeprefix("on_") for trigger in controller.triggers)
        if awaited and not {INIT_END, *kinds}.intersection(awaited):
            named.setdefault(awaited, []).append(controller.name)
    for awaited, names in named.items():
        fix = f"Call {' or '.join(map(advice.call, awaited))}"
        triggers = " and ".join(f"on_{kind}" for kind in awaited)
        yield f"{_subject(names)}: {triggers} did not occur in this run, so {_they(names)} decided nothing. {fix}"


def _without_facts(controllers: Sequence[Controller], unknown: Collection[str], advice: Advice) -> Iterator[str]:
    """Yield a line for the controllers whose rules read a fact that the run never had. Milestones read its length."""
    mends = {
        "epoch": f"'epoch' is read, but this run never had one. {advice.epoch}",
        **dict.fromkeys(_LENGTHS, _LENGTH),
    }
    named: dict[str, list[str]] = {}
    for controller in controllers:
        for fact in {_fact_of(reading) for reading in controller.rule.bound.references.values()}.intersection(unknown):
            named.setdefault(mends[fact], []).append(controller.name)
    for mend, names in named.items():
        yield f"{_subject(list(dict.fromkeys(names)))}: {mend}"


def _without_samples(metrics: Sequence[str], advice: Advice) -> Iterator[str]:
    """Yield a line for the controller metrics that waited for sample losses."""
    if metrics:
        names = f"controller metric{'s' * (len(metrics) > 1)} {', '.join(map(repr, metrics))}"
        what = "sample losses are read, but no step of this run had any"
        yield f"{names}: {what}, so rules that read them decided nothing. {advice.samples}"


def _fact_of(reading: Reading) -> str:
    """Return the fact about the run that a reading needs; empty for any other."""
    is_length = isinstance(reading, Milestone) and reading.extent is Extent.STEPS
    return "max_steps" if is_length else reading.fact


def _subject(names: list[str]) -> str:
    return f"controller{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def _they(names: list[str]) -> str:
    return "they" if len(names) > 1 else "it"
