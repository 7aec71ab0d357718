"""Reduces one run under one policy to facts, and the facts under an objective to a result.

Facts are read from a run once, whatever the objective turns out to be.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ...rules.checks.length_conditions import evaluations_read
from ...rules.checks.possible_firings import could_not_fire, why_policy_could_not_fire
from ...rules.effects import Effect
from ...rules.language.name_patterns import is_pattern, matches
from ...rules.policy_file.policy import Policy
from ...rules.readings.first_events import Never
from ...rules.readings.reading import ALSO_CALLED
from ...store.events import Event
from ...store.own_process import collection_paused
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ...store.run_info import Attempt
from .appearances import StreamAppearances, early_end_note, early_ends, nan_filtered_in, thinning_note
from .event_stream import (
    NOTHING_ROLLED_BACK,
    EventStream,
    RolledBack,
    plan_of,
    renamed_at_import,
    renamed_columns,
    renames_in,
)
from .history import History, history_of, restored_steps, step_unit_of
from .incidents import Alarm, Detection, Incident, detect, incidents_in, incidents_noted
from .metric_names import Renames, nearest_metric
from .objective import UPDATES, Objective, objective_among, objective_of_study
from .replaying import ByEngine, DeciderOf, replay_stream, stream_under
from .run_families import UNKNOWN_FAMILY, Family, family_of, family_values
from .run_result import (
    DEFAULT_SETTINGS,
    DIVERTING,
    BacktestSettings,
    Outlay,
    Replay,
    RunResult,
    Validity,
    drops_own_checkpoints,
)
from .same_training import Sketch, sketch_of, sketched
from .scoring import RunScorer, identity_of, is_end_stated, is_terminated, lead_over, why_right_censored

#: How the note of a run begins whose training the policy changes.
CENSORED: Final = "censored"

#: Most evaluation metrics that a note names.
_NAMED: Final = 3


_BY_RULES: Final = "stopped by its own rules"


@dataclass(frozen=True, slots=True)
class RunBackground:
    """What is known of a run apart from its events, for backtests and sweeps alike.

    Attributes:
        run_id, name, status: The run. The name is the one that people have given it.
        source: Path of the log that it was imported from; empty for a recorded run.
        plan: What its newest attempt declared at its start.
        is_plan_assumed: Whether its length counts as its plan, which nobody declared.
        is_end_stated: Whether the status says how it ended; False for an import whose log merely ends.
        is_terminated: Whether a batch system ended it.
        nan_filtered: Names of training metrics whose values that are not finite were replaced before they were logged.
        family: The runs that it is not independent of.
        step_unit: What its steps count.
        of_study: The metric that its study optimises; None if its source names none.
        restored_steps: Steps of the checkpoints from which an attempt resumed.
        renamed_at_import: The metrics that its import was asked to rename.
        how_stopped: How it was stopped, if it was.
        log_digest: Digest of everything that it recorded, as kept at its end; empty if none was kept.
        is_armed: Whether its last attempt had rules.
        family_values: What it has under each key that may tell families apart.
    """

    run_id: str = ""
    name: str = ""
    status: str = ""
    plan: Plan = field(default_factory=Plan)
    is_plan_assumed: bool = False
    is_end_stated: bool = True
    is_terminated: bool = False
    nan_filtered: tuple[str, ...] = ()
    family: Family = UNKNOWN_FAMILY
    step_unit: str = UPDATES
    of_study: Objective | None = None
    restored_steps: frozenset[int] = frozenset()
    renamed_at_import: Renames = ()
    how_stopped: str = "stopped"
    log_digest: str = ""
    source: str = ""
    is_armed: bool = False
    family_values: Mapping[str, str] = field(default_factory=dict)

    def is_ended_by_rules(self, stream: EventStream) -> bool:
        """Whether its own rules ordered the stop with which it ends. A program that obeys may end as completed."""
        if not self.is_armed or self.status not in ("stopped", "completed"):
            return False
        stops = [one for one in stream.recorded if one.attrs.get("mode") == "act" and "stop" in str(_orders(one))]
        return any(self.status == "stopped" or one.step >= stream.last_step - 1 for one in stops)

    def objective_among(self, names: Set[str], declared: Sequence[Objective]) -> Objective | None:
        """Return the metric that judges the run; None if none of its evaluations says how good it is.

        Args:
            names: The metrics that it evaluated.
            declared: What the user declared, in order of preference.
        """
        return objective_among(names, declared, self.of_study)

    def why_right_censored(self, steps: int, plan: Plan) -> str:
        """Return why the run might have continued; see ``why_right_censored``."""
        return why_right_censored(self.status, steps, plan, is_end_stated=self.is_end_stated, how=self.how_stopped)


def background_of(snapshot: Snapshot, settings: BacktestSettings) -> RunBackground:
    """Return what is known of a run apart from its events."""
    info, renames, family = snapshot.info, settings.renames, settings.family
    plan = plan_of(info, by_length=settings.plans_by_length)
    study, called = objective_of_study(info.source), renames_in(snapshot.columns.of_loop, renames)
    return RunBackground(
        run_id=info.run_id,
        name=snapshot.shown.name,
        status=snapshot.status,
        plan=plan,
        is_plan_assumed=plan != info.last.plan,
        is_end_stated=is_end_stated(info.source),
        is_terminated=is_terminated(info.last),
        nan_filtered=nan_filtered_in(snapshot, renames),
        family=family_of(info, family),
        step_unit=step_unit_of(info.source),
        of_study=None if study is None else replace(study, metric=called.get(study.metric, study.metric)),
        restored_steps=restored_steps(info.attempts),
        renamed_at_import=renamed_at_import(info.source),
        how_stopped=_how_stopped(info.last),
        log_digest=snapshot.log_digest,
        source=info.source_path or "",
        is_armed=info.last.policy is not None,
        family_values=family_values(info),
    )


def _orders(decision: Event) -> object:
    """Return the operations that a recorded outcome ordered."""
    return decision.attrs.get("operations", ())


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run recorded, whatever the policy.

    Attributes:
        background: What is known of the run apart from its events.
        stream: The deciding rank's events.
        history: Their facts.
        appearances: Where values and events came.
        sketch: Values by which another log of the same training is found.
        rolled_back: What resumes undid.
        incidents: The labelled incidents; None if the run has no labels.
    """

    background: RunBackground
    stream: EventStream
    history: History
    appearances: StreamAppearances
    sketch: Sketch
    rolled_back: RolledBack
    incidents: Sequence[Incident] | None

    @property
    def is_empty(self) -> bool:
        """Whether it recorded no step and no metric."""
        return not len(self.stream.rows("step_end")) and not any(event.metrics for event in self.stream.facts)


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A policy replayed over what a run recorded.

    Attributes:
        record: What the run recorded.
        replayed: What the policy decided.
        settings: The settings of the backtest.
        lacked: The metrics that rules read and the run did not record, each with its metric that comes closest.
    """

    record: RunRecord
    replayed: Replay
    settings: BacktestSettings
    lacked: Mapping[str, str]

    @property
    def ends_with_own_stop(self) -> bool:
        """Whether the recorded run made the policy's stop too, and its record ends there: no update follows."""
        stop, ending = self.replayed.stop, self.replayed.ending
        if stop is None or ending is None:
            return False
        return stop.validity is Validity.OBSERVED and self.record.history.steps <= ending.step


