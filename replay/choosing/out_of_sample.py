"""Judges the front of a sweep on runs that did not choose it: what is chosen on one part is judged on another.

Takes a sweep that keeps outcomes, and a way to split its runs. Returns each point of the front in sample and out of
sample. A point is read as a limit of mean regret, within which it saves most. Each split's training chooses by that
limit, and the test judges the choice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from ...rules.readings.vectors import Floats, Ints
from ...store.errors import TelemetryError
from ..sweeps.outcomes import SweptRun
from ..sweeps.totals import Sweep

if TYPE_CHECKING:
    import polars as pl

#: Pairs of a variant and a run that are read at once, in three arrays.
_PAIRS_AT_ONCE: Final = 4_000_000


#: Means that differ by less are equal: adding up in another order changes the last bits.
_TOLERANCE: Final = 1e-12


#: Most folds of families, unless a caller asks for another number. A choice on fewer families loses more than one on
#: all: with 5 folds, the optimism of 20 families was overstated by a fifth.
MOST_FOLDS: Final = 20


#: Parts in time, unless a caller asks for another number.
PARTS: Final = 5


#: How often families are dealt into folds anew, unless each fold is one: the mean over several deals varies less.
REPEATS: Final = 3


SEED: Final = 1


class SplitKind(StrEnum):
    """How runs are split.

    Attributes:
        FAMILIES: k-fold cross-validation by family.
        WALK_FORWARD: Each part in time is judged by what earlier runs chose.
    """

    FAMILIES = "families"
    WALK_FORWARD = "walk-forward"


@dataclass(frozen=True, eq=False)
class RunSplit:
    """One part of the runs that chooses, and one that judges the choice.

    Attributes:
        training, test: Indices of runs.
        purged: Earlier runs that do not choose, because they ran on while one of the test began.
    """

    training: Ints
    test: Ints
    purged: Ints


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

    def to_json(self) -> dict[str, object]:
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


def point_json(point: FrontPoint) -> dict[str, object]:
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


@dataclass(frozen=True, eq=False)
class RunTable:
    """The savings and losses of variants on runs. Each array has shape (runs, variants).

    Attributes:
        regret: Relative regret; NaN where a run does not count in a mean of regret.
        saved: What is saved of ``spent``; 0 where the variant could not fire.
        spent: The run's steps, or 1 where steps are of several units; 0 where the variant could not fire.
        has_one_unit: Whether ``saved`` and ``spent`` are steps: the variant that saves most in total is then chosen.
            Otherwise the one with the largest mean share.
    """

    regret: Floats
    saved: Floats
    spent: Floats
    has_one_unit: bool = True

    def variants(self, chosen: Ints) -> RunTable:
        """Return the table of some variants."""
        parts = (self.regret[:, chosen], self.saved[:, chosen], self.spent[:, chosen])
        return RunTable(*parts, self.has_one_unit)


@dataclass(frozen=True, eq=False)
class Means:
    """Means over weighted runs. Each array has shape (weightings, variants).

    Attributes:
        regret: Mean relative regret; NaN without a run that counts.
        saved_share: What is saved, as a share of what is spent; NaN where nothing is spent.
        score: By what variants that meet a limit are ranked.
    """

    regret: Floats
    saved_share: Floats
    score: Floats


@dataclass(frozen=True)
class Judgement:
    """The savings and losses of a choice on runs that did not make it.

    Attributes:
        regret: Mean relative regret; NaN if no run of the tests counts.
        saved_share: Saved share of steps.
        variants: The variants that were chosen, by split.
    """

    regret: float
    saved_share: float
    variants: tuple[int, ...]


def means_of(table: RunTable, weights: Floats) -> Means:
    """Return the means of each variant, one row for each row of weights.

    Args:
        table: The runs.
        weights: How often each run counts. Shape (weightings, runs).
    """
    known = ~np.isnan(table.regret)
    with np.errstate(all="ignore"):
        regret = weights @ np.where(known, table.regret, 0.0) / (weights @ known)
        saved = weights @ table.saved
        share = saved / (weights @ table.spent)
    return Means(regret, share, saved if table.has_one_unit else share)


def chosen_variant(regret: Floats, score: Floats, limit: float) -> int:
    """Return the variant that saves most with a mean regret within a limit; -1 if no regret is known.

    If none meets the limit, the variant with the least regret is chosen. Of equal ones, the first.

    Args:
        regret, score: The mean regret of each variant, and by what they are ranked. Shape (variants,).
        limit: The limit.
    """
    known = ~np.isnan(regret) & ~np.isnan(score)
    if not known.any():
        return -1
    within = known & (regret <= limit + _TOLERANCE * abs(limit))
    if not within.any():
        within = known & (regret <= np.min(regret[known]))
    candidates = np.flatnonzero(within)
    best = candidates[score[candidates] == score[candidates].max()]
    return int(best[np.argmin(regret[best])])


def judge_choices(
    read: Callable[[Ints], RunTable],
    variants: int,
    runs: int,
    splits: Sequence[RunSplit],
    limits: Iterable[float],
) -> list[Judgement]:
    """Choose on each split's training at each limit, and judge the choices over all tests together.

    Args:
        read: Returns the table of some variants; called with parts of all variants, then with the chosen ones.
        variants, runs: Their numbers.
        splits: The splits.
        limits: Limits of mean regret.
    """
    training = np.stack([_weights(split.training, runs) for split in splits])
    at_once = max(1, _PAIRS_AT_ONCE // max(1, runs))
    parts = [
        means_of(read(np.arange(begin, min(begin + at_once, variants))), training)
        for begin in range(0, variants, at_once)
    ]
    regret, score = (np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("regret", "score"))
    choices = [[chosen_variant(regret[row], score[row], limit) for row in range(len(splits))] for limit in limits]
    columns = np.unique([variant for row in choices for variant in row if variant >= 0])
    table = read(columns.astype(np.int64))
    return [_judged(table, columns, splits, row) for row in choices]


def _judged(table: RunTable, columns: Ints, splits: Sequence[RunSplit], choices: Sequence[int]) -> Judgement:
    regrets, saved, spent = [], 0.0, 0.0
    for split, variant in zip(splits, choices, strict=True):
        if variant < 0:
            continue
        column = int(np.searchsorted(columns, variant))
        regrets.append(table.regret[split.test, column])
        saved += float(table.saved[split.test, column].sum())
        spent += float(table.spent[split.test, column].sum())
    known = np.concatenate([np.zeros(0), *regrets])
    known = known[~np.isnan(known)]
    regret = float(known.mean()) if len(known) else np.nan
    return Judgement(regret, saved / spent if spent else np.nan, tuple(choices))


def _weights(chosen: Ints, runs: int) -> Floats:
    weights = np.zeros(runs)
    weights[chosen] = 1.0
    return weights


def splits_of(
    runs: Sequence[SweptRun], kind: SplitKind | str, *, folds: int | None = None, seed: int = SEED
) -> list[RunSplit]:
    """Split the runs of a sweep.

    Args:
        runs: The runs.
        kind: ``families`` or ``walk-forward``.
        folds: As for ``family_splits``, or the number of parts in time that are judged.
        seed: Seed of the deal.

    Raises:
        TelemetryError: There are too few families, or starts are unknown.
    """
    if SplitKind(kind) is SplitKind.WALK_FORWARD:
        groups = joined_groups([run.family for run in runs], [run.configuration for run in runs])
        clocks = [run.started_ns for run in runs], [run.ended_ns for run in runs]
        return walk_forward_splits(groups, *clocks, PARTS if folds is None else folds)
    names = [f"{run.family.key}={run.family.value}" for run in runs]
    return family_splits(names, folds=folds, seed=seed)


def family_splits(
    families: Sequence[str], *, folds: int | None = None, repeats: int = REPEATS, seed: int = SEED
) -> list[RunSplit]:
    """Split by family: each fold is judged by what the other folds choose. The order of the runs changes no fold.

    Args:
        families: The family of each run.
        folds: Number of folds; each has as many families as any other, or one fewer. If None, each family is one, up to
            ``MOST_FOLDS``.
        repeats: Number of times that the families are dealt; once if each is a fold.
        seed: Seed of the deal.

    Raises:
        TelemetryError: There are fewer families than folds.
    """
    names = sorted(set(families))
    folds = min(len(names), MOST_FOLDS) if folds is None else folds
    _check_families(len(names), folds)
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([number_of[family] for family in families])
    splits = []
    for repeat in range(1 if folds == len(names) else repeats):
        order = sorted(range(len(names)), key=lambda number: _shuffled(f"{seed}:{repeat}:{names[number]}"))
        fold_of = np.empty(len(names), np.int64)
        fold_of[order] = np.arange(len(names)) % folds
        dealt = fold_of[numbers]
        splits += [
            RunSplit(np.flatnonzero(dealt != fold), np.flatnonzero(dealt == fold), np.zeros(0, np.int64))
            for fold in range(folds)
        ]
    return splits


def walk_forward_splits(
    groups: Sequence[Hashable], started_ns: Sequence[int], ended_ns: Sequence[int], folds: int = PARTS
) -> list[RunSplit]:
    """Split by time: groups in the order of their first start, cut into one part more than there are folds.

    Each part but the first is judged by what the earlier ones choose. Earlier groups that were still running when the
    part began do not choose: their ends were unknown then.

    Args:
        groups: The group of each run; a group is never cut.
        started_ns, ended_ns: Wall clock of each run's beginning and end; 0 if unknown.
        folds: Number of parts that are judged.

    Raises:
        TelemetryError: A start or an end is unknown, there are too few groups, or all earlier groups overlap.
    """
    unknown = sum(not (start and end) for start, end in zip(started_ns, ended_ns, strict=True))
    if unknown:
        fix = "Split by families instead"
        raise TelemetryError("walk-forward needs the start and the end of each run", got=f"{unknown} without", fix=fix)
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    _check_families(len(members), folds + 1, what="parts in time")
    starts = {group: min(started_ns[index] for index in own) for group, own in members.items()}
    ends = {group: max(ended_ns[index] for index in own) for group, own in members.items()}
    # Groups that start at once are ordered by their ends: no path decides.
    ordered = sorted(members, key=lambda group: (starts[group], ends[group]))
    cuts = [round(part * len(ordered) / (folds + 1)) for part in range(folds + 2)]
    splits = []
    for first, last in pairwise(cuts[1:]):
        began = starts[ordered[first]]
        earlier, test = ordered[:first], ordered[first:last]
        chosen = [group for group in earlier if ends[group] <= began]
        purged = [group for group in earlier if ends[group] > began]
        if chosen:
            splits.append(RunSplit(*(_indices(members, part) for part in (chosen, test, purged))))
    if not splits:
        fix = "Split by families instead, or name smaller families with --family"
        raise TelemetryError("every run overlaps in time with those that would judge it", fix=fix)
    return splits


def joined_groups(families: Sequence[Hashable], configurations: Sequence[str]) -> list[int]:
    """Return the group of each run: runs of one family, or of one configuration, are in one group.

    Args:
        families: The family of each run.
        configurations: A digest of each run's configuration; an empty one joins nothing.
    """
    parent: dict[Hashable, Hashable] = {}

    def root(key: Hashable) -> Hashable:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for family, configuration in zip(families, configurations, strict=True):
        if configuration:
            parent[root(("configuration", configuration))] = root(("family", family))
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(root(("family", family)), len(numbers)) for family in families]


def _indices(members: dict[Hashable, list[int]], groups: Sequence[Hashable]) -> Ints:
    return np.array(sorted(index for group in groups for index in members[group]), np.int64)


def _check_families(count: int, needed: int, what: str = "folds") -> None:
    if count < 2:
        fix = "Name a key that tells them apart with --family, such as --family run"
        raise TelemetryError("a split needs several families", got=str(count), fix=fix)
    if needed < 2:
        raise TelemetryError("a split needs at least 2 folds", got=str(needed))
    if count < needed:
        most = count - (what != "folds")
        fix = f"Ask for fewer with --split KIND=N, at most {most}, or name smaller families with --family"
        raise TelemetryError(f"there are fewer families than {what}", got=f"{count} and {needed}", fix=fix)


def _shuffled(text: str) -> bytes:
    """Return a key whose order looks random, the same on every platform."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
