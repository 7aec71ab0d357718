"""Sweeps one run: evaluates all variants on its columns, or on its events where columns do not suffice.

Takes variants and a run; returns the outcomes of each variant on it, or why the run is excluded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import ALSO_CALLED, Appearances, Param, Reading, SeriesReading
from ...store.errors import TelemetryError
from ...store.events import INIT_END, Event
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ...store.run_info import RunInfo
from ..columns.metric_readings import ListReading, ValueReading
from ..columns.positions import COUNTED_BY
from ..columns.stream import Stream, read_stream
from ..columns.terms import Term
from ..runs.appearances import StreamAppearances, nan_filtered_in
from ..runs.event_stream import EventStream, event_stream
from ..runs.families import Family, configuration_of, family_of
from ..runs.history import UPDATES, read_lineage, step_unit_of
from ..runs.human_action import is_end_stated
from ..runs.metric_names import mode_of
from ..runs.objective import Objective, check_evaluated, objective_among
from ..runs.renaming import Renames, renamed_columns
from ..runs.results import Excluded
from ..runs.run_result import BacktestSettings, judge_run, study_of
from ..runs.same_series import Knowledge, digested, series_digests
from ..runs.saves import Saves
from .censoring import is_shown, reads_families
from .checkpoints import evaluations_of
from .compact import CompactOutcomes, compact
from .outcomes import Outcomes, best_of, joined_outcomes, outcomes_of, outcomes_of_results
from .reach import ColumnAppearances
from .run import RunSweep
from .schedule import Schedule, schedules_of
from .structures import Structure
from .variants import Variant, variants_of

#: The metrics that count samples and tokens.
_COUNTED: Final = frozenset(name for names in COUNTED_BY.values() for name in names)


@dataclass(frozen=True, eq=False)
class SweptRun:
    """A run with the outcomes of all variants.

    Attributes:
        run_id, name: The run.
        steps: Optimizer updates that it made.
        compact: The outcomes of each variant on it; None if the sweep does not keep them.
        family: The runs that it is not independent of.
        series: Digests of the series by which another log of the same training is found.
        knowledge: How much it knows of the training.
        objective: The metric that judges the run; None if none of its evaluations says how good it is.
        evaluated: The metrics that it evaluated, among those that could judge it.
        engine_reason: Why the event engine decided controllers of columnar form on this run; empty if columns decided
            them.
        step_unit: What its steps count.
        best: The best value of its objective; NaN if unknown.
        started_ns, ended_ns: Wall clock of its beginning and of its end, nanoseconds since 1970; 0 if unknown.
        configuration: Digest of its configuration without seeds, paths and names; empty without one.
        has_few_evaluations: Whether its evaluations are too few for a mean of regret.
        could_fire: Whether any variant could fire in it.
    """

    run_id: str
    name: str
    steps: int
    compact: CompactOutcomes | None
    family: Family
    series: frozenset[str]
    knowledge: Knowledge
    objective: Objective | None = None
    evaluated: frozenset[str] = frozenset()
    engine_reason: str = ""
    step_unit: str = UPDATES
    best: float = math.nan
    started_ns: int = 0
    ended_ns: int = 0
    configuration: str = ""
    has_few_evaluations: bool = False
    could_fire: bool = True

    @property
    def kept(self) -> CompactOutcomes:
        """The outcomes of each variant on the run, in their compact form.

        Raises:
            TelemetryError: The sweep did not keep them.
        """
        if self.compact is None:
            raise TelemetryError("this sweep keeps no outcomes of single runs", fix="Pass keep_outcomes=True")
        return self.compact

    @property
    def outcomes(self) -> Outcomes:
        """The outcomes of each variant on the run.

        Raises:
            TelemetryError: The sweep did not keep them.
        """
        return self.kept.expanded()


class RunSweeper:
    """Evaluates variants on runs, one after the other.

    Args:
        variants: The variants of one policy.
        declared: The declared objectives, the preferred one first; empty to guess run by run.
        renames: The metrics to rename.
        saves: Whether the loop's own checkpoints remain.
        family: The key of families; None for the default.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        declared: Sequence[Objective] = (),
        renames: Renames = (),
        saves: Saves = Saves.KEEP,
        family: str | None = None,
    ) -> None:
        self._saves = saves
        self._family = family
        self._schedules = schedules_of(variants)
        self._declared = declared
        self._renames = renames
        self._metrics = metrics_read(variants)
        self._reads_samples = any(variant.structure.policy.reads_samples for variant in variants)
        self._ranks = frozenset[str]().union(*(variant.structure.policy.reads_ranks for variant in variants))

    def __call__(self, run: Run) -> SweptRun | Excluded:
        """Return the outcomes of each variant on a run, or why it is excluded, such as a read error."""
        try:
            return run.read(self._swept)
        except TelemetryError as error:
            return Excluded(run.folder.name, "", str(error))

    def _swept(self, snapshot: Snapshot) -> SweptRun | Excluded:
        """Evaluate all variants on one snapshot of a run."""
        info = snapshot.info
        study = study_of(snapshot, self._renames)
        judging, compared = self._could_judge(snapshot, study), digested(renamed_columns(snapshot, self._renames))
        stream = read_stream(snapshot, self._metrics.union(judging, compared), self._renames)
        if not _is_judged(snapshot, stream):
            return Excluded(info.run_id, info.name, "it recorded no step and no metric")

        def events() -> EventStream:
            return read_lineage(snapshot, samples=self._reads_samples, renames=self._renames, ranks=self._ranks)[0]

        evaluated = frozenset(filter(stream.has_evaluated, judging))
        objective = objective_among(evaluated, self._declared, study)
        filtered = nan_filtered_in(snapshot, self._renames)
        outcomes, reason = sweep_stream(
            self._schedules,
            stream,
            objective,
            events,
            snapshot.status,
            nan_filtered=filtered,
            saves=self._saves,
            end_stated=is_end_stated(info.source),
        )
        return SweptRun(
            info.run_id,
            info.name,
            int(stream.steps.max(initial=0)),
            compact(outcomes),
            family_of(info, self._family),
            series_digests(stream.steps, stream.is_any(("evaluate",)), map(stream.whole, compared)),
            _knowledge(stream, objective, snapshot.log_digest),
            objective,
            evaluated,
            reason,
            step_unit_of(info.source),
            best_of(stream, objective),
            info.attempts[0].started_ns,
            _ended_ns(info, stream),
            configuration_of(info),
            bool(outcomes.has_few_evaluations.all()),
            bool(outcomes.could_fire.any()),
        )

    def _could_judge(self, snapshot: Snapshot, study: Objective | None) -> set[str]:
        """Return the metrics from which the objective of a run is chosen, as a backtest chooses it."""
        if self._declared:
            return {objective.metric for objective in self._declared}
        told = {name for name in renamed_columns(snapshot, self._renames) if mode_of(name) is not None}
        return told if study is None else told | {study.metric}


