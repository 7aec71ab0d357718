"""Sweeps one run: evaluates all variants on its columns, or on its events where columns do not suffice.

Takes variants and a run; returns the outcomes of each variant on it, or why the run is excluded.
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
from ..runs.objective import SURE_OBJECTIVE, Objective, check_evaluated, guessed_objective, mode_of
from ..runs.results import Excluded
from ..runs.run_result import judge_run
from .outcomes import Outcomes, joined_outcomes, outcomes_of, outcomes_of_results
from .run import RunSweep
from .schedule import Schedule, schedules_of
from .stream import Stream, read_stream
from .variants import Variant


@dataclass(frozen=True, eq=False)
class SweptRun:
    """A run with the outcomes of all variants.

    Attributes:
        run_id, name: The run.
        steps: Optimizer updates that it made.
        outcomes: The outcomes of each variant on it.
        engine_reason: Why the event engine decided controllers of columnar form on this run; empty if columns decided
            them.
    """

    run_id: str
    name: str
    steps: int
    outcomes: Outcomes
    engine_reason: str = ""


class RunSweeper:
    """Evaluates variants on runs, one after the other.

    Args:
        variants: The variants of one policy.
        objective: The objective.
    """

    def __init__(self, variants: Sequence[Variant], objective: Objective | None) -> None:
        self._schedules = schedules_of(variants)
        self._objective = objective
        self._metrics = metrics_read(variants, objective)
        self._reads_samples = any(variant.structure.policy.reads_samples for variant in variants)

    def __call__(self, run: Run) -> SweptRun | Excluded:
        """Return the outcomes of each variant on a run, or why it is excluded, such as a read error."""
        try:
            return run.read(self._swept)
        except TelemetryError as error:
            return Excluded(run.folder.name, "", str(error))

    def _swept(self, snapshot: Snapshot) -> SweptRun | Excluded:
        """Evaluate all variants on one snapshot of a run."""
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
    """Return the outcomes of each variant on one run, and why the event engine decided; empty if it did not.

    Args:
        schedules: The variants of one policy, from ``schedules_of``.
        stream: The run's columns, with all metrics that the variants read.
        objective: The objective.
        events: Reads the deciding rank's events, outcomes of rules included.
        status: The run's status.
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
    """Return the names of the metrics to load as columns."""
    names = {"epoch"} if objective is None else {"epoch", objective.metric}
    for structure in {id(variant.structure): variant.structure for variant in variants}.values():
        for watcher in structure.watchers:
            for key in watcher.declaration.rule.bound.series:
                names |= {key.name, ALSO_CALLED.get(key.name, key.name)}
    return names


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


def _reason_for_engine(stream: Stream, steers: Collection[str]) -> str:
    """Return why the event engine has to judge the whole run; empty if columns suffice."""
    if stream.has_decisions:
        return "it was recorded with live rules"
    if stream.has_late_values:
        return "some of its values arrived late"
    return f"rules order {', '.join(sorted(steers))}" if steers else ""


def guessed_from(runs: Iterable[Run]) -> Objective | None:
    """Guess the objective as a backtest does, from only the metrics whose names give their mode."""
    return guessed_objective(_evaluated(runs, lambda name: mode_of(name) is not None, SURE_OBJECTIVE))


def check_declared(objective: Objective, runs: Sequence[Run]) -> None:
    """Check that a run evaluated the objective, or none evaluated anything.

    Raises:
        TelemetryError: The runs evaluated other metrics.
    """
    if not _evaluated(runs, lambda name: name == objective.metric, objective.metric):
        check_evaluated(objective, _evaluated(runs, lambda _: True, ""))


def _evaluated(runs: Iterable[Run], is_candidate: Callable[[str], bool], enough: str) -> set[str]:
    """Return the candidates that runs evaluated; only the first runs are read if one of them evaluated ``enough``."""
    names: set[str] = set()
    for run in runs:
        try:
            names |= run.read(lambda snapshot: _evaluated_in(snapshot, is_candidate))
        except TelemetryError:
            continue
        if enough in names:
            break
    return names


def _evaluated_in(snapshot: Snapshot, is_candidate: Callable[[str], bool]) -> set[str]:
    stream = read_stream(snapshot, [name for name in snapshot.columns.by_metric if is_candidate(name)])
    return {name for name, found in stream.metrics.items() if stream.is_any(("evaluate",))[found.at].any()}


def _is_judged(snapshot: Snapshot, stream: Stream) -> bool:
    """Whether a run recorded a step or any metric."""
    return bool(stream.is_any(("step_end",)).any()) or (len(stream) > 0 and bool(snapshot.columns.by_metric))
