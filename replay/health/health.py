"""Sums up a run by groups of metrics: the state of each, its worst rule, and the diagnoses that hold.

One group needs no policy and no names: any metric whose newest value is not finite is critical. Each controller gets
two probes. One has its rule, patience and ``for``, and its negation as ``clear``: it decides once where an alarm
begins, for each member of a family alone. The other decides once where the rule is ever false. The recorder's probes
say what they cannot observe in annotations with the attribute ``absent``: reasons by name or pattern.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...rules.engine.decisions import Cleared, Decision, Outcome, RuleError
from ...rules.engine.engine import Engine
from ...rules.errors import PolicyError
from ...rules.language.name_patterns import STAR, have_common_names, is_pattern, matches
from ...rules.metric_catalogue import CATALOGUE, entry_of
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import ALSO_CALLED
from ...store.events import JsonObject
from ...store.own_process import collection_paused
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..policies.policy_text import gates_of, with_controllers
from ..runs.event_stream import EventStream, check_recorded, newest_plan, plan_of
from ..runs.metric_names import Renames, nearest_metric
from ..runs.replaying import observed_in, stream_for
from .health_summary import (
    EVERY_METRIC,
    GroupHealth,
    HealthSummary,
    RuleAlarm,
    RuleHealth,
    by_state,
    listed,
)

#: How the names of controllers begin that interpret others: their messages name causes and actions.
DIAGNOSIS: Final = "diagnosis_"

#: The group of rules about metrics that the catalogue lacks.
OTHER: Final = "other"

#: The rule that looks at every recorded metric.
NOT_FINITE: Final = "not_finite"

_GROUPS: Final = (EVERY_METRIC, *dict.fromkeys(entry.group for entry in CATALOGUE), OTHER)

#: The attribute of an annotation that holds reasons by name or pattern.
ABSENT: Final = "absent"

#: The reason where no probe gives one.
NOT_RECORDED: Final = "not recorded"

_PLACE: Final = re.compile(r"\{\w+\}")

_ALARM: Final = "alarm "
_FALSE: Final = "false "


def health_of(run: Run, policy: Policy, renames: Renames = (), *, plans_by_length: bool = False) -> HealthSummary:
    """Return the health of a run under a policy.

    Args:
        run: The run.
        policy: The policy.
        renames: Metrics to rename as the policy calls them.
        plans_by_length: Whether a completed run without a plan counts as planned for its length.

    Raises:
        TelemetryError: The run did not record a metric that is to be renamed.
    """
    check_recorded([run], renames)
    return run.read(lambda snapshot: _health(snapshot, policy, renames, plans_by_length))


def _health(snapshot: Snapshot, policy: Policy, renames: Renames, plans_by_length: bool) -> HealthSummary:
    stream = stream_for(policy, snapshot, renames)
    declared = plan_of(snapshot.info, by_length=plans_by_length)
    metrics = MissingMetrics(stream, newest_plan(declared, stream).constants)
    missing = [metrics.of(controller) for controller in policy.controllers]
    found = conclusions(policy, [index for index, lacked in enumerate(missing) if not lacked], stream, declared)
    rules = [
        _rule(policy, controller, missing[index], found.get(index, Conclusion()), metrics.values_of(controller))
        for index, controller in enumerate(policy.controllers)
    ]
    judged = [rule for rule in rules if not rule.controller.startswith(DIAGNOSIS)]
    judged.append(_not_finite(metrics))
    step = stream.last_step
    groups = [GroupHealth(name, by_state(rule for rule in judged if rule.group == name), step) for name in _GROUPS]
    return HealthSummary(
        run_id=snapshot.info.run_id,
        name=snapshot.shown.name,
        step=step,
        policy=policy.name or policy.source,
        digest=policy.digest,
        groups=tuple(sorted((group for group in groups if group.rules), key=lambda group: group.state.rank)),
        nearest={name: near for lacked in missing for name in lacked if (near := metrics.nearest(name))},
        diagnoses=by_state(rule for rule in rules if rule.controller.startswith(DIAGNOSIS)),
    )


def _rule(
    policy: Policy, controller: Controller, missing: Mapping[str, str], found: Conclusion, values: int | None
) -> RuleHealth:
    return RuleHealth(
        controller=controller.name,
        group=group_of(controller),
        severity=controller.severity or "warning",
        alarms=found.alarms,
        missing=missing,
        is_evaluable=found.is_evaluable,
        error=found.error,
        params=policy.params,
        values=values,
    )


def _not_finite(metrics: MissingMetrics) -> RuleHealth:
    """Return the rule about every recorded metric: its newest value is finite. The newest alarm names all that last."""
    stretches = dict(metrics.not_finite())
    alarms = [
        RuleAlarm(step, cleared_step, f"not finite: {name} = {value}", {name: value}, name)
        for name, found in stretches.items()
        for step, cleared_step, value in found
    ]
    alarms.sort(key=lambda alarm: (alarm.cleared_step is None, -alarm.step))
    if others := [alarm.member for alarm in alarms[:-1] if alarm.cleared_step is None]:
        alarms[-1] = replace(alarms[-1], message=f"{alarms[-1].message}; also {listed(others[::-1])}")
    return RuleHealth(
        controller=NOT_FINITE,
        group=EVERY_METRIC,
        severity="critical",
        alarms=tuple(alarms),
        missing={},
        is_evaluable=bool(stretches),
        error="no metric is recorded",
        params={},
        values=metrics.fewest_values(stretches),
    )


def group_of(controller: Controller) -> str:
    """Return the group of the first metric that a controller needs and the catalogue knows."""
    read = [key.name for key in controller.rule.bound.series if not key.is_derived]
    # A star stands for a number in some patterns of the catalogue, and for any text in the others.
    entries = (entry_of(name.replace(STAR, "0")) for name in (*read, *needs(controller)))
    return next((entry.group for entry in entries if entry is not None), OTHER)


class MissingMetrics:
    """The metrics that a run lacks.

    Args:
        stream: The run.
        constants: Names of the constants that the loop declared, which are series of one value.
    """

    def __init__(self, stream: EventStream, constants: Collection[str] = ()) -> None:
        self._stream = stream
        self._recorded = sorted(stream.facts.metrics)
        self._names = frozenset(self._recorded) | frozenset(constants)
        self._constants = frozenset(constants)
        self._reasons = dict(_reasons(stream))

    def of(self, controller: Controller) -> dict[str, str]:
        """Return why metrics that a controller needs have no value, by name or pattern."""
        return {name: self._reason(name) for name in needs(controller) if not self._has(name)}

    def nearest(self, name: str) -> str:
        """Return the recorded metric that measures the same; empty if none does, or for a pattern."""
        return "" if is_pattern(name) else nearest_metric(name, self._recorded)

    def values_of(self, controller: Controller) -> int | None:
        """Return the fewest values that a metric has which a controller needs; None if it needs none with values."""
        counts = [max(map(self._count, self._called(name)), default=0) for name in needs(controller)]
        return min(filter(None, counts), default=None)

    def fewest_values(self, names: Iterable[str]) -> int | None:
        """Return the number of values of the metric with the fewest; None without any metric."""
        return min(map(self._count, names), default=None)

    def not_finite(self) -> Iterator[tuple[str, list[tuple[int, int | None, float]]]]:
        """Yield each recorded metric with its stretches of values that are not finite.

        A stretch is the step of its first value, the step of the finite value after it or None, and that first value.
        A metric that its probe declares absent holds NaN in place of values, and is left out while it has no other.
        """
        for name in filter(self._has_value, self._recorded):
            rows, values = self._stream.numbers(name)
            odd = ~np.isfinite(values)
            edges = np.flatnonzero(np.diff(np.concatenate(([False], odd, [False])).astype(np.int8)))
            steps = [*self._stream.steps[rows].tolist(), None]
            yield name, [(steps[a], steps[b], float(values[a])) for a, b in zip(edges[::2], edges[1::2], strict=True)]

    def _called(self, name: str) -> list[str]:
        """Return the recorded metrics that a name or a pattern reads."""
        if is_pattern(name):
            return [own for own in self._recorded if matches(own, name)]
        return [own for own in (name, ALSO_CALLED.get(name, name)) if own in self._names - self._constants]

    def _count(self, name: str) -> int:
        return len(self._stream.numbers(name).rows)

    def _has(self, name: str) -> bool:
        if is_pattern(name):
            return any(matches(own, name) and self._has_value(own) for own in self._names)
        return any(own in self._names and self._has_value(own) for own in (name, ALSO_CALLED.get(name, name)))

    def _has_value(self, name: str) -> bool:
        """Whether a metric counts as recorded. One that is absent by its probe may hold NaN in place of values."""
        if name in self._constants or not any(have_common_names(name, each) for each in self._reasons):
            return True
        return any(not math.isnan(value) for value in self._stream.numbers(name).values.tolist())

    def _reason(self, name: str) -> str:
        found = (reason for each, reason in self._reasons.items() if have_common_names(name, each))
        near = self.nearest(name)
        return next(found, f"{NOT_RECORDED}; nearest: {near}" if near else NOT_RECORDED)


def needs(controller: Controller) -> list[str]:
    """Return the metrics and patterns that a controller needs: those it requires, else those that its rule reads."""
    required = [key.name for key in controller.requires]
    if required:
        return required
    of_each = [] if controller.each is None else [controller.each.name]
    read = [key.name for key in controller.rule.bound.series if not key.is_derived]
    return list(dict.fromkeys((*of_each, *read)))


def _reasons(stream: EventStream) -> Iterator[tuple[str, str]]:
    """Yield reasons by pattern, the newest last. A place such as ``{block}`` means the same as a star."""
    for _, event in stream.of_kind("annotation"):
        given = event.attrs.get(ABSENT)
        if isinstance(given, Mapping):
            for name, reason in given.items():
                yield _PLACE.sub(STAR, str(name)), str(reason)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The alarms and the last state of one controller over a run.

    Attributes:
        alarms: In the order in which they began.
        is_evaluable: Whether its rule was ever true long enough to fire, or false.
        error: The first failure of its rule; empty without one.
    """

    alarms: tuple[RuleAlarm, ...] = ()
    is_evaluable: bool = False
    error: str = ""


