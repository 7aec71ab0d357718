"""Judges a choice on runs that did not make it: what is chosen on one part of the runs is judged on another.

Takes what variants save and lose on each run, splits, and limits of mean regret; returns for each limit what its choice
saves and loses out of sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..columns.stream import Floats, Ints
from .splits import RunSplit

#: Pairs of a variant and a run that are read at once, in three arrays.
_PAIRS_AT_ONCE: Final = 4_000_000
#: Means that differ by less are equal: adding up in another order changes the last bits.
_TOLERANCE: Final = 1e-12


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
