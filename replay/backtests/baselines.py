"""Baselines: the usual alternatives to a policy, scored on the same runs.

Most are shipped rule files, with the defaults of the tool that they imitate. Five are not: never
stopping, stopping at the best evaluation (unknowable in time), stopping at random as often per step as the policy does,
and two pruners, which compare a run with earlier runs, as hyper-parameter tuners do.

A pruner takes runs in the order in which they began. A run sees of each earlier one what it had recorded by then on the
wall clock, up to where the pruner would have ended it. It sees nothing of runs that began with it or later. A run
without a clock sees none and is seen by none. A step of the tuner is here the number of the evaluation, from 1 on.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, repeat
from types import MappingProxyType
from typing import Final

import numpy as np

from ...rules.policy_file.policy import Policy, load_policy, shipped_policies
from ...store.metric_words import Mode
from ...store.run import Run
from ..columns.column_replay import by_columns
from ..run_pool import RunPool
from ..runs.judging import facts_under, result_of
from ..runs.objective import Evaluation, Objective, best, relative
from ..runs.risk import Risk
from ..runs.run_result import BacktestSettings, RunResult
from ..sweeps.losses import losses_at, losses_of_results
from ..sweeps.outcomes import NO_STEP
from .judged_runs import Baseline, BaselineOutcome, BaselineScore, Earlier, Pruner, standing_of

#: Files whose rule is defined only for errors and losses, which are better low.
_ONLY_LOSSES: Final = frozenset(("prechelt_gl", "prechelt_pq"))

#: Why a baseline that reads the objective has no score.
NO_MERIT: Final = "it watches the objective, and there is none"

#: Why a baseline that compares runs has no score.
NO_CLOCK: Final = "no run has clock times"


#: ``MedianPruner`` of Optuna (class reference, version 4): n_startup_trials. Its n_warmup_steps is 0, and its
#: interval_steps and n_min_trials are 1; these defaults need no code.
STARTUP_RUNS: Final = 5

#: ``AsyncHyperBandScheduler`` of Ray Tune (ray.tune.schedulers reference): grace_period and reduction_factor, with one
#: bracket. Its max_t ends trials at 100 reports; recorded runs have their planned length, so it is left out.
GRACE: Final = 1
REDUCTION: Final = 4


def median_pruner(costs: Sequence[float], earlier: Sequence[Earlier], now_ns: int) -> bool:
    """Whether the best so far is worse than the median of completed runs at the same evaluation.

    NaN evaluations are ignored; a run with no others is pruned.
    """
    completed = [run for run in earlier if run.is_complete(now_ns)]
    if len(completed) < STARTUP_RUNS:
        return False
    own = _numbers(costs)
    others = _numbers(run.at(len(costs), now_ns) for run in completed)
    return not own or (bool(others) and min(own) > statistics.median(others))


def asha(costs: Sequence[float], earlier: Sequence[Earlier], now_ns: int) -> bool:
    """Whether a run that reaches a rung (evaluation 1, 4, 16, ...) is worse there than the best quarter before it.

    The boundary is interpolated between the runs that reached the rung; the first run to reach it continues. NaN is
    never worse, and sets no boundary.
    """
    if not _is_rung(len(costs)):
        return False
    others = sorted(_numbers(run.at(len(costs), now_ns) for run in earlier))
    return bool(others) and costs[-1] > _quantile(others, 1 / REDUCTION)


def says_when(run: RunResult) -> bool:
    """Whether a run's log has a clock. Without one, neither its predecessors nor their records by then are known."""
    return run.began_ns > 0 and all(evaluation.time_ns > 0 for evaluation in run.evaluations)


