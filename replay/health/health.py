"""Sums up a run by groups of metrics: the state of each, its worst rule, and the diagnoses that hold.

One group needs no policy and no names: any metric whose newest value is not finite is critical. ``alarms`` replays the
rules of the others. The recorder's probes say what they cannot observe in annotations with the attribute ``absent``:
reasons by name or pattern.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...rules.language.name_patterns import STAR, have_common_names, is_pattern, matches
from ...rules.metric_catalogue import CATALOGUE, CatalogueEntry, entry_of
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...rules.readings.reading import ALSO_CALLED
from ...store.events import DERIVED_PREFIX
from ...store.plan import Plan
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..runs.event_stream import EventStream, check_recorded, newest_plan, plan_of
from ..runs.metric_names import Renames, nearest_metric
from ..runs.replaying import stream_for
from .alarms import AlarmReplay, Conclusion, keep_conclusions, kept_conclusions
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


def health_of(
    run: Run,
    policy: Policy,
    renames: Renames = (),
    *,
    plans_by_length: bool = False,
    is_cached: bool = False,
) -> HealthSummary:
    """Return the health of a run under a policy.

    Args:
        run: The run.
        policy: The policy.
        renames: Metrics to rename as the policy calls them.
        plans_by_length: Whether a completed run without a plan counts as planned for its length.
        is_cached: Whether the user's cache keeps the alarms of ended runs, so that they are replayed once.

    Raises:
        TelemetryError: The run did not record a metric that is to be renamed.
    """
    check_recorded([run], renames)
    return run.read(HealthReplay(policy, renames, plans_by_length=plans_by_length, is_cached=is_cached).health)


class HealthReplay:
    """The health of one run under a policy, each time that it is asked for; only new events are replayed.

    Args:
        policy, renames, plans_by_length, is_cached: As for ``health_of``.
    """

    def __init__(
        self, policy: Policy, renames: Renames = (), *, plans_by_length: bool = False, is_cached: bool = False
    ) -> None:
        self._policy, self._renames, self._plans_by_length = policy, renames, plans_by_length
        self._is_cached = is_cached and policy.is_self_contained
        self._about: object = None
        self._replay: AlarmReplay | None = None

    def health(self, snapshot: Snapshot, is_due: Callable[[], bool] = lambda: False) -> HealthSummary:
        """Return the health of the run, of as many events as could be replayed until the answer was due.

        Args:
            snapshot: The run.
            is_due: Whether to answer with what is known. The next call continues.
        """
        policy, stream = self._policy, stream_for(self._policy, snapshot, self._renames)
        declared = plan_of(snapshot.info, by_length=self._plans_by_length)
        metrics = MissingMetrics(stream, newest_plan(declared, stream).constants)
        missing = [metrics.of(controller) for controller in policy.controllers]
        evaluable = [index for index, lacked in enumerate(missing) if not lacked]
        kept_under, done = self._kept_under(snapshot), len(stream)
        found = kept_conclusions(kept_under) if kept_under else None
        if found is None:
            replay = self._continued(snapshot, stream, evaluable, declared)
            self._replay = None  # One that an error interrupts does not continue.
            # What is made up from other ranks' values may change while these ranks write.
            replay.follow(stream, (lambda: False) if stream.gathered else is_due)
            found, done = replay.conclusions(), replay.done
            self._replay = None if stream.gathered else replay
            if kept_under and done == len(stream):
                keep_conclusions(kept_under, found)
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
            as_of_step=step if done == len(stream) else int(stream.steps[done - 1]),
            policy=policy.name or policy.source,
            digest=policy.digest,
            groups=tuple(sorted((group for group in groups if group.rules), key=lambda group: group.state.rank)),
            nearest={name: near for lacked in missing for name in lacked if (near := metrics.nearest(name))},
            diagnoses=by_state(rule for rule in rules if rule.controller.startswith(DIAGNOSIS)),
        )

    def _kept_under(self, snapshot: Snapshot) -> Sequence[object]:
        """Return what the conclusions about an ended run are a function of; empty while it may grow."""
        digest = snapshot.log_digest if self._is_cached and not snapshot.is_live else ""
        if not digest:
            return ()
        policy, info = self._policy, snapshot.info
        read = (self._renames, self._plans_by_length, repr((info.attempts, info.source)))
        return digest, policy.source, policy.text, dict(policy.params), *read

    def _continued(self, snapshot: Snapshot, stream: EventStream, evaluable: Sequence[int], plan: Plan) -> AlarmReplay:
        """Return the replay so far. It begins anew where the run has got a metric that rules read, or an attempt."""
        began = [attempt.started_ns for attempt in snapshot.info.attempts]
        about = (snapshot.info.run_id, began, evaluable, plan, dict(stream.plans))
        if self._replay is None or about != self._about or not self._replay.has_begun(stream):
            self._replay = AlarmReplay(self._policy, evaluable, plan, stream.plans)
        self._about = about
        return self._replay


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
    entries = (_entry_of(name) for name in (*read, *needs(controller)))
    return next((entry.group for entry in entries if entry is not None), OTHER)


def _entry_of(name: str) -> CatalogueEntry | None:
    if not is_pattern(name):
        return entry_of(name)
    return next((entry for entry in CATALOGUE if have_common_names(name, _PLACE.sub(STAR, entry.name))), None)


class MissingMetrics:
    """The metrics that a run lacks.

    Args:
        stream: The run.
        constants: Names of the constants that the loop declared, which are series of one value.
    """

    def __init__(self, stream: EventStream, constants: Collection[str] = ()) -> None:
        self._stream = stream
        # The table of the events has columns for what the run's own rules recorded.
        self._recorded = sorted(name for name in stream.facts.metrics if not name.startswith(DERIVED_PREFIX))
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
            steps = self._stream.steps[rows]
            yield (
                name,
                [
                    (int(steps[first]), int(steps[end]) if end < len(steps) else None, float(values[first]))
                    for first, end in zip(edges[::2], edges[1::2], strict=True)
                ],
            )

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
