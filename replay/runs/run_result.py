"""What a policy comes to on one run: the labelled outcomes, where the run ends, what it costs and saves, as values.

The replay of a policy and its scorer make them; verdicts, tables and pages are functions of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from ...rules.effects import Effect
from ...rules.engine.decisions import Cleared, Decision, Outcome, RuleError
from ...rules.policy_file.policy import Policy
from ...rules.readings.first_events import Never
from ...store.event_json import encoded
from .incidents import Detection, IncidentLabels
from .metric_names import Renames
from .objective import UPDATES, Curve, Evaluation, Objective, Saves, regret_of, relative
from .risk import CONFIDENCE, DEFAULT_RISK, Risk
from .run_families import UNKNOWN_FAMILY, Family


class Validity(StrEnum):
    """The degree to which the recorded run supports a decision of a policy that it did not run under.

    Attributes:
        OBSERVED: The recorded run decided this too.
        EXACT: A message, log line, notice, checkpoint or evaluation: the trajectory stays the same.
        PREFIX_EXACT: A stop: the record up to it is exact, and the rest of the record is the cost of not stopping.
        APPROXIMATE: As for EXACT or PREFIX_EXACT, but live the decision might have come at another step. Either the
            policy and the recorded run have by then made different checkpoints or evaluations, and the rule reads the
            clock, which these shift, or the events of the checkpoints. Or the controller counts training steps, and the
            log holds only some of them. Or it reads all ranks, and the log holds nothing gathered of them. Or it reads
            the plan, and nobody declared the one that it was given.
        CENSORED: The run would have diverged here or earlier: the record does not show how.
    """

    OBSERVED = "observed"
    EXACT = "exact"
    PREFIX_EXACT = "prefix-exact"
    APPROXIMATE = "approximate"
    CENSORED = "censored"


@dataclass(frozen=True, slots=True)
class LabelledOutcome:
    """One outcome of a replay and its position in the stream.

    Attributes:
        event_index: Index of the event among the stream's events, outcomes of recorded rules not counted. -1 for
            ``init_end``.
        event: That event's kind.
        outcome: The outcome of a rule.
        validity: The decision's label; None for any other outcome.
        elapsed_ns: Training time up to the event, summed over the attempts that led to it; None when the log has none.
    """

    event_index: int
    event: str
    outcome: Outcome
    validity: Validity | None
    elapsed_ns: int | None = None

    @property
    def decided_at(self) -> int:
        """Updates that the loop had finished by then: more than the outcome's step if values came late."""
        return self.outcome.step + self.outcome.value_lag

    @property
    def shown_values(self) -> Mapping[str, object]:
        """The readings of a decision, or of one that was cleared, as JSON holds them; empty for another outcome."""
        return encoded(self.outcome.values) if isinstance(self.outcome, Decision | Cleared) else {}

    def to_json(self) -> dict[str, object]:
        """Return the line that ``steptape replay --json`` prints."""
        outcome = self.outcome
        place: dict[str, object] = {"event_index": self.event_index, "event": self.event, "step": outcome.step}
        if outcome.value_lag:
            place["value_lag"] = outcome.value_lag
        if outcome.member:
            place["member"] = outcome.member
        if isinstance(outcome, Decision):
            return {
                **place,
                "controller": outcome.controller,
                "operations": list(outcome.operations),
                "values": self.shown_values,
                "validity": str(self.validity),
                **({} if outcome.acts else {"mode": outcome.mode}),
                **({"severity": outcome.severity} if outcome.severity else {}),
                **({"message": outcome.message} if outcome.message else {}),
                **({"stage": outcome.stage} if outcome.stage else {}),
                **({"not_ordered": dict(outcome.not_ordered)} if outcome.not_ordered else {}),
            }
        if isinstance(outcome, Cleared):
            raised = {"controller": outcome.controller, "raised_at": outcome.raised_at}
            return {**place, **raised, "values": self.shown_values}
        if isinstance(outcome, RuleError):
            return {**place, "controller": outcome.controller, "error": outcome.error}
        return {**place, "controller": outcome.controller, "warning": outcome.warning}


@dataclass(frozen=True, slots=True)
class Ending:
    """A position in a stream. A stop takes effect at the end of an iteration, where loops check their flags.

    Attributes:
        event_index: Index of the last event that still counts.
        step: Optimizer updates finished by then.
        elapsed_ns: Training time up to that event; None when the log has none.
    """

    event_index: int
    step: int
    elapsed_ns: int | None


