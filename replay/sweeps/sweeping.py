"""Sweep: evaluates every combination of some params' values over many runs, in exact agreement with the event engine.

Takes a policy, the values of its params, and runs. Returns for each variant what it would have saved and cost, and the
Pareto front of steps saved and regret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...rules.language.references import Param
from ...rules.policy_file.policy import Policy
from ...store.run import Run
from ..columns.stream import Floats
from ..run_pool import Progress, RunPool, checked_runs
from ..runs.families import check_family_key
from ..runs.objective import Declared, Objective, declared_objectives, shared_objective
from ..runs.renaming import Renames, check_recorded
from ..runs.results import Excluded
from ..runs.same_series import repeated_by, repeats
from ..runs.saves import Saves
from .outcomes import NO_STEP, Outcomes
from .processes import SweepTask, worthwhile_processes
from .task import RunSweeper, SweptRun, check_declared, reasons_of
from .variants import Variant, variants_of

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
    def totals(self) -> Mapping[str, Floats]:
        """The totals of each variant over the runs where the number is known.

        Each has shape (variants,), NaN where no run knows the number. ``could_fire``, ``stopped``, ``fired`` and
        ``not_known`` count runs. ``steps`` is the length of the runs in which the variant could fire. ``decisions``,
        ``steps_saved``, ``seconds_saved``, ``checkpoints`` and ``checkpoint_bytes`` are sums; steps of several units
        have none. ``share_saved`` is the mean share of a run's steps, over the runs in which the variant could fire.
        The mean and the worst of regret and of deployable regret are relative, over those of these runs that ran as
        long as planned and have at least ``FEWEST_EVALUATIONS`` evaluations.
        """
        mean_regret, worst_regret = self._mean_and_worst("relative_regret")
        mean_deployable, worst_deployable = self._mean_and_worst("relative_deployable_regret")
        return {
            "could_fire": self._table("could_fire").sum(axis=1).astype(np.float64),
            "stopped": (self._table("stop_step") != NO_STEP).sum(axis=1).astype(np.float64),
            "fired": (self._table("decisions") > 0).sum(axis=1).astype(np.float64),
            "not_known": np.isnan(self._table("steps_saved")).sum(axis=1).astype(np.float64),
            "decisions": self._table("decisions").sum(axis=1).astype(np.float64),
            "steps": self._steps_where_able(),
            "steps_saved": _summed(self._table("steps_saved") if self.steps is not None else self._unknown()),
            "share_saved": self._mean_share_saved(),
            "seconds_saved": _summed(self._table("seconds_saved")),
            "checkpoints": _summed(self._table("checkpoints")),
            "checkpoint_bytes": _summed(self._table("checkpoint_bytes")),
            "mean_regret": mean_regret,
            "worst_regret": worst_regret,
            "mean_deployable_regret": mean_deployable,
            "worst_deployable_regret": worst_deployable,
        }

    @cached_property
    def front(self) -> tuple[int, ...]:
        """The Pareto front of steps saved and mean regret: indices of variants, most steps saved first.

        Where steps are of several units, the mean share of a run's steps decides. Of equal variants the first one
        counts. Empty if no regret is known.
        """
        saved = self.totals["share_saved" if self.steps is None else "steps_saved"]
        regret = self.totals["mean_regret"]
        known = np.flatnonzero(~np.isnan(saved) & ~np.isnan(regret))
        front: list[int] = []
        least = np.inf
        for index in known[np.lexsort((known, regret[known], -saved[known]))].tolist():
            if regret[index] < least:
                least = float(regret[index])
                front.append(index)
        return tuple(front)

    def frame(self) -> pl.DataFrame:
        """Return one row per variant: its settings, its totals, and whether it is on the front."""
        import polars as pl  # Importing polars takes 0.13 s; only callers that ask for a frame should wait for it.

        settings = {name: [variant.settings[name] for variant in self.variants] for name in self.axes}
        counts = {"could_fire", "stopped", "fired", "not_known", "decisions"}
        if self.steps is not None:
            counts.add("steps")
        totals = {name: total.astype(np.int64) if name in counts else total for name, total in self.totals.items()}
        on_front = np.isin(np.arange(len(self.variants)), self.front)
        return pl.DataFrame({"variant": np.arange(len(self.variants)), **settings, **totals, "on_front": on_front})

    def runs_frame(self) -> pl.DataFrame:
        """Return one row per variant and run, with the outcomes of the variant on the run."""
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

    def _unknown(self) -> Floats:
        return np.full((len(self.variants), len(self.runs)), np.nan)

    def _steps_where_able(self) -> Floats:
        """Return the steps of the runs in which each variant could fire; NaN if they are of several units."""
        if self.steps is None:
            return np.full(len(self.variants), np.nan)
        return np.asarray(self._table("could_fire") @ np.array([float(run.steps) for run in self.runs]))

    def _mean_share_saved(self) -> Floats:
        """Return the mean share of a run's steps that each variant saves; NaN where no run knows it."""
        steps = np.array([run.steps or np.nan for run in self.runs])
        shares = self._table("steps_saved") / steps
        known = ~np.isnan(shares) & self._table("could_fire").astype(np.bool_)
        with np.errstate(all="ignore"):
            return np.asarray(_added(known, shares) / known.sum(axis=1))

    def _mean_and_worst(self, name: str) -> tuple[Floats, Floats]:
        """Return mean and maximum of a regret over the runs that a backtest counts for it; NaN where none is known."""
        regrets = self._table(name)
        censored, few, able = (
            self._table(name).astype(np.bool_) for name in ("is_right_censored", "has_few_evaluations", "could_fire")
        )
        known = ~np.isnan(regrets) & able & ~censored & ~few
        counts = known.sum(axis=1)
        with np.errstate(all="ignore"):
            mean = _added(known, regrets) / counts
        worst = np.where(known, regrets, -np.inf).max(axis=1, initial=-np.inf)
        return np.where(counts > 0, mean, np.nan), np.where(counts > 0, worst, np.nan)

    def _table(self, name: str) -> npt.NDArray[Any]:
        """Return an outcome as an array of shape (variants, runs)."""
        columns = [getattr(run.outcomes, name) for run in self.runs]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.variants), 0))


