"""Checks a policy against recorded runs: series or triggers never recorded, waits too long, contradictory operations.

A wait is too long if no run lasts for it. Operations contradict if two controllers order them at one event. Takes a
policy and runs, returns findings in the order of the policy's file.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import combinations, groupby
from typing import Final, NamedTuple

from ...rules.checks.finding_codes import FindingCode
from ...rules.checks.findings import (
    Finding,
    PolicyPlaces,
    as_typed,
    contradict,
    length_findings,
    range_findings,
    stale_findings,
)
from ...rules.checks.length_conditions import evaluations_read
from ...rules.checks.possible_firings import could_not_fire, deciding_controllers, why_policy_could_not_fire
from ...rules.engine.decisions import Decision
from ...rules.engine.outcomes import meant_series
from ...rules.language.bound_rule import BoundRule
from ...rules.language.name_patterns import is_pattern, matches
from ...rules.policy_file.policy import Policy
from ...rules.readings.first_events import Never
from ...rules.readings.reading import ALSO_CALLED, SeriesKey, SeriesReading
from ...store.errors import counted
from ...store.events import NO_METRICS, RANKS, Event, awaited_names, is_loop_kind
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ...store.run_info import RunInfo
from ..runs.appearances import StreamAppearances, nan_filtered_in
from ..runs.event_stream import EventStream, check_recorded, plan_of
from ..runs.metric_names import Renames
from ..runs.mute_rules import MuteRule, mute_rules
from ..runs.replaying import replay_stream, stream_for
from ..runs.run_result import LabelledOutcome
from .negative_multiples import multiples_in

_INIT: Final = "on_init_end"

#: Number of metrics to name in place of one that runs lack, and their least similarity: ``validation/loss`` is as
#: similar to ``eval_loss``.
_NEAREST: Final = 3
_SIMILARITY: Final = 0.58

#: Findings that say why a rule cannot fire.
_REASONS: Final = frozenset(
    (FindingCode.UNRECORDED, FindingCode.TIMING, FindingCode.WINDOW, FindingCode.DEAD, FindingCode.DEAD)
)

#: Pseudo-kind of a constant that the loop declared.
_DECLARED: Final = "plan"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Counts of what a run recorded, for comparison with a policy.

    Attributes:
        kinds: Number of events of each kind.
        values: Number of values of each metric at each kind of event; a constant has one.
        first_kinds: The kind that first carried each metric; a bare name in a rule reads it.
        least: The least value of each metric at each kind of event, where one is below 0.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    values: Counter[SeriesKey] = field(default_factory=Counter)
    first_kinds: dict[str, str] = field(default_factory=dict)
    least: dict[SeriesKey, float] = field(default_factory=dict)

    def least_of(self, key: SeriesKey) -> float:
        """Return the least value of a series, or 0 if none is below."""
        return self.least.get(SeriesKey(key.name, key.kind or self.first_kinds.get(key.name)), 0.0)

    def count(self, key: SeriesKey) -> int:
        """Return the number of values of a series."""
        if is_pattern(key.name) and (names := [name for name in self.first_kinds if matches(name, key.name)]):
            return max(self.count(SeriesKey(name, key.kind)) for name in names)
        for name in filter(None, (key.name, ALSO_CALLED.get(key.name))):
            kind = key.kind or self.first_kinds.get(name)
            if found := self.values[SeriesKey(name, kind)]:
                return found
        return 0


def recorded(events: Sequence[Event], constants: Collection[str] = ()) -> Recorded:
    """Count what a stream holds, and the run's constants, which rules read as series of one value."""
    found = Recorded()
    for name in constants:
        found.values[SeriesKey(name, _DECLARED)] = 1
        found.first_kinds[name] = _DECLARED
    for event in events:
        if is_loop_kind(event.kind):
            found.kinds[event.kind] += not event.is_late
            for name, value in event.metrics.items():
                key = SeriesKey(name, event.kind)
                found.values[key] += 1
                if value < found.least.get(key, 0.0):
                    found.least[key] = value
            # A late value belongs to the event that awaited it, and so does the kind that a bare name reads.
            for name in (*event.metrics, *(awaited_names(event.attrs) - NO_METRICS)):
                found.first_kinds.setdefault(name, event.kind)
    return found


@dataclass(frozen=True, slots=True)
class LackedSeries:
    """A series that a policy reads, and that some runs lack.

    Attributes:
        name: Name of the series.
        kind: The kind of its events, if the policy gives one.
        runs: Number of runs that lack it; at least one of the others has it.
        nearest: The commonest metrics of a similar name that these runs recorded at events of its kind, each with its
            number of runs.
    """

    name: str
    kind: str | None
    runs: int
    nearest: dict[str, int]