def pruned_at(pruner: Pruner, results: Sequence[RunResult]) -> list[Evaluation | None]:
    """Return for each result the evaluation at which a pruner would have ended the run; None where it would not.

    Args:
        pruner: The pruner.
        results: The results of runs that one objective judges, in any order.
    """
    stops: list[Evaluation | None] = [None] * len(results)
    earlier: list[Earlier] = []
    clocked = sorted((run.began_ns, index) for index, run in enumerate(results) if says_when(run))
    for _, beginning in groupby(clocked, key=lambda entry: entry[0]):
        begun: list[Earlier] = []
        for _, index in beginning:
            run = results[index]
            is_max = run.objective is not None and run.objective.mode is Mode.MAX
            costs = [-one.value if is_max else one.value for one in run.evaluations]
            times = [one.time_ns for one in run.evaluations]
            made = next((n for n, now in enumerate(times, start=1) if pruner(costs[:n], earlier, now)), None)
            if made is not None:
                stops[index] = run.evaluations[made - 1]
            ran_out = made is None and run.status in ("completed", "stopped")
            begun.append(Earlier(costs[:made], times[:made], run.ended_ns if ran_out else None))
        earlier += begun
    return stops


def _numbers(costs: Iterable[float]) -> list[float]:
    return [cost for cost in costs if not math.isnan(cost)]


def _is_rung(number: int) -> bool:
    rung = GRACE
    while rung < number:
        rung *= REDUCTION
    return rung == number


def _quantile(ranked: Sequence[float], share: float) -> float:
    """Return the value at a share of the way through sorted values, interpolated."""
    place = share * (len(ranked) - 1)
    low = math.floor(place)
    if low + 1 >= len(ranked) or place == low:
        return ranked[low]
    return ranked[low] + (place - low) * (ranked[low + 1] - ranked[low])


NEVER: Final = Baseline("never", "never stop")
ORACLE: Final = Baseline("oracle", "oracle: best evaluation")
RANDOM: Final = Baseline("random", "random stops")

MEDIAN: Final = Baseline("median_pruner", "Optuna median pruner", pruner=median_pruner)
ASHA: Final = Baseline("asha", "ASHA (Ray Tune)", pruner=asha)

_TITLES: Final = {
    "hf_early_stopping": "Hugging Face EarlyStopping",
    "lightning_early_stopping": "Lightning EarlyStopping",
    "kill_loss_spike": "llm-foundry KillLossSpike",
    "lightning_spike_detection": "Lightning SpikeDetection",
    "wandb_zscore": "W&B z-score",
    "prechelt_gl": "Prechelt GL",
    "prechelt_pq": "Prechelt PQ",
}

#: Every baseline by name.
BASELINES: Final[Mapping[str, Baseline]] = MappingProxyType(
    {one.name: one for one in (NEVER, ORACLE, RANDOM)}
    | {name: Baseline(name, title, shipped_policies()[name]) for name, title in _TITLES.items()}
    | {one.name: one for one in (MEDIAN, ASHA)}
)


def baselines_named(names: Iterable[str]) -> list[Baseline]:
    """Return the baselines of these names, each once; every one if ``all`` is among them.

    Raises:
        KeyError: There is none of a name.
    """
    chosen = dict.fromkeys(names)
    return list(BASELINES.values()) if "all" in chosen else [BASELINES[name] for name in chosen]


def baseline_policy(baseline: Baseline, objective: Objective | None) -> Policy:
    """Return a baseline's rule file that watches the objective.

    Args:
        baseline: The baseline.
        objective: The objective.

    Raises:
        ValueError: It is no rule file, or is not defined for such an objective.
    """
    if baseline.path is None:
        raise ValueError("it is no rule file")
    if not baseline.reads_merit:
        return load_policy(baseline.path)
    if objective is None:
        raise ValueError(NO_MERIT)
    if baseline.name not in _ONLY_LOSSES:
        return load_policy(baseline.path, params={"metric": objective.metric, "mode": str(objective.mode)})
    if objective.mode is Mode.MAX:
        raise ValueError("it is defined for losses only, and higher values of the objective are better")
    return load_policy(baseline.path, params={"metric": objective.metric})


