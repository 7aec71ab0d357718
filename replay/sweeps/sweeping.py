"""Sweep: evaluates every combination of some params' values over many runs, in exact agreement with the event engine.

Takes a policy, the values of its params, and runs. Returns for each variant what it would have saved and cost, and the
Pareto front of steps saved and regret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ...store.run_info import RunInfo
from ..columns.variant_firings import VariantBatch, batches_of
from ..columns.variants import Variant, reasons_of, variants_of
from ..run_pool import Pool, Progress, RunPool, checked_runs, usable_processes
from ..runs.event_stream import EventStream, check_recorded, read_metrics, renamed_columns
from ..runs.judging import background_of, lacked_metrics
from ..runs.metric_names import mode_of
from ..runs.objective import (
    Declared,
    Objective,
    Saves,
    best_value,
    check_evaluated,
    declared_objectives,
)
from ..runs.replaying import stream_under
from ..runs.risk import CONFIDENCE, DEFAULT_RISK, Risk, checked_confidence
from ..runs.run_families import check_family_key, configuration_of
from ..runs.run_result import DEFAULT_SETTINGS, BacktestSettings, Excluded
from ..runs.same_training import Knowledge, repeated_by, repeats, sketch_of, sketched
from .losses import losses_on
from .outcomes import SweptRun
from .totals import RunFold, Sweep
from .variant_outcomes import sweep_stream


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
    plans_by_length: bool = False,
    risk: Risk = DEFAULT_RISK,
    confidence: float = CONFIDENCE,
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
        plans_by_length: Whether a completed run without a plan counts as planned for its length.
        risk: What a stop may lose, in a share of the runs, from ``risk_of``.
        confidence: How sure that must be of a variant that is chosen: what reports name for ``certify``.
        keep_outcomes: Whether the result has the outcomes of each variant on each run, for ``runs_frame`` and splits.
            A pair takes 1 to 4 bytes, and about 80 more for each distinct outcome of a run. Without them, memory does
            not grow with the runs.

    Raises:
        PolicyError: A combination does not load.
        TelemetryError: An axis has no values, there are too many combinations, the runs evaluated other metrics, but
            not the given objective, or they recorded no metric that is to be renamed, or lack the key of families.
            Or the risk is a mean.
    """
    if not risk.is_share:
        raise TelemetryError("a sweep counts lost runs", got=str(risk), fix="Write 'regret > 1%', or certify a mean")
    chosen = checked_runs("sweep", policy, runs)
    variants, saves = variants_of(policy, axes), Saves(saves)
    declared, renaming = declared_objectives(objective), tuple((renames or {}).items())
    check_recorded(chosen, renaming)
    settings = BacktestSettings(renames=renaming, saves=saves, family=family, plans_by_length=plans_by_length)
    work = RunSweeper(policy, axes, declared, settings, variants)
    numbered, judge = dict(enumerate(chosen)), partial(losses_on, risk, policy)
    fold = RunFold(len(variants), judge, keeps_outcomes=keep_outcomes)
    with RunPool(usable_processes([policy], processes), on_progress, pool) as readers:
        excluded = _fold(readers, work, numbered, fold)
        swept = dict(fold.runs)
        check_declared(declared, [*swept.values()], chosen)
        if family is not None:
            check_family_key(family, [one.family for one in swept.values()], (numbered[n].info for n in swept))
        counts_for = _repeats(swept)
        if fold.is_spoiled_by(counts_for):
            counted = {number: run for number, run in numbered.items() if number in swept and number not in counts_for}
            fold = RunFold(len(variants), judge, keeps_outcomes=keep_outcomes)
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
        plans_by_length,
        risk,
        checked_confidence(confidence),
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
            fold.add_run(number, found)
    return excluded


def _repeats(swept: Mapping[int, SweptRun]) -> dict[int, int]:
    """Return for each run that repeats another's series the run that counts for both, by number."""
    numbers, runs = [*swept], [*swept.values()]
    found = repeated_by([run.sketch for run in runs], [run.knowledge for run in runs])
    return {numbers[index]: numbers[by] for index, by in found.items()}


def _repeated(run: SweptRun, by: SweptRun) -> Excluded:
    return Excluded(run.run_id, run.name, repeats(by.name, by.run_id))


