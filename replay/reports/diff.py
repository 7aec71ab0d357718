"""Compares two policies over the same recorded runs: which runs change, by how much, and from which event.

Takes two backtests of the same runs, returns a diff per run and in sum.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from ...rules.engine.decisions import Decision
from ...rules.policy_file.declarations import ACT
from ...rules.policy_file.policy import Policy, shipped_policies
from ...store.amounts import duration
from ...store.errors import counted
from ...store.events import JsonObject
from ...store.run import Run
from ..backtests.backtesting import Request, backtest_once
from ..backtests.judged_runs import Backtest
from ..documents import document
from ..intervals import Interval, interval
from ..run_pool import Progress, RunPool, checked_runs, usable_processes
from ..runs.mute_rules import PLANS_BY_LENGTH, missing_sentences
from ..runs.objective import UPDATES, Declared, Objective, Saves, declared_objectives
from ..runs.run_result import BacktestSettings, Excluded, LabelledOutcome, RunResult, excess
from ..runs.same_training import repeated_sentence
from .basis import family_sentence, objective_sentences, objectives_json, renamed_text
from .result import FamilyCounts
from .sentences import REGRET, SAVES


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
        return excess(self.old.seconds_saved, self.new.seconds_saved)

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
        return None if self.is_bound else excess(value, than)

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

    @property
    def families(self) -> FamilyCounts:
        """The families of the runs."""
        return FamilyCounts.of(run.new.family for run in self.runs)

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
    plans_by_length: bool = False,
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
        plans_by_length: Whether a completed run without a plan counts as planned for its length.
    """
    checked_runs("diff_policies", new, ())
    chosen = tuple(checked_runs("diff_policies", old, runs))
    with RunPool(usable_processes([old, new], processes), on_progress) as readers:
        readers.expect(2 * len(chosen))
        settings = BacktestSettings(
            renames=tuple((renames or {}).items()), saves=Saves(saves), family=family, plans_by_length=plans_by_length
        )
        request = Request(old, chosen, settings, declared_objectives(objective))
        before, _ = backtest_once(request, readers)
        after, _ = backtest_once(replace(request, policy=new), readers)
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


def diff_json(difference: PolicyDiff) -> JsonObject:
    """Return everything as JSON: the policies, the sum, each changed run."""
    stops = Counter(str(run.stop) for run in difference.changed)
    objective, steps = difference.objective, difference.steps_by_unit()
    return {
        "old": _policy_json(difference.old),
        "new": _policy_json(difference.new),
        "objective": None if objective is None else objective.to_json(),
        "objectives": objectives_json(run.old.objective for run in difference.runs),
        "renames": dict(difference.old.settings.renames),
        "plans_by_length": difference.old.settings.plans_by_length,
        "saves": str(difference.old.settings.saves),
        "changed": bool(difference.changed),
        "aggregate": {
            "runs": len(difference.runs),
            "changed": len(difference.changed),
            "excluded": len(difference.excluded),
            "could_fire": {"old": _able(difference.old), "new": _able(difference.new)},
            "stops": {str(change): stops[str(change)] for change in StopChange},
            "steps": next(iter(steps.values())) if len(steps) == 1 else None,
            "steps_by_unit": steps,
            "seconds": difference.total(lambda run: run.seconds),
            "checkpoints": difference.total(lambda run: run.checkpoints),
            "families": document(difference.families),
            "repeated": len(difference.new.repeated),
            "regret": document(difference.mean(lambda run: run.regret if objective else None)),
            "deployable_regret": document(difference.mean(lambda run: run.deployable_regret if objective else None)),
            "relative_regret": document(difference.mean(lambda run: run.relative_regret)),
            "relative_deployable_regret": document(difference.mean(lambda run: run.relative_deployable_regret)),
        },
        "runs": [_run_json(run) for run in difference.changed],
        "excluded": document(difference.excluded),
    }