def reads_runs(baselines: Sequence[Baseline]) -> bool:
    """Whether any baseline is a policy: policies read every run."""
    return any(baseline.path is not None for baseline in baselines)


def baseline_outcomes(
    policy: Policy,
    baselines: Sequence[Baseline],
    runs: Sequence[Run],
    results: Sequence[RunResult],
    settings: BacktestSettings,
    readers: RunPool,
) -> tuple[tuple[BaselineOutcome, ...], int]:
    """Score each baseline on the runs of a backtest, each run by its own objective.

    Args:
        policy: The policy of the backtest.
        baselines: The baselines.
        runs: The runs that were judged.
        results: The policy's result on each.
        settings: The settings of the backtest.
        readers: The pool to read the runs with.

    Returns:
        The outcome of each baseline, and the number of events read.
    """
    ordinary = [baseline for baseline in baselines if baseline.path is not None]
    outcomes, read_events = _policy_outcomes(policy, ordinary, runs, results, settings, readers)
    imagined = ImaginedStops(settings.risk, policy)
    for baseline in baselines:
        if baseline.pruner is not None:
            outcomes[baseline] = _pruner_outcome(baseline, baseline.pruner, results, settings.delay_steps, imagined)
    outcomes[NEVER] = BaselineOutcome(NEVER, None, tuple(map(imagined.never, results)))
    outcomes[ORACLE] = BaselineOutcome(ORACLE, None, tuple(map(imagined.oracle, results)))
    outcomes[RANDOM] = BaselineOutcome(RANDOM, None, imagined.random(results))
    return tuple(outcomes[baseline] for baseline in baselines), read_events


def _policy_outcomes(
    policy: Policy,
    baselines: Sequence[Baseline],
    runs: Sequence[Run],
    results: Sequence[RunResult],
    settings: BacktestSettings,
    readers: RunPool,
) -> tuple[dict[Baseline, BaselineOutcome], int]:
    """Return the outcomes of the baselines that are policies, and the number of events read, all in one pass."""
    # None comes first: a reason that concerns an objective says more.
    objectives = sorted({result.objective for result in results} or {None}, key=lambda one: (one is not None, str(one)))
    asked: list[tuple[Baseline, dict[Objective | None, Policy]]] = []
    outcomes: dict[Baseline, BaselineOutcome] = {}
    for baseline in baselines:
        policies, reason = _policies(baseline, objectives)
        if policies:
            asked.append((baseline, policies))
        else:
            outcomes[baseline] = BaselineOutcome(baseline, None, (), reason)
    if not asked:
        readers.expect(-len(runs) if baselines else 0)
        return outcomes, 0
    by_objective = {each: tuple(policies.get(each) for _, policies in asked) for each in objectives}
    judged_by = [result.objective for result in results]
    scores = _BaselineScores(policy, by_objective, settings)
    answers = list(readers.mapped(scores, list(zip(runs, judged_by, strict=True))))
    by_baseline = zip(*(standings for standings, _ in answers), strict=True) if answers else repeat(())
    for (baseline, policies), standings in zip(asked, by_baseline, strict=False):
        digests = {policy.digest for policy in policies.values()}
        outcomes[baseline] = BaselineOutcome(baseline, digests.pop() if len(digests) == 1 else None, standings)
    return outcomes, sum(events for _, events in answers)


def _policies(baseline: Baseline, objectives: Sequence[Objective | None]) -> tuple[dict[Objective | None, Policy], str]:
    """Return a baseline's policy for each objective that it is defined for, and why it has none for the last other."""
    if not baseline.reads_merit:
        return dict.fromkeys(objectives, baseline_policy(baseline, None)), ""
    policies: dict[Objective | None, Policy] = {}
    reason = ""
    for objective in objectives:
        try:
            policies[objective] = baseline_policy(baseline, objective)
        except ValueError as error:
            reason = str(error)
    return policies, reason


