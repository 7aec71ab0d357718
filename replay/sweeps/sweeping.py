"""Sweep: evaluates every combination of some params' values over many runs, in exact agreement with the event engine.

Takes a policy, the values of its params, and runs. Returns for each variant what it would have saved and cost, and the
Pareto front of steps saved and regret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Param
from ...store.run import Run
from ..columns.stream import Floats
from ..run_pool import Pool, Progress, RunPool, checked_runs, usable_processes
from ..runs.families import check_family_key
from ..runs.objective import Declared, Objective, declared_objectives, shared_objective
from ..runs.renaming import Renames, check_recorded
from ..runs.results import Excluded
from ..runs.same_series import repeated_by, repeats
from ..runs.saves import Saves
from .folding import RunFold
from .outcomes import Outcomes
from .task import RunSweeper, SweepTask, SweptRun, check_declared, reasons_of
from .totals import pareto_front
from .variants import Variant, variants_of
from .winners import Winner, stopped_counts

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Sweep:
    """Variants of a policy over runs.

    Attributes:
        policy: The policy with its own params.
        axes: The varied params, with their values.
        variants: Every combination, the last axis varying fastest.
        runs: The runs that were judged.
        excluded: The runs that were not, each with its reason.
        repeated: The runs that repeat another's series and are counted once, each with the run that counts.
        engine_reasons: What the event engine had to decide, and why: by controller, or by run.
        totals: The totals of each variant over the runs where the number is known. Each has shape (variants,), NaN
            where no run knows the number. ``could_fire``, ``stopped``, ``fired`` and ``not_known`` count runs.
            ``steps`` is the length of the runs in which the variant could fire. ``decisions``, ``steps_saved``,
            ``seconds_saved``, ``checkpoints`` and ``checkpoint_bytes`` are sums; steps of several units have none.
            ``share_saved`` is the mean share of a run's steps, over the runs in which the variant could fire. The mean
            and the worst of regret and of deployable regret are relative, over those of these runs that ran as long as
            planned and have at least ``FEWEST_EVALUATIONS`` evaluations.
        winners: The best run of each family of several runs, with the variants that would have stopped it earlier.
        renames: The metrics that were renamed.
        saves: Whether the loop's own checkpoints remain when rules order some.
    """

    policy: Policy
    axes: Mapping[str, tuple[Param, ...]]
    variants: tuple[Variant, ...]
    runs: tuple[SweptRun, ...]
    excluded: tuple[Excluded, ...]
    repeated: tuple[Excluded, ...]
    engine_reasons: Mapping[str, str]
    totals: Mapping[str, Floats]
    winners: tuple[Winner, ...] = ()
    renames: Renames = ()
    saves: Saves = Saves.KEEP

    @property
    def objective(self) -> Objective | None:
        """The objective of every run that has one; None if they differ, or no run has one."""
        return shared_objective(run.objective for run in self.runs)

    @property
    def step_units(self) -> tuple[str, ...]:
        """The units of the judged runs' steps."""
        return tuple(sorted({run.step_unit for run in self.runs}))

    @property
    def steps(self) -> int | None:
        """Steps of all judged runs; None if they are of several units."""
        return sum(run.steps for run in self.runs) if len(self.step_units) < 2 else None

    @cached_property
    def front(self) -> tuple[int, ...]:
        """The Pareto front of steps saved and mean regret: indices of variants, most steps saved first.

        Where steps are of several units, the mean share of a run's steps decides. Of equal variants the first one
        counts. Empty if no regret is known.
        """
        saved = self.totals["share_saved" if self.steps is None else "steps_saved"]
        return pareto_front(saved, self.totals["mean_regret"])

    def frame(self) -> pl.DataFrame:
        """Return one row per variant: settings, totals, number of winners that it stops, whether it is on the front."""
        import polars as pl  # Importing polars takes 0.13 s; only callers that ask for a frame should wait for it.

        settings = {name: [variant.settings[name] for variant in self.variants] for name in self.axes}
        counts = {"could_fire", "stopped", "fired", "not_known", "decisions"}
        if self.steps is not None:
            counts.add("steps")
        totals = {name: total.astype(np.int64) if name in counts else total for name, total in self.totals.items()}
        count = len(self.variants)
        last = {
            "winners_stopped": stopped_counts(self.winners, count),
            "on_front": np.isin(np.arange(count), self.front),
        }
        return pl.DataFrame({"variant": np.arange(count), **settings, **totals, **last})

    def runs_frame(self) -> pl.DataFrame:
        """Return one row per variant and run, with the outcomes of the variant on the run.

        Raises:
            TelemetryError: The sweep did not keep the outcomes.
        """
        import polars as pl

        count = len(self.variants)
        frames = [
            pl.DataFrame(
                {
                    "variant": np.arange(count),
                    "run_id": [run.run_id] * count,
                    "name": [run.name] * count,
                    "objective": [None if run.objective is None else run.objective.metric] * count,
                    **{field.name: getattr(run.outcomes, field.name) for field in fields(Outcomes)},
                }
            )
            for run in self.runs
        ]
        return pl.concat(frames) if frames else pl.DataFrame()