def sweep(
    policy: Policy,
    axes: Mapping[str, Sequence[Param]],
    runs: Iterable[Run],
    *,
    objective: Declared = None,
    renames: Mapping[str, str] | None = None,
    saves: Saves | str = Saves.KEEP,
    on_progress: Callable[[Progress], object] | None = None,
    processes: int = 1,
    family: str | None = None,
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
        processes: Maximum number of worker processes. Work that finishes sooner than they start stays in this process,
            and so do rules that a script may have registered. Workers import the main script, which must be guarded by
            ``if __name__ == "__main__":``.
        family: The key of the families of runs, as for ``backtest``.

    Raises:
        PolicyError: A combination does not load.
        TelemetryError: An axis has no values, there are too many combinations, the runs evaluated other metrics, but
            not the given objective, or they recorded no metric that is to be renamed, or lack the key of families.
    """
    chosen = checked_runs("sweep", policy, runs)
    variants, saves = variants_of(policy, axes), Saves(saves)
    declared, renaming = declared_objectives(objective), tuple((renames or {}).items())
    check_recorded(chosen, renaming)
    processes = worthwhile_processes(policy, variants, chosen, processes)
    swept: list[SweptRun] = []
    judged: list[Run] = []
    excluded: list[Excluded] = []
    reasons = reasons_of(variants)
    asked = (declared, renaming, saves, family)
    work = RunSweeper(variants, *asked) if processes == 1 else SweepTask(policy, axes, *asked)
    with RunPool(processes, on_progress) as pool:
        pool.expect(len(chosen))
        for run, found in zip(chosen, pool.mapped(work, chosen), strict=True):
            if isinstance(found, Excluded):
                excluded.append(found)
            else:
                swept.append(found)
                judged.append(run)
                if found.engine_reason:
                    reasons[found.run_id] = found.engine_reason
    check_declared(declared, swept, chosen)
    if family is not None:
        check_family_key(family, [one.family for one in swept], (run.info for run in judged))
    counts_for = repeated_by([one.series for one in swept], [one.knowledge for one in swept])
    return Sweep(
        policy,
        {name: tuple(values) for name, values in axes.items()},
        tuple(variants),
        tuple(one for index, one in enumerate(swept) if index not in counts_for),
        tuple(excluded),
        tuple(_repeated(swept[index], swept[by]) for index, by in sorted(counts_for.items())),
        reasons,
        renaming,
        saves,
    )


def _repeated(run: SweptRun, by: SweptRun) -> Excluded:
    return Excluded(run.run_id, run.name, repeats(by.name, by.run_id))


def _summed(table: npt.NDArray[Any]) -> Floats:
    """Return the sums over the runs where the number is known; NaN where it never is."""
    known = ~np.isnan(table)
    return np.where(known.any(axis=1), _added(known, table), np.nan)


def _added(known: npt.NDArray[np.bool_], table: npt.NDArray[Any]) -> Floats:
    """Sum the known values sorted by size: the order of the runs follows from their paths, and must change no bit."""
    by_size: Floats = np.sort(np.where(known, table, 0.0), axis=1)
    return np.asarray(by_size.sum(axis=1))
