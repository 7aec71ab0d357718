"""Compares two policies over the same recorded runs: which runs change, by how much, and from which event.

Takes two backtests of the same runs, returns a diff per run and in sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from ...rules.engine.decisions import Decision
from ...rules.policy_file.policy import Policy
from ...store.run import Run
from ..intervals import Interval, interval
from ..run_pool import Progress, RunPool, checked_runs, usable_processes
from ..runs.judging import BacktestSettings
from ..runs.objective import Declared, Objective, Saves, declared_objectives
from ..runs.replaying import LabelledOutcome
from ..runs.results import Excluded, RunResult
from .backtesting import Backtest, Request, backtest_runs


class Order(NamedTuple):
    """The orders of a decision to the loop and to people, without their reason and their controller.

    Attributes:
        event_index: Index of the event among the stream's events, as in ``LabelledOutcome``.
        operations: Operations as ``name.action``, in order.
        mode: ``act`` or ``shadow``.
        told: Severity, message and log messages.
    """

    event_index: int
    operations: tuple[str, ...]
    mode: str
    told: tuple[str, ...]


class StopChange(StrEnum):
    """The change of a run's end from the old policy to the new one.

    Attributes:
        SAME: The run ends at the same step under both, or nothing changes.
        EARLIER, LATER: The run ends at a lower or higher step under the new policy. An end is a stop or the record's
            end.
        NOT_KNOWN: The record does not show where it would have ended under one of them.
    """

    SAME = "same"
    EARLIER = "earlier"
    LATER = "later"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class RunDiff:
    """One run under both policies.

    Attributes:
        old, new: The result under each.
        lost: Orders that only the old policy gives, in stream order.
        gained: Orders that only the new policy gives, in stream order.
    """

    old: RunResult
    new: RunResult
    lost: tuple[Order, ...]
    gained: tuple[Order, ...]

    @property
    def is_changed(self) -> bool:
        """Whether any order differs, or the set of controllers that fail."""
        return bool(self.lost or self.gained) or self.old.error_counts.keys() != self.new.error_counts.keys()

    @property
    def is_bound(self) -> bool:
        """Whether the run might have continued. Its regrets are then lower bounds, which have no difference."""
        return bool(self.old.right_censored or self.new.right_censored)

    @property
    def stop(self) -> StopChange:
        """The change of the run's end."""
        if self.old.predicted is None or self.new.predicted is None:
            return StopChange.SAME if not self.is_changed else StopChange.NOT_KNOWN
        old, new = self.old.predicted.steps, self.new.predicted.steps
        # Without its stop, a run that its own rules ended there would have gone on.
        if self.is_bound and old == new and (self.old.stop is None) != (self.new.stop is None):
            return StopChange.NOT_KNOWN
        return StopChange.SAME if old == new else StopChange.EARLIER if new < old else StopChange.LATER

    @property
    def steps(self) -> int | None:
        """Optimizer updates that the new policy spends more than the old; None if unknown."""
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
        """Regret under the new policy less that under the old; negative if the best value is better.

        None if unknown, or if the regrets are lower bounds. In units of the run's own objective: a mean over runs with
        several objectives has no meaning.
        """
        return self._worse(self.new.regret, self.old.regret)

    @property
    def deployable_regret(self) -> float | None:
        """The same for the deployable regret."""
        return self._worse(self.new.deployable_regret, self.old.deployable_regret)

    @property
    def relative_regret(self) -> float | None:
        """The difference of the relative regrets, which runs with other objectives have, too."""
        return self._worse(self.new.relative_regret, self.old.relative_regret)

    @property
    def relative_deployable_regret(self) -> float | None:
        """The same for the deployable regret."""
        return self._worse(self.new.relative_deployable_regret, self.old.relative_deployable_regret)

    def _worse(self, value: float | None, than: float | None) -> float | None:
        return None if self.is_bound else _more(value, than)

    @property
    def could_fire(self) -> bool:
        """Whether either policy could fire in the run, whatever its values."""
        return not (self.old.could_not_fire and self.new.could_not_fire)

    @property
    def first(self) -> int | None:
        """Index of the first event at which orders differ; None if none do."""
        return min((order.event_index for order in (*self.lost, *self.gained)), default=None)


