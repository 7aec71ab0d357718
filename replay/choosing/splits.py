"""Splits runs into parts that choose a variant and parts that judge it.

Takes facts of runs: their families, configurations and clocks. Returns splits, as indices of runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np

from ...store.errors import TelemetryError
from ..columns.stream import Ints
from ..sweeps.outcomes import SweptRun

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
