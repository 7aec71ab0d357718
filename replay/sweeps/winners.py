"""Says which winners a variant would have stopped: the best run of each family, before it reached its best value.

Takes runs as they come, with the outcomes of all variants; keeps one bit per variant and family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..columns.stream import Ints, Truths
from ..runs.families import Family
from ..runs.metric_names import Mode
from ..runs.objective import Objective

if TYPE_CHECKING:
    from .task import SweptRun


@dataclass(frozen=True, eq=False)
class Winner:
    """The run that reached the best value of its family.

    Attributes:
        family: The family; it has several runs with the objective.
        objective: The metric that judges them.
        run_id, name: The run; of several with the same best value, the first by name.
        value: Its best value.
        stopped: Whether each variant would have stopped it before that value, as bits (``numpy.packbits``). Of runs
            that tie, each is stopped.
    """

    family: Family
    objective: Objective
    run_id: str
    name: str
    value: float
    stopped: npt.NDArray[np.uint8]

    def is_stopped(self, variant: int) -> bool:
        """Whether a variant would have stopped it before its best value."""
        return bool(self.stopped[variant // 8] >> (7 - variant % 8) & 1)


class WinnersFold:
    """Finds the winner of each family as runs come, in any order."""

    def __init__(self) -> None:
        self._best: dict[tuple[Family, Objective], Winner] = {}
        self._runs: dict[tuple[Family, Objective], int] = {}

    def add(self, run: SweptRun, regret: npt.NDArray[np.float64]) -> None:
        """Add a run.

        Args:
            run: The run.
            regret: The regret of each variant on it, NaN where it stops before the first evaluation.
        """
        objective, value = run.objective, run.best
        if objective is None or np.isnan(value):
            return
        key = (run.family, objective)
        self._runs[key] = self._runs.get(key, 0) + 1
        known = self._best.get(key)
        is_better = known is None or (value < known.value if objective.mode is Mode.MIN else value > known.value)
        if is_better or known is None:
            self._best[key] = Winner(*key, run.run_id, run.name, value, _stopped(regret))
        elif value == known.value:
            first = min((known.name, known.run_id), (run.name, run.run_id))
            self._best[key] = Winner(*key, first[1], first[0], value, known.stopped & _stopped(regret))

    def winners(self) -> tuple[Winner, ...]:
        """Return the winners of the families of several runs, by family."""
        found = [winner for key, winner in self._best.items() if self._runs[key] > 1]
        return tuple(sorted(found, key=lambda one: (one.family.key, one.family.value, one.objective.metric)))


def stopped_counts(winners: Sequence[Winner], variants: int) -> Ints:
    """Return how many of the winners each variant would have stopped. Shape (variants,)."""
    counts = np.zeros(variants, np.int64)
    for winner in winners:
        counts += np.unpackbits(winner.stopped, count=variants)
    return counts


def _stopped(regret: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return as bits where the best value is missed: regret is unknown where a stop precedes the first evaluation."""
    missed: Truths = ~(regret <= 0.0)
    return np.packbits(missed)