def _pruner_outcome(
    baseline: Baseline, pruner: Pruner, results: Sequence[RunResult], delay_steps: int, imagined: ImaginedStops
) -> BaselineOutcome:
    """Return the outcome of a baseline that compares runs with each other: those that one objective judges."""
    objectives = {result.objective for result in results} - {None}
    if not objectives:
        return BaselineOutcome(baseline, None, (), NO_MERIT if results else "")
    if not any(map(says_when, results)):
        return BaselineOutcome(baseline, None, (), NO_CLOCK)
    standings: list[BaselineScore | None] = [None] * len(results)
    for objective in objectives:
        alike = [index for index, result in enumerate(results) if result.objective == objective]
        stops = pruned_at(pruner, [results[index] for index in alike])
        for index, stop in zip(alike, stops, strict=True):
            standings[index] = imagined.pruned(results[index], stop, delay_steps)
    return BaselineOutcome(baseline, None, tuple(standings))


@dataclass(frozen=True, slots=True)
class _BaselineScores:
    """The function mapped over runs and their objectives: the score of each policy, and the number of events read.

    A baseline that has no policy for an objective has no score on the runs that it judges.
    """

    judged: Policy
    policies: Mapping[Objective | None, tuple[Policy | None, ...]]
    settings: BacktestSettings

    def __call__(self, asked: tuple[Run, Objective | None]) -> tuple[tuple[BaselineScore | None, ...], int]:
        run, objective = asked
        own = self.policies[objective]
        policies = [policy for policy in own if policy is not None]
        if not policies:
            return (None,) * len(own), 0
        facts = facts_under(policies, run, self.settings, decider_of=by_columns, with_curves=False)
        results, risk = [result_of(each, objective) for each in facts], self.settings.risk
        # The policy of the backtest says which values the metric can have.
        found = losses_of_results(risk, self.judged, results)
        scores = (
            standing_of(result, is_lost=not is_unknown and regret > risk.notable, is_unknown=is_unknown)
            for result, regret, is_unknown in zip(results, found.regrets, found.is_unknown, strict=True)
        )
        return tuple(None if policy is None else next(scores) for policy in own), facts[0].replayed.event_count