def facts_of_run(
    policy: Policy,
    run: Run,
    settings: BacktestSettings = DEFAULT_SETTINGS,
    *,
    decider_of: DeciderOf = ByEngine,
    with_curves: bool = True,
) -> ReplayedRun:
    """Read what a run recorded, and replay a policy over it.

    Args:
        policy: The policy.
        run: The run.
        settings: The settings of the backtest.
        decider_of: As for ``replay_stream``.
        with_curves: Whether to downsample curves for plots.

    Raises:
        TelemetryError: The run cannot be read.
    """
    (facts,) = facts_under([policy], run, settings, decider_of=decider_of, with_curves=with_curves)
    return facts


def facts_under(
    policies: Sequence[Policy],
    run: Run,
    settings: BacktestSettings = DEFAULT_SETTINGS,
    *,
    decider_of: DeciderOf = ByEngine,
    with_curves: bool = True,
) -> list[ReplayedRun]:
    """Read what a run recorded once, and replay each policy over it; otherwise as ``facts_of_run``."""
    with collection_paused():
        return run.read(lambda snapshot: _facts_at(policies, snapshot, settings, decider_of, with_curves))


def _facts_at(
    policies: Sequence[Policy],
    snapshot: Snapshot,
    settings: BacktestSettings,
    decider_of: DeciderOf,
    with_curves: bool,
) -> list[ReplayedRun]:
    """Return the facts of one snapshot of a run under each policy."""
    stream, rolled_back = stream_under(policies, snapshot, settings.renames)
    background, noted = background_of(snapshot, settings), incidents_noted(snapshot.notes)
    record = _record_of(background, stream, settings, rolled_back=rolled_back, noted=noted, with_curves=with_curves)
    return [
        _replayed_run(
            policy, record, settings, decider_of, lacked_metrics(names_read([policy]), snapshot, settings.renames)
        )
        for policy in policies
    ]


