"""Counts the metrics that a policy reads and that many of the runs do not have, with what these runs have instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..runs.run_result import ReplayedRun


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


def lacked_in(facts: Sequence[ReplayedRun]) -> tuple[LackedMetric, ...]:
    """Return the metrics for which a rename would help, in the order of their names."""
    found = []
    for name in sorted({name for one in facts for name in one.lacked}):
        nearest = [one.lacked[name] for one in facts if name in one.lacked]
        known = Counter(sorted(filter(None, nearest)))
        if known:
            found.append(LackedMetric(name, len(nearest), len(facts), dict(known.most_common())))
    return tuple(found)
