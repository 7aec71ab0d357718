"""Sweep: evaluates every combination of some params' values over many runs, in exact agreement with the event engine.

Takes a policy, the values of its params, and runs. Returns for each variant what it would have saved and cost, and the
Pareto front of steps saved and regret. Several policies share one pass over the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError
from ...store.metric_words import mode_of
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ...store.run_info import LIVE_STATUSES, RunInfo
from ..columns.variant_firings import VariantBatch, batches_of
from ..columns.variants import Variant, reasons_of, variants_of
from ..run_pool import Pool, Progress, RunPool, checked_runs, usable_processes
from ..runs.event_stream import EventStream, check_recorded, read_metrics, renamed_columns
from ..runs.judging import background_of, lacked_metrics, names_read
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
from .outcomes import MemberFacts, SweptRun
from .totals import RunFold, Sweep
from .variant_outcomes import sweep_stream

#: A policy, and the params to vary with the values to try.
Varied: TypeAlias = tuple[Policy, Mapping[str, Sequence[Param]]]


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
    (found,), _ = sweep_all(
        [(policy, axes)],
        checked_runs("sweep", policy, runs),
        declared=declared_objectives(objective),
        settings=BacktestSettings(
            renames=tuple((renames or {}).items()),
            saves=Saves(saves),
            family=family,
            plans_by_length=plans_by_length,
            risk=risk,
            confidence=checked_confidence(confidence),
        ),
        readers=RunPool(usable_processes([policy], processes), on_progress, pool),
        keep_outcomes=keep_outcomes,
    )
    return found


def sweep_all(
    varied: Sequence[Varied],
    runs: Sequence[Run],
    *,
    declared: Sequence[Objective],
    settings: BacktestSettings,
    readers: RunPool,
    keep_outcomes: bool = True,
    judged_by: Objective | None = None,
    certifies: bool = False,
) -> tuple[list[Sweep], dict[str, MemberFacts]]:
    """Sweep several policies in one pass over the runs. Return the sweep of each, and the facts of the runs by id.

    Args:
        varied: The policies with their axes.
        runs: The runs.
        declared: The declared objectives, the preferred one first; empty to guess run by run.
        settings: What a backtest of each variant would be given.
        readers: The pool that reads the runs; it is closed at the end.
        keep_outcomes: As for ``sweep``.
        judged_by: The objective of each run that evaluated it; the others are judged by their own. None to judge each
            by its own.
        certifies: Whether to exclude running runs, and to return the facts that a certificate needs. Without it there
            are no facts.

    Raises:
        PolicyError, TelemetryError: As for ``sweep``.
    """
    variants = [variants_of(policy, axes) for policy, axes in varied]
    check_recorded(runs, settings.renames)
    work = RunSweeper(varied, declared, settings, judged_by, certifies, variants)
    numbered = dict(enumerate(runs))

    def new_folds() -> list[RunFold]:
        return [
            RunFold(len(own), partial(losses_on, settings.risk, policy), keeps_outcomes=keep_outcomes)
            for own, (policy, _) in zip(variants, varied, strict=True)
        ]

    folds, facts = new_folds(), dict[str, MemberFacts]()
    with readers:
        excluded = _fold(readers, work, numbered, folds, facts)
        swept = dict(folds[0].runs)
        check_declared(declared, [*swept.values()], runs)
        if settings.family is not None:
            infos = (numbered[number].info for number in swept)
            check_family_key(settings.family, [one.family for one in swept.values()], infos)
        counts_for = _repeats(swept)
        if any(fold.is_spoiled_by(counts_for) for fold in folds):
            folds = new_folds()
            counted = {number: run for number, run in numbered.items() if number in swept and number not in counts_for}
            excluded |= _fold(readers, work, counted, folds, facts)
    out = tuple(excluded[number] for number in sorted(excluded))
    repeated = tuple(_repeated(swept[number], swept[by]) for number, by in sorted(counts_for.items()))
    engine_reasons = {run.run_id: run.engine_reason for run in swept.values() if run.engine_reason}
    sweeps = [
        _summed(one, own, fold, counts_for, (out, repeated, engine_reasons), settings)
        for one, own, fold in zip(varied, variants, folds, strict=True)
    ]
    return sweeps, facts


def _summed(
    varied: Varied,
    variants: Sequence[Variant],
    fold: RunFold,
    counts_for: Mapping[int, int],
    of_runs: tuple[tuple[Excluded, ...], tuple[Excluded, ...], dict[str, str]],
    settings: BacktestSettings,
) -> Sweep:
    """Return the sweep of one policy: what was added up, and the excluded runs, the repeated ones, the engine's."""
    policy, axes = varied
    excluded, repeated, engine_reasons = of_runs
    judged = tuple(run for number, run in fold.runs.items() if number not in counts_for)
    totals, winners = fold.finish(counts_for, has_one_unit=len({run.step_unit for run in judged}) < 2)
    return Sweep(
        policy,
        {name: tuple(values) for name, values in axes.items()},
        tuple(variants),
        judged,
        excluded,
        repeated,
        reasons_of(variants) | engine_reasons,
        totals,
        winners,
        settings.renames,
        settings.saves,
        settings.plans_by_length,
        settings.risk,
        settings.confidence,
    )


