"""Adds up a backtest: savings, regret with intervals, parts of the runs, the ledger, and the comparison with baselines.

Takes the judged runs and how the policy was chosen, returns the one ``BacktestResult`` that all outputs read.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from ...rules.checks.possible_firings import deciding_controllers
from ..backtests.judged_runs import Backtest, BaselineOutcome, BaselineScore, standing_of
from ..choosing.population import certified_risk
from ..intervals import interval, paired_interval, trimmed_mean
from ..runs.incidents import middle_and_p90, together
from ..runs.objective import FEWEST_EVALUATIONS
from ..runs.risk import Risk
from ..runs.run_families import Family
from ..runs.run_result import SECONDS_PER_HOUR, Excluded, Outlay, RunResult
from ..sweeps.losses import losses_of_results
from .arming import arming_of
from .result import (
    POLICY,
    UNTOLD,
    AbsoluteSpread,
    BacktestResult,
    BacktestTotals,
    ComparisonRow,
    ControllerCounts,
    CostOfStops,
    DetectionScores,
    FamilyCounts,
    Fate,
    HowChosen,
    HumanLead,
    JudgedStops,
    Ledger,
    LedgerEntry,
    LostShare,
    Middle,
    MiddleAndP90,
    Part,
    PolicyLess,
    RowScore,
    ScoredRun,
    Spread,
    Stops,
    Typical,
    UnitSteps,
    WorstStop,
)


def summarize(backtest: Backtest, choice: HowChosen = UNTOLD) -> BacktestResult:
    """Return what a backtest found.

    Args:
        backtest: The judged runs.
        choice: How the policy was chosen.
    """
    has_losses = True
    if choice.certificate is not None:  # Its own promise judges its rule.
        certified = choice.certificate.risk
        settings = replace(backtest.settings, risk=certified_risk(certified), confidence=certified.confidence)
        has_losses = settings.risk == backtest.settings.risk
        backtest = replace(backtest, settings=settings)
    runs = scored_runs(backtest)
    totals, ledger = _totals(backtest, runs), _ledger(runs, backtest.cost_per_hour)
    return BacktestResult(
        backtest=backtest,
        totals=totals,
        ledger=ledger,
        largest_apart=tuple(_largest_apart(totals, ledger, runs)),
        comparison=tuple(_comparison(backtest, runs, has_losses=has_losses)),
        ranked=tuple(_ranked(runs, ledger)),
        few_evaluations=tuple(one for one in backtest.results if 0 < len(one.evaluations) < FEWEST_EVALUATIONS),
        without_regret=tuple(_without_regret(backtest.results)),
        detection=_detection(backtest),
        human=_human(backtest.results),
        choice=choice,
        arming=arming_of(backtest, runs, ledger, choice),
    )


def scored_runs(backtest: Backtest) -> list[ScoredRun]:
    """Return the runs with what their stops cost: the loss by the risk, and the regret where an evaluation follows."""
    risk, results = backtest.settings.risk, backtest.results
    losses = losses_of_results(risk, backtest.policy, results)
    found = []
    for result, value, is_unknown, regret in zip(
        results, losses.values.tolist(), losses.is_unknown.tolist(), losses.regrets.tolist(), strict=True
    ):
        is_judged = result.is_stopped and result.evaluations_after > 0
        of_stop = _counted_regret(result, result.relative_regret) if is_judged else None
        fate = Fate.UNKNOWN if is_unknown else _fate(result, regret, risk)
        found.append(ScoredRun(result, of_stop, fate, None if is_unknown else value))
    return found


def _counted_regret(result: RunResult, value: float | None) -> float | None:
    """Return the value for a run that counts in means of regret, else None.

    It ran as long as planned, has enough evaluations, and the policy could fire in it.
    """
    is_left_out = result.right_censored or result.could_not_fire or len(result.evaluations) < FEWEST_EVALUATIONS
    return None if is_left_out else value


def _fate(result: RunResult, regret: float, risk: Risk) -> Fate:
    """Return what happens to a run whose loss is known."""
    if regret > risk.notable:
        return Fate.LOST
    # A stop at the last step of a whole run saves and costs nothing: there is nothing to judge.
    is_at_end = not result.steps_saved and not result.evaluations_after
    return Fate.KEPT if result.stop is None or is_at_end else Fate.SAVED


def _totals(backtest: Backtest, runs: Sequence[ScoredRun]) -> BacktestTotals:
    results = backtest.results
    able_runs = [run for run in runs if not run.result.could_not_fire]
    able = [run.result for run in able_runs]
    judged = [result for result in able if result.predicted is not None]
    seconds = [result for result in judged if result.seconds_saved is not None]
    sized = [result for result in judged if result.bytes_saved is not None]
    hours, cost = _total(judged, lambda result: result.rank_hours_saved), backtest.cost_per_hour
    by_unit = _steps_by_unit(judged)
    steps, steps_saved = (by_unit[0].steps, by_unit[0].steps_saved) if len(by_unit) == 1 else (None, None)
    families, risk = [result.family for result in results], backtest.settings.risk

    return BacktestTotals(
        runs=len(results),
        excluded=len(backtest.excluded),
        repeated=len(backtest.repeated),
        families=FamilyCounts.of(result.family for result in able),
        could_fire=len(able),
        not_known=sum(result.predicted is None for result in results),
        changed=sum(result.is_changed for result in results),
        changed_from=_changed_from(results),
        right_censored=sum(bool(result.right_censored) for result in able),
        fired=sum(result.fired for result in results),
        stopped=sum(result.is_stopped for result in results),
        steps=steps if by_unit else 0,
        steps_saved=steps_saved,
        steps_by_unit=by_unit,
        timed_runs=len(seconds),
        elapsed_s=_total(seconds, lambda result: result.recorded.elapsed_s),
        seconds_saved=_total(judged, lambda result: result.seconds_saved),
        rank_hours_saved=hours,
        cost_saved=None if hours is None or cost is None else hours * cost,
        checkpoints=sum(result.recorded.checkpoints for result in judged),
        checkpoints_saved=_total(judged, lambda result: result.checkpoints_saved),
        checkpoint_bytes=_total(sized, lambda result: result.recorded.checkpoint_bytes),
        bytes_saved=_total(judged, lambda result: result.bytes_saved),
        checkpoints_never_restored=sum(result.recorded.checkpoints_wasted for result in judged),
        checkpoints_never_restored_predicted=_total(judged, _wasted),
        evaluations=sum(result.recorded.evaluations for result in judged),
        evaluations_saved=_total(judged, lambda result: result.evaluations_saved),
        share_saved=_typical([None if one.could_not_fire else one.share_saved for one in results], families),
        share_saved_of_stopped=_middle_of(_shares_of_stopped(able)),
        stops_by_cost=_stops_by_cost(able_runs),
        relative_regret=_spread([_counted_regret(one, one.relative_regret) for one in results], families, risk),
        relative_regret_of_stopped=_spread([run.stop_regret for run in runs], families, risk),
        relative_deployable_regret=_spread(
            [_counted_regret(one, one.relative_deployable_regret) for one in results], families, risk
        ),
        absolute_regret=_absolute(results, lambda result: result.regret),
        absolute_deployable_regret=_absolute(results, lambda result: result.deployable_regret),
        median_steps_to_stop=_median_steps_to_stop(able) if len(by_unit) == 1 else None,
        validity=backtest.validity_counts(),
        by_controller=_by_controller(backtest, able),
        by_family=_by_family(able_runs),
    )


def _changed_from(results: Sequence[RunResult]) -> float | None:
    """Return the median share of a run's steps up to its first change of the training; None without one."""
    spans = [(one.certain, one.recorded.steps) for one in results if one.is_changed]
    shares = [known.steps / steps for known, steps in spans if known is not None and steps]
    return statistics.median(shares) if shares else None


