"""Aggregates a backtest over its runs: savings, regret with intervals, parts of the runs, excluded runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...rules.checks.possible_firings import deciding_controllers
from ..backtests.backtesting import Backtest
from ..intervals import interval, trimmed_mean
from ..runs.families import SOURCE_FOLDER, Family
from ..runs.incidents import middle_and_p90, together
from ..runs.objective import FEWEST_EVALUATIONS
from ..runs.results import Excluded, RunResult
from .stop_costs import NOTABLE_REGRET, stops_by_cost


def aggregate(backtest: Backtest) -> dict[str, Any]:
    """Return the sums over the runs in which the policy could fire, with a known outcome; None if no run supports it.

    ``runs``, ``excluded``, ``not_known`` and ``fired`` count among all runs. Numbers of steps are None, too, where the
    runs count in several units: ``steps_by_unit`` has those of each.
    """
    results = backtest.results
    able = [result for result in results if not result.could_not_fire]
    judged = [result for result in able if result.predicted is not None]
    seconds = [result for result in judged if result.seconds_saved is not None]
    sized = [result for result in judged if result.bytes_saved is not None]
    hours = _total(judged, lambda result: result.rank_hours_saved)
    by_unit = _steps_by_unit(judged)
    of_one_unit = by_unit[0] if len(by_unit) == 1 else {"steps": None if by_unit else 0, "steps_saved": None}
    cost = backtest.cost_per_hour
    return {
        "runs": len(results),
        "excluded": len(backtest.excluded),
        "repeated": len(backtest.repeated),
        "families": families_json(result.family for result in able),
        "could_fire": len(able),
        "not_known": sum(result.predicted is None for result in results),
        "right_censored": sum(bool(result.right_censored) for result in able),
        "fired": sum(result.fired for result in results),
        "stopped": sum(result.stop is not None for result in results),
        "steps": of_one_unit["steps"],
        "steps_saved": of_one_unit["steps_saved"],
        "steps_by_unit": by_unit,
        "timed_runs": len(seconds),
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
        "share_saved": typical([None if result.could_not_fire else result.share_saved for result in results], backtest),
        "share_saved_of_stopped": _middle(_shares_of_stopped(able)),
        "stops_by_cost": stops_by_cost([pair for pair in _with_costs(backtest) if not pair[0].could_not_fire]),
        "relative_regret": _spread(regrets(backtest), backtest),
        "relative_regret_of_stopped": _spread(regrets_of_stopped(backtest), backtest),
        "relative_deployable_regret": _spread(deployable_regrets(backtest), backtest),
        "absolute_regret": _absolute(backtest, lambda result: result.regret),
        "absolute_deployable_regret": _absolute(backtest, lambda result: result.deployable_regret),
        "median_steps_to_stop": median_steps_to_stop(able) if len(by_unit) == 1 else None,
        "validity": backtest.validity_counts(),
        "by_controller": _by_controller(backtest, able),
        "by_family": _by_family(backtest),
    }


def regrets(backtest: Backtest) -> list[float | None]:
    """Return the relative regret of each run, in order; None for runs excluded from the regret statistics."""
    return [counted_regret(result, result.relative_regret) for result in backtest.results]


def regrets_of_stopped(backtest: Backtest) -> list[float | None]:
    """Return them for the runs that the policy stops and that were evaluated after the stop.

    The others say nothing of what a stop costs.
    """
    pairs = zip(backtest.results, regrets(backtest), strict=True)
    return [regret if result.stop is not None and result.evaluations_after else None for result, regret in pairs]


def deployable_regrets(backtest: Backtest) -> list[float | None]:
    """Return the relative deployable regret of each run, likewise."""
    return [counted_regret(result, result.relative_deployable_regret) for result in backtest.results]


def without_regret(backtest: Backtest) -> list[Excluded]:
    """Return the runs that the regret statistics leave out, each with the reason."""
    if not any(result.objective for result in backtest.results):
        return []
    reasons = [(result, _reason_without_regret(result)) for result in backtest.results]
    return [Excluded(result.run_id, result.name, reason) for result, reason in reasons if reason]


def with_few_evaluations(backtest: Backtest) -> list[RunResult]:
    """Return the runs whose evaluations are too few for the regret statistics."""
    return [result for result in backtest.results if 0 < len(result.evaluations) < FEWEST_EVALUATIONS]


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


def families_json(of_runs: Iterable[Family]) -> dict[str, Any]:
    """Return the families of runs, which intervals draw: their number, by key, and the largest."""
    counts = Counter(of_runs)
    by_key = Counter(family.key for family in counts)
    # Of equally large families the first by name, so that the order of the runs changes nothing.
    largest = min(counts, key=lambda family: (-counts[family], family.key, family.value), default=None)
    return {
        "count": len(counts),
        "keys": dict(sorted(by_key.items())),
        "largest": None if largest is None else {"key": largest.key, "value": largest.value, "runs": counts[largest]},
    }


def part_of(backtest: Backtest, is_in: Callable[[RunResult], bool]) -> dict[str, Any]:
    """Return what the policy saved and cost in some of the runs in which it could fire, without intervals."""
    return _part([pair for pair in _with_costs(backtest) if not pair[0].could_not_fire and is_in(pair[0])])


def _part(own: Sequence[tuple[RunResult, float | None]]) -> dict[str, Any]:
    results, known = [result for result, _ in own], [cost for _, cost in own if cost is not None]
    judged = [result for result in results if result.predicted is not None]
    timed = [result for result in judged if result.seconds_saved is not None]
    shares = [result.share_saved for result in judged if result.share_saved is not None]
    return {
        "runs": len(results),
        "stopped": sum(result.stop is not None for result in results),
        "right_censored": sum(bool(result.right_censored) for result in results),
        "steps_by_unit": _steps_by_unit(judged),
        "share_saved": _middle(shares),
        "share_saved_of_stopped": _middle(_shares_of_stopped(results)),
        "stops_by_cost": stops_by_cost(own),
        "timed_runs": len(timed),
        "elapsed_s": _total(timed, lambda result: result.recorded.elapsed_s),
        "seconds_saved": _total(timed, lambda result: result.seconds_saved),
        "relative_regret_of_stopped": {**_middle(known), **_worst(known)},
    }


def _by_controller(backtest: Backtest, able: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return in how many runs each controller that decides could fire, and how many it stops.

    ``series_end_early`` counts the runs in which a series that it reads ends before half of the run, and
    ``series_end_by`` is the largest share of such a run that the series covers.
    """
    stops = Counter(result.stop.outcome.controller for result in able if result.stop is not None)
    controllers = backtest.policy.controllers
    return [
        {
            "controller": controllers[index].name,
            "could_fire": sum(not result.unable[index] for result in able),
            **_early_ends([one for one in able if not one.unable[index]], index),
            "stopped": stops[controllers[index].name],
        }
        for index in deciding_controllers(backtest.policy)
    ]