def _able(backtest: Backtest) -> int:
    """Return the number of runs in which a policy could fire."""
    return sum(not result.could_not_fire for result in backtest.results)


def _policy_json(backtest: Backtest) -> JsonObject:
    policy, mute = backtest.policy, document(backtest.mute_rules)
    return {"source": policy.source, "digest": policy.digest, "params": dict(policy.params), "mute_rules": mute}


def _run_json(run: RunDiff) -> JsonObject:
    return {
        "run_id": run.new.run_id,
        "name": run.new.name,
        "objective": None if run.old.objective is None else run.old.objective.to_json(),
        "stop": str(run.stop),
        "old_steps": None if run.old.predicted is None else run.old.predicted.steps,
        "new_steps": None if run.new.predicted is None else run.new.predicted.steps,
        "step_unit": run.new.step_unit,
        "steps": run.steps,
        "seconds": run.seconds,
        "checkpoints": run.checkpoints,
        "regret": run.regret,
        "deployable_regret": run.deployable_regret,
        "relative_regret": run.relative_regret,
        "relative_deployable_regret": run.relative_deployable_regret,
        "first_event_index": run.first,
        "lost": [_order_json(order) for order in run.lost],
        "gained": [_order_json(order) for order in run.gained],
        "old_error_counts": run.old.error_counts,
        "new_error_counts": run.new.error_counts,
    }


def _order_json(order: Order) -> JsonObject:
    return {
        "event_index": order.event_index,
        "operations": list(order.operations),
        "mode": order.mode,
        "told": [text for text in order.told if text],
    }


def _called(policy: Policy) -> str:
    """Return the file of a policy, or the name of a shipped one, which is the same on every machine."""
    names = {str(path): name for name, path in shipped_policies().items()}
    return names.get(policy.source, policy.source)


def _settings(policy: Policy, other: Policy) -> str:
    """Return the params that differ from those of another policy of the same file; empty if there are none."""
    if policy.source != other.source:
        return ""
    changed = [f"{name} = {value}" for name, value in policy.params.items() if value != other.params.get(name)]
    return f" ({', '.join(changed)})" if changed else ""


def diff_lines(difference: PolicyDiff) -> list[str]:
    """Return the difference as Markdown, for a terminal or a pull request."""
    changed, runs = len(difference.changed), len(difference.runs)
    old, new = difference.old.policy, difference.new.policy
    title = f"### {_called(old)}{_settings(old, new)} → {_called(new)}{_settings(new, old)}"
    if renames := difference.old.settings.renames:
        title += f", {renamed_text(renames)}"
    if not changed:
        return [title, "", f"Behaviour is the same in {counted(runs, 'run')}.", *_footnotes(difference)]
    lines = [title, "", f"Behaviour changes in {changed} of {counted(runs, 'run')}: {_summary(difference)}.", ""]
    lines += ["| run | ends at | steps | checkpoints | regret | no longer ordered | newly ordered |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | --- | --- |"]
    lines += [_row(run) for run in difference.changed]
    return [*lines, *_footnotes(difference)]


def _summary(difference: PolicyDiff) -> str:
    stops = Counter(run.stop for run in difference.changed)
    parts = [
        f"{stops[change]} end{'s' * (stops[change] == 1)} {change}"
        for change in (StopChange.EARLIER, StopChange.LATER)
        if stops[change]
    ]
    if stops[StopChange.NOT_KNOWN]:
        parts.append(f"the end of {stops[StopChange.NOT_KNOWN]} is unknown")
    for unit, steps in difference.steps_by_unit().items():
        if steps:
            what = counted(abs(steps), "step", ",") if unit == UPDATES else f"{abs(steps):,} {unit}"
            parts.append(f"{what} {'fewer' if steps < 0 else 'more'}")
    if seconds := difference.total(lambda run: run.seconds):
        parts.append(f"{duration(abs(seconds))} {'less' if seconds < 0 else 'more'}")
    if checkpoints := difference.total(lambda run: run.checkpoints):
        parts.append(f"{counted(abs(checkpoints), 'checkpoint', ',.0f')} {'fewer' if checkpoints < 0 else 'more'}")
    for word, regret in (
        ("regret", difference.mean(lambda run: run.relative_regret)),
        ("deployable regret", difference.mean(lambda run: run.relative_deployable_regret)),
    ):
        if regret.mean is not None:
            ends = "" if regret.low is None else f" [{regret.low:+.2%}, {regret.high:+.2%}]"
            parts.append(f"{word} {regret.mean:+.2%}{ends}")
    return ", ".join(parts) or "other operations, but the same ends"


