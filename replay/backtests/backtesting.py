"""Backtest: replays one policy over many recorded runs and computes what it would have saved and cost in each.

Runs are read one after the other, or in parallel in worker processes. Only the facts of each run are kept, so memory
does not grow with the size of the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from ...rules.policy_file.policy import Policy
from ...store.errors import TelemetryError
from ...store.run import Run
from ..columns.column_replay import by_columns
from ..policies.coverage import Coverage, coverage_of
from ..run_pool import Pool, Progress, RunPool, checked_runs, usable_processes
from ..runs.event_stream import check_recorded
from ..runs.incidents import IncidentLabels
from ..runs.judging import facts_of_run, result_of
from ..runs.mute_rules import MissingNames, lacked_metrics_in
from ..runs.objective import Declared, Objective, Saves, check_evaluated, declared_objectives
from ..runs.risk import CONFIDENCE, DEFAULT_RISK, Risk, checked_confidence
from ..runs.run_families import check_family_key, family_choices
from ..runs.run_result import DEFAULT_SETTINGS, BacktestSettings, Excluded, RunResult
from ..runs.same_training import Knowledge, Sketch, repeated_by, repeats
from .baselines import baseline_outcomes, reads_runs
from .judged_runs import Backtest, Baseline


def backtest(
    policy: Policy,
    runs: Iterable[Run],
    *,
    objective: Declared = None,
    renames: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    delay_steps: int = 0,
    cost_per_hour: float | None = None,
    labels: IncidentLabels | None = None,
    tolerance_steps: int = 0,
    saves: Saves | str = Saves.KEEP,
    baselines: Sequence[Baseline] = (),
    with_coverage: bool = False,
    processes: int | None = 1,
    pool: Pool | None = None,
    family: str | None = None,
    plans_by_length: bool = False,
    risk: Risk = DEFAULT_RISK,
    confidence: float = CONFIDENCE,
    with_curves: bool = True,
) -> Backtest:
    """Replay a policy over recorded runs, and compute what it would have saved and cost.

    Args:
        policy: The rules.
        runs: The runs; those that cannot be judged are listed as excluded.
        objective: The objective, or several in order of preference: each run is judged by the first that it evaluated.
            If not given, each run is judged by what its study optimises, or by the metric whose name clearly says it.
        renames: New names of metrics, as the rules call them, by the names that runs recorded.
        on_progress: Called after each run that is read: once for the policy, once for all baselines, once for coverage.
        delay_steps: Updates that the loop still makes between the decision to stop and the stop. Values that a run
            recorded late delay the decision anyway.
        cost_per_hour: Cost of an hour of one rank.
        labels: Incidents by run; if None, those that annotations label.
        tolerance_steps: Steps around an incident within which an alarm still counts as true.
        saves: ``keep`` if the loop's own checkpoints remain when rules order some, ``replace`` if these replace them.
        baselines: Simpler policies to compare with. They read the runs once more.
        with_coverage: Whether to report which clauses were ever true. It reads the runs once more.
        processes: Number of processes to read runs with; None for as many as are worth their start, at most one per
            core. Rules that use classes which a program registered stay in its own process. Workers import the main
            script, which must be guarded by ``if __name__ == "__main__":``.
        pool: Workers to use in place of processes, such as ``RayPool()``; ``processes`` then has no effect.
        with_curves: Whether to keep curves of the runs for the plots of ``report_page``: up to 90 kB a run.
        family: The key of the families that intervals draw: ``group``, ``tags``, ``name``, ``folder``, ``run`` or a key
            of the configuration. By default the first of a run's configuration, group and source folder.
        plans_by_length: Whether a completed run without a plan counts as planned for its length.
        risk: What a stop may lose, from ``risk_of``.
        confidence: How sure the answer must be, above 0 and below 1.

    Raises:
        TelemetryError: The runs evaluated other metrics, but not the given objective, recorded no metric that is to be
            renamed, or lack the key of families. Or they are no runs, the policy is none, or the confidence is not
            between 0 and 1.
    """
    checked_confidence(confidence)
    renaming = tuple((renames or {}).items())
    settings = BacktestSettings(
        delay_steps, labels, tolerance_steps, renaming, Saves(saves), family, plans_by_length, risk, confidence
    )
    chosen = tuple(checked_runs("backtest", policy, runs))
    request = Request(policy, chosen, settings, declared_objectives(objective), with_curves)
    with RunPool(usable_processes([policy], processes), on_progress, pool) as readers:
        report = _compared(request, baselines, with_coverage, readers)
    return replace(report, cost_per_hour=cost_per_hour)


@dataclass(frozen=True, slots=True)
class Request:
    """A policy, the runs to judge it on, and the settings.

    Attributes:
        policy: The rules.
        runs: The runs.
        settings: The settings of the backtest.
        declared: The declared objectives, the preferred one first; empty to guess.
        with_curves: Whether to keep curves of the runs.
    """

    policy: Policy
    runs: tuple[Run, ...]
    settings: BacktestSettings = DEFAULT_SETTINGS
    declared: tuple[Objective, ...] = ()
    with_curves: bool = False


def backtest_once(request: Request, readers: RunPool) -> tuple[Backtest, list[Run]]:
    """Return the backtest of a policy alone, in one pass over the runs, and the runs that could be judged."""
    check_recorded(request.runs, request.settings.renames)
    judged: list[_JudgedRun] = []
    judged_runs: list[Run] = []
    excluded: list[Excluded] = []
    read_events = 0
    answers = readers.mapped(_Judge.of(request), request.runs)
    for run, (found, events) in zip(request.runs, answers, strict=True):
        read_events += events
        if isinstance(found, Excluded):
            excluded.append(found)
        else:
            judged.append(found)
            judged_runs.append(run)
    declared = request.declared
    check_evaluated(declared, frozenset[str]().union(*(one.evaluated for one in judged)))
    results = [one.result for one in judged]
    family = request.settings.family
    if family is not None:
        check_family_key(family, [result.family for result in results], (run.info for run in judged_runs))
    counts_for = repeated_by([one.sketch for one in judged], list(map(_knowledge, results)))
    for index, by in sorted(counts_for.items()):
        if results[index].detection is not None and results[by].detection is None:
            note = f"the labels of {results[index].name} ({results[index].run_id}), which repeats it, are not used"
            results[by] = replace(results[by], notes=(*results[by].notes, f"{note}. To use them, label this run"))
    counted = [index for index in range(len(results)) if index not in counts_for]
    report = Backtest(
        request.policy,
        tuple(results[index] for index in counted),
        tuple(excluded),
        tuple(_repeated(results[index], results[by]) for index, by in sorted(counts_for.items())),
        settings=request.settings,
        declared=declared,
        family_choices=family_choices([judged[index].family_values for index in counted]),
        read_events=read_events,
    )
    told = [(judged[index].lacked, results[index].objective, judged[index].evaluated) for index in counted]
    report = replace(report, lacking=lacked_metrics_in([MissingNames(*one) for one in told]))
    return report, [judged_runs[index] for index in counted]


def _knowledge(result: RunResult) -> Knowledge:
    identity = result.identity
    clocks = (result.recorded.elapsed_s is not None) + (result.began_ns > 0)
    is_judged = result.objective is not None and not result.could_not_fire
    return Knowledge(is_judged, len(result.evaluations), clocks, identity.event_count, identity.log_digest)


def _repeated(result: RunResult, by: RunResult) -> Excluded:
    return Excluded(result.run_id, result.name, repeats(by.name, by.run_id))


def _compared(request: Request, baselines: Sequence[Baseline], with_coverage: bool, readers: RunPool) -> Backtest:
    """Return the backtest with its comparisons. Baselines and coverage read the runs once more each."""
    passes = 1 + reads_runs(baselines) + with_coverage
    readers.expect(passes * len(request.runs))
    report, runs = backtest_once(request, readers)
    readers.expect((passes - 1) * (len(runs) - len(request.runs)))
    results = report.results
    outcomes, for_baselines = baseline_outcomes(request.policy, baselines, runs, results, request.settings, readers)
    endings = [None if one.ending is None else one.ending.event_index for one in results]
    covered = Coverage()
    if with_coverage:
        covered = coverage_of(request.policy, runs, readers, endings, request.settings)
    return replace(
        report,
        baselines=outcomes,
        coverage=covered.controllers,
        conduct=covered.runs,
        read_events=report.read_events + for_baselines + covered.read_events,
    )


class _JudgedRun(NamedTuple):
    """A judged run, without its events.

    Attributes:
        result: The policy's outcome.
        sketch: Values by which another log of the same training is found.
        evaluated: The evaluation metrics.
        lacked: The metrics that rules read and the run did not record, each with its metric that comes closest.
        family_values: What it has under each key that may tell families apart.
    """

    result: RunResult
    sketch: Sketch
    evaluated: frozenset[str]
    lacked: Mapping[str, str]
    family_values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Judge:
    """The function mapped over runs: judges a run, or says why it cannot, and returns the number of events read.

    Runs are judged where they are read, because a result is smaller than the facts that it rests on.
    """

    policy: Policy
    settings: BacktestSettings
    declared: tuple[Objective, ...]
    with_curves: bool

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return the function for the runs of a request."""
        return cls(request.policy, request.settings, request.declared, request.with_curves)

    def __call__(self, run: Run) -> tuple[_JudgedRun | Excluded, int]:
        try:
            facts = facts_of_run(self.policy, run, self.settings, decider_of=by_columns, with_curves=self.with_curves)
            record, read_events = facts.record, facts.replayed.event_count
            background, evaluated = record.background, record.history.evaluations.keys()
            if record.is_empty:
                return Excluded(background.run_id, background.name, "it recorded no step and no metric"), read_events
            result = result_of(facts, background.objective_among(evaluated, self.declared), self.declared)
        except TelemetryError as error:
            return Excluded(run.folder.name, "", str(error)), 0
        found = _JudgedRun(result, record.sketch, frozenset(evaluated), facts.lacked, background.family_values)
        return found, read_events