@dataclass(slots=True)
class SweepTask:
    """The work of a sweep on one run, here or in a worker process.

    The variants do not travel: a worker builds them with its first run, where an error can be raised, and keeps them
    for the others.

    Attributes:
        policy: The rules.
        axes: The params to vary, with their values.
        declared: The declared objectives, the preferred one first; empty to guess run by run.
        renames: The metrics to rename.
        saves: Whether the loop's own checkpoints remain.
        family: The key of families; None for the default.
        sweeper: The variants on one run, if they are built already.
    """

    policy: Policy
    axes: Mapping[str, Sequence[Param]]
    declared: Sequence[Objective] = ()
    renames: Renames = ()
    saves: Saves = Saves.KEEP
    family: str | None = None
    sweeper: RunSweeper | None = None

    def __call__(self, run: Run) -> SweptRun | Excluded:
        """Evaluate the variants on a run."""
        if self.sweeper is None:
            variants = variants_of(self.policy, self.axes)
            self.sweeper = RunSweeper(variants, self.declared, self.renames, self.saves, self.family)
        return self.sweeper(run)

    def __reduce__(self) -> tuple[Any, ...]:
        return SweepTask, (self.policy, self.axes, self.declared, self.renames, self.saves, self.family)


def sweep_stream(
    schedules: Sequence[Schedule],
    stream: Stream,
    objective: Objective | None,
    events: Callable[[], Sequence[Event] | EventStream],
    status: str = "",
    *,
    nan_filtered: Collection[str] = (),
    saves: Saves = Saves.KEEP,
    end_stated: bool = True,
) -> tuple[Outcomes, str]:
    """Return the outcomes of each variant on one run, and why the event engine decided; empty if it did not.

    Args:
        schedules: The variants of one policy, from ``schedules_of``.
        stream: The run's columns, with all metrics that the variants read.
        objective: The objective.
        events: Reads the deciding rank's events, outcomes of rules included.
        status: The run's status.
        nan_filtered: Names of training metrics whose values that are not finite were replaced before they were logged.
        saves: Whether the loop's own checkpoints remain.
        end_stated: Whether the status says how the run ended.
    """
    variants = [variant for schedule in schedules for variant in schedule.variants]
    structures = [*{id(variant.structure): variant.structure for variant in variants}.values()]
    reason = _reason_for_engine(stream, structures)
    if reason:
        own, plan, settings = events(), stream.plan, BacktestSettings(saves=saves)
        results = [
            judge_run(
                variant.policy(), "", "", status, own, plan, objective, settings, nan_filtered, end_stated=end_stated
            )
            for variant in variants
        ]
        return outcomes_of_results(results), reason
    swept = RunSweep(stream, events)
    asks = any(watcher.saves for structure in structures for watcher in structure.watchers)
    places: Appearances = ColumnAppearances(stream, nan_filtered)
    if any(structure.engine_names or structure.policy.reads_samples for structure in structures):
        places = StreamAppearances(event_stream(swept.events), stream.plan, nan_filtered)
    parts = []
    for schedule in schedules:
        tally = swept.tally(schedule)
        outcomes = outcomes_of(
            stream,
            tally,
            objective,
            status,
            could_fire=schedule.groups.able(places),
            is_shown=is_shown(stream, tally, schedule.variants),
            drops_own_checkpoints=saves is Saves.REPLACE and asks,
            end_stated=end_stated,
        )
        parts.append(outcomes)
    return joined_outcomes(parts), "; ".join(sorted(swept.reasons))