class _ReadRun(NamedTuple):
    """A run as each policy sweeps it, with the facts that a certificate needs; None unless one is made."""

    swept: tuple[SweptRun, ...]
    facts: MemberFacts | None


def _fold(
    readers: RunPool,
    work: Callable[[Run], _ReadRun | Excluded],
    runs: Mapping[int, Run],
    folds: Sequence[RunFold],
    facts: dict[str, MemberFacts],
) -> dict[int, Excluded]:
    """Sweep runs, add them to the fold of each policy, keep their facts, and return the excluded ones by number."""
    readers.expect(len(runs))
    excluded = {}
    for number, found in zip(runs, readers.mapped(work, [*runs.values()]), strict=True):
        if isinstance(found, Excluded):
            excluded[number] = found
            continue
        for fold, swept in zip(folds, found.swept, strict=True):
            fold.add_run(number, swept)
        if found.facts is not None:
            facts[found.swept[0].run_id] = found.facts
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
    """The work of a sweep on one run, here or in a worker process. It reads the run once for all policies.

    The variants do not travel: a worker builds them with its first run, where an error can be raised, and keeps them
    for the others.

    Attributes:
        varied: The policies with their axes.
        declared: The declared objectives, the preferred one first; empty to guess run by run.
        settings: What a backtest of each variant would be given.
        judged_by, certifies: As for ``sweep_all``.
        variants: The variants of each policy, if they are built already.
    """

    varied: Sequence[Varied]
    declared: Sequence[Objective] = ()
    settings: BacktestSettings = DEFAULT_SETTINGS
    judged_by: Objective | None = None
    certifies: bool = False
    variants: Sequence[Sequence[Variant]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RunSweeper, (self.varied, self.declared, self.settings, self.judged_by, self.certifies)

    @cached_property
    def _batches(self) -> tuple[tuple[VariantBatch, ...], ...]:
        """The variants of each policy, in batches."""
        variants = self.variants or [variants_of(policy, axes) for policy, axes in self.varied]
        return tuple(map(batches_of, variants))

    @cached_property
    def _names_read(self) -> list[set[str]]:
        """The names of the metrics that the variants of each policy read."""
        return [names_read(one.policy for batch in batches for one in batch.structures) for batches in self._batches]

    def __call__(self, run: Run) -> _ReadRun | Excluded:
        """Return the outcomes of each variant on a run, or why it is excluded, such as a read error.

        Raises:
            PolicyError: A variant does not load.
        """
        _ = self._batches  # Built outside of the guard: an error in a policy excludes no run.
        try:
            return run.read(self._swept)
        except TelemetryError as error:
            return Excluded(run.folder.name, "", str(error))

    def _swept(self, snapshot: Snapshot) -> _ReadRun | Excluded:
        """Evaluate all variants on one snapshot of a run."""
        background = background_of(snapshot, self.settings)
        if self.certifies and background.status in LIVE_STATUSES:
            return Excluded(background.run_id, background.name, "it is still running")
        every = [batch for batches in self._batches for batch in batches]
        renames, metrics = self.settings.renames, frozenset[str]().union(*(batch.metrics for batch in every))
        names = renamed_columns(snapshot, renames)
        judging, compared = self._could_judge(names, background.of_study), sketched(names)
        stream = read_metrics(snapshot, metrics.union(judging, compared), renames)
        if not _is_judged(snapshot, stream):
            return Excluded(background.run_id, background.name, "it recorded no step and no metric")

        def events() -> EventStream:
            policies = [structure.policy for batch in every for structure in batch.structures]
            return stream_under(policies, snapshot, renames)[0]

        evaluated = frozenset(name for name in judging if len(stream.values_at("evaluate", name).rows))
        objective = background.objective_among(evaluated, self.declared)
        if self.judged_by is not None and self.judged_by.metric in evaluated:
            objective = self.judged_by
        values = np.empty(0) if objective is None else stream.values_at("evaluate", objective.metric).values
        found = [
            sweep_stream(batches, stream, background, objective, self.settings, events=events)
            for batches in self._batches
        ]
        could_fire = [bool(one.outcomes.rows.could_fire.any()) for one in found]
        is_judged = any(could_fire) and objective is not None
        info, recorded = snapshot.info, found[0].recorded
        first = SweptRun(
            run_id=background.run_id,
            name=background.name,
            steps=stream.last_step,
            kept=None,
            family=background.family,
            sketch=sketch_of(stream, compared),
            knowledge=_knowledge(stream, len(values), background.log_digest, is_judged=is_judged),
            objective=objective,
            evaluated=evaluated,
            step_unit=background.step_unit,
            best=math.nan if objective is None else best_value(values.tolist(), objective),
            started_ns=info.attempts[0].started_ns,
            ended_ns=_ended_ns(info, stream),
            configuration=configuration_of(info),
            checkpoints=recorded.checkpoints,
            has_deployable=recorded.deployable is not None,
            ended_by_rules=background.is_ended_by_rules(stream),
        )
        swept = tuple(
            replace(
                first,
                kept=one.outcomes,
                engine_reason=one.engine_reason,
                has_few_evaluations=bool(one.outcomes.rows.has_few_evaluations.all()),
                could_fire=can_fire,
                unable=one.unable,
                lacked=lacked_metrics(read, snapshot, renames),
            )
            for one, can_fire, read in zip(found, could_fire, self._names_read, strict=True)
        )
        known = frozenset((*snapshot.columns.of_loop, *names))
        facts = MemberFacts(info, background.log_digest, known, values[np.isfinite(values)])
        return _ReadRun(swept, facts if self.certifies else None)

    def _could_judge(self, names: Iterable[str], study: Objective | None) -> set[str]:
        """Return the metrics from which the objective of a run is chosen, as a backtest chooses it."""
        chosen = set[str]() if self.judged_by is None else {self.judged_by.metric}
        if self.declared:
            return chosen | {objective.metric for objective in self.declared}
        told = chosen | {name for name in names if mode_of(name) is not None}
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
        check_evaluated(missing, found.union(*map(evaluated_by, runs)))


def evaluated_by(run: Run) -> set[str]:
    """Return all metrics that a run evaluated; nothing if it cannot be read."""
    try:
        stream = run.read(lambda snapshot: read_metrics(snapshot, snapshot.columns.of_loop))
    except TelemetryError:
        return set()
    return {name for name in stream.facts.metrics if len(stream.values_at("evaluate", name).rows)}


def _is_judged(snapshot: Snapshot, stream: EventStream) -> bool:
    """Whether a run recorded a step or any metric."""
    return len(stream.rows("step_end")) > 0 or (len(stream) > 0 and bool(snapshot.columns.of_loop))
