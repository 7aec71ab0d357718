"""Aggregates a backtest over its runs: savings, regret with intervals, comparison with baselines, excluded runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from ..backtests.backtesting import Backtest
from ..backtests.baselines import BaselineOutcome, BaselineScore, standing_of
from ..intervals import interval, paired_interval
from ..runs.detection import middle_and_p90, together
from ..runs.results import Excluded, RunResult
from .survival import median_steps_to_stop

#: Relative regrets above this are counted separately.
NOTABLE_REGRET: Final = 0.01

#: The fields of a score by which policies are compared.
_COMPARED: Final = ("share_saved", "relative_regret", "relative_deployable_regret")


def aggregate(backtest: Backtest) -> dict[str, Any]:
    """Return the sums over all runs with a known outcome. A sum is None if no run supports it."""
    results = backtest.results
    judged = [result for result in results if result.predicted is not None]
    seconds = [result for result in judged if result.seconds_saved is not None]
    sized = [result for result in judged if result.bytes_saved is not None]
    hours = _total(judged, lambda result: result.rank_hours_saved)
    cost = backtest.cost_per_hour
    return {
        "runs": len(results),
        "excluded": len(backtest.excluded),
        "not_known": len(results) - len(judged),
        "right_censored": sum(bool(result.right_censored) for result in results),
        "fired": sum(result.fired for result in results),
        "stopped": sum(result.stop is not None for result in results),
        "steps": sum(result.recorded.steps for result in judged),
        "steps_saved": _total(judged, lambda result: result.steps_saved),
        "elapsed_s": _total(seconds, lambda result: result.recorded.elapsed_s),
        "seconds_saved": _total(judged, lambda result: result.seconds_saved),
        "rank_hours_saved": hours,
        "cost_saved": None if hours is None or cost is None else hours * cost,
        "checkpoints": sum(result.recorded.checkpoints for result in judged),
        "checkpoints_saved": _total(judged, lambda result: result.checkpoints_saved),
        "checkpoint_bytes": _total(sized, lambda result: result.recorded.checkpoint_bytes),
        "bytes_saved": _total(judged, lambda result: result.bytes_saved),
        "checkpoints_never_restored": sum(result.recorded.checkpoints_wasted for result in judged),
        "checkpoints_never_restored_predicted": _total(judged, _wasted),
        "evaluations": sum(result.recorded.evaluations for result in judged),
        "evaluations_saved": _total(judged, lambda result: result.evaluations_saved),
        "share_saved": asdict(interval([result.share_saved for result in results])),
        "relative_regret": _spread(regrets(backtest)),
        "relative_deployable_regret": _spread(deployable_regrets(backtest)),
        "median_steps_to_stop": median_steps_to_stop(results),
        "validity": backtest.validity_counts(),
    }


def regrets(backtest: Backtest) -> list[float | None]:
    """Return the relative regret of each run, in order; None for runs excluded from the regret statistics."""
    return [_complete(result, result.relative_regret) for result in backtest.results]


def deployable_regrets(backtest: Backtest) -> list[float | None]:
    """Return the relative deployable regret of each run, likewise."""
    return [_complete(result, result.relative_deployable_regret) for result in backtest.results]


def without_regret(backtest: Backtest) -> list[Excluded]:
    """Return the runs that the regret statistics leave out, each with the reason."""
    if not any(result.objective for result in backtest.results):
        return []
    reasons = [(result, _reason_without_regret(result)) for result in backtest.results]
    return [Excluded(result.run_id, result.name, reason) for result, reason in reasons if reason]


def comparison(backtest: Backtest) -> list[dict[str, Any]]:
    """Return a row for the policy, and one per baseline with the run-by-run difference from the policy.

    Differences are the policy's value less the baseline's, over the runs for which both are known.
    """
    own = [standing_of(result) for result in backtest.results]
    title = backtest.policy.name or "this policy"
    rows = [{"name": "policy", "title": title, "digest": backtest.policy.digest, **_summary(own, backtest)}]
    rows.extend(_baseline_row(outcome, own, backtest) for outcome in backtest.baselines)
    return rows


def detection_json(backtest: Backtest) -> dict[str, Any] | None:
    """Return the detection scores over all labelled runs; None if no run is labelled."""
    labelled = [result.detection for result in backtest.results if result.detection is not None]
    if not labelled:
        return None
    total = together(labelled)
    steps, seconds = middle_and_p90(total.delays_steps), middle_and_p90(total.delays_s)
    return {
        "runs": total.runs,
        "incidents": total.incidents,
        "found": total.found,
        "unreached": total.unreached,
        "alarms": total.alarms,
        "true_alarms": total.true_alarms,
        "precision": total.precision,
        "recall": total.recall,
        "f1": total.f1,
        "chance_precision": total.chance_precision,
        "false_alarms_per_1000_steps": total.false_alarms_per_1000_steps,
        "false_alarms_per_run": total.false_alarms / total.runs,
        "delay_steps": None if steps is None else {"median": steps[0], "p90": steps[1]},
        "delay_s": None if seconds is None else {"median": seconds[0], "p90": seconds[1]},
        "tolerance_steps": backtest.settings.tolerance_steps,
    }


def human_json(backtest: Backtest) -> dict[str, Any] | None:
    """Return how much earlier the policy acts than people, over the runs in which a person acted; None without any."""
    leads = [result.human for result in backtest.results if result.human is not None]
    if not leads:
        return None
    steps = middle_and_p90([lead.steps for lead in leads if lead.steps is not None])
    seconds = middle_and_p90([lead.seconds for lead in leads if lead.seconds is not None])
    return {
        "runs": len(leads),
        "acted": sum(lead.steps is not None for lead in leads),
        "earlier": sum(lead.steps is not None and lead.steps > 0 for lead in leads),
        "lead_steps": None if steps is None else {"median": steps[0], "p90": steps[1]},
        "lead_s": None if seconds is None else {"median": seconds[0], "p90": seconds[1]},
    }


def _wasted(result: RunResult) -> int | None:
    return None if result.predicted is None else result.predicted.checkpoints_wasted


def _baseline_row(outcome: BaselineOutcome, own: Sequence[BaselineScore | None], backtest: Backtest) -> dict[str, Any]:
    about = {"name": outcome.baseline.name, "title": outcome.baseline.title, "digest": outcome.digest}
    if not outcome.standings:
        return {**about, "reason": outcome.reason or "no run was judged"}
    less = {
        name: asdict(paired_interval(_values(own, name, backtest), _values(outcome.standings, name, backtest)))
        for name in _COMPARED
    }
    return {**about, **_summary(outcome.standings, backtest), "policy_less_this": less}


def _summary(standings: Sequence[BaselineScore | None], backtest: Backtest) -> dict[str, Any]:
    known = [standing for standing in standings if standing is not None]
    return {
        "runs": len(known),
        "stopped": sum(sorted(standing.stopped for standing in known)),
        **{name: asdict(interval(_values(standings, name, backtest))) for name in _COMPARED},
    }


def _values(standings: Sequence[BaselineScore | None], name: str, backtest: Backtest) -> list[float | None]:
    """Return one field of each run's score; regrets only for runs that ran as long as planned."""
    values = [None if standing is None else getattr(standing, name) for standing in standings]
    if "regret" not in name:
        return values
    return [_complete(*pair) for pair in zip(backtest.results, values, strict=True)]


