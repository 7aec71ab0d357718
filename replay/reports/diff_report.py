"""Formats the difference between two policies as JSON, and as Markdown for a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...rules.policy_file.declarations import ACT
from ...rules.policy_file.policy import Policy, shipped_policies
from ...store.errors import counted
from ..backtests.backtesting import Backtest
from ..backtests.policy_diff import Order, PolicyDiff, RunDiff, StopChange
from ..runs.history import UPDATES
from ..runs.objective import asks_for_checkpoints
from ..runs.results import RunResult
from .aggregation import families_json
from .amounts import duration
from .family_sentences import family_sentence, repeated_sentence
from .objectives import objective_sentences, objectives_json, renamed_text
from .sentences import REGRET, SAVES


def diff_json(difference: PolicyDiff) -> dict[str, Any]:
    """Return everything as JSON: the policies, the sum, each changed run."""
    stops = Counter(str(run.stop) for run in difference.changed)
    objective, steps = difference.objective, difference.steps_by_unit()
    return {
        "old": _policy_json(difference.old.policy),
        "new": _policy_json(difference.new.policy),
        "objective": None if objective is None else objective.to_json(),
        "objectives": objectives_json(run.old.objective for run in difference.runs),
        "renames": dict(difference.old.settings.renames),
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
            "families": families_json(run.new.family for run in difference.runs),
            "repeated": len(difference.new.repeated),
            "regret": asdict(difference.mean(lambda run: run.regret if objective else None)),
            "deployable_regret": asdict(difference.mean(lambda run: run.deployable_regret if objective else None)),
            "relative_regret": asdict(difference.mean(lambda run: run.relative_regret)),
            "relative_deployable_regret": asdict(difference.mean(lambda run: run.relative_deployable_regret)),
        },
        "runs": [_run_json(run) for run in difference.changed],
        "excluded": [{"run_id": run.run_id, "name": run.name, "reason": run.reason} for run in difference.excluded],
    }


def _able(backtest: Backtest) -> int:
    """Return the number of runs in which a policy could fire."""
    return sum(not result.could_not_fire for result in backtest.results)


def _policy_json(policy: Policy) -> dict[str, Any]:
    return {"source": policy.source, "digest": policy.digest, "params": dict(policy.params)}


def _run_json(run: RunDiff) -> dict[str, Any]:
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


def _order_json(order: Order) -> dict[str, Any]:
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
    able, runs = (_able(difference.old), _able(difference.new)), counted(len(difference.runs), "run", ",")
    if min(able) < len(difference.runs):
        could = f"The old policy could fire in {able[0]:,} and the new one in {able[1]:,} of {runs}"
        notes.append(f"- {could}; means are over the runs in which either could.")
    if bounds := sum(run.is_bound for run in difference.runs):
        are = "that is" if bounds == 1 else "that are"
        notes.append(f"- No regret is compared in {counted(bounds, 'run', ',')} {are} unfinished or ended early.")
    if repeated := repeated_sentence(difference.new.repeated):
        notes.append(f"- {repeated}")
    notes += [f"- Excluded {run.run_id}: {run.reason}." for run in difference.excluded]
    if any(asks_for_checkpoints(policy) for policy in (difference.old.policy, difference.new.policy)):
        notes.append(f"- {SAVES[difference.old.settings.saves]}")
    said = objective_sentences([run.old.objective for run in difference.runs])
    if not said:
        notes.append("- No metric judges the runs: name one with --objective to see regret.")
    else:
        notes.append(
            f"- {' '.join(said)} {REGRET} It is relative to that best, so unlike metrics compare; + is worse than "
            "before. Means over runs, with 95% bootstrap intervals. "
            f"{family_sentence(families_json(run.new.family for run in difference.runs))}"
        )
    return ["", *notes]


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+,}" if value else "0"