@dataclass(frozen=True)
class Replay:
    """The replay of a policy over one recorded stream.

    Attributes:
        policy: The policy.
        outcomes: Outcomes of its rules in stream order; the fold continues after a stop, as the recorded run did.
        error_counts: Rule errors by controller; ``outcomes`` has the first of each.
        event_count: Events folded.
        censored_from: Index of the event after which the record does not show this policy's run; None if it always
            does.
        ending: Where the first stop would have taken effect; None without one.
        approximate_from: Index of the event after which the policy's clock would have differed from the recorded one,
            because different checkpoints or evaluations take different time. None if it never would, or if no rule
            reads the clock.
        horizon: The position of ``censored_from`` in steps and time; None if nothing is censored.
        step_interval: Typical number of steps between two logged training steps; 1 if every step is logged.
        counting: Names of the controllers whose decisions depend on the number of logged steps; empty if every step is
            logged.
        saves: Whether the loop's own checkpoints remain.
        saves_differ_from: Index of the event from which the policy's checkpoints differ from the recorded ones. None if
            they never do, or if no rule depends on the events of checkpoints.
        on_made_up_ranks: Names of the controllers that read values of all ranks, where the log holds none gathered.
        unplaced: Metrics that an import could not place, if a decision depends on them.
        on_assumed_plan: Names of the controllers that read the plan, where nobody declared it.
    """

    policy: Policy
    outcomes: tuple[LabelledOutcome, ...]
    error_counts: dict[str, int] = field(default_factory=dict)
    event_count: int = 0
    censored_from: int | None = None
    ending: Ending | None = None
    horizon: Ending | None = None
    approximate_from: int | None = None
    step_interval: int = 1
    counting: frozenset[str] = frozenset()
    saves: Saves = Saves.KEEP
    saves_differ_from: int | None = None
    on_made_up_ranks: frozenset[str] = frozenset()
    unplaced: frozenset[str] = frozenset()
    on_assumed_plan: frozenset[str] = frozenset()

    @cached_property
    def decisions(self) -> tuple[LabelledOutcome, ...]:
        """The controllers that fired."""
        return tuple(judged for judged in self.outcomes if isinstance(judged.outcome, Decision))

    @cached_property
    def stop(self) -> LabelledOutcome | None:
        """The first decision that would have ended the run."""
        return next((judged for judged in self.decisions if Effect.STOP in self.effects(judged)), None)

    @cached_property
    def reached(self) -> tuple[LabelledOutcome, ...]:
        """The decisions up to the end of the run under this policy."""
        if self.ending is None:
            return self.decisions
        return tuple(judged for judged in self.decisions if judged.event_index <= self.ending.event_index)

    @property
    def is_point(self) -> bool:
        """Whether the record shows all of the run under this policy."""
        return is_shown(None if self.stop is None else self.stop.event_index, self.censored_from)

    def effects(self, judged: LabelledOutcome) -> set[Effect]:
        """Return what a decision would have done to the loop."""
        return effects_of(self.policy, judged.outcome)


#: Effects that change a run's trajectory other than by ending it.
DIVERTING: Final = frozenset((Effect.STOP_EPOCH, Effect.STEER, Effect.ACT))


def is_shown(stop: int | None, censored_from: int | None) -> bool:
    """Whether a record shows all of a run: nothing is censored, or the stop comes before the censored part.

    Args:
        stop: Index of the event of the first stop; None without one.
        censored_from: Index of the event after which the record does not show the run; None if it always does.
    """
    return censored_from is None or (stop is not None and stop < censored_from)


def effects_of(policy: Policy, outcome: Outcome) -> set[Effect]:
    """Return what an outcome would have done to the loop; a shadow decision does nothing."""
    if not isinstance(outcome, Decision) or not outcome.acts:
        return set()
    return {policy.effects(name) for name in outcome.operations}


def drops_own_checkpoints(policy: Policy, saves: Saves) -> bool:
    """Whether the policy's checkpoints replace the loop's own."""
    return saves is Saves.REPLACE and policy.asks_for_checkpoints


