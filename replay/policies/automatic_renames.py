"""Finds the renames with which the rules of policies read runs that call their metrics otherwise.

Takes policies and runs; reads the names of the runs' metrics, and no event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...rules.policy_file.policy import Policy
from ...store.errors import TelemetryError, counted
from ...store.run import Run
from ..runs.event_stream import renamed_columns
from ..runs.judging import lacked_metrics
from ..runs.metric_names import Renames, near_metrics, split_of


@dataclass(frozen=True, slots=True)
class NearNames:
    """The names under which runs may have recorded a metric that they lack.

    Attributes:
        name: The metric, as rules call it.
        runs: Number of runs by name, the commonest first.
    """

    name: str
    runs: dict[str, int]

    @property
    def is_alone(self) -> bool:
        """Whether there is one name only, so that it may be taken."""
        return len(self.runs) == 1

    def sentence(self) -> str:
        """Say what is taken for the metric, or why nothing is."""
        names = [f"{name} ({counted(count, 'run', ',')})" for name, count in self.runs.items()]
        if self.is_alone:
            return f"{names[0]} is read as {self.name}, the nearest name"
        return f"{self.name} may be {' or '.join(names)}: none is taken. Name one with --rename OLD={self.name}"


def near_names(policies: Iterable[Policy], runs: Sequence[Run], renames: Renames = ()) -> Iterator[NearNames]:
    """Yield for each metric that rules read and runs lack the names that may mean it, in the order of the metrics.

    A run that cannot be read has no names.

    Args:
        policies: The policies.
        runs: The runs.
        renames: Metrics that are renamed already.
    """
    found: dict[str, Counter[str]] = {}
    asked = tuple(policies)
    for run in runs:
        try:
            nearest = run.read(
                lambda snapshot: [
                    (name, renamed_columns(snapshot, renames))
                    for policy in asked
                    for name in lacked_metrics(policy, snapshot, renames)
                ]
            )
        except TelemetryError:
            continue
        for name, recorded in dict(nearest).items():
            near = near_metrics(name, recorded)
            found.setdefault(name, Counter()).update(one for one in near if split_of(one) == split_of(near[0]))
    for name in sorted(found):
        if found[name]:
            yield NearNames(name, dict(found[name].most_common()))