def conclusions(policy: Policy, evaluable: Collection[int], stream: EventStream, plan: Plan) -> dict[int, Conclusion]:
    """Return what controllers give over a stream, by their index in the policy.

    Args:
        policy: The policy.
        evaluable: The indices of the controllers whose metrics the stream has.
        stream: The run.
        plan: What its loop declared.
    """
    found = {index: _Track() for index in sorted(evaluable)}
    if not found:
        return {}
    with collection_paused():
        engine = Engine(_probed(policy, found), plan, stream.plans)
        _follow(found, engine.start())
        for _, _, outcomes in observed_in(engine, stream):
            _follow(found, outcomes)
    return {index: track.conclusion() for index, track in found.items()}


class _Track:
    """The alarms of one controller so far."""

    def __init__(self) -> None:
        self._alarms: list[RuleAlarm] = []
        self._open: dict[str, int] = {}
        self._error = ""
        self._is_evaluable = False

    def take(self, outcome: Outcome) -> None:
        """Take an outcome of one of its probes."""
        if isinstance(outcome, RuleError):
            self._error = self._error or outcome.error
        elif isinstance(outcome, Cleared):
            place = self._open.pop(outcome.member)
            self._alarms[place] = replace(self._alarms[place], cleared_step=outcome.step)
        elif isinstance(outcome, Decision):
            self._is_evaluable = True
            if outcome.controller.startswith(_ALARM):
                self._open[outcome.member] = len(self._alarms)
                self._alarms.append(RuleAlarm(outcome.step, None, outcome.message, outcome.values, outcome.member))

    def conclusion(self) -> Conclusion:
        """Return the sum."""
        return Conclusion(tuple(self._alarms), self._is_evaluable, self._error)


