"""The result of a policy on one run: the recorded and the predicted outlay, and what else is said of the run.

``RunScorer`` takes where a policy ends a run and what it asks for, and returns cost and yield: one program for
backtest, sweep and certificate. What holds whatever the policy does is computed once for a run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Final

from ...rules.effects import Effect
from ...rules.engine.decisions import decision_digest
from ...store.metric_words import Mode
from ...store.plan import Plan
from ...store.run_info import LIVE_STATUSES, Attempt
from .event_stream import EventStream
from .history import History
from .objective import Evaluation, Objective
from .run_result import Ending, HumanAction, Lead, Outlay, Replay, RunIdentity, SeqRange

#: The attribute of an annotation that names its author's action.
ACTION: Final = "action"


_VALUE: Final = attrgetter("value")


#: An index before every event.
_NEVER: Final = -math.inf


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

    @property
    def last_evaluated(self) -> int:
        """Index of the event of the last evaluation; -1 without one."""
        return self._evaluated_at[-1] if self._evaluated_at else -1

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
    if status in LIVE_STATUSES:
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
