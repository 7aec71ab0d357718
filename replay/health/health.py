"""Sums up a run by groups of metrics: the state of each, its worst rule, and the diagnoses that hold.

A rule fires *now* if it has fired, and was true at each evaluation since. So the state of a rule is that of its last
evaluation in the record, and a run that has ended keeps the state of its end. A rule whose metrics the run lacks is not
evaluable, which is never the same as fine. One group needs no policy and no names: any metric whose newest value is not
finite is critical.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from ...rules.engine.decisions import Scalar
from ...rules.language.families import STAR
from ...rules.metric_catalogue import CATALOGUE, entry_of
from ...rules.policy_file.declarations import Controller
from ...rules.policy_file.policy import Policy
from ...store.errors import counted
from ...store.event_json import encoded
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..runs.event_stream import Renames, check_recorded, newest_plan, stream_for
from .alarms import Conclusion, RuleAlarm, conclusions
from .health_state import HealthState
from .missing_metrics import MissingMetrics, needs

#: How the names of controllers begin that interpret others: their messages name causes and actions.
DIAGNOSIS: Final = "diagnosis_"

#: The group of rules about metrics that the catalogue lacks.
OTHER: Final = "other"

#: The group and the rule that look at every recorded metric.
EVERY_METRIC: Final = "every metric"
NOT_FINITE: Final = "not_finite"

#: The most missing metrics that a sentence names.
_NAMED: Final = 3

_GROUPS: Final = (EVERY_METRIC, *dict.fromkeys(entry.group for entry in CATALOGUE), OTHER)

#: Which state is worse: the less, the worse. What is fine in part counts as fine.
_RANKS: Final = {state: rank for rank, state in enumerate(HealthState)}


@dataclass(frozen=True, slots=True)
class RuleHealth:
    """The health of one controller.

    Attributes:
        controller: Its name.
        group: The group of its first metric.
        severity: As declared; ``warning`` if undeclared.
        alarms: The time spans in which it fired, in order.
        missing: Why it is not evaluable, by metric; empty if it is, or if values were too few.
        is_evaluable: Whether its rule was ever evaluated.
        error: The first failure of its rule.
        params: The params of the policy, some of which are its bounds.
        values: The fewest values of a metric that it needs; None if it needs none that is recorded.
    """

    controller: str
    group: str
    severity: str
    alarms: tuple[RuleAlarm, ...]
    missing: Mapping[str, str]
    is_evaluable: bool
    error: str
    params: Mapping[str, Scalar]
    values: int | None = None

    @property
    def firing(self) -> tuple[RuleAlarm, ...]:
        """The alarms that last until now."""
        return tuple(alarm for alarm in self.alarms if alarm.cleared_step is None)

    @property
    def newest(self) -> RuleAlarm | None:
        """The alarm to show: the newest that lasts, else the newest; None if it never fired."""
        return next(reversed(self.firing or self.alarms), None)

    @property
    def state(self) -> HealthState:
        """Its state. A rule of severity ``info`` that fires is fine."""
        if not self.is_evaluable:
            return HealthState.NOT_EVALUABLE
        if not self.firing or self.severity == "info":
            return HealthState.FINE
        return HealthState.CRITICAL if self.severity == "critical" else HealthState.WARNING

    @property
    def reasons(self) -> dict[str, str]:
        """Why it is not evaluable, by metric; empty if it is."""
        if self.is_evaluable:
            return {}
        return dict(self.missing) or {self.controller: self.error or "too few values"}

    @property
    def sentence(self) -> str:
        """The message of the newest alarm."""
        if (alarm := self.newest) is None:
            return ""
        said = alarm.message or self.controller
        when = f"since step {alarm.step}" if alarm.cleared_step is None else f"at step {alarm.step}"
        often = f", {counted(len(self.alarms), 'alarm')} in all" if len(self.alarms) > 1 else ""
        return f"{said} ({self.controller} {when}{often})"

    def to_json(self) -> dict[str, Any]:
        """Return its part of the document of ``steptape health --json``."""
        alarm = self.newest
        return {
            "controller": self.controller,
            "state": str(self.state),
            "severity": self.severity,
            "alarms": len(self.alarms),
            "values": self.values,
            "newest": None if alarm is None else self._alarm_json(alarm),
            "not_evaluable": self.reasons,
        }

    def _alarm_json(self, alarm: RuleAlarm) -> dict[str, Any]:
        return {
            "step": alarm.step,
            "cleared_step": alarm.cleared_step,
            "member": alarm.member or None,
            "message": alarm.message,
            "values": encoded({name: value for name, value in alarm.values.items() if name not in self.params}),
            "bounds": encoded({name: value for name, value in alarm.values.items() if name in self.params}),
        }


@dataclass(frozen=True)
class GroupHealth:
    """The health of one group of rules.

    Attributes:
        name: The name of the group.
        rules: Its rules, the worst first.
        step: Updates finished at the end of the record.
    """

    name: str
    rules: tuple[RuleHealth, ...]
    step: int

    @property
    def state(self) -> HealthState:
        """The worst state of its rules; those that are not evaluable count if all are."""
        return _worst(self.rules)

    @property
    def missing(self) -> dict[str, str]:
        """Why rules are not evaluable, by metric."""
        return {name: reason for rule in self.rules for name, reason in rule.reasons.items()}

    @cached_property
    def sentence(self) -> str:
        """The sentence of the group: its worst rule, and the metrics that are missing."""
        worst, known = self.rules[0], [rule for rule in self.rules if rule.is_evaluable]
        parts = []
        if self.state.is_wrong:
            also = [rule.controller for rule in known[1:] if rule.state.is_wrong]
            parts.append(worst.sentence + (f"; also {', '.join(also)}" if also else ""))
        elif known:
            parts.append(f"{counted(len(known), 'rule')} fine{_over(known, self.step)}")
            last = max((rule for rule in known if rule.newest), key=_last_step, default=None)
            if last is not None:
                parts.append(f"last: {last.sentence}")
        if self.missing:
            parts.append(_missing_sentence(self.missing))
        return ". ".join(part[0].upper() + part[1:] for part in parts)

    def to_json(self) -> dict[str, Any]:
        """Return its part of the document of ``steptape health --json``."""
        return {
            "group": self.name,
            "state": str(self.state),
            "sentence": self.sentence,
            "not_evaluable": self.missing,
            "rules": [rule.to_json() for rule in self.rules],
        }


@dataclass(frozen=True)
class HealthSummary:
    """The health of a run under a policy.

    Attributes:
        run_id, name: The run.
        step: Updates finished at the end of the record.
        policy: The name of the policy.
        digest: Its digest.
        groups: The groups, the worst first.
        nearest: The recorded metrics that measure what rules lack, by the name that rules read.
        diagnoses: The interpretation rules, the worst first.
    """

    run_id: str
    name: str
    step: int
    policy: str
    digest: str
    groups: tuple[GroupHealth, ...]
    nearest: Mapping[str, str]
    diagnoses: tuple[RuleHealth, ...]

    @property
    def state(self) -> HealthState:
        """The worst state of all rules; fine only if a rule of the policy was evaluated that is no diagnosis."""
        state = _worst((*(rule for group in self.groups for rule in group.rules), *self.diagnoses))
        return state if state.is_wrong or self.known else HealthState.NOT_EVALUABLE

    @property
    def known(self) -> tuple[GroupHealth, ...]:
        """The groups of the policy that could be evaluated."""
        return tuple(
            group
            for group in self.groups
            if group.name != EVERY_METRIC and group.state is not HealthState.NOT_EVALUABLE
        )

    @property
    def sentence(self) -> str:
        """The state of the run; if it is fine, its last alarm and over how many values; what is not evaluable."""
        is_fine = self.state is HealthState.FINE
        rules = [rule for group in self.known if is_fine for rule in group.rules if rule.is_evaluable]
        count = sum(group.name != EVERY_METRIC for group in self.groups)
        over = _over(rules, self.step) or f" at step {self.step}"
        alarmed = max((rule for rule in rules if rule.newest and rule.severity != "info"), key=_last_step, default=None)
        past = f" now (last alarm: {alarmed.controller} at step {_last_step(alarmed)})" if alarmed else ""
        return f"{self.state}{past}{over}, {count - len(self.known)} of {counted(count, 'group')} not evaluable"

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``steptape health --json``."""
        return {
            "run_id": self.run_id,
            "name": self.name,
            "step": self.step,
            "policy": self.policy,
            "digest": self.digest,
            "state": str(self.state),
            "sentence": self.sentence,
            "nearest": dict(self.nearest),
            "groups": [group.to_json() for group in self.groups],
            "diagnoses": [rule.to_json() for rule in self.diagnoses],
        }