def _record_of(
    background: RunBackground,
    stream: EventStream,
    settings: BacktestSettings,
    *,
    rolled_back: RolledBack = NOTHING_ROLLED_BACK,
    noted: Sequence[Incident] = (),
    with_curves: bool = False,
) -> RunRecord:
    """Return what a stream of the deciding rank's events holds, with incidents annotated after the run."""
    history, labels = history_of(stream, with_curves=with_curves), settings.labels
    annotated = tuple(sorted([*incidents_in(history.annotations), *noted]))
    return RunRecord(
        background,
        stream,
        history,
        StreamAppearances(stream, background.plan, background.nan_filtered),
        sketch_of(stream, sketched(stream.facts.metrics)),
        rolled_back,
        annotated or None if labels is None else labels.of(background.run_id, background.name),
    )


def _replayed_run(
    policy: Policy, record: RunRecord, settings: BacktestSettings, decider_of: DeciderOf, lacked: Mapping[str, str]
) -> ReplayedRun:
    replayed = replay_stream(
        policy,
        record.stream,
        record.background.plan,
        decider_of,
        delay_steps=settings.delay_steps,
        saves=settings.saves,
        is_plan_assumed=record.background.is_plan_assumed,
    )
    return ReplayedRun(record, replayed, settings, lacked)


def _lists_lacked(policy: Policy, stream: EventStream) -> tuple[str, ...]:
    classes = [declaration.metric_class for declaration in policy.metrics]
    lacked = []
    if any(metric.reads_samples for metric in classes) and not any(event.samples for event in stream.facts):
        lacked.append("sample losses")
    if any(metric.reads_vectors for metric in classes) and not any(event.vectors for event in stream.facts):
        lacked.append("vectors")
    return tuple(lacked)


def judge_stream(
    policies: Iterable[Policy],
    background: RunBackground,
    stream: EventStream,
    objective: Objective | None,
    settings: BacktestSettings = DEFAULT_SETTINGS,
) -> list[RunResult]:
    """Return the outcome of each policy on one stream of the deciding rank's events, decided by the event engine."""
    record = _record_of(background, stream, settings)
    return [result_of(_replayed_run(each, record, settings, ByEngine, {}), objective) for each in policies]


