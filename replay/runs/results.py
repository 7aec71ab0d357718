"""What a backtest says of one run: what it was, what it would have been, and how far the record can vouch for that."""

from __future__ import annotations

from dataclasses import dataclass

from .curves import Curve
from .detection import Detection
from .human_action import Lead
from .identity import UNKNOWN, RunIdentity
from .objective import Evaluation, Objective
from .regret import regret_of, relative
from .replaying import Ending, LabelledOutcome

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Outlay:
    """What a run costs and yields, as recorded or as it would have been.

    Attributes:
        steps: Optimizer updates.
        elapsed_s: Seconds; None when the log has no times.
        checkpoints: Number of checkpoints written.
        checkpoint_bytes: Their size in all; None when it is not known.
        best, best_step: Best value of the objective and its step; None without evaluations.
        final: Last value of the objective; None without evaluations.
        deployable, deployable_step: The best among the evaluations of steps that have a checkpoint; None without any.
        evaluations: Number of evaluations made.
        checkpoints_restored: Checkpoints from which an attempt of the run went on; the others were never needed so.
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
        """Checkpoints that no attempt went on from."""
        return self.checkpoints - self.checkpoints_restored


@dataclass(frozen=True, slots=True)
class RunResult:
    """A policy's outcome on one run.

    Attributes:
        run_id, name, status: The run.
        recorded: What the run was.
        predicted: What it would have been under the policy; None where the record cannot tell (see ``notes``).
        stop: The decision that would have ended it; None when none would.
        decisions: All decisions it would have come to, labelled, the stop included.
        error_counts: Rule errors by controller.
        notes: What limits the numbers.
        certain: Where ``predicted`` is None, what holds whatever the run would have become: what it had spent, and the
            best that it had reached, when the record ceased to vouch for it. None otherwise.
        right_censored: Why the run might have gone on, so that savings are a lower bound and the regret too; empty when
            it ran as long as it was meant to.
        ranks: Processes that trained together: what an hour of the run is multiplied by.
        planned_steps: Optimizer updates that it was meant to make; None when nobody said.
        evaluations: The recorded values of the metric of merit, in order.
        curves: The recorded course of its metrics, thinned out for plots.
        detection: How the alarms meet the labelled incidents; None where the run has no label.
        saved_steps: Steps of its recorded checkpoints.
        ending: Where the stop takes effect; None without one.
        began_ns, ended_ns: The wall clock at its first and its last event; 0 when the log has none.
        human: What a person did about the run, and how much earlier the policy is; None when nobody did anything.
        identity: Which log this was made of, and which decisions it came to.
    """

    run_id: str
    name: str
    status: str
    recorded: Outlay
    predicted: Outlay | None
    stop: LabelledOutcome | None
    decisions: tuple[LabelledOutcome, ...]
    error_counts: dict[str, int]
    notes: tuple[str, ...] = ()
    certain: Outlay | None = None
    right_censored: str = ""
    ranks: int = 1
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

    @property
    def fired(self) -> bool:
        """Whether any controller fired."""
        return bool(self.decisions)

    @property
    def steps_saved(self) -> int | None:
        """Optimizer updates that the policy would have spared."""
        return None if self.predicted is None else self.recorded.steps - self.predicted.steps

    @property
    def share_saved(self) -> float | None:
        """The same as a share of the recorded updates; None for a run without any."""
        saved = self.steps_saved
        return saved / self.recorded.steps if saved is not None and self.recorded.steps else None

    @property
    def seconds_saved(self) -> float | None:
        """Seconds that the policy would have spared; None when the log has no times."""
        return None if self.predicted is None else _difference(self.recorded.elapsed_s, self.predicted.elapsed_s)

    @property
    def rank_hours_saved(self) -> float | None:
        """Hours of all ranks together that the policy would have spared; None when the log has no times."""
        seconds = self.seconds_saved
        return None if seconds is None else seconds * self.ranks / SECONDS_PER_HOUR

    @property
    def checkpoints_saved(self) -> int | None:
        """Checkpoints fewer than recorded; negative when the policy writes more."""
        return None if self.predicted is None else self.recorded.checkpoints - self.predicted.checkpoints

    @property
    def evaluations_saved(self) -> int | None:
        """Evaluations fewer than recorded; negative when the policy asks for more."""
        return None if self.predicted is None else self.recorded.evaluations - self.predicted.evaluations

    @property
    def bytes_saved(self) -> float | None:
        """Bytes of checkpoints fewer than recorded; None when sizes are not known."""
        if self.predicted is None:
            return None
        return _difference(self.recorded.checkpoint_bytes, self.predicted.checkpoint_bytes)

    def regret(self, objective: Objective | None) -> float | None:
        """How much worse the best value up to the stop is than the best of the whole run; None without evaluations."""
        if objective is None or self.predicted is None:
            return None
        return regret_of(objective, self.predicted.best, self.recorded.best)

    def relative_regret(self, objective: Objective | None) -> float | None:
        """Regret over the magnitude of the run's best; None where that is too near zero to divide by."""
        return relative(self.regret(objective), self.recorded.best)

    def deployable_regret(self, objective: Objective | None) -> float | None:
        """How much worse the best that has a checkpoint is, against the recorded run's best that has one.

        Negative where the policy's checkpoints are the better ones; None where either has no evaluated checkpoint.
        """
        if objective is None or self.predicted is None:
            return None
        return regret_of(objective, self.predicted.deployable, self.recorded.deployable)

    def relative_deployable_regret(self, objective: Objective | None) -> float | None:
        """The same over the magnitude of the run's best that has a checkpoint; None where that is too near zero."""
        return relative(self.deployable_regret(objective), self.recorded.deployable)


@dataclass(frozen=True, slots=True)
class Excluded:
    """A run that was not judged, or that a statistic leaves out, and why."""

    run_id: str
    name: str
    reason: str


def _difference(recorded: float | None, predicted: float | None) -> float | None:
    return None if recorded is None or predicted is None else recorded - predicted