@dataclass(frozen=True, slots=True)
class FiringReach:
    """In how many runs a policy could fire, whatever their values.

    Attributes:
        runs: Number of runs.
        could_fire: Number of runs in which it could.
        reasons: Number of the other runs by reason, the commonest first.
        controllers: For each controller that decides, the number of runs in which it could.
    """

    runs: int
    could_fire: int
    reasons: dict[str, int]
    controllers: dict[str, int]


class PolicyOnRuns(NamedTuple):
    """A policy compared with recorded runs: findings, the series that some runs lack, and where it could fire."""

    findings: list[Finding]
    lacked: list[LackedSeries]
    reach: FiringReach


def compared_with(
    policy: Policy, runs: Sequence[Run], *, renames: Renames = (), plans_by_length: bool = False
) -> PolicyOnRuns:
    """Compare a policy with recorded runs.

    Reads the deciding rank's events of each run once.

    Args:
        policy: A policy that loads.
        runs: The runs; at least one.
        renames: The metrics to rename, as policies call them.
        plans_by_length: Whether a completed run without a plan counts as planned for its length.

    Raises:
        TelemetryError: No run recorded a metric that is to be renamed.
    """
    check_recorded(runs, renames)
    places = PolicyPlaces(policy)
    facts: list[Recorded] = []
    contradictions: dict[tuple[str, ...], Finding] = {}
    unable: list[tuple[Never | None, ...]] = []
    lacking: list[tuple[Never | None, ...]] = []
    most_steps, is_planned = 0.0, True
    for run in runs:
        info, stream, filtered = run.read(lambda snapshot: _contents(snapshot, policy, renames))
        made_up = (event for index, event in stream.gathered.items() if stream.kinds[index] != RANKS)
        facts.append(recorded([*stream.facts, *made_up], info.last.newest_plan.constants))
        most_steps = max(most_steps, steps_of(info, stream))
        is_planned = is_planned and info.last.newest_plan.max_steps() is not None
        plan = plan_of(info, by_length=plans_by_length)
        places_in_run = StreamAppearances(stream, plan, filtered)
        unable.append(could_not_fire(policy, places_in_run))
        # What a longer run would have is not lacking for good.
        is_whole = steps_of(info, stream) <= stream.last_step
        lacking.append(tuple(why if why and (why.is_absent or is_whole) else None for why in unable[-1]))
        for pair, finding in _contradictions(policy, places, info.run_id, stream, plan):
            contradictions.setdefault(pair, finding)
    found = {
        *_series(policy, places, facts),
        *_required(policy, places, facts),
        *_negative(policy, places, facts),
        *_triggers(policy, places, facts),
        *contradictions.values(),
    }
    found.update(length_findings(policy, places, lambda key: _longest(facts, key) or float("inf")))
    found.update(_stale(policy, places, facts))
    found.update(long_spans(policy, places, most_steps, is_planned=is_planned))
    mute = mute_rules(policy, lacking, plans_by_length=plans_by_length)
    found.update(_mute(policy, places, mute, found))
    return PolicyOnRuns(as_typed(policy, found), list(_lacked(policy, facts)), _reach(policy, unable))


def _mute(
    policy: Policy, places: PolicyPlaces, mute: Iterable[MuteRule], known: Collection[Finding]
) -> Iterator[Finding]:
    """Yield findings for rules that could fire in no run, but for those whose reason is known already."""
    for rule in mute:
        is_known = any(finding.code in _REASONS and finding.is_about(rule.name) for finding in known)
        if rule.is_unplanned or not is_known:
            controller = policy.controllers[rule.index]
            yield places.finding(controller.rule.place_at(0), FindingCode.UNRECORDED, controller, rule.why)


def _reach(policy: Policy, unable: Sequence[tuple[Never | None, ...]]) -> FiringReach:
    """Return where a policy could fire, given for each run why its controllers could not."""
    reasons = Counter(why_policy_could_not_fire(policy, found) for found in unable)
    able = reasons.pop("", 0)
    controllers: Counter[str] = Counter()
    for index in deciding_controllers(policy):
        controllers[policy.controllers[index].name] += sum(found[index] is None for found in unable)
    return FiringReach(len(unable), able, dict(reasons.most_common()), dict(controllers))


def _contents(snapshot: Snapshot, policy: Policy, renames: Renames) -> tuple[RunInfo, EventStream, tuple[str, ...]]:
    """Return the run's ``run.json``, the deciding rank's effective events, and the metrics without NaN."""
    return snapshot.info, stream_for(policy, snapshot, renames), nan_filtered_in(snapshot, renames)


def _longest(facts: Sequence[Recorded], key: SeriesKey) -> int:
    return max(fact.count(key) for fact in facts)