def result_of(facts: ReplayedRun, objective: Objective | None, declared: Sequence[Objective] = ()) -> RunResult:
    """Return the result of a run's facts under the objective that judges this run.

    Args:
        facts: The facts.
        objective: The objective; None if none of the run's evaluations says how good it is.
        declared: What the user declared, to say why there is none.
    """
    record, replayed = facts.record, facts.replayed
    background, history, stream = record.background, record.history, record.stream
    policy, plan = replayed.policy, record.appearances.plan
    scorer = RunScorer(history, objective, background.restored_steps)
    unable = could_not_fire(policy, record.appearances, {judged.outcome.controller for judged in replayed.decisions})
    ends = early_ends(policy, record.appearances, history.steps)
    horizon = None if replayed.is_point else replayed.horizon
    censored = _right_censored(facts)
    is_by_hand = background.is_end_stated and not background.is_terminated
    return RunResult(
        run_id=background.run_id,
        name=background.name,
        status=background.status,
        recorded=scorer.recorded,
        predicted=_predicted(facts, scorer) if replayed.is_point else None,
        certain=None if horizon is None else scorer.up_to(horizon),
        stop=replayed.stop,
        decisions=replayed.reached,
        error_counts=replayed.error_counts,
        notes=(*_notes(facts, objective, declared, censored, _early_end_notes(ends, unable, history.steps)),),
        right_censored=censored,
        ranks=plan.world_size or 1,
        planned_steps=plan.max_steps(),
        evaluations=scorer.evaluations,
        curves=history.curves,
        detection=None if record.incidents is None else _detection(record.incidents, facts),
        saved_steps=frozenset(checkpoint.step for checkpoint in history.checkpoints),
        ending=replayed.ending,
        began_ns=history.began_ns,
        ended_ns=history.ended_ns,
        human=lead_over(stream, history, background.status if is_by_hand else "", replayed),
        identity=identity_of(stream, replayed, background.log_digest),
        objective=objective,
        family=background.family,
        could_not_fire=why_policy_could_not_fire(policy, unable),
        unable=unable,
        early_ends=ends,
        log_interval_steps=replayed.step_interval,
        step_unit=background.step_unit,
        renamed_at_import=background.renamed_at_import,
        source=background.source,
        ended_by_rules=background.is_ended_by_rules(stream),
        is_changed=not replayed.is_point and any(replayed.effects(one) & DIVERTING for one in replayed.reached),
    )


def _predicted(facts: ReplayedRun, scorer: RunScorer) -> Outlay:
    """Return the outlay under the policy."""
    replayed = facts.replayed
    if facts.ends_with_own_stop:
        return scorer.recorded
    return scorer.predicted(
        replayed.ending,
        {judged.decided_at for judged in replayed.reached if Effect.SAVE in replayed.effects(judged)},
        {judged.decided_at for judged in replayed.reached if Effect.EVALUATE in replayed.effects(judged)},
        drops_own=drops_own_checkpoints(replayed.policy, replayed.saves),
    )


def _detection(incidents: Sequence[Incident], facts: ReplayedRun) -> Detection:
    stream, history, replayed = facts.record.stream, facts.record.history, facts.replayed
    steps = stream.rows("step_end")
    reached = np.isin(stream.steps[steps], [incident.first_step for incident in incidents])
    begins = (index for index in steps[reached].tolist() if not stream.facts[index].is_late)
    seconds_at = {int(stream.steps[at]): ns / 1e9 for at in begins if (ns := stream.time_up_to(at)) is not None}
    alarms = [
        Alarm(judged.decided_at, None if judged.elapsed_ns is None else judged.elapsed_ns / 1e9)
        for judged in replayed.reached
    ]
    last_step = history.steps if replayed.ending is None else min(replayed.ending.step, history.steps)
    return detect(incidents, alarms, seconds_at, last_step, facts.settings.tolerance_steps)


def _right_censored(facts: ReplayedRun) -> str:
    background = facts.record.background
    if facts.ends_with_own_stop and background.status in ("completed", "stopped"):
        # A program that ends itself when a rule asks for the stop is recorded as completed.
        background = replace(background, status="stopped", how_stopped=_BY_RULES)
    return background.why_right_censored(facts.record.history.steps, facts.record.appearances.plan)


def _how_stopped(attempt: Attempt) -> str:
    """Return what a report says of a run that was stopped: by whom, as far as it is known."""
    if attempt.reason:
        return f"stopped ({attempt.reason})"
    return "stopped" if attempt.policy is None else _BY_RULES


