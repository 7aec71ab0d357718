"""Folds runs into a sweep's totals as they come, so that a sweep's memory does not grow with its runs.

Takes swept runs by number, then the numbers of those that repeat another's series; returns totals and winners.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from ..columns.stream import Floats
from .compact import CompactOutcomes
from .task import SweptRun
from .totals import TotalsFold
from .winners import Winner, WinnersFold

#: Outcomes that may wait before they are added. Which of two logs of one training counts is known only after the last
#: run: a log that was added and does not count costs a second pass over all runs.
_HELD_BYTES: Final = 64 << 20


class RunFold:
    """Adds up the outcomes of runs.

    Args:
        variants: Number of variants.
        keeps_outcomes: Whether each run keeps the outcomes of each variant.

    Attributes:
        runs: The runs, without their outcomes unless they keep them, by number.
    """

    def __init__(self, variants: int, *, keeps_outcomes: bool) -> None:
        self._totals = TotalsFold(variants)
        self._winners = WinnersFold()
        self._keeps = keeps_outcomes
        self._held: deque[tuple[int, CompactOutcomes]] = deque()
        self._held_bytes = 0
        self._added: set[int] = set()
        self.runs: dict[int, SweptRun] = {}

    def take(self, number: int, run: SweptRun) -> None:
        """Take a run with its outcomes."""
        outcomes = run.kept
        self.runs[number] = run if self._keeps else replace(run, compact=None)
        self._held.append((number, outcomes))
        self._held_bytes += outcomes.size_bytes
        if self._keeps or self._held_bytes <= _HELD_BYTES:
            return
        # Half of them: adding many runs at once takes less time per run.
        ripe: list[tuple[int, CompactOutcomes]] = []
        while self._held_bytes > _HELD_BYTES // 2:
            ripe.append(self._held.popleft())
            self._held_bytes -= ripe[-1][1].size_bytes
        self._add(ripe)

    def is_spoiled_by(self, repeated: Collection[int]) -> bool:
        """Whether a run that repeats another's series has been added already."""
        return not self._added.isdisjoint(repeated)

    def finish(
        self, repeated: Collection[int], *, has_one_unit: bool
    ) -> tuple[Mapping[str, Floats], tuple[Winner, ...]]:
        """Add the runs that wait, without those that repeat another's series, and return totals and winners."""
        self._add([(number, outcomes) for number, outcomes in self._held if number not in repeated])
        self._held.clear()
        return self._totals.totals(has_one_unit=has_one_unit), self._winners.winners()

    def _add(self, ripe: list[tuple[int, CompactOutcomes]]) -> None:
        self._added.update(number for number, _ in ripe)
        self._totals.add([(self.runs[number], outcomes) for number, outcomes in ripe])
        for number, outcomes in ripe:
            self._winners.add(self.runs[number], outcomes.column("regret"))
