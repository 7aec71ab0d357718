"""What changes when one policy takes the place of another: both over the same recorded runs, run by run and in sum.

Two backtests flow through here; what flows out says which runs would have gone otherwise, by how much, and from where.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ...rules.engine.decisions import Decision
from ...rules.policy_file.policy import Policy
from ...store.run import Run
from ..cache import Cache
from ..intervals import Interval, interval
from ..run_pool import Progress, RunPool
from ..runs.objective import Objective
from ..runs.replaying import LabelledOutcome
from ..runs.results import Excluded, RunResult
from .backtesting import Backtest, Request, backtest_runs


class Order(NamedTuple):
    """What a decision says to the loop and to people; not why, nor which controller says it.

    Attributes:
        event_index: Index of the event among the stream's events, as in ``LabelledOutcome``.
        operations: As ``name.action``, in order.
        mode: ``act`` or ``shadow``.
        told: Severity, message and log messages.
    """

    event_index: int
    operations: tuple[str, ...]
    mode: str
    told: tuple[str, ...]


class StopChange(StrEnum):
    """How the end of a run differs between two policies.

    Attributes:
        SAME: It ends at the same step under both.
        EARLIER, LATER: Both end it, or its record does; the new one at a lower or higher step.
        NOT_KNOWN: Under one of them the record cannot tell where it would have ended.
    """

    SAME = "same"
    EARLIER = "earlier"
    LATER = "later"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class RunDiff:
    """One run under both policies.

    Attributes:
        old, new: The outcome under each.
        objective: The metric of merit, if any.
        lost: Orders that the old policy gives and the new one does not, in stream order.
        gained: Orders that the new policy gives and the old one does not.
    """

    old: RunResult
    new: RunResult
    objective: Objective | None
    lost: tuple[Order, ...]
    gained: tuple[Order, ...]

    @property
    def is_changed(self) -> bool:
        """Whether anything is ordered otherwise, or a controller fails that did not, or no longer."""
        return bool(self.lost or self.gained) or self.old.error_counts.keys() != self.new.error_counts.keys()

    @property
    def stop(self) -> StopChange:
        """How the run's end differs."""
        if self.old.predicted is None or self.new.predicted is None:
            return StopChange.SAME if not self.is_changed else StopChange.NOT_KNOWN
        old, new = self.old.predicted.steps, self.new.predicted.steps
        return StopChange.SAME if old == new else StopChange.EARLIER if new < old else StopChange.LATER

    @property
    def steps(self) -> int | None:
        """Optimizer updates that the new policy spends more than the old; None where that is not known."""
        if self.old.predicted is None or self.new.predicted is None:
            return None
        return self.new.predicted.steps - self.old.predicted.steps

    @property
    def seconds(self) -> float | None:
        """Seconds that the new policy spends more than the old."""
        return _more(self.old.seconds_saved, self.new.seconds_saved)

    @property
    def checkpoints(self) -> int | None:
        """Checkpoints that the new policy writes more than the old."""
        if self.old.predicted is None or self.new.predicted is None:
            return None
        return self.new.predicted.checkpoints - self.old.predicted.checkpoints

    @property
    def regret(self) -> float | None:
        """How much worse the best value of the objective is than under the old policy; negative when it is better."""
        return _more(self.new.regret(self.objective), self.old.regret(self.objective))

    @property
    def deployable_regret(self) -> float | None:
        """The same of the best value that has a checkpoint."""
        return _more(self.new.deployable_regret(self.objective), self.old.deployable_regret(self.objective))

    @property
    def first(self) -> int | None:
        """Index of the first event at which orders differ; None when none do."""
        return min((order.event_index for order in (*self.lost, *self.gained)), default=None)


@dataclass(frozen=True, slots=True)
class PolicyDiff:
    """Two policies over the same runs.

    Attributes:
        old, new: The backtest of each.
        runs: One for each run that both could be judged on.
        excluded: The runs that could not, each with its reason.
    """

    old: Backtest
    new: Backtest
    runs: tuple[RunDiff, ...]
    excluded: tuple[Excluded, ...]

    @property
    def changed(self) -> tuple[RunDiff, ...]:
        """The runs in which behaviour changes."""
        return tuple(run for run in self.runs if run.is_changed)

    @property
    def objective(self) -> Objective | None:
        """The metric of merit."""
        return self.old.objective

    def total(self, amount: Callable[[RunDiff], float | None]) -> float | None:
        """The sum of what is known of an amount; None when it is known of no run."""
        known = [value for run in self.runs if (value := amount(run)) is not None]
        return math.fsum(known) if known else None

    def mean(self, amount: Callable[[RunDiff], float | None]) -> Interval:
        """The mean over all runs where an amount is known, with its interval."""
        return interval([amount(run) for run in self.runs])


def diff_policies(
    old: Policy,
    new: Policy,
    runs: Iterable[Run],
    *,
    objective: Objective | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    processes: int = 1,
    cache: Cache | None = None,
) -> PolicyDiff:
    """What would have gone otherwise in recorded runs, had they been under another policy.

    Args:
        old, new: The policies.
        runs: The runs; those that cannot be judged are listed as excluded.
        objective: The metric of merit; guessed when not given and unambiguous.
        on_progress: Told after each run that is read, which is once for each policy.
        processes: How many to read runs with, as for ``backtest``.
        cache: Where to look for what was found of a finished run before, and to keep what is found now.
    """
    chosen = tuple(runs)
    with RunPool(processes, on_progress) as readers:
        readers.expect(2 * len(chosen))
        before, _ = backtest_runs(Request(old, chosen, cache=cache, objective=objective), readers)
        after, _ = backtest_runs(Request(new, chosen, cache=cache, objective=before.objective), readers)
    if cache is not None:
        cache.prune()
    return diff_backtests(before, after)


def diff_backtests(old: Backtest, new: Backtest) -> PolicyDiff:
    """The same of two backtests over the same runs."""
    results = {result.run_id: result for result in new.results}
    pairs = [(result, results[result.run_id]) for result in old.results if result.run_id in results]
    excluded = {run.run_id: run for run in (*old.excluded, *new.excluded)}
    return PolicyDiff(
        old, new, tuple(_run_difference(*pair, old.objective) for pair in pairs), tuple(excluded.values())
    )


def _run_difference(old: RunResult, new: RunResult, objective: Objective | None) -> RunDiff:
    before, after = Counter(_orders(old.decisions)), Counter(_orders(new.decisions))
    lost, gained = sorted((before - after).elements()), sorted((after - before).elements())
    return RunDiff(old, new, objective, tuple(lost), tuple(gained))


def _orders(decisions: Iterable[LabelledOutcome]) -> Iterable[Order]:
    for judged in decisions:
        decision = judged.outcome
        if isinstance(decision, Decision):
            texts = (f"{message.level} {message.text}" for message in decision.messages)
            told = (decision.severity, decision.message, *texts)
            yield Order(judged.event_index, decision.operations, decision.mode, told)


def _more(value: float | None, than: float | None) -> float | None:
    return None if value is None or than is None else value - than
