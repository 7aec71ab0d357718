"""The result of a policy on one run: the recorded and the predicted outlay, and what else is said of the run.

``RunScorer`` takes where a policy ends a run and what it asks for, and returns cost and yield: one program for
backtest, sweep and certificate. What holds whatever the policy does is computed once for a run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Final

from ...rules.effects import Effect
from ...rules.engine.decisions import decision_digest
from ...store.plan import Plan
from ...store.run_info import Attempt
from .event_stream import EventStream, Renames
from .history import UPDATES, Curve, History
from .incidents import Detection
from .metric_names import Mode
from .objective import Evaluation, Objective, regret_of, relative
from .replaying import Ending, LabelledOutcome, Replay
from .run_families import UNKNOWN_FAMILY, Family

SECONDS_PER_HOUR = 3600


#: The attribute of an annotation that names its author's action.
ACTION: Final = "action"


_VALUE: Final = attrgetter("value")


#: An index before every event.
_NEVER: Final = -math.inf


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


class RunScorer:
    """The facts of one run, as its scores need them.

    Args:
        history: What the run recorded.
        objective: The objective; None without one.
        restored_steps: Steps of the checkpoints from which an attempt of the run resumed.

    Attributes:
        evaluations: The values of the objective, in order.
    """

    def __init__(
        self, history: History, objective: Objective | None, restored_steps: Collection[int] = frozenset()
    ) -> None:
        self.evaluations = history.merit(objective)
        self._history = history
        self._restored = restored_steps
        self._is_min = objective is None or objective.mode is Mode.MIN
        self._evaluated_at = [one.event_index for one in self.evaluations]
        self._bests = list(_bests_so_far(self.evaluations, objective))
        self._saved_at = [one.event_index for one in history.checkpoints]
        self._sizes = [0, *_totals(one.size_bytes for one in history.checkpoints)]
        self._restored_so_far = list(accumulate((one.step in restored_steps for one in history.checkpoints), initial=0))
        self._first_saves: dict[int, int] = {}
        for one in history.checkpoints:
            self._first_saves.setdefault(one.step, one.event_index)

    @cached_property
    def recorded(self) -> Outlay:
        """The outlay of the whole run, as recorded."""
        return self.up_to(None)

    def predicted(
        self, ending: Ending | None, saved_steps: Collection[int], evaluated_steps: Collection[int], *, drops_own: bool
    ) -> Outlay:
        """Return the outlay under a policy.

        A policy adds one checkpoint for each step at which it asked for one and the loop kept none, each of the run's
        average size. After a stop, what came after the run's last step still follows.

        Args:
            ending: Where it ends the run; None if it does not.
            saved_steps: The steps at which it asked for a checkpoint, up to the ending.
            evaluated_steps: The steps at which it asked for an evaluation, up to the ending.
            drops_own: Whether its checkpoints replace the loop's own.
        """
        whole, tail = self._history.elapsed_ns, self._history.tail_ns
        passed = whole if ending is None else ending.elapsed_ns
        more = len(frozenset(evaluated_steps) - self._history.evaluated_steps) if evaluated_steps else 0
        elapsed_s = None if whole is None or passed is None or tail is None else min(whole, passed + tail) / 1e9
        return self._outlay(ending, elapsed_s, saved_steps, more, drops_own=drops_own)

    def up_to(self, ending: Ending | None) -> Outlay:
        """Return what was recorded up to a position in the run's stream; of the whole run if None."""
        elapsed_ns = self._history.elapsed_ns if ending is None else ending.elapsed_ns
        return self._outlay(ending, None if elapsed_ns is None else elapsed_ns / 1e9)

    def _outlay(
        self,
        ending: Ending | None,
        elapsed_s: float | None,
        saved_steps: Collection[int] = (),
        more_evaluations: int = 0,
        *,
        drops_own: bool = False,
    ) -> Outlay:
        history, until = self._history, math.inf if ending is None else ending.event_index
        own_until = _NEVER if drops_own else until
        evaluations, own = bisect_right(self._evaluated_at, until), bisect_right(self._saved_at, own_until)
        added = [step for step in saved_steps if not self._is_saved(step, own_until)]
        added_bytes = self._added_bytes(len(added))
        own_bytes = self._sizes[own]
        top, deployable = self._bests[evaluations], self._deployable(until, own_until, added)
        return Outlay(
            steps=history.steps if ending is None else min(ending.step, history.steps),
            elapsed_s=elapsed_s,
            checkpoints=own + len(added),
            checkpoint_bytes=None if own_bytes is None or added_bytes is None else own_bytes + added_bytes,
            best=top.value if top else None,
            best_step=top.step if top else None,
            final=self.evaluations[evaluations - 1].value if evaluations else None,
            deployable=deployable.value if deployable else None,
            deployable_step=deployable.step if deployable else None,
            evaluations=bisect_right(history.evaluated_at, until) + more_evaluations,
            checkpoints_restored=self._restored_so_far[own] + sum(step in self._restored for step in added),
        )

    def _added_bytes(self, count: int) -> int | None:
        """Return the size of checkpoints that the loop did not write; None if no checkpoint's size is known."""
        return 0 if not count else None if self._average_bytes is None else count * self._average_bytes

    @cached_property
    def _average_bytes(self) -> int | None:
        sizes = [one.size_bytes for one in self._history.checkpoints if one.size_bytes is not None]
        return round(sum(sizes) / len(sizes)) if sizes else None

    def _deployable(self, until: float, own_until: float, added: Collection[int]) -> Evaluation | None:
        """Return the best evaluation up to an event, at a step that has a checkpoint; None without any."""
        if not added and not self._saved_at:
            return None
        steps = frozenset(added)
        reached = (one for one in self._ranked if one.event_index <= until)
        return next((one for one in reached if one.step in steps or self._is_saved(one.step, own_until)), None)

    def _is_saved(self, step: int, until: float) -> bool:
        """Whether the loop wrote a checkpoint of a step up to an event."""
        first = self._first_saves.get(step)
        return first is not None and first <= until

    @cached_property
    def _ranked(self) -> list[Evaluation]:
        """The evaluations that have a number, the best first, then the earliest."""
        numbers = [one for one in self.evaluations if not math.isnan(one.value)]
        return sorted(numbers, key=_VALUE) if self._is_min else sorted(numbers, key=lambda one: -one.value)