def _given(count: int) -> str:
    return "the run given" if count == 1 else f"any of the {count} runs given"


def _series(policy: Policy, places: PolicyPlaces, facts: Sequence[Recorded]) -> Iterator[Finding]:
    """Yield findings for series that were never recorded, and for windows longer than any recording of their series."""
    kinds = {name: kind for fact in facts for name, kind in fact.first_kinds.items()}
    for controller in policy.controllers:
        bound = controller.rule.bound
        for key, offset, length in _looks(bound):
            longest = _longest(facts, key)
            place = controller.rule.place_at(offset)
            if longest == 0:
                fix = meant_series([controller], key, kinds).replace("Known here:", "Recorded there:")
                what = f"{_shown(key)} was not recorded in {_given(len(facts))}. {fix}".strip()
                yield places.finding(place, FindingCode.UNRECORDED, controller, what)
            elif length > longest:
                what = (
                    f"a window of {length:,} values, but {_shown(key)} has at most {longest:,} in {_given(len(facts))}"
                )
                yield places.finding(place, FindingCode.WINDOW, controller, what)


def _required(policy: Policy, places: PolicyPlaces, facts: Sequence[Recorded]) -> Iterator[Finding]:
    """Yield findings for required series that were never recorded, but for those that the rule reads."""
    kinds = {name: kind for fact in facts for name, kind in fact.first_kinds.items()}
    for index, controller in enumerate(policy.controllers):
        for entry, key in enumerate(controller.requires):
            if key not in controller.rule.bound.series and _longest(facts, key) == 0:
                fix = meant_series([controller], key, kinds).replace("Known here:", "Recorded there:")
                what = f"requires {_shown(key)}, which was not recorded in {_given(len(facts))}. {fix}".strip()
                yield places.finding(places.of(index, "requires", entry), FindingCode.UNRECORDED, controller, what)


def _stale(policy: Policy, places: PolicyPlaces, facts: Sequence[Recorded]) -> Iterator[Finding]:
    """Yield findings for patience that counts steps over values that come by evaluation in these runs."""

    def is_evaluated(key: SeriesKey) -> bool:
        kinds = {key.kind or fact.first_kinds[key.name] for fact in facts if key.name in fact.first_kinds}
        return kinds == {"evaluate"}

    return stale_findings(policy, places, is_evaluated)


def _negative(policy: Policy, places: PolicyPlaces, facts: Sequence[Recorded]) -> Iterator[Finding]:
    """Yield findings for rules that compare a series with a multiple of itself, where it was negative in a run."""
    for controller in policy.controllers:
        bound = controller.rule.bound
        for key, node, factor, level in multiples_in(bound, policy.params):
            below = [fact.least_of(key) for fact in facts if fact.least_of(key) < 0]
            if not below:
                continue
            usual, times = bound.expression.segment(level), bound.expression.segment(factor)
            what = (
                f"a multiple of {_shown(key)} is below it where it is negative, as in {len(below):,} of "
                f"{counted(len(facts), 'run', ',')}, down to {min(below):.4g}. "
                f"Write {usual} + ({times} - 1) * abs({usual})"
            )
            place = controller.rule.place_at(bound.expression.offset(node))
            yield places.finding(place, FindingCode.NEGATIVE, controller, what)


def _lacked(policy: Policy, facts: Sequence[Recorded]) -> Iterator[LackedSeries]:
    keys = dict.fromkeys(key for controller in policy.controllers for key, _, _ in _looks(controller.rule.bound))
    others = evaluations_read(policy) - {key.name for key in keys}
    keys |= dict.fromkeys(SeriesKey(name, "evaluate") for name in sorted(others))
    for key in keys:
        having = [fact for fact in facts if fact.count(key)]
        lacking = [fact for fact in facts if not fact.count(key)]
        if having and lacking:
            kinds = {key.kind} if key.kind else {fact.first_kinds.get(key.name) for fact in having}
            names = Counter(name for fact in lacking for name, kind in fact.first_kinds.items() if kind in kinds)
            close = get_close_matches(key.name, names, n=len(names) or 1, cutoff=_SIMILARITY)
            like = Counter({name: count for name, count in names.items() if key.name in name or name in close})
            yield LackedSeries(key.name, key.kind, len(lacking), dict(like.most_common(_NEAREST)))


