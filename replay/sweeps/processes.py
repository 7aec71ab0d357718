"""Sweeps runs in this process or in a process pool. Results keep the order of the runs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from ...rules.language.references import Param
from ...rules.policy_file.policy import Policy, parse_policy
from ...rules.policy_file.registration import METRIC_CLASSES, OPERATION_CLASSES
from ...store.run import Run
from ..run_pool import can_share_work
from ..runs.objective import Objective
from ..runs.results import Excluded
from .task import RunSweeper, SweptRun
from .variants import Variant, variants_of

#: Measured seconds: a variant on a run of 10,000 steps by columns, the same by the event engine, and reading a byte.
_SECONDS_PER_PAIR: Final = 7e-6
_SECONDS_PER_ENGINE_PAIR: Final = 3e-2
_SECONDS_PER_BYTE: Final = 2.5e-8
#: Less work than this finishes sooner than processes start; each imports, and parses the policy again.
_WORTH_PROCESSES_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Task:
    """The work of a sweep, the same for each run.

    Attributes:
        policy: The rules.
        axes: The params to vary, with their values.
        objective: The objective.
        variants: The variants of the policy; each worker process computes them again.
    """

    policy: Policy
    axes: Mapping[str, Sequence[Param]]
    objective: Objective | None
    variants: Sequence[Variant]


def swept_in_processes(task: Task, runs: Sequence[Run], processes: int) -> Iterator[SweptRun | Excluded]:
    """Yield the outcomes of the variants on each run, in order, each as soon as it and all earlier ones are ready.

    Raises:
        PolicyError: The workers do not know a metric or an operation of the policy that this process knows.
    """
    processes = min(processes, len(runs))
    if processes <= 1 or not can_share_work():
        yield from map(RunSweeper(task.variants, task.objective), runs)
        return
    # Not forked: DuckDB, Arrow and polars have threads of their own, and a fork never releases the locks they hold.
    context = multiprocessing.get_context("spawn")
    axes = {name: list(values) for name, values in task.axes.items()}
    policy = task.policy
    told = _Told(policy.text, policy.source, dict(policy.params), policy.semantics_version, axes, task.objective)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_hold, initargs=(told,)) as pool:
        yield from pool.map(_sweep, runs)


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
    return sum(file.stat().st_size for file in run.folder.iterdir() if file.is_file()) if run.folder.is_dir() else 0


@dataclass(frozen=True, slots=True)
class _Told:
    """The input of a worker process. It builds its sweeper with the first run, where an error can be raised."""

    text: str
    source: str
    params: Mapping[str, Param]
    semantics_version: int
    axes: Mapping[str, Sequence[Param]]
    objective: Objective | None

    def sweeper(self) -> RunSweeper:
        policy = parse_policy(
            self.text, source=self.source, params=self.params, semantics_version=self.semantics_version
        )
        return RunSweeper(variants_of(policy, self.axes), self.objective)


#: The input of a worker process, and the sweeper it built: all of its calls share them.
_told: list[_Told] = []
_sweepers: list[RunSweeper] = []


def _hold(told: _Told) -> None:
    _told.append(told)


def _sweep(run: Run) -> SweptRun | Excluded:
    if not _sweepers:
        _sweepers.append(_told[0].sweeper())
    return _sweepers[0](run)