@dataclass(frozen=True, slots=True)
class BacktestSettings:
    """Settings of a backtest.

    Attributes:
        delay_steps: Updates that the loop still makes between the decision to stop and the stop.
        labels: Incidents by run; if None, those that annotations label.
        tolerance_steps: Steps around an incident within which an alarm still counts as true.
        renames: The metrics to rename, as policies call them.
        saves: Whether the loop's own checkpoints remain.
        family: The key of families; None for the default.
        plans_by_length: Whether a completed run without a plan counts as planned for its length.
        risk: What a stop may lose.
        confidence: How sure the answer must be, above 0 and below 1.
    """

    delay_steps: int = 0
    labels: IncidentLabels | None = None
    tolerance_steps: int = 0
    renames: Renames = ()
    saves: Saves = Saves.KEEP
    family: str | None = None
    plans_by_length: bool = False
    risk: Risk = DEFAULT_RISK
    confidence: float = CONFIDENCE


DEFAULT_SETTINGS = BacktestSettings()


SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Outlay:
    """The cost and yield of a run, as recorded or as predicted.

    Attributes:
        steps: Optimizer updates.
        elapsed_s: Seconds, with what comes after the last step; None when the log has no times.
        checkpoints: Number of checkpoints written.
        checkpoint_bytes: Their total size; None when unknown.
        best, best_step: Best value of the objective and its step; None without evaluations.
        final: Last value of the objective; None without evaluations.
        deployable, deployable_step: The best evaluation at a step that has a checkpoint; None without any.
        evaluations: Number of evaluations made.
        checkpoints_restored: Checkpoints from which an attempt of the run resumed; no attempt needed the others.
    """

    steps: int
    elapsed_s: float | None
    checkpoints: int
    checkpoint_bytes: int | None
    best: float | None
    best_step: int | None
    final: float | None
    deployable: float | None = None
    deployable_step: int | None = None
    evaluations: int = 0
    checkpoints_restored: int = 0

    @property
    def checkpoints_wasted(self) -> int:
        """Checkpoints from which no attempt resumed."""
        return self.checkpoints - self.checkpoints_restored


@dataclass(frozen=True, slots=True)
class HumanAction:
    """The first thing that a person did about a run.

    Attributes:
        what: The action's name in the annotation; ``interrupt`` for an interrupted run.
        step: Optimizer updates finished by then.
        elapsed_s: Training time up to it, in seconds; None when the log has no times.
    """

    what: str
    step: int
    elapsed_s: float | None