def _looks(bound: BoundRule) -> Iterator[tuple[SeriesKey, int, int]]:
    """Yield each series that a rule reads, with the offset and the length of its longest window."""
    longest: dict[SeriesKey, tuple[int, int]] = {}
    for node, reference in bound.references.items():
        if not isinstance(reference, SeriesReading) or reference.key.is_derived:
            continue
        # The number of values in a window over steps or epochs is unknown.
        if (length := reference.values_read) is None:
            continue
        assert isinstance(node, ast.expr)
        offset = bound.expression.offset(node)
        if length > longest.get(reference.key, (0, 0))[0]:
            longest[reference.key] = (length, offset)
    for key, (length, offset) in longest.items():
        yield key, offset, length


def _shown(key: SeriesKey) -> str:
    return f"'{key.name}'" if key.kind is None else f"'{key.name}' of {key.kind} events"


def _triggers(policy: Policy, places: PolicyPlaces, facts: Sequence[Recorded]) -> Iterator[Finding]:
    """Yield findings for triggers that never occur, and for patience that needs more answers than there are."""
    for index, controller in enumerate(policy.controllers):
        for entry, trigger in enumerate(controller.triggers):
            most = 1 if trigger == _INIT else max(fact.kinds[trigger.removeprefix("on_")] for fact in facts)
            if most == 0:
                what = f"{trigger} never occurs in {_given(len(facts))}"
                yield places.finding(places.of(index, "triggers", entry), FindingCode.UNRECORDED, controller, what)
            elif controller.patience is not None and controller.patience.threshold >= most:
                what = (
                    f"patience waits for {controller.patience.threshold + 1:,} true answers, but {trigger} occurs "
                    f"at most {most:,} times in {_given(len(facts))}"
                )
                yield places.finding(places.of(index, "patience"), FindingCode.TIMING, controller, what)


def _contradictions(
    policy: Policy, places: PolicyPlaces, run_id: str, stream: EventStream, plan: Plan
) -> Iterator[tuple[tuple[str, ...], Finding]]:
    """Yield findings for contradictory decisions of two controllers at one event, with the pair as key."""
    replayed = replay_stream(policy, stream, plan)
    for _, together in groupby(replayed.reached, key=lambda judged: judged.event_index):
        for first, second in combinations(together, 2):
            yield from _contradiction(policy, places, run_id, first, second)


def _contradiction(
    policy: Policy, places: PolicyPlaces, run_id: str, first: LabelledOutcome, second: LabelledOutcome
) -> Iterator[tuple[tuple[str, ...], Finding]]:
    assert isinstance(first.outcome, Decision)
    assert isinstance(second.outcome, Decision)
    if not (first.outcome.acts and second.outcome.acts):
        return
    for one in first.outcome.operations:
        for other in second.outcome.operations:
            if contradict(policy, one, other):
                names = (first.outcome.controller, one, second.outcome.controller, other)
                index = [controller.name for controller in policy.controllers].index(second.outcome.controller)
                controller = policy.controllers[index]
                place = places.of_operation(index, controller, other)
                at = f"step {second.outcome.step} of {run_id}"
                what = f"orders {other} at {at}, where controller '{names[0]}' orders {one}"
                yield names, places.finding(place, FindingCode.CONTRADICTION, controller, what)


def steps_of(info: RunInfo, stream: EventStream) -> float:
    """Return how many steps a run has or is to have; infinite while it is running without a plan."""
    planned = info.last.newest_plan.max_steps()
    if planned is None and info.last.status == "running":
        return math.inf
    return max(planned or 0, stream.last_step)


def long_spans(policy: Policy, places: PolicyPlaces, most_steps: float, *, is_planned: bool) -> Iterator[Finding]:
    """Yield findings for what waits longer than the longest run, and for comparisons that its steps decide.

    Args:
        policy: The policy.
        places: Where its keys are.
        most_steps: The steps of the longest run.
        is_planned: Whether all runs have planned their steps. If not, a longer run may be meant to follow, so that a
            window may be longer.
    """
    if not 0 < most_steps < math.inf:
        return
    known = set(range_findings(policy, places))
    yield from (each for each in range_findings(policy, places, most_steps) if each not in known)
    runs = f"but the runs given have at most {most_steps:,.0f} steps"
    for index, controller in enumerate(policy.controllers):
        first = controller.between.first
        if first is not None and first > most_steps:
            what = f"'between' begins at step {first:,}, {runs}"
            yield places.finding(places.of(index, "between"), FindingCode.WINDOW, controller, what)
        rule = controller.rule
        for node, reading in rule.bound.references.items():
            if not isinstance(reading, SeriesReading) or (reading.takes_less and not is_planned):
                continue
            length = reading.steps_back
            if length > most_steps and isinstance(node, ast.expr):
                what = f"{rule.bound.expression.segment(node)} looks back {length:,.0f} steps, {runs}"
                place = rule.place_at(rule.bound.expression.offset(node))
                yield places.finding(place, FindingCode.WINDOW, controller, what)