def _follow(tracks: Mapping[int, _Track], outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        for begin in (_ALARM, _FALSE):
            if outcome.controller.startswith(begin):
                tracks[int(outcome.controller.removeprefix(begin))].take(outcome)


def _probed(policy: Policy, indices: Iterable[int]) -> Policy:
    """Return the policy with probes of these controllers. One whose probes are refused gets none."""
    chosen = {index: list(_probes(index, policy.controllers[index])) for index in indices}
    try:
        return with_controllers(policy, [probe for probes in chosen.values() for probe in probes])
    except PolicyError:
        accepted = [probe for probes in chosen.values() if _is_accepted(policy, probes) for probe in probes]
        return with_controllers(policy, accepted)


def _is_accepted(policy: Policy, probes: list[JsonObject]) -> bool:
    try:
        with_controllers(policy, probes)
    except PolicyError:
        return False
    return True


def _probes(index: int, controller: Controller) -> Iterator[JsonObject]:
    gates = gates_of(controller)
    negation = f"not ({controller.rule.text})"
    # The name of a stage means nothing without the escalation.
    has_message = controller.message is not None and controller.escalation is None
    yield {
        **gates,
        "name": f"{_ALARM}{index}",
        "clear": negation if controller.clear is None else controller.clear.text,
        **({"message": controller.message.text} if has_message and controller.message is not None else {}),
    }
    kept = {key: value for key, value in gates.items() if key not in ("patience", "for")}
    yield {**kept, "name": f"{_FALSE}{index}", "rule": negation, "once": True}