def _bests_so_far(evaluations: Iterable[Evaluation], objective: Objective | None) -> Iterator[Evaluation | None]:
    """Yield the best of no evaluation, of the first, of the first two, and so on; the earliest among equals."""
    best: Evaluation | None = None
    yield best
    for one in evaluations:
        if objective is not None and not math.isnan(one.value):
            best = one if best is None or objective.is_better(one.value, best.value) else best
        yield best


def _totals(sizes: Iterable[int | None]) -> Iterator[int | None]:
    """Yield the sums so far; None once a size is unknown."""
    total: int | None = 0
    for size in sizes:
        total = None if total is None or size is None else total + size
        yield total


def why_right_censored(status: str, steps: int, plan: Plan, *, is_end_stated: bool = True, how: str = "stopped") -> str:
    """Return why a run might have continued; empty if it ran as long as planned, as far as its plan says.

    Args:
        status: Its status.
        steps: Optimizer updates it made.
        plan: What it declared.
        is_end_stated: Whether the status says how it ended. It makes no run complete, and none incomplete.
        how: How it was stopped, if it was.
    """
    planned = plan.max_steps()
    if status == "running":
        return "still running: the rest of its record is unknown"
    if status == "stopped" and (planned is None or steps < planned):
        of = "" if planned is None else f" of {planned}"
        return f"{how} at step {steps}{of}: how it would have continued is unknown"
    if status == "interrupted" and not is_end_stated and (planned is None or steps < planned):
        where = ", though it is not known to have ended" if planned is None else f" of {planned}, before its plan"
        return f"ends at step {steps}{where}: savings are a lower bound"
    if planned is not None and steps < planned and (is_end_stated or status != "completed"):
        return f"{status} at step {steps} of {planned}: its plan was longer, so savings are a lower bound"
    if status in ("failed", "crashed", "interrupted") and planned is None:
        return f"{status} at step {steps}: savings are a lower bound"
    return ""


