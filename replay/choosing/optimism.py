"""States the optimism of a sweep's front: how much better each point looks on the runs that chose it.

Takes a sweep that keeps outcomes, and a way to split its runs. Returns each point of the front in sample and out of
sample. A point is read as a limit of mean regret, within which it saves most. Each split's training chooses by that
limit, and the test judges the choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..columns.stream import Ints
from ..sweeps.outcomes import SweptRun
from ..sweeps.sweeping import Sweep
from .out_of_sample import RunTable, judge_choices
from .splits import SEED, SplitKind, splits_of

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class FrontPoint:
    """A point of the front, in sample and out of sample. Unknown numbers are NaN.

    Attributes:
        variant: The variant, by its number in the sweep.
        limit: The limit of mean regret by which it was chosen: halfway to the point that saves more. Infinite for the
            point that saves most.
        regret, saved_share: Mean relative regret and saved share of steps over all runs, which chose it.
        out_of_sample_regret, out_of_sample_saved_share: The same for choices at the same limit of regret, on runs that
            did not make them.
        times_chosen: Share of the splits in which the same variant was chosen.
    """

    variant: int
    limit: float
    regret: float
    saved_share: float
    out_of_sample_regret: float
    out_of_sample_saved_share: float
    times_chosen: float

    @property
    def optimism_regret(self) -> float:
        """Regret out of sample minus regret in sample: positive if the point looks better than it is."""
        return self.out_of_sample_regret - self.regret

    @property
    def optimism_saved(self) -> float:
        """Saved share in sample minus that out of sample: positive if the point looks better than it is."""
        return self.saved_share - self.out_of_sample_saved_share


@dataclass(frozen=True)
class Optimism:
    """The front of a sweep, out of sample.

    Attributes:
        kind: How runs were split.
        folds: Number of splits, or of folds in each deal of families.
        repeats: How often families were dealt into folds; 1 for walk-forward.
        seed: Seed of the deals.
        groups: Number of groups that splits keep together.
        tested: Number of runs that judged a choice.
        purged: Number of runs that some split left out, because they ran on while its test began.
        points: The points, in the order of ``Sweep.front``.
    """

    kind: SplitKind
    folds: int
    repeats: int
    seed: int
    groups: int
    tested: int
    purged: int
    points: tuple[FrontPoint, ...]

    def to_json(self) -> dict[str, Any]:
        """Return how the runs were split, as JSON has it."""
        return {
            "kind": str(self.kind),
            "folds": self.folds,
            "repeats": self.repeats,
            "seed": self.seed if self.kind is SplitKind.FAMILIES else None,
            "families": self.groups,
            "runs_tested": self.tested,
            "runs_purged": self.purged,
        }

    def frame(self) -> pl.DataFrame:
        """Return one row per point of the front."""
        import polars as pl  # Importing polars takes 0.13 s; only callers that ask for a frame should wait for it.

        return pl.DataFrame([point_json(point) for point in self.points])


def point_json(point: FrontPoint) -> dict[str, Any]:
    """Return a point with its optimism, as JSON has it."""
    return {
        "variant": point.variant,
        "limit": point.limit if math.isfinite(point.limit) else None,
        "regret": point.regret,
        "saved_share": point.saved_share,
        "out_of_sample_regret": point.out_of_sample_regret,
        "out_of_sample_saved_share": point.out_of_sample_saved_share,
        "optimism_regret": point.optimism_regret,
        "optimism_saved": point.optimism_saved,
        "times_chosen": point.times_chosen,
    }


def optimism_of(sweep: Sweep, kind: SplitKind | str, *, folds: int | None = None, seed: int = SEED) -> Optimism:
    """Judge the front of a sweep out of sample.

    Args:
        sweep: The sweep, with outcomes kept.
        kind: ``families`` for cross-validation by family, or ``walk-forward`` for parts in time.
        folds: Number of folds, or of parts in time that are judged. By default each of up to 20 families is a fold, and
            there are five parts in time.
        seed: Seed of the deals.

    Raises:
        TelemetryError: There are too few families, a start or an end is unknown, or the sweep keeps no outcomes.
    """
    # The order of runs follows from their paths; that of digests does not.
    runs = sorted(sweep.runs, key=lambda run: run.knowledge.log_digest)
    splits = splits_of(runs, kind, folds=folds, seed=seed)
    has_one_unit = sweep.steps is not None

    def read(variants: Ints) -> RunTable:
        return run_table(runs, variants, has_one_unit=has_one_unit)

    totals = sweep.totals
    regrets = totals["mean_regret"][list(sweep.front)].tolist()
    limits = limits_of(regrets)
    with np.errstate(all="ignore"):
        shares = totals["steps_saved"] / totals["steps"] if has_one_unit else totals["share_saved"]
    judged = judge_choices(read, len(sweep.variants), len(runs), splits, limits)
    points = [
        FrontPoint(
            index,
            limit,
            regret,
            float(shares[index]),
            found.regret,
            found.saved_share,
            found.variants.count(index) / len(found.variants),
        )
        for index, limit, regret, found in zip(sweep.front, limits, regrets, judged, strict=True)
    ]
    families = len({run.family for run in runs})
    deals = 1 if SplitKind(kind) is SplitKind.WALK_FORWARD else sum(0 in split.test for split in splits)
    return Optimism(
        SplitKind(kind),
        len(splits) // deals,
        deals,
        seed,
        families,
        len(_covered(split.test for split in splits)),
        len(_covered(split.purged for split in splits)),
        tuple(points),
    )


def limits_of(regrets: Sequence[float]) -> list[float]:
    """Return for each point of a front the limit of mean regret that stands for it.

    Every limit from a point's regret up to that of the point before it chooses the point. The regret itself would leave
    no slack, and a choice on fewer runs would fall below it; halfway the slack is as large as a free limit's.

    Args:
        regrets: The regrets of the points, falling.

    >>> limits_of([0.5, 0.25, 0.0])
    [inf, 0.375, 0.125]
    """
    return [math.inf, *((before + own) / 2 for before, own in pairwise(regrets))][: len(regrets)]


def run_table(runs: Sequence[SweptRun], variants: Ints, *, has_one_unit: bool = True) -> RunTable:
    """Return what some variants save and lose on runs, over the runs that a sweep's totals count.

    Args:
        runs: Runs with their outcomes.
        variants: Numbers of the variants.
        has_one_unit: Whether the steps of all runs are of one unit.

    Raises:
        TelemetryError: A run has no outcomes.
    """
    shape = (len(runs), len(variants))
    regret, saved, spent = np.full(shape, math.nan), np.zeros(shape), np.zeros(shape)
    for row, run in enumerate(runs):
        rows, codes = run.variant_outcomes.rows, run.variant_outcomes.codes[variants]
        able = rows.could_fire.astype(np.bool_)
        counted = able & ~rows.is_right_censored & ~rows.has_few_evaluations
        regret[row] = np.where(counted, rows.relative_regret, np.nan)[codes]
        known = able & ~np.isnan(rows.steps_saved) & (has_one_unit or run.steps > 0)
        length = 1 if has_one_unit else max(1, run.steps)
        saved[row] = np.where(known, rows.steps_saved / length, 0.0)[codes]
        spent[row] = ((able * run.steps) if has_one_unit else known)[codes]
    return RunTable(regret, saved, spent, has_one_unit)


def _covered(parts: Iterable[Ints]) -> set[int]:
    """Return the runs that are in any of the parts."""
    return {int(index) for part in parts for index in part}
