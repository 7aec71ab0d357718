"""What a sweep does to one run: all variants on its columns, or on its events where columns cannot tell.

Variants and a run flow in; what each variant comes to on it flows out, or why the run is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ...rules.language.references import ALSO_CALLED
from ...store.errors import TelemetryError
from ...store.events import Event
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..runs.history import read_lineage
from ..runs.objective import SURE_OBJECTIVE, Objective, guessed_objective, mode_of
from ..runs.results import Excluded
from ..runs.run_result import judge_run
from .outcomes import Outcomes, joined_outcomes, outcomes_of, outcomes_of_results
from .run import RunSweep
from .schedule import Schedule, schedules_of
from .stream import Stream, read_stream
from .variants import Variant


@dataclass(frozen=True, eq=False)
class SweptRun:
    """A run that all variants were tried on.

    Attributes:
        run_id, name: The run.
        steps: Optimizer updates that it made.
        outcomes: What each variant comes to on it.
        engine_reason: Why the event engine had to decide on this run what columns do elsewhere; empty when it had not.
    """

    run_id: str
    name: str
    steps: int
    outcomes: Outcomes
    engine_reason: str = ""


class RunSweeper:
    """Tries variants on runs, one after the other.

    Args:
        variants: Of one policy.
        objective: The metric of merit.
    """

    def __init__(self, variants: Sequence[Variant], objective: Objective | None) -> None:
        self._schedules = schedules_of(variants)
        self._objective = objective
        self._metrics = metrics_read(variants, objective)
        self._reads_samples = any(variant.structure.policy.reads_samples for variant in variants)

    def __call__(self, run: Run) -> SweptRun | Excluded:
        """What each variant comes to on a run; or why it is not judged, which may be that it cannot be read."""
        try:
            return run.read(self._swept)
        except TelemetryError as error:
            return Excluded(run.folder.name, "", str(error))

    def _swept(self, snapshot: Snapshot) -> SweptRun | Excluded:
        """Try all variants on one snapshot of a run."""
        info = snapshot.info
        stream = read_stream(snapshot, self._metrics)
        if not _is_judged(snapshot, stream):
            return Excluded(info.run_id, info.name, "it recorded no step and no metric")

        def events() -> Sequence[Event]:
            return read_lineage(snapshot, samples=self._reads_samples)[0]

        outcomes, reason = sweep_stream(self._schedules, stream, self._objective, events, snapshot.status)
        return SweptRun(info.run_id, info.name, int(stream.steps.max(initial=0)), outcomes, reason)


def sweep_stream(
    schedules: Sequence[Schedule],
    stream: Stream,
    objective: Objective | None,
    events: Callable[[], Sequence[Event]],
    status: str = "",
) -> tuple[Outcomes, str]:
    """What each variant comes to on one run, and why the event engine had to decide what; empty when it had not.

    Args:
        schedules: The variants of one policy, as ``schedules_of`` lays them out.
        stream: The run's columns, with all metrics that the variants read.
        objective: The metric of merit.
        events: Reads the deciding rank's events, what rules did among them.
        status: The run's.
    """
    variants = [variant for schedule in schedules for variant in schedule.variants]
    structures = {id(variant.structure): variant.structure for variant in variants}.values()
    reason = _reason_for_engine(stream, {structure.steers for structure in structures} - {""})
    if reason:
        own, plan = events(), stream.plan
        results = [judge_run(variant.policy(), "", "", status, own, plan, objective) for variant in variants]
        return outcomes_of_results(results, objective), reason
    swept = RunSweep(stream, events)
    saves = any(watcher.saves for structure in structures for watcher in structure.watchers)
    parts = [
        outcomes_of(stream, swept.tally(schedule), objective, status, asks_for_checkpoints=saves)
        for schedule in schedules
    ]
    return joined_outcomes(parts), "; ".join(sorted(swept.reasons))


def metrics_read(variants: Sequence[Variant], objective: Objective | None) -> set[str]:
    """Names of the metrics that columns need."""
    names = {"epoch"} if objective is None else {"epoch", objective.metric}
    for structure in {id(variant.structure): variant.structure for variant in variants}.values():
        for watcher in structure.watchers:
            for key in watcher.declaration.rule.bound.series:
                names |= {key.name, ALSO_CALLED.get(key.name, key.name)}
    return names


def reasons_of(variants: Sequence[Variant]) -> dict[str, str]:
    """Why controllers are for the event engine, by their names."""
    found: dict[str, str] = {}
    for variant in variants:
        for watcher in variant.structure.watchers:
            name = watcher.declaration.name
            if watcher.reason:
                found[name] = watcher.reason
            elif name in variant.structure.engine_names:
                found.setdefault(name, "another controller that is for the event engine hangs together with it")
    return found


def _reason_for_engine(stream: Stream, steers: Collection[str]) -> str:
    """Why the event engine has to judge the whole run; empty when columns can."""
    if stream.has_decisions:
        return "rules were live in it"
    if stream.has_late_values:
        return "values of it came late"
    return f"rules ask for {', '.join(sorted(steers))}" if steers else ""


def guessed_from(runs: Iterable[Run]) -> Objective | None:
    """As a backtest guesses it, from the metrics alone whose names tell."""
    names: set[str] = set()
    for run in runs:
        try:
            names |= run.read(_telling_metrics)
        except TelemetryError:
            continue
        if SURE_OBJECTIVE in names:
            break
    return guessed_objective(names)


def _telling_metrics(snapshot: Snapshot) -> set[str]:
    """The metrics of evaluations whose names say which way is better."""
    telling = [name for name in snapshot.columns.by_metric if mode_of(name) is not None]
    stream = read_stream(snapshot, telling)
    return {name for name, found in stream.metrics.items() if stream.is_any(("evaluate",))[found.at].any()}


def _is_judged(snapshot: Snapshot, stream: Stream) -> bool:
    """Whether a run recorded a step or any metric."""
    return bool(stream.is_any(("step_end",)).any()) or (len(stream) > 0 and bool(snapshot.columns.by_metric))