@dataclass
class RunSweeper:
    """The work of a sweep on one run, here or in a worker process.

    The variants do not travel: a worker builds them with its first run, where an error can be raised, and keeps them
    for the others.

    Attributes:
        policy: The rules.
        axes: The params to vary, with their values.
        declared: The declared objectives, the preferred one first; empty to guess run by run.
        settings: What a backtest of each variant would be given.
        variants: The variants, if they are built already.
    """

    policy: Policy
    axes: Mapping[str, Sequence[Param]]
    declared: Sequence[Objective] = ()
    settings: BacktestSettings = DEFAULT_SETTINGS
    variants: Sequence[Variant] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RunSweeper, (self.policy, self.axes, self.declared, self.settings)

    @cached_property
    def _batches(self) -> tuple[VariantBatch, ...]:
        return batches_of(variants_of(self.policy, self.axes) if self.variants is None else self.variants)

    def __call__(self, run: Run) -> SweptRun | Excluded:
        """Return the outcomes of each variant on a run, or why it is excluded, such as a read error.

        Raises:
            PolicyError: A variant does not load.
        """
        _ = self._batches  # Built outside of the guard: an error in a policy excludes no run.
        try:
            return run.read(self._swept)
        except TelemetryError as error:
            return Excluded(run.folder.name, "", str(error))

    def _swept(self, snapshot: Snapshot) -> SweptRun | Excluded:
        """Evaluate all variants on one snapshot of a run."""
        background = background_of(snapshot, self.settings)
        renames, metrics = self.settings.renames, frozenset[str]().union(*(batch.metrics for batch in self._batches))
        names = renamed_columns(snapshot, renames)
        judging, compared = self._could_judge(names, background.of_study), sketched(names)
        stream = read_metrics(snapshot, metrics.union(judging, compared), renames)
        if not _is_judged(snapshot, stream):
            return Excluded(background.run_id, background.name, "it recorded no step and no metric")

        def events() -> EventStream:
            policies = [structure.policy for batch in self._batches for structure in batch.structures]
            return stream_under(policies, snapshot, renames)[0]

        evaluated = frozenset(name for name in judging if len(stream.values_at("evaluate", name).rows))
        objective = background.objective_among(evaluated, self.declared)
        swept = sweep_stream(self._batches, stream, background, objective, self.settings, events=events)
        evaluations = [] if objective is None else stream.values_at("evaluate", objective.metric).values.tolist()
        info, rows = snapshot.info, swept.outcomes.rows
        could_fire = bool(rows.could_fire.any())
        is_judged = could_fire and objective is not None
        return SweptRun(
            run_id=background.run_id,
            name=background.name,
            steps=stream.last_step,
            kept=swept.outcomes,
            family=background.family,
            sketch=sketch_of(stream, compared),
            knowledge=_knowledge(stream, len(evaluations), background.log_digest, is_judged=is_judged),
            objective=objective,
            evaluated=evaluated,
            engine_reason=swept.engine_reason,
            step_unit=background.step_unit,
            best=math.nan if objective is None else best_value(evaluations, objective),
            started_ns=info.attempts[0].started_ns,
            ended_ns=_ended_ns(info, stream),
            configuration=configuration_of(info),
            has_few_evaluations=bool(rows.has_few_evaluations.all()),
            could_fire=could_fire,
            checkpoints=swept.recorded.checkpoints,
            has_deployable=swept.recorded.deployable is not None,
            ended_by_rules=background.is_ended_by_rules(stream),
            unable=swept.unable,
            lacked=lacked_metrics(self.policy, snapshot, renames),
        )

    def _could_judge(self, names: Iterable[str], study: Objective | None) -> set[str]:
        """Return the metrics from which the objective of a run is chosen, as a backtest chooses it."""
        if self.declared:
            return {objective.metric for objective in self.declared}
        told = {name for name in names if mode_of(name) is not None}
        return told if study is None else told | {study.metric}


def _knowledge(stream: EventStream, evaluations: int, log_digest: str, *, is_judged: bool) -> Knowledge:
    times_ns = stream.facts.whole("time_ns")[:1]
    clocks = bool((stream.elapsed_ns > 0).any()) + bool((times_ns > 0).any())
    return Knowledge(is_judged, evaluations, clocks, len(stream), log_digest)


def _ended_ns(info: RunInfo, stream: EventStream) -> int:
    """Return when a run ended, or its last event if nobody recorded the end; 0 if unknown."""
    last = info.last
    if last.ended_ns:
        return last.ended_ns
    elapsed_ns = int(stream.elapsed_ns[stream.attempts == last.attempt].max(initial=0))
    return last.started_ns + elapsed_ns if last.started_ns else 0


def check_declared(declared: Sequence[Objective], swept: Sequence[SweptRun], runs: Sequence[Run]) -> None:
    """Check that a run evaluated each declared objective, or none evaluated anything.

    Raises:
        TelemetryError: The runs evaluated other metrics.
    """
    found = {name for run in swept for name in run.evaluated}
    missing = [objective for objective in declared if objective.metric not in found]
    if missing:
        check_evaluated(missing, found.union(*map(_evaluated, runs)))


def _evaluated(run: Run) -> set[str]:
    """Return all metrics that a run evaluated; nothing if it cannot be read."""
    try:
        stream = run.read(lambda snapshot: read_metrics(snapshot, snapshot.columns.by_metric))
    except TelemetryError:
        return set()
    return {name for name in stream.facts.metrics if len(stream.values_at("evaluate", name).rows)}


def _is_judged(snapshot: Snapshot, stream: EventStream) -> bool:
    """Whether a run recorded a step or any metric."""
    return len(stream.rows("step_end")) > 0 or (len(stream) > 0 and bool(snapshot.columns.by_metric))