def _largest_apart(totals: BacktestTotals, ledger: Ledger, runs: Sequence[ScoredRun]) -> Iterator[tuple[Part, Ledger]]:
    """Yield the largest family and the other runs, if that has more than half of the runs, but not all."""
    largest, able = totals.families.largest, totals.could_fire
    if largest is None or not totals.families.is_mostly_one(able) or largest.runs == able or not totals.stopped:
        return
    named = (largest.key, largest.value)
    for is_largest in (True, False):
        own = [run for run in runs if ((run.result.family.key, run.result.family.value) == named) is is_largest]
        part = _part([run for run in own if not run.result.could_not_fire])
        yield part, ledger.of_runs({run.result.run_id for run in own})


def _part(own: Sequence[ScoredRun]) -> Part:
    results = [run.result for run in own]
    judged = [result for result in results if result.predicted is not None]
    timed = [result for result in judged if result.seconds_saved is not None]
    shares = [result.share_saved for result in judged if result.share_saved is not None]
    return Part(
        runs=len(results),
        stopped=sum(result.is_stopped for result in results),
        right_censored=sum(bool(result.right_censored) for result in results),
        steps_by_unit=_steps_by_unit(judged),
        share_saved=_middle_of(shares),
        share_saved_of_stopped=_middle_of(_shares_of_stopped(results)),
        stops_by_cost=_stops_by_cost(own),
        timed_runs=len(timed),
        elapsed_s=_total(timed, lambda result: result.recorded.elapsed_s),
        seconds_saved=_total(timed, lambda result: result.seconds_saved),
        relative_regret_of_stopped=_cost_of_stops(own),
    )