@dataclass(frozen=True, slots=True)
class ImaginedStops:
    """Scores baselines that are no policies, by the stops that they would make.

    Attributes:
        risk: What a stop may lose.
        policy: The policy of the backtest, which may say the range of the metric.
    """

    risk: Risk
    policy: Policy

    def never(self, result: RunResult) -> BaselineScore:
        """Score a run that is not stopped."""
        return BaselineScore(
            0.0,
            0.0 if result.recorded.steps else None,
            None if result.recorded.best is None else 0.0,
            None if result.recorded.deployable is None else 0.0,
            *self._lost(result, {NO_STEP: 1.0}),
        )

    def pruned(self, result: RunResult, stop: Evaluation | None, delay_steps: int) -> BaselineScore | None:
        """Score a stop at an evaluation: what is due at its step is still made, then ``delay_steps`` updates.

        None for a run without a clock.
        """
        objective = result.objective
        if objective is None or not says_when(result):
            return None
        if stop is None:
            return self.never(result)
        recorded, last_step = result.recorded, stop.step + delay_steps
        reached = [one for one in result.evaluations if one.step <= last_step]
        top = best(reached, objective)
        kept = best((one for one in reached if one.step in result.saved_steps), objective)
        return BaselineScore(
            1.0,
            max(0.0, 1 - last_step / recorded.steps) if recorded.steps else None,
            _relative_loss(objective, top, recorded.best),
            _relative_loss(objective, kept, recorded.deployable),
            *self._lost(result, {last_step: 1.0}),
        )

    def oracle(self, result: RunResult) -> BaselineScore | None:
        """Score a stop at the best evaluation, with a checkpoint of it. It loses nothing."""
        recorded, objective = result.recorded, result.objective
        if objective is None or recorded.best is None or recorded.best_step is None:
            return None
        regret = None if recorded.deployable is None else objective.loss_of(recorded.best, recorded.deployable)
        share = 1 - recorded.best_step / recorded.steps if recorded.steps else None
        return BaselineScore(1.0, share, 0.0, relative(regret, recorded.deployable), 0.0, 0.0)

    def random(self, results: Sequence[RunResult]) -> tuple[BaselineScore | None, ...]:
        """Return the expected scores of a random stop after each step, at the policy's rate of stops per step.

        They are expectations, not draws: luck plays no part. The rate is that of the runs in which the policy could
        fire; steps of each unit have a rate of their own.
        """
        known = [result for result in results if result.predicted is not None and not result.could_not_fire]
        spent: Counter[str] = Counter()
        for result in known:
            spent[result.step_unit] += 0 if result.predicted is None else result.predicted.steps
        stops = Counter(result.step_unit for result in known if result.is_stopped)
        rates = {unit: min(stops[unit] / steps, 1.0) for unit, steps in spent.items() if steps}
        return tuple(self._at_random(result, rates.get(result.step_unit, 0.0)) for result in results)

    def _at_random(self, result: RunResult, rate: float) -> BaselineScore | None:
        steps = result.recorded.steps
        if not steps or rate == 0:
            return self.never(result)
        # The expected length of a run of n steps is (1 - (1 - rate)^n) / rate.
        share = 1 - (1 - (1 - rate) ** steps) / (rate * steps)
        recorded, saved = result.recorded, result.saved_steps
        kept = [evaluation for evaluation in result.evaluations if evaluation.step in saved]
        # A stop costs the same until the next evaluation or checkpoint.
        places = {one.step for one in result.evaluations} | saved
        begins = sorted({1, steps, *(place for place in places if 0 < place < steps)})
        chances = {
            begin: (1 - rate) ** (begin - 1) - (1 - rate) ** (following - 1)
            for begin, following in pairwise([*begins, steps + 1])
        }
        return BaselineScore(
            1 - (1 - rate) ** steps,
            share,
            _regret_at_random(result.evaluations, recorded.best, result.objective, rate),
            _regret_at_random(kept, recorded.deployable, result.objective, rate),
            *self._lost(result, {NO_STEP: (1 - rate) ** steps, **chances}),
        )

    def _lost(self, result: RunResult, chances: Mapping[int, float]) -> tuple[float, float]:
        """Return how probable it is that a run is lost, and that it is unknown, by the chances of stops at steps."""
        found, weights = losses_at(self.risk, self.policy, result, [*chances]), np.array([*chances.values()])
        is_lost = (found.regrets > self.risk.notable) & ~found.is_unknown
        return float(weights[is_lost].sum()), float(weights[found.is_unknown].sum())


def _relative_loss(objective: Objective, reached: Evaluation | None, reference: float | None) -> float | None:
    if reached is None or reference is None:
        return None
    return relative(objective.loss_of(reached.value, reference), reference)


def _regret_at_random(
    evaluations: Sequence[Evaluation], reference: float | None, objective: Objective | None, rate: float
) -> float | None:
    """Return the mean relative regret, given that the stop comes after the first evaluation that is a number.

    Args:
        evaluations: The evaluations that count, in order.
        reference: The best of them.
        objective: The objective.
        rate: The probability of a stop after each step.
    """
    if objective is None or reference is None:
        return None
    reached: Evaluation | None = None
    weight = total = 0.0
    for index, evaluation in enumerate(evaluations):
        if not math.isnan(evaluation.value) and (
            reached is None or objective.is_better(evaluation.value, reached.value)
        ):
            reached = evaluation
        if reached is None:
            continue
        # The stop falls between this evaluation and the next; the last interval includes never stopping.
        begin = (1 - rate) ** max(evaluation.step - 1, 0)
        end = (1 - rate) ** max(evaluations[index + 1].step - 1, 0) if index + 1 < len(evaluations) else 0.0
        weight += begin - end
        total += (begin - end) * objective.loss_of(reached.value, reference)
    return relative(total / weight, reference) if weight else None