def _early_ends(results: Sequence[RunResult], index: int) -> dict[str, Any]:
    ends = [(one.early_ends[index], one.recorded.steps) for one in results]
    shares = [end[1] / steps for end, steps in ends if end is not None]
    return {"series_end_early": len(shares), "series_end_by": max(shares, default=None)}


def _with_costs(backtest: Backtest) -> Iterator[tuple[RunResult, float | None]]:
    return zip(backtest.results, regrets_of_stopped(backtest), strict=True)


def _shares_of_stopped(results: Sequence[RunResult]) -> list[float]:
    shares = [result.share_saved for result in results if result.stop is not None]
    return [share for share in shares if share is not None]


def _by_family(backtest: Backtest) -> list[dict[str, Any]]:
    """Return what the policy saved and cost in each family, the largest first."""
    found: dict[Family, list[tuple[RunResult, float | None]]] = {}
    for result, cost in _with_costs(backtest):
        if not result.could_not_fire:
            found.setdefault(result.family, []).append((result, cost))
    ordered = sorted(found, key=lambda family: (-len(found[family]), family.key, family.value))
    return [{**asdict(family), **_part(found[family])} for family in ordered]


def _steps_by_unit(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return the steps that runs made and saved, by what they count, the unit of most runs first."""
    units = Counter(result.step_unit for result in results)
    of = {unit: [result for result in results if result.step_unit == unit] for unit in units}
    return [
        {
            "unit": unit,
            "runs": runs,
            "steps": sum(result.recorded.steps for result in of[unit]),
            "steps_saved": _total(of[unit], lambda result: result.steps_saved),
        }
        for unit, runs in sorted(units.items(), key=lambda counted: (-counted[1], counted[0]))
    ]


def _wasted(result: RunResult) -> int | None:
    return None if result.predicted is None else result.predicted.checkpoints_wasted


def counted_regret(result: RunResult, value: float | None) -> float | None:
    """Return the value for a run that counts in means of regret, else None.

    It ran as long as planned, has enough evaluations, and the policy could fire in it.
    """
    is_left_out = result.right_censored or result.could_not_fire or len(result.evaluations) < FEWEST_EVALUATIONS
    return None if is_left_out else value


def _reason_without_regret(result: RunResult) -> str:
    if result.could_not_fire:
        return f"could not fire: {result.could_not_fire}"
    if result.predicted is None:
        return "censored: the record does not show how this policy's run would have continued"
    if result.right_censored:
        return result.right_censored
    if result.objective is None:
        return "it recorded no evaluation that says how good it is"
    if len(result.evaluations) < FEWEST_EVALUATIONS:
        return (
            f"it has fewer than {FEWEST_EVALUATIONS} evaluations of {result.objective.metric}, so its best says little"
        )
    if result.recorded.best is None:
        return "each of its evaluations is NaN"
    if result.predicted.best is None:
        return "the policy would have stopped it before its first evaluation"
    if result.relative_regret is None:
        return "its best evaluation is too near zero to divide by"
    return ""


def _spread(values: Sequence[float | None], backtest: Backtest) -> dict[str, Any]:
    return {**typical(values, backtest), **_worst([value for value in values if value is not None])}


def _worst(known: Sequence[float]) -> dict[str, Any]:
    """Return the largest regret, and how many are notable."""
    above = sum(value > NOTABLE_REGRET for value in known)
    return {
        "max": max(known, default=None),
        "above_1_percent": above,
        "share_above_1_percent": above / len(known) if known else None,
    }


def typical(values: Sequence[float | None], backtest: Backtest) -> dict[str, Any]:
    """Return the mean of a value of each run with its interval, and the median and the trimmed mean beside it."""
    known = [value for value in values if value is not None]
    return {**asdict(interval(values, [result.family for result in backtest.results])), **_middle(known)}


def _middle(known: Sequence[float]) -> dict[str, Any]:
    """Return the number of values, their mean, median and trimmed mean."""
    return {
        "runs": len(known),
        "mean": sum(sorted(known)) / len(known) if known else None,  # Sorted, as for an interval.
        "median": statistics.median(known) if known else None,
        "trimmed_mean": trimmed_mean(known) if known else None,
    }


def _absolute(backtest: Backtest, amount: Callable[[RunResult], float | None]) -> dict[str, dict[str, Any]]:
    """Return the spread of a regret in the units of its metric, by metric: values of unlike metrics have no mean."""
    metrics = [None if result.objective is None else result.objective.metric for result in backtest.results]
    found = {}
    for metric in sorted({one for one in metrics if one is not None}):
        own = [
            counted_regret(result, amount(result)) if one == metric else None
            for result, one in zip(backtest.results, metrics, strict=True)
        ]
        found[metric] = {**typical(own, backtest), "max": max((v for v in own if v is not None), default=None)}
    return found


def absolute_regrets(total: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the regret in units of each metric. Logs of several sources that share a metric's name have no mean of it.

    Args:
        total: The aggregate.
    """
    if total["families"]["count"] > 1 and SOURCE_FOLDER in total["families"]["keys"]:
        return
    yield from ((metric, absolute) for metric, absolute in total["absolute_regret"].items() if absolute["runs"])


def median_steps_to_stop(results: Iterable[RunResult]) -> int | None:
    """Return the step by which half of the runs would have been stopped, had all continued long enough.

    The estimator is that of Kaplan and Meier (1958), for runs that may end before the policy could stop them.
    A run that the policy does not stop shows only that it was not stopped until its end. None if the estimate never
    reaches half.
    """
    spans = [(r.predicted.steps, r.stop is not None) for r in results if r.predicted is not None]
    stopped = Counter(steps for steps, is_stopped in spans if is_stopped)
    ended = Counter(steps for steps, _ in spans)
    at_risk, surviving = len(spans), 1.0
    for steps in sorted(ended):
        surviving *= 1 - stopped[steps] / at_risk
        if surviving <= 0.5:
            return steps
        at_risk -= ended[steps]
    return None


def _total(results: Sequence[RunResult], amount: Callable[[RunResult], float | None]) -> float | None:
    known = [value for value in map(amount, results) if value is not None]
    # Sorted by size: the order of the runs follows from their paths, and would change the last bit.
    return sum(sorted(known)) if known else None
