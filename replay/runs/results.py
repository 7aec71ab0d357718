"""The result of a backtest for one run: the recorded and the predicted outlay, and how far the record supports them."""

from __future__ import annotations

from dataclasses import dataclass

from .curves import Curve
from .detection import Detection
from .families import UNKNOWN_FAMILY, Family
from .history import UPDATES
from .human_action import Lead
from .identity import UNKNOWN, RunIdentity
from .objective import Evaluation, Objective
from .regret import regret_of, relative
from .renaming import Renames
from .replaying import Ending, LabelledOutcome

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
        return None if self.predicted is None else _difference(self.recorded.elapsed_s, self.predicted.elapsed_s)

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
        return _difference(self.recorded.checkpoint_bytes, self.predicted.checkpoint_bytes)

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
        unable: For each controller of the policy, why it could not fire; empty if it could.
        early_ends: For each controller the series that ends before half of the run, and its last step; None if none
            does.
        log_interval_steps: Typical number of steps between two logged training steps; 1 if every step is logged.
        step_unit: What its steps count: ``updates``, ``epochs``, or the name of another counter.
        renamed_at_import: The metrics that its import was asked to rename.
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
    unable: tuple[str, ...] = ()
    early_ends: tuple[tuple[str, int] | None, ...] = ()
    log_interval_steps: int = 1
    step_unit: str = UPDATES
    renamed_at_import: Renames = ()

    @property
    def fired(self) -> bool:
        """Whether any controller fired."""
        return bool(self.decisions)

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


def _difference(recorded: float | None, predicted: float | None) -> float | None:
    return None if recorded is None or predicted is None else recorded - predicted