def health_of(run: Run, policy: Policy, renames: Renames = ()) -> HealthSummary:
    """Return the health of a run under a policy.

    Args:
        run: The run.
        policy: The policy.
        renames: Metrics to rename as the policy calls them.

    Raises:
        TelemetryError: The run did not record a metric that is to be renamed.
    """
    check_recorded([run], renames)
    return run.read(lambda snapshot: _health(snapshot, policy, renames))


def _health(snapshot: Snapshot, policy: Policy, renames: Renames) -> HealthSummary:
    stream = stream_for(policy, snapshot, renames)
    declared = snapshot.info.last.plan
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
    groups = [GroupHealth(name, _by_state(rule for rule in judged if rule.group == name), step) for name in _GROUPS]
    return HealthSummary(
        run_id=snapshot.info.run_id,
        name=snapshot.info.name,
        step=step,
        policy=policy.name or policy.source,
        digest=policy.digest,
        groups=tuple(sorted((group for group in groups if group.rules), key=lambda group: _RANKS[group.state])),
        nearest={name: near for lacked in missing for name in lacked if (near := metrics.nearest(name))},
        diagnoses=_by_state(rule for rule in rules if rule.controller.startswith(DIAGNOSIS)),
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
        alarms[-1] = replace(alarms[-1], message=f"{alarms[-1].message}; also {_listed(others[::-1])}")
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


def _by_state(rules: Iterable[RuleHealth]) -> tuple[RuleHealth, ...]:
    """Sort rules, the worst first; of two in one state the one that began later."""
    return tuple(sorted(rules, key=lambda rule: (_RANKS[rule.state], -_last_step(rule))))


def _last_step(rule: RuleHealth) -> int:
    return -1 if rule.newest is None else rule.newest.step


def _worst(rules: Sequence[RuleHealth]) -> HealthState:
    return min((rule.state for rule in rules), key=_RANKS.__getitem__, default=HealthState.NOT_EVALUABLE)


def _over(rules: Sequence[RuleHealth], step: int) -> str:
    """Return over how many values rules were evaluated; empty if none of them reads a recorded metric."""
    counts = [rule.values for rule in rules if rule.values is not None]
    if not counts:
        return ""
    least, most = f"{min(counts):,}", f"{max(counts):,}"
    values = "value" if most == "1" else "values"
    return f" on {least if least == most else f'{least} to {most}'} {values} of {counted(step, 'step', ',')}"


def _missing_sentence(missing: Mapping[str, str]) -> str:
    """Name the metrics that are missing, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    said = [f"{_listed(names)} ({reason})" for reason, names in by_reason.items()]
    return f"not evaluable: {'; '.join(said)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
