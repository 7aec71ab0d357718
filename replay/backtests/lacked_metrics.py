"""Counts the metrics that a policy reads and that many of the runs do not have, with what these runs have instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LackedMetric:
    """A metric that rules read and that some runs lack, though they recorded the same under another name.

    Attributes:
        name: Its name in the rules.
        runs: Number of runs that lack it.
        of: Number of runs.
        nearest: The names under which the runs recorded it, the commonest first, each with its number of runs.
    """

    name: str
    runs: int
    of: int
    nearest: dict[str, int]


def lacked_in(lacked: Sequence[Mapping[str, str]]) -> tuple[LackedMetric, ...]:
    """Return the metrics for which a rename would help, in the order of their names.

    Args:
        lacked: For each run the metrics that it lacks, each with its own metric that comes closest.
    """
    found = []
    for name in sorted(set[str]().union(*lacked)):
        nearest = [one[name] for one in lacked if name in one]
        known = Counter(sorted(filter(None, nearest)))
        if known:
            found.append(LackedMetric(name, len(nearest), len(lacked), dict(known.most_common())))
    return tuple(found)