def _notes(
    facts: ReplayedRun,
    objective: Objective | None,
    declared: Sequence[Objective],
    right_censored: str,
    of_early_ends: Iterable[str],
) -> Iterable[str]:
    replayed = facts.replayed
    if right_censored:
        yield right_censored
    if objective is None:
        yield f"{_why_unjudged(facts.record.history, declared)}, so its regret is unknown"
    if replayed.unplaced:
        unplaced = ", ".join(map(repr, sorted(replayed.unplaced)))
        yield f"nothing says at which step {unplaced} was logged: import the log with --steps-per-epoch N"
    elif not replayed.is_point and replayed.horizon is not None:
        unknown = "the record does not show how the run would have continued"
        yield f"{CENSORED} after step {replayed.horizon.step}: {unknown}"
    yield from _notes_of_approximations(replayed)
    if replayed.counting:
        yield thinning_note(replayed.step_interval)
    if replayed.on_made_up_ranks:
        yield "not all values that rules read on all ranks were gathered: rules read what each rank had logged by then"
    if replayed.on_assumed_plan:
        plan = facts.record.background.plan.total_steps
        yield f"no plan, so its length of {plan:,} steps counts as one: live, a plan may be another"
    yield from of_early_ends
    for name, count in replayed.error_counts.items():
        yield f"controller {name!r} failed at {count} events"
    for lacked in _lists_lacked(replayed.policy, facts.record.stream):
        yield f"it recorded no {lacked}: rules that read them were undefined throughout"
    yield from _notes_of_resumes(facts.record.rolled_back)


def _early_end_notes(
    ends: Sequence[tuple[str, int] | None], unable: Sequence[Never | None], steps: int
) -> Iterable[str]:
    """Return the notes on series that end early, of the controllers that could fire."""
    read = [end for end, reason in zip(ends, unable, strict=True) if end is not None and reason is None]
    return [early_end_note(*end, steps) for end in dict.fromkeys(read)]


def _why_unjudged(history: History, declared: Sequence[Objective]) -> str:
    """Return why no metric judges the run."""
    if declared:
        return f"it recorded no evaluation of {' or '.join(repr(objective.metric) for objective in declared)}"
    if not history.evaluations:
        return "it recorded no evaluation"
    first, *rest = sorted(history.evaluations.keys() - {"epoch"}) or ["epoch"]
    names = ", ".join((first, *rest[: _NAMED - 1])) + (", ..." if len(rest) >= _NAMED else "")
    how = f"say which way is better with --objective {shlex.quote(first)}:min or :max"
    return f"none of its evaluation metrics clearly says how good it is ({names}): {how}"


def _notes_of_approximations(replayed: Replay) -> Iterable[str]:
    """Yield why decisions are approximate, and from where."""
    last = math.inf if replayed.ending is None else replayed.ending.event_index
    for begin, why in (
        (replayed.approximate_from, "rules read the clock, which other checkpoints or evaluations would have shifted"),
        (replayed.saves_differ_from, "rules read save events, which the record does not have for other checkpoints"),
    ):
        if begin is not None and begin < last:
            yield f"approximate after event {begin}: {why}"


def _notes_of_resumes(rolled_back: RolledBack) -> Iterable[str]:
    """Yield a note on the rolled-back work, so that it does not vanish from the report."""
    if rolled_back.steps:
        spent = "" if not rolled_back.elapsed_ns else f" ({rolled_back.elapsed_ns / 1e9:.3g} s)"
        of = ", ".join(f"{count} of attempt {attempt}" for attempt, count in rolled_back.steps.items())
        steps = sum(rolled_back.steps.values())
        yield f"{steps} steps{spent} were rolled back by resumes and count in no number: {of}"


def names_read(policies: Iterable[Policy]) -> set[str]:
    """Return the names of the metrics that rules of policies read."""
    read = set[str]()
    for policy in policies:
        keys = {key for controller in policy.controllers for key in controller.rule.bound.series}
        read |= {key.name for key in keys if not key.is_derived} | evaluations_read(policy)
    return read


def lacked_metrics(read: Iterable[str], snapshot: Snapshot, renames: Renames) -> dict[str, str]:
    """Return the metrics that rules read and the run lacks, each with the closest one that it has; "" without any."""
    names = renamed_columns(snapshot, renames)
    known = {*names, *snapshot.info.last.newest_plan.constants}
    lacked = sorted(name for name in read if not any(_is_named(each, name) for each in known))
    return {name: nearest_metric(name, names) for name in lacked}


def _is_named(metric: str, name: str) -> bool:
    """Whether rules find a metric under a name, or as a member of a family."""
    return metric in (name, ALSO_CALLED.get(name)) or (is_pattern(name) and matches(metric, name))