@dataclass(frozen=True, slots=True)
class Lead:
    """A person's action compared with the policy's.

    Attributes:
        action: The person's action.
        policy_step: Step at which the policy acted: its stop, or its first decision if it cannot stop. None if it did
            not.
        steps: Updates by which the policy is earlier; negative when it is later, None when it does not act.
        seconds: The same in seconds of training; None also when the log has no times.
    """

    action: HumanAction
    policy_step: int | None
    steps: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SeqRange:
    """The range of events of one attempt in a stream.

    Attributes:
        attempt, rank: The attempt and rank that wrote the events.
        first, last: ``seq`` of the first and the last event.
    """

    attempt: int
    rank: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The identity of a run's result: its log, events and decisions.

    Attributes:
        log_digest: Digest of everything the run recorded, as kept at its end (``Run.log_digest``); empty if none was
            kept.
        seq_ranges: The folded events, one range per attempt of the lineage, in order.
        decision_digest: Digest of the outcomes up to the run's end under the policy: decisions, rule errors and
            warnings, as ``steptape.rules.decision_digest`` computes it.
        event_count: Number of events folded; the outcomes of recorded rules are not counted.
    """

    log_digest: str = ""
    seq_ranges: tuple[SeqRange, ...] = ()
    decision_digest: str = ""
    event_count: int = 0


UNKNOWN = RunIdentity()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a policy saves and costs on one run, in the outlay as recorded and as predicted.

    Attributes:
        recorded: The outlay as recorded.
        predicted: The outlay under the policy; None where the record cannot say (see ``notes``).
        objective: The metric that judges the run; None if no evaluation of it says how good it is.
    """

    recorded: Outlay
    predicted: Outlay | None
    objective: Objective | None = None

    @property
    def steps_saved(self) -> int | None:
        """Optimizer updates that the policy would have saved; None where the prediction is unknown."""
        return None if self.predicted is None else self.recorded.steps - self.predicted.steps

    @property
    def share_saved(self) -> float | None:
        """Share of the recorded updates saved; None where that is unknown or the run has no updates."""
        saved = self.steps_saved
        return saved / self.recorded.steps if saved is not None and self.recorded.steps else None

    @property
    def seconds_saved(self) -> float | None:
        """Seconds from the stop to the last step; None when the log has no times."""
        return None if self.predicted is None else excess(self.recorded.elapsed_s, self.predicted.elapsed_s)

    @property
    def checkpoints_saved(self) -> int | None:
        """Checkpoints fewer than recorded; negative when the policy writes more, None where unknown."""
        return None if self.predicted is None else self.recorded.checkpoints - self.predicted.checkpoints

    @property
    def evaluations_saved(self) -> int | None:
        """Evaluations fewer than recorded; negative when the policy asks for more, None where unknown."""
        return None if self.predicted is None else self.recorded.evaluations - self.predicted.evaluations

    @property
    def bytes_saved(self) -> float | None:
        """Bytes of checkpoints fewer than recorded; None when sizes are unknown."""
        if self.predicted is None:
            return None
        return excess(self.recorded.checkpoint_bytes, self.predicted.checkpoint_bytes)

    @property
    def regret(self) -> float | None:
        """How much worse the best value up to the stop is than the run's best; None without evaluations."""
        if self.objective is None or self.predicted is None:
            return None
        return regret_of(self.objective, self.predicted.best, self.recorded.best)

    @property
    def relative_regret(self) -> float | None:
        """The regret over the magnitude of the run's best; None where that is too near zero to divide by."""
        return relative(self.regret, self.recorded.best)

    @property
    def deployable_regret(self) -> float | None:
        """How much worse the best value with a checkpoint is than the recorded run's best with one.

        Negative where the policy's checkpoints are better; None where either side has no evaluated checkpoint.
        """
        if self.objective is None or self.predicted is None:
            return None
        return regret_of(self.objective, self.predicted.deployable, self.recorded.deployable)

    @property
    def relative_deployable_regret(self) -> float | None:
        """The same over the magnitude of the run's best with a checkpoint; None where that is too near zero."""
        return relative(self.deployable_regret, self.recorded.deployable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Prediction):
    """A policy's outcome on one run.

    Attributes:
        run_id, name, status: The run.
        stop: The decision that would have ended the run; None if there is none.
        decisions: All labelled decisions up to the run's end under the policy, the stop included.
        error_counts: Rule errors by controller.
        ranks: Processes that trained together: an hour of the run costs this many rank hours.
        notes: Limitations of the numbers.
        certain: Where ``predicted`` is None, the outlay up to the event where the record becomes censored. It holds
            whatever the run would have become, though a rollback takes such evaluations out of its history. None
            otherwise.
        right_censored: Why the run might have continued, so that savings and regret are lower bounds; empty if it ran
            as long as planned.
        planned_steps: Planned optimizer updates; None when the plan gives none.
        evaluations: The recorded values of the objective, in order.
        curves: Downsampled curves of its recorded metrics, for plots.
        detection: How the alarms match the labelled incidents; None if the run has no labels.
        saved_steps: Steps of its recorded checkpoints.
        ending: Where the stop takes effect; None without one.
        began_ns, ended_ns: Wall clock at the first and the last event; 0 when the log has none.
        human: What a person did about the run, and how much earlier the policy acts; None when no person acted.
        identity: The log, events and decisions that the result rests on.
        family: The runs that it is not independent of.
        could_not_fire: Why the policy could not fire, whatever the values in the run; empty if it could. A policy that
            stops or steers could fire if one of the controllers that do could.
        unable: For each controller of the policy, why it could not fire; None if it could.
        early_ends: For each controller the series that ends before half of the run, and its last step; None if none
            does.
        log_interval_steps: Typical number of steps between two logged training steps; 1 if every step is logged.
        step_unit: What its steps count: ``updates``, ``epochs``, or the name of another counter.
        renamed_at_import: The metrics that its import was asked to rename.
        source: Path of the log that it was imported from; empty for a recorded run.
        ended_by_rules: Whether its own rules ended it.
        is_changed: Whether the policy changes its training, so that no record shows the rest.
    """

    run_id: str
    name: str
    status: str
    stop: LabelledOutcome | None
    decisions: tuple[LabelledOutcome, ...]
    error_counts: dict[str, int]
    ranks: int
    notes: tuple[str, ...] = ()
    certain: Outlay | None = None
    right_censored: str = ""
    planned_steps: int | None = None
    evaluations: tuple[Evaluation, ...] = ()
    curves: tuple[Curve, ...] = ()
    detection: Detection | None = None
    saved_steps: frozenset[int] = frozenset()
    ending: Ending | None = None
    began_ns: int = 0
    ended_ns: int = 0
    human: Lead | None = None
    identity: RunIdentity = UNKNOWN
    family: Family = UNKNOWN_FAMILY
    could_not_fire: str = ""
    unable: tuple[Never | None, ...] = ()
    early_ends: tuple[tuple[str, int] | None, ...] = ()
    log_interval_steps: int = 1
    step_unit: str = UPDATES
    renamed_at_import: Renames = ()
    source: str = ""
    ended_by_rules: bool = False
    is_changed: bool = False

    @property
    def fired(self) -> bool:
        """Whether any controller fired."""
        return bool(self.decisions)

    @property
    def is_stopped(self) -> bool:
        """Whether the policy stops it, as far as is known: after a change of the training no record shows a stop."""
        return self.stop is not None and self.predicted is not None

    @property
    def leaves_no_weights(self) -> bool:
        """Whether its stop comes before the first checkpoint of a run that recorded some."""
        has_none = self.predicted is not None and not self.predicted.checkpoints
        return self.is_stopped and has_none and self.recorded.checkpoints > 0

    @property
    def evaluations_after(self) -> int:
        """Recorded evaluations after the stop. Without any, its regret is zero whatever the stop costs."""
        return 0 if self.ending is None else sum(one.event_index > self.ending.event_index for one in self.evaluations)

    @property
    def rank_hours_saved(self) -> float | None:
        """Hours saved, summed over all ranks; None when the log has no times."""
        seconds = self.seconds_saved
        return None if seconds is None else seconds * self.ranks / SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Excluded:
    """A run that was excluded from a backtest or from a statistic, and the reason."""

    run_id: str
    name: str
    reason: str