def sweep(
    policy: Policy,
    axes: Mapping[str, Sequence[Param]],
    runs: Iterable[Run],
    *,
    objective: Declared = None,
    renames: Mapping[str, str] | None = None,
    saves: Saves | str = Saves.KEEP,
    on_progress: Callable[[Progress], object] | None = None,
    processes: int | None = 1,
    pool: Pool | None = None,
    family: str | None = None,
    keep_outcomes: bool = True,
) -> Sweep:
    """Compute what each variant of a policy would have done to recorded runs.

    Args:
        policy: The rules.
        axes: The params to vary, with the values to try.
        runs: The runs; those that cannot be judged are listed as excluded.
        objective: The objective, or several in order of preference, as for ``backtest``.
        renames: New names of metrics, as the rules call them, by the names that runs recorded.
        saves: ``keep`` or ``replace``, as for ``backtest``.
        on_progress: Called after each run that is finished.
        processes: Number of processes, as for ``backtest``.
        pool: Workers to use in place of processes, such as ``RayPool()``; ``processes`` then has no effect.
        family: The key of the families of runs, as for ``backtest``.
        keep_outcomes: Whether the result has the outcomes of each variant on each run, for ``runs_frame`` and splits.
            A pair takes 1 to 4 bytes, and about 80 more for each distinct outcome of a run. Without them, memory does
            not grow with the runs.

    Raises:
        PolicyError: A combination does not load.
        TelemetryError: An axis has no values, there are too many combinations, the runs evaluated other metrics, but
            not the given objective, or they recorded no metric that is to be renamed, or lack the key of families.
    """
    chosen = checked_runs("sweep", policy, runs)
    variants, saves = variants_of(policy, axes), Saves(saves)
    declared, renaming = declared_objectives(objective), tuple((renames or {}).items())
    check_recorded(chosen, renaming)
    asked = (declared, renaming, saves, family)
    work = SweepTask(policy, axes, *asked, RunSweeper(variants, *asked))
    numbered, fold = dict(enumerate(chosen)), RunFold(len(variants), keeps_outcomes=keep_outcomes)
    with RunPool(usable_processes([policy], processes), on_progress, pool) as readers:
        excluded = _fold(readers, work, numbered, fold)
        swept = dict(fold.runs)
        check_declared(declared, [*swept.values()], chosen)
        if family is not None:
            check_family_key(family, [one.family for one in swept.values()], (numbered[n].info for n in swept))
        counts_for = _repeats(swept)
        if fold.is_spoiled_by(counts_for):
            counted = {number: run for number, run in numbered.items() if number in swept and number not in counts_for}
            fold = RunFold(len(variants), keeps_outcomes=keep_outcomes)
            excluded |= _fold(readers, work, counted, fold)
    judged = tuple(run for number, run in fold.runs.items() if number not in counts_for)
    totals, winners = fold.finish(counts_for, has_one_unit=len({run.step_unit for run in judged}) < 2)
    engine_reasons = {run.run_id: run.engine_reason for run in swept.values() if run.engine_reason}
    return Sweep(
        policy,
        {name: tuple(values) for name, values in axes.items()},
        tuple(variants),
        judged,
        tuple(excluded[number] for number in sorted(excluded)),
        tuple(_repeated(swept[number], swept[by]) for number, by in sorted(counts_for.items())),
        reasons_of(variants) | engine_reasons,
        totals,
        winners,
        renaming,
        saves,
    )


def _fold(
    readers: RunPool, work: Callable[[Run], SweptRun | Excluded], runs: Mapping[int, Run], fold: RunFold
) -> dict[int, Excluded]:
    """Sweep runs, fold them, and return those that are excluded, by number."""
    readers.expect(len(runs))
    excluded = {}
    for number, found in zip(runs, readers.mapped(work, [*runs.values()]), strict=True):
        if isinstance(found, Excluded):
            excluded[number] = found
        else:
            fold.take(number, found)
    return excluded


def _repeats(swept: Mapping[int, SweptRun]) -> dict[int, int]:
    """Return for each run that repeats another's series the run that counts for both, by number."""
    numbers, runs = [*swept], [*swept.values()]
    found = repeated_by([run.series for run in runs], [run.knowledge for run in runs])
    return {numbers[index]: numbers[by] for index, by in found.items()}


def _repeated(run: SweptRun, by: SweptRun) -> Excluded:
    return Excluded(run.run_id, run.name, repeats(by.name, by.run_id))
