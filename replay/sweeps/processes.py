"""Sweeps runs in this process or in a process pool. Results keep the order of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...rules.language.references import Param
from ...rules.policy_file.policy import Policy
from ...rules.policy_file.registration import METRIC_CLASSES, OPERATION_CLASSES
from ...store.run import Run
from ..runs.objective import Objective
from ..runs.renaming import Renames
from ..runs.results import Excluded
from ..runs.saves import Saves
from .task import RunSweeper, SweptRun
from .variants import Variant, variants_of

#: Measured seconds: a variant on a run of 10,000 steps by columns, the same by the event engine, and reading a byte.
_SECONDS_PER_PAIR: Final = 7e-6
_SECONDS_PER_ENGINE_PAIR: Final = 3e-2
_SECONDS_PER_BYTE: Final = 2.5e-8
#: Less work than this finishes sooner than processes start; each imports, and parses the policy again.
_WORTH_PROCESSES_S: Final = 3.0


@dataclass(slots=True)
class SweepTask:
    """The work of a sweep on one run, for a worker process.

    The worker builds the variants with its first run, where an error can be raised, and keeps them for the others.

    Attributes:
        policy: The rules.
        axes: The params to vary, with their values.
        declared: The declared objectives, the preferred one first; empty to guess run by run.
        renames: The metrics to rename.
        saves: Whether the loop's own checkpoints remain.
        family: The key of families; None for the default.
    """

    policy: Policy
    axes: Mapping[str, Sequence[Param]]
    declared: Sequence[Objective] = ()
    renames: Renames = ()
    saves: Saves = Saves.KEEP
    family: str | None = None
    _sweeper: RunSweeper | None = None

    def __call__(self, run: Run) -> SweptRun | Excluded:
        """Evaluate the variants on a run."""
        if self._sweeper is None:
            variants = variants_of(self.policy, self.axes)
            self._sweeper = RunSweeper(variants, self.declared, self.renames, self.saves, self.family)
        return self._sweeper(run)


def worthwhile_processes(policy: Policy, variants: Sequence[Variant], runs: Sequence[Run], at_most: int) -> int:
    """Return how many processes the work is worth, from the measured costs.

    One if the policy names metrics or operations from outside steptape: a script may have registered them in this
    process alone.
    """
    classes: list[type] = [METRIC_CLASSES[each.class_name] for each in policy.metrics]
    classes += [OPERATION_CLASSES[each.class_name] for each in policy.operations]
    if at_most <= 1 or not all(each.__module__.startswith("steptape.") for each in classes):
        return 1
    by_engine = sum(bool(variant.structure.engine_names or variant.structure.steers) for variant in variants)
    seconds = len(runs) * (len(variants) * _SECONDS_PER_PAIR + by_engine * _SECONDS_PER_ENGINE_PAIR)
    seconds += sum(map(_size_bytes, runs)) * _SECONDS_PER_BYTE
    return min(at_most, len(runs)) if seconds > _WORTH_PROCESSES_S else 1


def _size_bytes(run: Run) -> int:
    """Return the size of a run's files, as far as they are there: a sealer may be replacing some."""
    size = 0
    with suppress(OSError):
        for file in run.folder.iterdir():
            with suppress(OSError):
                size += file.stat().st_size
    return size
