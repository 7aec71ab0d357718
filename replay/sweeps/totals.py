"""Adds up what each variant saves and loses, run by run, and Pareto fronts of the two.

Takes the outcomes of all variants on runs as they come, in any order; keeps a few numbers per variant, whatever the
number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ..columns.stream import Floats, Ints, Truths
from .compact import CompactOutcomes
from .exact_sums import ExactSums
from .outcomes import NO_STEP

if TYPE_CHECKING:
    from .task import SweptRun

_COUNTS: Final = ("could_fire", "stopped", "fired", "not_known", "decisions", "steps")
_SUMS: Final = ("steps_saved", "seconds_saved", "checkpoints", "checkpoint_bytes")
_REGRETS: Final = {"regret": "relative_regret", "deployable_regret": "relative_deployable_regret"}

#: Pairs of a variant and a run that are added at once: few runs cost time per call, many cost memory.
_PAIRS_AT_ONCE: Final = 500_000


class TotalsFold:
    """Adds up the outcomes of variants over runs. The order of the runs changes no bit.

    Args:
        variants: Number of variants.
    """

    def __init__(self, variants: int) -> None:
        self._variants = variants
        self._counts: dict[str, Ints] = {name: np.zeros(variants, np.int64) for name in _COUNTS}
        self._sums = {name: ExactSums(variants) for name in (*_SUMS, "share_saved", *_REGRETS)}
        self._worst = {name: np.full(variants, -np.inf) for name in _REGRETS}

    def add(self, runs: Sequence[tuple[SweptRun, CompactOutcomes]]) -> None:
        """Add runs with the outcomes of all variants on them."""
        at_once = max(1, _PAIRS_AT_ONCE // max(1, self._variants))
        for begin in range(0, len(runs), at_once):
            part = runs[begin : begin + at_once]
            self._add(_Table([outcomes for _, outcomes in part]), np.array([run.steps for run, _ in part]))

    def totals(self, *, has_one_unit: bool = True) -> Mapping[str, Floats]:
        """Return the totals as ``Sweep.totals`` describes them.

        Args:
            has_one_unit: Whether the steps of all runs are of one unit, and can be added.
        """
        counts = {name: count.astype(np.float64) for name, count in self._counts.items()}
        sums = {name: self._sums[name].sums() for name in _SUMS}
        if not has_one_unit:
            counts["steps"] = sums["steps_saved"] = np.full(self._variants, np.nan)
        regrets = {}
        for name in _REGRETS:
            known = self._sums[name].counts > 0
            regrets[f"mean_{name}"] = self._sums[name].means()
            regrets[f"worst_{name}"] = np.where(known, self._worst[name], np.nan)
        return {
            **counts,
            "steps_saved": sums.pop("steps_saved"),
            "share_saved": self._sums["share_saved"].means(),
            **sums,
            **regrets,
        }

    def _add(self, table: _Table, steps: Ints) -> None:
        able, saved = table.truths("could_fire"), table.of("steps_saved")
        found = {
            "could_fire": able,
            "stopped": table.of("stop_step") != NO_STEP,
            "fired": table.of("decisions") > 0,
            "not_known": np.isnan(saved),
            "decisions": table.of("decisions"),
            "steps": able * steps,
        }
        for name, numbers in found.items():
            self._counts[name] += numbers.sum(axis=1)
        for name in _SUMS:
            self._sums[name].add(table.of(name))
        self._sums["share_saved"].add(np.where(able, saved / np.where(steps > 0, steps, np.nan), np.nan))
        counted = able & ~table.truths("is_right_censored") & ~table.truths("has_few_evaluations")
        for name, column in _REGRETS.items():
            regret = np.where(counted, table.of(column), np.nan)
            self._sums[name].add(regret)
            self._worst[name] = np.fmax(self._worst[name], np.fmax.reduce(regret, axis=1, initial=-np.inf))


class _Table:
    """The outcomes of several runs as arrays of shape (variants, runs)."""

    def __init__(self, outcomes: Sequence[CompactOutcomes]) -> None:
        self._outcomes = outcomes

    def of(self, name: str) -> npt.NDArray[Any]:
        return np.stack([each.column(name) for each in self._outcomes], axis=1)

    def truths(self, name: str) -> Truths:
        return self.of(name).astype(np.bool_)


def pareto_front(saved: Floats, regret: Floats) -> tuple[int, ...]:
    """Return the Pareto front of what variants save and of their regret: indices, most saved first.

    Of equal variants the first one counts. A variant with a NaN is not on the front.
    """
    known = np.flatnonzero(~np.isnan(saved) & ~np.isnan(regret))
    front: list[int] = []
    least = np.inf
    for index in known[np.lexsort((known, regret[known], -saved[known]))].tolist():
        if regret[index] < least:
            least = float(regret[index])
            front.append(index)
    return tuple(front)