@dataclass(frozen=True, slots=True)
class PolicyDiff:
    """Two policies over the same runs.

    Attributes:
        old, new: The backtest of each.
        runs: One for each run that could be judged under both.
        excluded: The other runs, each with its reason.
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
        """The objective of every run that has one; None if they differ, or no run has one."""
        return self.old.objective

    def total(self, amount: Callable[[RunDiff], float | None]) -> float | None:
        """Return the sum of an amount over the runs where it is known; None if it is known for none."""
        known = [value for run in self.runs if (value := amount(run)) is not None]
        return math.fsum(known) if known else None

    def steps_by_unit(self) -> dict[str, int]:
        """Return the updates that the new policy spends more than the old, by what the runs' steps count."""
        totals: dict[str, int] = {}
        for run in self.runs:
            if run.steps is not None:
                totals[run.new.step_unit] = totals.get(run.new.step_unit, 0) + run.steps
        return totals

    def mean(self, amount: Callable[[RunDiff], float | None]) -> Interval:
        """Return the mean of an amount with its interval, over the runs where it is known and either could fire."""
        able = [run for run in self.runs if run.could_fire]
        return interval([amount(run) for run in able], [run.new.family for run in able])


def diff_policies(
    old: Policy,
    new: Policy,
    runs: Iterable[Run],
    *,
    objective: Declared = None,
    renames: Mapping[str, str] | None = None,
    saves: Saves | str = Saves.KEEP,
    on_progress: Callable[[Progress], object] | None = None,
    processes: int | None = 1,
    family: str | None = None,
) -> PolicyDiff:
    """Compare two policies over recorded runs.

    Args:
        old, new: The policies.
        runs: The runs; those that cannot be judged are listed as excluded.
        objective: The objective, or several in order of preference, as for ``backtest``.
        renames: New names of metrics, as the rules call them, by the names that runs recorded.
        saves: ``keep`` or ``replace``, as for ``backtest``.
        on_progress: Called after each run that is read: once for each policy.
        processes: Number of processes to read runs with, as for ``backtest``.
        family: The key of the families that intervals draw, as for ``backtest``.
    """
    checked_runs("diff_policies", new, ())
    chosen = tuple(checked_runs("diff_policies", old, runs))
    with RunPool(usable_processes([old, new], processes), on_progress) as readers:
        readers.expect(2 * len(chosen))
        settings = BacktestSettings(renames=tuple((renames or {}).items()), saves=Saves(saves))
        request = Request(old, chosen, settings, declared_objectives(objective), family)
        before, _ = backtest_runs(request, readers)
        after, _ = backtest_runs(replace(request, policy=new), readers)
    return diff_backtests(before, after)


def diff_backtests(old: Backtest, new: Backtest) -> PolicyDiff:
    """Compare two backtests over the same runs."""
    results = {result.run_id: result for result in new.results}
    pairs = [(result, results[result.run_id]) for result in old.results if result.run_id in results]
    excluded = {run.run_id: run for run in (*old.excluded, *new.excluded)}
    return PolicyDiff(old, new, tuple(_run_difference(*pair) for pair in pairs), tuple(excluded.values()))


def _run_difference(old: RunResult, new: RunResult) -> RunDiff:
    before, after = Counter(_orders(old.decisions)), Counter(_orders(new.decisions))
    lost, gained = sorted((before - after).elements()), sorted((after - before).elements())
    return RunDiff(old, new, tuple(lost), tuple(gained))


def _orders(decisions: Iterable[LabelledOutcome]) -> Iterable[Order]:
    for judged in decisions:
        decision = judged.outcome
        if isinstance(decision, Decision):
            texts = (f"{message.level} {message.text}" for message in decision.messages)
            told = (decision.severity, decision.message, *texts)
            yield Order(judged.event_index, decision.operations, decision.mode, told)


def _more(value: float | None, than: float | None) -> float | None:
    return None if value is None or than is None else value - than
