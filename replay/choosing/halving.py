"""Judges halving by rank: at some points of a search the worse half of its runs ends.

Such a rule reads other runs, so it is not armed live. It is judged by whether the best model of each family is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...store.metric_words import Mode
from ..runs.objective import Objective, relative
from ..runs.risk import Risk
from ..runs.run_families import Family
from .family_tests import FamilyLosses, p_values
from .population import PopulationMember

#: The points at which the worse half ends, as shares of each run's evaluations, from the most patient plan on.
PLANS: Final = (
    (0.5,),
    (0.25, 0.5),
    (0.125, 0.25, 0.5),
    (0.0625, 0.125, 0.25, 0.5),
)

#: Fewer runs are no search.
_FEWEST_RUNS: Final = 4


@dataclass(frozen=True, slots=True)
class HalvingPlan:
    """What one plan would do to the families.

    Attributes:
        points: The points at which the worse half ends.
        saved: The mean share of the families' steps that it saves.
        lost: In how many families the best model is lost.
        p_value: Probability of so few if more than the limit of families lost theirs.
        is_safe: Whether it and every more patient plan pass.
    """

    points: tuple[float, ...]
    saved: float
    lost: int
    p_value: float
    is_safe: bool


@dataclass(frozen=True, slots=True)
class Halving:
    """The plans, the most patient first.

    Attributes:
        families: Number of families of at least four runs.
        plans: The plans; empty without such a family.
    """

    families: int
    plans: tuple[HalvingPlan, ...]

    @property
    def best(self) -> HalvingPlan | None:
        """The plan that saves most among those that are safe; None if none is."""
        return max((plan for plan in self.plans if plan.is_safe), key=lambda plan: plan.saved, default=None)


def halving_of(
    families: Mapping[Family, Sequence[PopulationMember]], objective: Objective, risk: Risk, confidence: float
) -> Halving:
    """Test the plans on families of several runs, the most patient first.

    A family loses if the best model of the runs that remain is worse than its best by more than the risk's regret.

    Args:
        families: The families, in the order of the tests.
        objective: The metric that ranks runs.
        risk, confidence: As for ``certify``.
    """
    searches = [members for members in families.values() if len(members) >= _FEWEST_RUNS]
    if not searches:
        return Halving(0, ())
    outcomes = np.array([[_halved(members, points, objective, risk) for points in PLANS] for members in searches])
    losses, saved = FamilyLosses(outcomes[:, :, 0], risk.is_share), outcomes[:, :, 1].mean(axis=0)
    found = p_values(losses, risk.limit)
    are_safe = np.logical_and.accumulate(found <= 1 - confidence)
    lost = (losses.values == 1).sum(axis=0)
    return Halving(
        len(searches),
        tuple(
            HalvingPlan(points, float(saved[index]), int(lost[index]), float(found[index]), bool(are_safe[index]))
            for index, points in enumerate(PLANS)
        ),
    )


def _halved(
    members: Sequence[PopulationMember], plan: Sequence[float], objective: Objective, risk: Risk
) -> tuple[float, float]:
    """Return what a search loses of its best model, from 0 to 1, and the share of its steps that it saves."""
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
    lost = 1.0 if judged is None else risk.lost(judged)
    return lost, float((steps * (1 - ends)).sum() / steps.sum()) if steps.sum() else 0.0


def _best_by(curve: np.ndarray, point: float) -> float:
    """Return the best value up to a share of a run's evaluations; infinite before the first."""
    reached = curve[: max(0, int(point * len(curve)))] if point < 1 else curve
    return float(reached.min()) if len(reached) else float("inf")
