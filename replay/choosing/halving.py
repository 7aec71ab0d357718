"""Judges halving by rank: at some points of a search the worse half of its runs ends.

Such a rule reads other runs, so it is not armed live. It is judged by whether the best model of each family is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..runs.metric_names import Mode
from ..runs.objective import Objective, relative
from ..runs.risk import Risk
from ..runs.run_families import Family
from .family_tests import FamilyLosses, p_values
from .population import PopulationMember

#: The points at which the worse half ends, as shares of the longest run, from the most patient plan on.
PLANS: Final = (
    (0.5,),
    (0.25, 0.5),
    (0.125, 0.25, 0.5),
    (0.0625, 0.125, 0.25, 0.5),
)

#: Fewer runs are no search.
_FEWEST_RUNS: Final = 4


@dataclass(frozen=True, slots=True)
class Halving:
    """The plan that saves most among those that keep the best models.

    Attributes:
        families: Number of families of at least four runs.
        plan: Its points; None if no plan is safe.
        saved: The mean share of the families' steps that it saves.
        lost: In how many families the best model is lost.
    """

    families: int
    plan: tuple[float, ...] | None
    saved: float
    lost: int


def halving_of(
    families: Mapping[Family, Sequence[PopulationMember]], objective: Objective, risk: Risk, confidence: float
) -> Halving:
    """Test the plans on families of several runs, the most patient first, and return the last that passes.

    A family loses if the best model of the runs that remain is worse than its best by more than the risk's regret.

    Args:
        families: The families, in the order of the tests.
        objective: The metric that ranks runs.
        risk, confidence: As for ``certify``.
    """
    searches = [members for members in families.values() if len(members) >= _FEWEST_RUNS]
    outcomes = np.array([[_halved(members, plan, objective, risk) for plan in PLANS] for members in searches])
    if not len(outcomes):
        return Halving(0, None, 0.0, 0)
    losses = FamilyLosses(outcomes[:, :, 0], are_counts=True)
    found, best = p_values(losses, risk.limit), None
    for index in range(len(PLANS)):
        if found[index] > 1 - confidence:
            break
        best = index
    if best is None:
        return Halving(len(searches), None, 0.0, 0)
    return Halving(len(searches), PLANS[best], float(outcomes[:, best, 1].mean()), int(losses.values[:, best].sum()))


def _halved(
    members: Sequence[PopulationMember], plan: Sequence[float], objective: Objective, risk: Risk
) -> tuple[float, float]:
    """Return whether a search loses its best model, as 0 or 1, and the share of its steps that it saves."""
    sign = 1.0 if objective.mode is Mode.MIN else -1.0
    curves = [sign * one.facts.values for one in members]
    steps = np.array([one.swept.steps for one in members], dtype=np.float64)
    alive, ends = np.ones(len(members), dtype=bool), np.ones(len(members))
    for point in plan:
        ranked = sorted(np.flatnonzero(alive), key=lambda index: _best_by(curves[index], point))
        for index in ranked[(len(ranked) + 1) // 2 :]:
            alive[index], ends[index] = False, point
    whole = min(float(curve.min()) for curve in curves)
    kept = min(_best_by(curve, end) for curve, end in zip(curves, ends, strict=True))
    regret = kept - whole
    judged = relative(regret, whole) if risk.is_relative else regret
    lost = 1.0 if judged is None else float(judged > risk.notable)
    return lost, float((steps * (1 - ends)).sum() / steps.sum()) if steps.sum() else 0.0


def _best_by(curve: np.ndarray, point: float) -> float:
    """Return the best value up to a share of a run's evaluations; infinite before the first."""
    reached = curve[: max(0, int(point * len(curve)))] if point < 1 else curve
    return float(reached.min()) if len(reached) else float("inf")