def _by_family(able: Sequence[ScoredRun]) -> tuple[tuple[Family, Part], ...]:
    """Return what the policy saved and cost in each family, the largest first."""
    found: dict[Family, list[ScoredRun]] = {}
    for run in able:
        found.setdefault(run.result.family, []).append(run)
    ordered = sorted(found, key=lambda family: (-len(found[family]), family.key, family.value))
    return tuple((family, _part(found[family])) for family in ordered)


def _by_controller(backtest: Backtest, able: Sequence[RunResult]) -> tuple[ControllerCounts, ...]:
    """Return in how many runs each controller that decides could fire, and how many it stops."""
    stops = Counter(one.stop.outcome.controller for one in able if one.stop is not None and one.is_stopped)
    found = []
    for index in deciding_controllers(backtest.policy):
        own, name = [one for one in able if one.unable[index] is None], backtest.policy.controllers[index].name
        ends = [(one.early_ends[index], one.recorded.steps) for one in own]
        shares = [end[1] / steps for end, steps in ends if end is not None]
        found.append(ControllerCounts(name, len(own), len(shares), max(shares, default=None), stops[name]))
    return tuple(found)


def _steps_by_unit(results: Sequence[RunResult]) -> tuple[UnitSteps, ...]:
    """Return the steps that runs made and saved, by what they count, the unit of most runs first."""
    by_unit: dict[str, list[RunResult]] = {}
    for result in results:
        by_unit.setdefault(result.step_unit, []).append(result)
    ordered = sorted(by_unit.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return tuple(
        UnitSteps(unit, len(own), sum(one.recorded.steps for one in own), sum(one.steps_saved or 0 for one in own))
        for unit, own in ordered
    )


def _shares_of_stopped(results: Sequence[RunResult]) -> list[float]:
    shares = [result.share_saved for result in results if result.is_stopped]
    return [share for share in shares if share is not None]


def _stops_by_cost(able: Sequence[ScoredRun]) -> Mapping[Fate, Stops]:
    """Return the stops by what they cost, and what each kind adds to the savings.

    ``share_saved`` of the kinds add up to the mean share over all these runs, stopped or not.
    """
    known = sum(run.result.share_saved is not None for run in able)
    stopped = [run for run in able if run.result.is_stopped]
    fates = (Fate.SAVED, Fate.LOST, Fate.UNKNOWN, Fate.KEPT)
    return {fate: _stops([run for run in stopped if run.fate is fate], known) for fate in fates}


def _stops(runs: Sequence[ScoredRun], known: int) -> Stops:
    results = [run.result for run in runs]
    seconds = [result.seconds_saved for result in results if result.seconds_saved is not None]
    # Sorted by size: the order of the runs follows from their paths, and would change the last bit.
    shares = sorted(result.share_saved for result in results if result.share_saved is not None)
    unjudged = Counter(_why_unjudged(run.result) for run in runs if run.fate is Fate.UNKNOWN)
    return Stops(
        stopped=len(results),
        right_censored=sum(bool(result.right_censored) for result in results),
        share_saved=sum(shares) / known if known else None,
        seconds_saved=sum(sorted(seconds)) if seconds else None,
        without_weights=sum(result.leaves_no_weights for result in results),
        judged=_judged_stops([run for run in runs if not run.result.leaves_no_weights]),
        reasons=dict(sorted(unjudged.items(), key=lambda one: (-one[1], one[0]))),
    )


def _judged_stops(runs: Sequence[ScoredRun]) -> JudgedStops | None:
    judged = [(run.stop_regret, run.result.name, run.result) for run in runs if run.stop_regret is not None]
    if not judged:
        return None
    return JudgedStops(
        later_evaluations=statistics.median(result.evaluations_after for *_, result in judged),
        metrics=tuple(sorted({result.objective.metric for *_, result in judged if result.objective is not None})),
        regret=statistics.median(regret for regret, *_ in judged),
        worst=_worst_stop(*max(judged, key=lambda one: one[:2])),
    )


def _worst_stop(regret: float, name: str, result: RunResult) -> WorstStop:
    best = None if result.predicted is None else result.predicted.best
    metric = "" if result.objective is None else result.objective.metric
    return WorstStop(regret, name, metric, best, result.recorded.best)


def _why_unjudged(result: RunResult) -> str:
    """Return why nobody knows what the stop of a run costs, in few words."""
    if result.predicted is None:
        return "with an unknown outcome"
    if result.right_censored:
        return "unfinished or ended early"
    if result.objective is None:
        return "without an evaluation that says how good it is"
    if len(result.evaluations) < FEWEST_EVALUATIONS:
        return f"with fewer than {FEWEST_EVALUATIONS} evaluations"
    if not result.evaluations_after:
        return "without an evaluation after the stop"
    return "without a best evaluation to compare with"


def _without_regret(results: Sequence[RunResult]) -> Iterator[Excluded]:
    """Yield the runs that the regret statistics leave out, each with the reason."""
    if any(result.objective for result in results):
        for result in results:
            if reason := _why_without_regret(result):
                yield Excluded(result.run_id, result.name, reason)


def _why_without_regret(result: RunResult) -> str:
    if result.could_not_fire:
        return f"could not fire: {result.could_not_fire}"
    if result.predicted is None:
        return "censored: the record does not show how the run would have continued"
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
        return "the rules would have stopped it before its first evaluation"
    if result.relative_regret is None:
        return "its best evaluation is too near zero to divide by"
    return ""


def _typical(values: Sequence[float | None], families: Sequence[Family]) -> Typical:
    """Return the mean of a value of each run with its interval, and the median and the trimmed mean beside it."""
    within, middle = interval(values, families), _middle_of([value for value in values if value is not None])
    return Typical(
        within.mean, within.low, within.high, within.runs, within.families, middle.median, middle.trimmed_mean
    )


def _spread(values: Sequence[float | None], families: Sequence[Family], risk: Risk) -> Spread:
    one = _typical(values, families)
    known = [value for value in values if value is not None]
    most, above = max(known, default=None), sum(value > risk.notable for value in known)
    return Spread(one.mean, one.low, one.high, one.runs, one.families, one.median, one.trimmed_mean, most, above)


def _cost_of_stops(own: Sequence[ScoredRun]) -> CostOfStops:
    known = [run.stop_regret for run in own if run.stop_regret is not None]
    one = _middle_of(known)
    return CostOfStops(one.runs, one.mean, one.median, one.trimmed_mean, max(known, default=None))


def _middle_of(known: Sequence[float]) -> Middle:
    if not known:
        return Middle(0, None, None, None)
    # Sorted, as for an interval.
    return Middle(len(known), sum(sorted(known)) / len(known), statistics.median(known), trimmed_mean(known))


def _absolute(results: Sequence[RunResult], amount: Callable[[RunResult], float | None]) -> dict[str, AbsoluteSpread]:
    """Return the spread of a regret in the units of its metric, by metric: values of unlike metrics have no mean."""
    metrics = [None if result.objective is None else result.objective.metric for result in results]
    families = [result.family for result in results]
    found = {}
    for metric in sorted({one for one in metrics if one is not None}):
        pairs = zip(results, metrics, strict=True)
        own = [_counted_regret(result, amount(result)) if one == metric else None for result, one in pairs]
        all_of = _typical(own, families)
        most = max((value for value in own if value is not None), default=None)
        found[metric] = AbsoluteSpread(
            all_of.mean, all_of.low, all_of.high, all_of.runs, all_of.families, all_of.median, all_of.trimmed_mean, most
        )
    return found


def _median_steps_to_stop(results: Iterable[RunResult]) -> int | None:
    """Return the step by which half of the runs would have been stopped, had all continued long enough.

    The estimator is that of Kaplan and Meier (1958), for runs that may end before the policy could stop them.
    A run that the policy does not stop shows only that it was not stopped until its end. None if the estimate never
    reaches half.
    """
    spans = [(r.predicted.steps, r.is_stopped) for r in results if r.predicted is not None]
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


def _wasted(result: RunResult) -> int | None:
    return None if result.predicted is None else result.predicted.checkpoints_wasted


def _detection(backtest: Backtest) -> DetectionScores | None:
    labelled = [result.detection for result in backtest.results if result.detection is not None]
    if not labelled:
        return None
    total = together(labelled)
    return DetectionScores(
        runs=total.runs,
        incidents=total.incidents,
        found=total.found,
        unreached=total.unreached,
        alarms=total.alarms,
        true_alarms=total.true_alarms,
        precision=total.precision,
        recall=total.recall,
        f1=total.f1,
        chance_precision=total.chance_precision,
        false_alarms_per_1000_steps=total.false_alarms_per_1000_steps,
        false_alarms_per_run=total.false_alarms / total.runs,
        delay_steps=_middle_and_p90(total.delays_steps),
        delay_s=_middle_and_p90(total.delays_s),
        tolerance_steps=backtest.settings.tolerance_steps,
    )


def _human(results: Sequence[RunResult]) -> HumanLead | None:
    leads = [result.human for result in results if result.human is not None]
    if not leads:
        return None
    return HumanLead(
        runs=len(leads),
        acted=sum(lead.steps is not None for lead in leads),
        earlier=sum(lead.steps is not None and lead.steps > 0 for lead in leads),
        lead_steps=_middle_and_p90([lead.steps for lead in leads if lead.steps is not None]),
        lead_s=_middle_and_p90([lead.seconds for lead in leads if lead.seconds is not None]),
    )


def _middle_and_p90(values: Sequence[float]) -> MiddleAndP90 | None:
    found = middle_and_p90(values)
    return None if found is None else MiddleAndP90(*found)


_Amount = Callable[[RunResult, Outlay], float | None]


def _ledger(runs: Sequence[ScoredRun], cost_per_hour: float | None) -> Ledger:
    """Return what runs spent, saved and lost, in hours if at least half of the runs have a clock."""
    able = [run for run in runs if not run.result.could_not_fire] or runs
    unit, amount = _measure([run.result for run in able])
    is_in_hours = unit in ("h", "rank-hours")
    entries = {run.result.run_id: _entry(run, amount) for run in able}
    return Ledger(unit, entries, cost_per_hour if is_in_hours else None)


def _measure(results: Sequence[RunResult]) -> tuple[str, _Amount]:
    """Return the unit of a ledger, and what an outlay of a run counts in it."""
    units = {result.step_unit for result in results}
    clocked = sum(bool(result.recorded.elapsed_s) for result in results)
    if clocked and 2 * clocked >= len(results):
        return "h" if all(result.ranks == 1 for result in results) else "rank-hours", _rank_hours
    if len(units) == 1:
        return units.pop(), lambda _, outlay: float(outlay.steps)
    return "runs", lambda result, outlay: outlay.steps / result.recorded.steps if result.recorded.steps else None


def _rank_hours(result: RunResult, outlay: Outlay) -> float | None:
    return None if outlay.elapsed_s is None else outlay.elapsed_s * result.ranks / SECONDS_PER_HOUR


def _entry(run: ScoredRun, amount: _Amount) -> LedgerEntry:
    fate, result = run.fate, run.result
    spent, up_to = amount(result, result.recorded), result.predicted or result.certain
    if fate is Fate.KEPT:
        return LedgerEntry(fate, spent, 0.0)
    kept = 0.0 if up_to is None else amount(result, up_to)
    if spent is None or kept is None:
        return LedgerEntry(fate, spent, None)
    return LedgerEntry(fate, spent, kept if fate is Fate.LOST else spent - kept)


def _ranked(runs: Sequence[ScoredRun], ledger: Ledger) -> Iterator[RunResult]:
    """Yield the runs, those first that lose most; then other stops, unknown outcomes, and runs that are kept.

    The runs in which the policy could not fire come last.
    """

    def rank(run: ScoredRun) -> tuple[bool, bool, bool, float, float, float]:
        result = run.result
        is_whole, is_lost = result.stop is None and result.predicted is not None, run.fate is Fate.LOST
        lost = ledger.entries[result.run_id].amount if is_lost else None
        regret, share = result.relative_regret if is_lost else None, result.share_saved
        return bool(result.could_not_fire), is_whole, not is_lost, -(lost or 0), -(regret or 0), -(share or 0)

    return (run.result for run in sorted(runs, key=rank))


#: The fields of a score by which policies are compared.
_COMPARED: Final[Mapping[str, Callable[[BaselineScore], float | None]]] = MappingProxyType(
    {
        "share_saved": lambda score: score.share_saved,
        "relative_regret": lambda score: score.relative_regret,
        "relative_deployable_regret": lambda score: score.relative_deployable_regret,
    }
)
_STOPPED: Final = "stopped"

#: The values of one column of the comparison: one for each run, by the row's name. All rows know the same runs.
_Column = Mapping[str, Sequence[float | None]]


def _comparison(backtest: Backtest, runs: Sequence[ScoredRun], *, has_losses: bool) -> Iterator[ComparisonRow]:
    """Yield a row for the policy, and one per baseline with the run-by-run difference from the policy.

    All rows are over the same runs in which the policy could fire: those that each row scores, and in each column those
    for which each row knows the number. A baseline that scores fewer than half of them has no numbers, and one whose
    regret is known in fewer than half has no regret: its few runs would be those of every row. Differences are the
    policy's value less the baseline's.

    Args:
        backtest: The backtest.
        runs: Its runs with what their stops cost.
        has_losses: Whether the baselines were judged by the same risk.
    """
    results = backtest.results
    able = sum(not result.could_not_fire for result in results)
    scored = {one.baseline.name: _scored_runs(one, results) for one in backtest.baselines}
    scores: dict[str, Sequence[BaselineScore | None]] = {
        one.baseline.name: one.standings
        for one in backtest.baselines
        if one.standings and 2 * scored[one.baseline.name] >= able
    }
    scores[POLICY] = [
        standing_of(run.result, is_lost=run.fate is Fate.LOST, is_unknown=run.fate is Fate.UNKNOWN) for run in runs
    ]
    fields: dict[str, Callable[[BaselineScore], float | None]] = {_STOPPED: lambda one: one.stopped, **_COMPARED}
    table = {
        field: _common({row: _values(own, results, field, value_of) for row, own in scores.items()})
        for field, value_of in fields.items()
    }
    families = [result.family for result in results]
    title, digest = backtest.policy.name or "these rules", backtest.policy.digest
    shares = {
        name: _lost_shares(own, table[_STOPPED][name], results) if has_losses else None for name, own in scores.items()
    }
    yield ComparisonRow(POLICY, title, digest, _row_score(POLICY, table, results, families, shares[POLICY]))
    for outcome in backtest.baselines:
        name, where = outcome.baseline.name, _scored_on(outcome, scored[outcome.baseline.name], able)
        row = ComparisonRow(name, outcome.baseline.title, outcome.digest, None, scored_on=where)
        if name not in scores:
            yield replace(row, reason=outcome.reason or where or "no run was judged")
            continue
        less = [paired_interval(table[field][POLICY], table[field][name], families) for field in _COMPARED]
        score = _row_score(name, table, results, families, shares[name])
        yield replace(row, score=score, policy_less_this=PolicyLess(*less))


def _scored_runs(outcome: BaselineOutcome, results: Sequence[RunResult]) -> int:
    """Return the number of runs that a baseline scores, of those in which the policy could fire."""
    pairs = zip(outcome.standings, results, strict=bool(outcome.standings))
    return sum(standing is not None and not result.could_not_fire for standing, result in pairs)


def _scored_on(outcome: BaselineOutcome, scored: int, able: int) -> str:
    """Return in how many runs a pruner is scored, and why not in the others; empty if in all or none."""
    if outcome.baseline.pruner is None or not 0 < scored < able:
        return ""
    return f"scored on {scored} of {able} runs; the others have no clock times, or no metric judges them"


def _row_score(
    name: str,
    table: Mapping[str, _Column],
    results: Sequence[RunResult],
    families: Sequence[Family],
    lost: LostShare | None,
) -> RowScore:
    stops = table[_STOPPED][name]
    stopped = [value for value in stops if value is not None]
    costs = zip(stops, table["relative_regret"][name], results, strict=True)
    known = [(value or 0, result) for value, cost, result in costs if cost is not None]
    judged = [value for value, result in known if name != POLICY or result.evaluations_after]
    columns = [_typical(table[field][name], families) for field in _COMPARED]
    return RowScore(len(stopped), sum(sorted(stopped)), sum(sorted(judged)), lost, *columns)


def _lost_shares(
    scores: Sequence[BaselineScore | None], shown: Sequence[float | None], results: Sequence[RunResult]
) -> LostShare | None:
    """Return the share of lost runs and of unknown ones, averaged over families, of the runs that rows share."""
    by_family: dict[Family, list[BaselineScore]] = {}
    for score, is_shown, result in zip(scores, shown, results, strict=True):
        if score is not None and is_shown is not None and result.objective is not None:
            by_family.setdefault(result.family, []).append(score)
    if not by_family:
        return None
    lost = [statistics.fmean(one.lost for one in own) for own in by_family.values()]
    unknown = [statistics.fmean(one.unknown for one in own) for own in by_family.values()]
    return LostShare(statistics.fmean(lost), statistics.fmean(unknown))


def _common(rows: _Column) -> _Column:
    """Return the rows of a column with only the runs that all of them know.

    A row that knows fewer than half of the policy's runs has none: it would take them from every row.
    """
    wanted = [index for index, value in enumerate(rows[POLICY]) if value is not None]
    sharing = {name: row for name, row in rows.items() if 2 * sum(row[at] is not None for at in wanted) >= len(wanted)}
    known = [None not in values for values in zip(*sharing.values(), strict=True)]
    return {
        name: [value if is_known and name in sharing else None for value, is_known in zip(row, known, strict=True)]
        for name, row in rows.items()
    }


def _values(
    scores: Sequence[BaselineScore | None],
    results: Sequence[RunResult],
    field: str,
    value_of: Callable[[BaselineScore], float | None],
) -> list[float | None]:
    """Return one field of each run's score; regrets only for runs that count for regret."""
    values = [
        None if score is None or result.could_not_fire else value_of(score)
        for score, result in zip(scores, results, strict=True)
    ]
    if "regret" not in field:
        return values
    return [_counted_regret(*pair) for pair in zip(results, values, strict=True)]
