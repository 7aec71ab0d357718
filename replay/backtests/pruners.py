"""Pruners: baselines that compare a run with earlier runs, as hyper-parameter tuners do.

Takes the results of a backtest, returns one stop or None for each. Runs are taken in the order in which they began. A
run sees of each earlier one what it had recorded by then on the wall clock, up to where the pruner would have ended it.
It sees nothing of runs that began with it or later. A run without a clock sees none and is seen by none. A step of the
tuner is here the number of the evaluation, from 1 on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from ..runs.metric_names import Mode
from ..runs.objective import Evaluation
from ..runs.results import RunResult

#: ``MedianPruner`` of Optuna (class reference, version 4): n_startup_trials. Its n_warmup_steps is 0, and its
#: interval_steps and n_min_trials are 1; these defaults need no code.
STARTUP_RUNS: Final = 5

#: ``AsyncHyperBandScheduler`` of Ray Tune (ray.tune.schedulers reference): grace_period and reduction_factor, with one
#: bracket. Its max_t ends trials at 100 reports; recorded runs have their planned length, so it is left out.
GRACE: Final = 1
REDUCTION: Final = 4


class Earlier(NamedTuple):
    """A run that began earlier.

    Attributes:
        costs: Its evaluations up to where the pruner would have ended it; smaller is better.
        times_ns: When each was recorded.
        over_ns: When it ended; None if it failed or the pruner would have ended it.
    """

    costs: Sequence[float]
    times_ns: Sequence[int]
    over_ns: int | None

    def at(self, number: int, now_ns: int) -> float:
        """Return its evaluation of that number; NaN if it is not known by now."""
        is_known = number <= len(self.costs) and self.times_ns[number - 1] <= now_ns
        return self.costs[number - 1] if is_known else math.nan

    def is_complete(self, now_ns: int) -> bool:
        """Whether it has run to its end by now."""
        return self.over_ns is not None and self.over_ns <= now_ns


#: Whether a run ends at its newest evaluation. Takes its evaluations so far (smaller is better), the earlier runs and
#: the time.
Pruner = Callable[[Sequence[float], Sequence[Earlier], int], bool]


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