def lead_over(stream: EventStream, history: History, status: str, replayed: Replay) -> Lead | None:
    """Return how much earlier the policy acts than the person; None when no person acted.

    Args:
        stream: The run's stream.
        history: Its facts.
        status: Its status.
        replayed: The replay of the policy over it.
    """
    action = human_action(stream, history, status)
    if action is None:
        return None
    first = replayed.stop if _can_stop(replayed) else next(iter(replayed.reached), None)
    if first is None:
        return Lead(action, None, None, None)
    known = action.elapsed_s is not None and first.elapsed_ns is not None
    seconds = (action.elapsed_s or 0.0) - (first.elapsed_ns or 0) / 1e9 if known else None
    return Lead(action, first.decided_at, action.step - first.decided_at, seconds)


def is_end_stated(source: Mapping[str, object] | None) -> bool:
    """Whether a run's status says how it ended: it does, unless an importer assumed it from where the log ends.

    Args:
        source: What the run was imported from; None for a recorded run.
    """
    return source is None or source.get("ending") == "stated"


def is_terminated(attempt: Attempt) -> bool:
    """Whether SIGTERM ended an attempt: a batch system that preempts a run sends it, so it is no person's act."""
    return (attempt.failure or {}).get("type") == "Terminated"


def human_action(stream: EventStream, history: History, status: str) -> HumanAction | None:
    """Return the first action that an annotation names, or else the interruption of the run."""
    for index, event in stream.of_kind("annotation"):
        if isinstance(event.attrs.get(ACTION), str):
            return HumanAction(event.attrs[ACTION], event.step, _seconds(stream.time_up_to(index)))
    if status == "interrupted":
        return HumanAction("interrupt", history.steps, _seconds(history.elapsed_ns))
    return None


def _seconds(elapsed_ns: int | None) -> float | None:
    return None if elapsed_ns is None else elapsed_ns / 1e9


def _can_stop(replayed: Replay) -> bool:
    acting = (controller for controller in replayed.policy.controllers if not controller.is_shadow)
    return any(replayed.policy.effects(name) is Effect.STOP for each in acting for name in each.operations)


def identity_of(stream: EventStream, replayed: Replay, log_digest: str) -> RunIdentity:
    """Return the identity of a stream and its replay."""
    last = None if replayed.ending is None else replayed.ending.event_index
    reached = (one.outcome for one in replayed.outcomes if last is None or one.event_index <= last)
    return RunIdentity(
        log_digest=log_digest,
        seq_ranges=tuple(seq_ranges(stream)),
        decision_digest=decision_digest(reached),
        event_count=replayed.event_count,
    )


def seq_ranges(stream: EventStream) -> Iterator[SeqRange]:
    """Yield the range of each attempt, oldest first; outcomes of recorded rules count as events here."""
    recorded = {(event.attempt, event.rank): (event.seq, event.seq) for event in reversed(stream.recorded)}
    for event in stream.recorded:
        first, _ = recorded[event.attempt, event.rank]
        recorded[event.attempt, event.rank] = first, event.seq
    attempts, ranks, seqs = (stream.facts.whole(name) for name in ("attempt", "rank", "seq"))
    for start, end in stream.stretches():
        attempt, rank, first, last = map(int, (attempts[start], ranks[start], seqs[start], seqs[end - 1]))
        own = recorded.get((attempt, rank), (first, last))
        yield SeqRange(attempt, rank, min(first, own[0]), max(last, own[1]))