def _row(run: RunDiff) -> str:
    ends = [_end(result) for result in (run.old, run.new)]
    cells = (
        run.new.name if run.new.name == run.new.run_id else f"{run.new.name} {run.new.run_id}",
        ends[0] if ends[0] == ends[1] else " → ".join(ends),
        _signed(run.steps),
        _signed(run.checkpoints),
        "-" if run.relative_regret is None else f"{run.relative_regret:+.2%}",
        _orders_text(run.lost),
        _orders_text(run.gained),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _end(result: RunResult) -> str:
    """Return the step at which a run ends; a lower bound if only its record ends there."""
    if result.predicted is None:
        return "unknown"
    bound = "≥" if result.right_censored and result.stop is None else ""
    return f"{bound}{result.predicted.steps:,}"


def _orders_text(orders: Sequence[Order]) -> str:
    """List the operations with how often each is ordered."""
    names = ("nothing" if not order.operations else ", ".join(order.operations) for order in orders)
    counts = Counter(
        name if order.mode == ACT else f"{name} ({order.mode})" for name, order in zip(names, orders, strict=True)
    )
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items()) or "-"


def _footnotes(difference: PolicyDiff) -> list[str]:
    notes = []
    for run in difference.changed:
        old, new = run.old.error_counts.keys(), run.new.error_counts.keys()
        notes += [f"- {run.new.run_id}: controller '{name}' now fails." for name in sorted(new - old)]
        notes += [f"- {run.new.run_id}: controller '{name}' no longer fails." for name in sorted(old - new)]
    both = difference.old, difference.new
    missing = (missing_sentences(one.lacking, one.mute_rules) for one in both)
    notes += [f"- {sentence}" for sentence in dict.fromkeys(itertools.chain.from_iterable(missing))]
    if difference.old.settings.plans_by_length:
        notes.append(f"- {PLANS_BY_LENGTH}")
    able, runs = (_able(difference.old), _able(difference.new)), counted(len(difference.runs), "run", ",")
    if min(able) < len(difference.runs):
        could = f"The old rules could fire in {able[0]:,} and the new one in {able[1]:,} of {runs}"
        notes.append(f"- {could}; means are over the runs in which either could.")
    if bounds := sum(run.is_bound for run in difference.runs):
        are = "that is" if bounds == 1 else "that are"
        notes.append(f"- No regret is compared in {counted(bounds, 'run', ',')} {are} unfinished or ended early.")
    if repeated := repeated_sentence(difference.new.repeated):
        notes.append(f"- {repeated}")
    notes += [f"- Excluded {run.run_id}: {run.reason}." for run in difference.excluded]
    if any(one.policy.asks_for_checkpoints for one in both):
        notes.append(f"- {SAVES[difference.old.settings.saves]}")
    said = objective_sentences([run.old.objective for run in difference.runs])
    if not said:
        notes.append("- No metric judges the runs: name one with --objective to see regret.")
    else:
        notes.append(
            f"- {' '.join(said)} {REGRET} It is relative to that best, so unlike metrics compare; + is worse than "
            "before. Means over runs, with 95% bootstrap intervals. "
            f"{family_sentence(difference.families)}"
        )
    return ["", *notes]


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+,}" if value else "0"