def metrics_read(variants: Sequence[Variant]) -> set[str]:
    """Return the names of the metrics that rules read, to load as columns."""
    names = {"epoch"}
    for structure in {id(variant.structure): variant.structure for variant in variants}.values():
        for watcher in structure.watchers:
            bound = watcher.declaration.rule.bound
            for key in (*bound.series, *watcher.declaration.requires):
                names |= {key.name, ALSO_CALLED.get(key.name, key.name)}
            if watcher.condition is not None:
                names |= metrics_of(watcher.condition)
    return names


def metrics_of(term: Term) -> set[str]:
    """Return the names of the metrics that a term reads."""
    names: set[str] = set()
    for reference in term.leaves("reference"):
        if isinstance(reference, SeriesReading):
            names |= {reference.key.name, ALSO_CALLED.get(reference.key.name, reference.key.name)}
        if _counts(reference):
            names |= _COUNTED
    for reading in term.leaves("metric"):
        names |= {"loss"} | _named(reading)
    return names


def _counts(reference: Reading) -> bool:
    """Whether a reference reads how many samples or tokens the run has counted."""
    return reference.unit in COUNTED_BY or reference.fact in _COUNTED


def _named(reading: ListReading | ValueReading) -> set[str]:
    """Return the names of metrics that a reading of a controller metric may look up."""
    keys = [reading.key] if isinstance(reading, ListReading) else reading.path
    return {key for key in keys if isinstance(key, str)}


def reasons_of(variants: Sequence[Variant]) -> dict[str, str]:
    """Return the names of the controllers that the event engine decides, each with the reason."""
    found: dict[str, str] = {}
    for variant in variants:
        for watcher in variant.structure.watchers:
            name = watcher.declaration.name
            if watcher.reason:
                found[name] = watcher.reason
            elif name in variant.structure.engine_names:
                found.setdefault(name, "a controller that needs the event engine asks about it or shares its cooldown")
    return found


def _reason_for_engine(stream: Stream, structures: Sequence[Structure]) -> str:
    """Return why the event engine has to judge the whole run; empty if columns suffice."""
    steers = {structure.steers for structure in structures} - {""}
    if stream.has_decisions:
        return "it was recorded with live rules"
    if stream.has_late_values:
        return "some of its values arrived late"
    if any(structure.policy.reads_ranks for structure in structures):
        return "its rules read all ranks"
    if stream.has_late_plan:
        return "its loop declared some of its plan late"
    acting = (watcher for each in structures for watcher in each.watchers if watcher.stops or watcher.saves)
    if any(f"on_{INIT_END}" in watcher.declaration.triggers for watcher in acting):
        return "rules stop or save before its first event"
    asks = any(watcher.evaluates for each in structures for watcher in each.watchers)
    if asks and any(reads_families(structure.policy) for structure in structures):
        return "rules order an evaluation and read a family of series"
    return f"rules order {', '.join(sorted(steers))}" if steers else ""


def _knowledge(stream: Stream, objective: Objective | None, log_digest: str) -> Knowledge:
    clocks = bool((stream.elapsed_ns > 0).any()) + (stream.began_ns > 0)
    return Knowledge(len(evaluations_of(stream, objective)[0]), clocks, len(stream), log_digest)


def _ended_ns(info: RunInfo, stream: Stream) -> int:
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
        stream = run.read(lambda snapshot: read_stream(snapshot, snapshot.columns.by_metric))
    except TelemetryError:
        return set()
    return set(filter(stream.has_evaluated, stream.metrics))


def _is_judged(snapshot: Snapshot, stream: Stream) -> bool:
    """Whether a run recorded a step or any metric."""
    return bool(stream.is_any(("step_end",)).any()) or (len(stream) > 0 and bool(snapshot.columns.by_metric))