def _complete(result: RunResult, value: float | None) -> float | None:
    """Return the value for a run that ran as long as planned, else None."""
    return None if result.right_censored else value


def _reason_without_regret(result: RunResult) -> str:
    if result.predicted is None:
        return "censored: the record does not show how this policy's run would have continued"
    if result.right_censored:
        return result.right_censored
    if result.objective is None:
        return "it recorded no evaluation that says how good it is"
    if result.recorded.best is None:
        return "each of its evaluations is NaN"
    if result.predicted.best is None:
        return "the policy would have stopped it before its first evaluation"
    if result.relative_regret is None:
        return "its best evaluation is too near zero to divide by"
    return ""


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    found = interval(values)
    return {
        "runs": len(known),
        "mean": statistics.fmean(known) if known else None,
        "low": found.low,
        "high": found.high,
        "median": statistics.median(known) if known else None,
        "max": max(known, default=None),
        "above_1_percent": sum(value > NOTABLE_REGRET for value in known),
        "share_above_1_percent": sum(value > NOTABLE_REGRET for value in known) / len(known) if known else None,
    }


def _total(results: Sequence[RunResult], amount: Callable[[RunResult], float | None]) -> float | None:
    known = [value for value in map(amount, results) if value is not None]
    # Sorted by size: the order of the runs follows from their paths, and would change the last bit.
    return sum(sorted(known)) if known else None
