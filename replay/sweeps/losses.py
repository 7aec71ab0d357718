"""What stops lose by a risk: the one definition by which backtests, sweeps and certificates judge a run.

Takes outcomes and the facts of the runs that they are of; returns losses from 0 to 1, and which of them are unknown.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ...rules.language.bound_rule import BoundRule
from ...rules.policy_file.policy import Policy
from ...rules.readings.vectors import Floats, Ints, Truths
from ...store.metric_words import Mode
from ..runs.objective import FEWEST_EVALUATIONS, NEAR_ZERO, Evaluation, Objective
from ..runs.risk import Risk
from ..runs.run_result import RunResult
from .outcomes import NO_STEP, Losses, Outcomes, SweptRun, outcomes_of_results


class JudgedRuns(NamedTuple):
    """The facts of runs by which a stop in each is judged: an array each, or one value for all.

    Attributes:
        best: Best value of the objective; NaN if unknown.
        is_min: Whether lower values are better.
        utmost: The best value that the objective can have; NaN if nobody says it.
        has_checkpoints: Whether it recorded a checkpoint.
        has_deployable: Whether an evaluation has a checkpoint.
        ended_by_rules: Whether its own rules ended it.
    """

    best: Floats | float
    is_min: Truths | bool
    utmost: Floats | float
    has_checkpoints: Truths | bool
    has_deployable: Truths | bool
    ended_by_rules: Truths | bool


def losses_of(risk: Risk, outcomes: Outcomes, runs: JudgedRuns) -> Losses:
    """Return what each outcome loses.

    A run that is not stopped loses nothing: it is the same with the policy and without it. There are two exceptions.
    The policy's checkpoints may have replaced better ones. In a run that its own rules ended, the policy would have
    replaced these, so what follows is unknown. A stop at the last step of a whole run loses nothing either.

    A stop before the first checkpoint of a run that recorded some loses the run: it leaves no weights. The loss of
    another stop is known if an evaluation follows it, the run has ``FEWEST_EVALUATIONS``, and it ran as
    long as planned. In a run that might have continued, the range of the metric may bound the regret.

    Args:
        risk: The risk.
        outcomes: The outcomes.
        runs: The run or runs that they are of.
    """
    is_stopped, is_shown = outcomes.stop_step != NO_STEP, ~np.isnan(outcomes.steps_saved)
    name = "deployable_regret" if risk.is_deployable else "regret"
    regrets: Floats = np.maximum(getattr(outcomes, f"relative_{name}" if risk.is_relative else name), 0.0)
    if risk.is_deployable:
        is_bare = is_shown & np.isnan(outcomes.deployable_regret) & runs.has_deployable
        regrets = np.where(is_bare, np.inf, regrets)
    leaves_nothing = is_stopped & (outcomes.checkpoints == 0) & runs.has_checkpoints
    regrets = np.where(leaves_nothing, np.inf, regrets)
    is_judged = outcomes.evaluated_after & ~outcomes.has_few_evaluations & ~np.isnan(regrets)
    is_open = outcomes.is_right_censored | runs.ended_by_rules
    of_whole = np.where(is_judged, regrets, np.where(outcomes.steps_saved == 0, 0.0, np.nan))
    of_stops = np.where(is_open, _most(risk, outcomes, runs), of_whole)
    replaced = np.where(runs.has_deployable, regrets, 0.0) if risk.is_deployable else 0.0
    unstopped = np.where(outcomes.decisions == 0, 0.0, np.where(is_shown, replaced, np.nan))
    found = np.where(is_stopped, of_stops, np.where(runs.ended_by_rules, np.nan, unstopped))
    found = np.where(leaves_nothing, np.inf, found)
    values = risk.loss_of(found)
    is_unknown = np.isnan(found) | (is_stopped & is_open & (values > risk.loss_of(regrets)))
    return Losses(values, is_unknown, found)


def _most(risk: Risk, outcomes: Outcomes, runs: JudgedRuns) -> Floats:
    """Return the most that each stop can have lost, if the best value can be as good as the metric's range allows.

    NaN where the range does not say it.
    """
    if risk.is_deployable:
        return np.full(len(outcomes.stop_step), np.nan)
    sign = np.where(runs.is_min, 1.0, -1.0)
    most: Floats = np.maximum((runs.best - runs.utmost) * sign + outcomes.regret, 0.0)
    if not risk.is_relative:
        return most
    is_positive = (np.asarray(runs.utmost) >= NEAR_ZERO) & (np.asarray(runs.best) > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(is_positive, np.maximum(most / runs.utmost, outcomes.relative_regret), np.nan)


def losses_on(risk: Risk, policy: Policy, run: SweptRun, outcomes: Outcomes) -> Losses:
    """Return what each of a run's outcomes loses.

    Args:
        risk: The risk.
        policy: The policy, which may give the range of the objective.
        run: The run, with an objective.
        outcomes: Outcomes on it.
    """
    objective = run.objective
    is_min = objective is None or objective.mode is Mode.MIN
    utmost, has_checkpoints = _utmost(policy, objective), run.checkpoints > 0
    facts = JudgedRuns(run.best, is_min, utmost, has_checkpoints, run.has_deployable, run.ended_by_rules)
    return losses_of(risk, outcomes, facts)


def losses_of_results(risk: Risk, policy: Policy, results: Sequence[RunResult]) -> Losses:
    """Return what a policy loses on each run of a backtest."""
    return losses_of(risk, outcomes_of_results(results), _facts_of(policy, results))


def _facts_of(policy: Policy, results: Sequence[RunResult]) -> JudgedRuns:
    utmost = {result.objective: _utmost(policy, result.objective) for result in results}
    bests = (result.recorded.best for result in results)
    return JudgedRuns(
        best=np.array([math.nan if best is None else best for best in bests]),
        is_min=np.array([one.objective is None or one.objective.mode is Mode.MIN for one in results], np.bool_),
        utmost=np.array([utmost[result.objective] for result in results]),
        has_checkpoints=np.array([result.recorded.checkpoints > 0 for result in results], np.bool_),
        has_deployable=np.array([result.recorded.deployable is not None for result in results], np.bool_),
        ended_by_rules=np.array([result.ended_by_rules for result in results], np.bool_),
    )


def losses_at(risk: Risk, policy: Policy, result: RunResult, stops: Sequence[int]) -> Losses:
    """Return what a run of a backtest loses by a stop at the end of each of some steps; ``NO_STEP`` for no stop."""
    at, objective, recorded = np.array(stops, np.int64), result.objective, result.recorded
    is_min = objective is None or objective.mode is Mode.MIN
    kept = [one for one in result.evaluations if one.step in result.saved_steps]
    regret = _regrets_at(at, result.evaluations, recorded.best, is_min)
    deployable = _regrets_at(at, kept, recorded.deployable, is_min)
    count, unknown = len(at), np.full(len(at), math.nan)
    last = result.evaluations[-1].step if result.evaluations else NO_STEP
    outcomes = Outcomes(
        at,
        (at != NO_STEP).astype(np.int64),
        np.maximum(recorded.steps - at, 0).astype(np.float64),
        unknown,
        np.searchsorted(sorted(result.saved_steps), at, side="right").astype(np.float64),
        unknown,
        regret,
        _relative(regret, recorded.best),
        deployable,
        _relative(deployable, recorded.deployable),
        np.full(count, bool(result.right_censored)),
        np.full(count, len(result.evaluations) < FEWEST_EVALUATIONS),
        at < last,
        np.ones(count, np.bool_),
    )
    return losses_of(risk, outcomes, _facts_of(policy, [result]))


def _regrets_at(stops: Ints, evaluations: Sequence[Evaluation], reference: float | None, is_min: bool) -> Floats:
    """Return how much worse the best value up to each stop is than the reference; NaN where there is none."""
    sign, known = 1.0 if is_min else -1.0, math.nan if reference is None else reference
    best: Floats = np.fmin.accumulate([math.nan, *(sign * one.value for one in evaluations)])
    return best[np.searchsorted([one.step for one in evaluations], stops, side="right")] - sign * known


def _relative(regrets: Floats, reference: float | None) -> Floats:
    """Divide regrets by the magnitude of their reference, as ``relative`` does for one."""
    scale = 0.0 if reference is None else abs(reference)
    return np.where(regrets == 0, 0.0, regrets / scale if scale >= NEAR_ZERO else math.nan)


def savings(outcomes: Outcomes, steps: int) -> Floats:
    """Return the share of a run's steps that each variant saves; 0 where it cannot fire, or where it is unknown."""
    shares = outcomes.steps_saved / max(steps, 1)
    return np.where(outcomes.could_fire & ~np.isnan(shares), shares, 0.0)


#: The ends of a metric's range by its mode.
_END: Final = {Mode.MIN: 0, Mode.MAX: 1}


def _utmost(policy: Policy, objective: Objective | None) -> float:
    """Return the best value that a metric can have, where ``ranges`` of the policy give it as a plain number; NaN."""
    if objective is None or objective.metric not in policy.ranges:
        return math.nan
    return _number_in(policy.ranges[objective.metric][_END[objective.mode]])


def _number_in(end: BoundRule) -> float:
    try:
        return float(ast.literal_eval(end.expression.tree))
    except (ValueError, TypeError):
        return math.nan
