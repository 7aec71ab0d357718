"""Sorts the stops of a policy by what they cost: what a stop saves is a gain only if training on gave no better model.

Takes results with the regrets of their stops; returns for each kind of stop how many there are and what they save.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from ..runs.objective import FEWEST_EVALUATIONS
from ..runs.results import RunResult

#: Relative regrets above this are counted separately.
NOTABLE_REGRET: Final = 0.01

#: A run in which the policy could fire, and the regret of its stop; None where there is no stop or its cost is unknown.
Judged: TypeAlias = tuple[RunResult, float | None]

#: The kinds of stops; the first that fits is that of a stop. One at the last step of a whole run saves and costs
#: nothing: there is nothing to judge.
_KINDS: Final = MappingProxyType[str, Callable[[RunResult, float | None], bool]](
    {
        "at_most_1_percent": lambda _, regret: regret is not None and regret <= NOTABLE_REGRET,
        "above_1_percent": lambda _, regret: regret is not None,
        "not_judged": lambda result, _: not _is_at_last_step(result),
        "at_last_step": lambda *_: True,
    }
)


def kind_of(result: RunResult, regret: float | None) -> str:
    """Return the kind of a run's stop, a key of ``stops_by_cost``.

    Args:
        result: A run that the policy stops.
        regret: The regret of the stop; None if its cost is unknown.
    """
    return next(kind for kind, is_of in _KINDS.items() if is_of(result, regret))


def stops_by_cost(runs: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """Return the stops by what they cost, and what each kind adds to the savings.

    ``share_saved`` of the kinds add up to the mean share over all these runs, stopped or not.

    Args:
        runs: The runs in which the policy could fire.
    """
    known = sum(result.share_saved is not None for result, _ in runs)
    stopped = [(result, regret) for result, regret in runs if result.stop is not None]
    return {kind: _kind([pair for pair in stopped if kind_of(*pair) == kind], known) for kind in _KINDS}


def _is_at_last_step(result: RunResult) -> bool:
    return result.steps_saved == 0 and not result.right_censored


def _kind(stops: Sequence[Judged], known: int) -> dict[str, Any]:
    results = [result for result, _ in stops]
    seconds = [result.seconds_saved for result in results if result.seconds_saved is not None]
    # Sorted by size: the order of the runs follows from their paths, and would change the last bit.
    shares = sorted(result.share_saved for result in results if result.share_saved is not None)
    judged = [(regret, result.name, result) for result, regret in stops if regret is not None]
    unjudged = Counter(_reason(result) for result, regret in stops if regret is None and not _is_at_last_step(result))
    return {
        "stopped": len(results),
        "right_censored": sum(bool(result.right_censored) for result in results),
        "share_saved": sum(shares) / known if known else None,
        "seconds_saved": sum(sorted(seconds)) if seconds else None,
        "later_evaluations": statistics.median(one.evaluations_after for *_, one in judged) if judged else None,
        "metrics": sorted({one.objective.metric for *_, one in judged if one.objective is not None}),
        "regret": statistics.median(regret for regret, *_ in judged) if judged else None,
        "worst": _worst(*max(judged, key=lambda one: one[:2])) if judged else None,
        "reasons": dict(sorted(unjudged.items(), key=lambda one: (-one[1], one[0]))),
    }


def _worst(regret: float, name: str, result: RunResult) -> dict[str, Any]:
    """Return the stop that costs most, with the values: near a loss of zero a tiny loss is many percent."""
    best = None if result.predicted is None else result.predicted.best
    metric = "" if result.objective is None else result.objective.metric
    return {"regret": regret, "name": name, "metric": metric, "best": best, "instead_of": result.recorded.best}


def _reason(result: RunResult) -> str:
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