def excess(value: float | None, over: float | None) -> float | None:
    """Return how much more a value is than another; None unless both are known."""
    return None if value is None or over is None else value - over


@dataclass(frozen=True, slots=True)
class ControllerConduct:
    """The counts of one controller in one run.

    Attributes:
        decisions: How often it fired.
        flaps: How often it fired again after its rule had turned false since the last time.
        pending_steps: Updates during which its rule was true but it had not fired yet: patience and ``for`` held it
            back. They count whether or not it fired in the end.
    """

    decisions: int = 0
    flaps: int = 0
    pending_steps: int = 0


@dataclass(frozen=True, slots=True)
class Conduct:
    """All controllers of a policy in one run.

    Attributes:
        controllers: One entry per controller, in file order.
        answered: Names of the probes and controllers that ever fired, also after the run's end under the policy.
        causes: The clauses that were true at each decision, by event index and controller name. A rule without clauses
            is its own clause.
    """

    controllers: tuple[ControllerConduct, ...]
    answered: frozenset[str]
    causes: Mapping[tuple[int, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ClauseCoverage:
    """The coverage of one clause.

    Attributes:
        text: The clause in the rule's text; the whole rule for the rule itself.
        true_runs, false_runs: Number of runs in which it was ever true, and ever false.
        runs: Number of all runs.
    """

    text: str
    true_runs: int
    false_runs: int
    runs: int

    @property
    def is_evaluable(self) -> bool:
        """Whether the clause was ever true or false."""
        return bool(self.true_runs or self.false_runs)


@dataclass(frozen=True, slots=True)
class ControllerCoverage:
    """The coverage of one controller.

    Attributes:
        controller: Its name.
        fired_runs: Number of runs in which it decided anything.
        rule: Coverage of its rule as a whole.
        clauses: Coverage of the operands of its ``and``, ``or`` and ``not``, in order; empty for a rule without any.
        decisions: How often it fired, up to the end of each run under the policy; the next two count likewise.
        flaps: How often it fired again after its rule had turned false since the last time.
        pending_steps: Updates during which its rule was true and patience or ``for`` held it back.
    """

    controller: str
    fired_runs: int
    rule: ClauseCoverage
    clauses: tuple[ClauseCoverage, ...]
    decisions: int = 0
    flaps: int = 0
    pending_steps: int = 0
