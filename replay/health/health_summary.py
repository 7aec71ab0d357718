"""Defines the health of a run: states, alarms, rules and groups, with their sentences and their JSON.

A rule fires *now* if it has fired, and was true at each evaluation since. So the state of a rule is that of its last
evaluation in the record, and a run that has ended keeps the state of its end. A rule whose metrics the run lacks is not
evaluable, which is never the same as fine. A server that only passes states on need not load the rule engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ...store.errors import counted
from ...store.event_json import encoded
from ...store.events import JsonObject

if TYPE_CHECKING:
    from ...rules.engine.decisions import Scalar

#: The policy that judges if none is named.
DEFAULT_POLICY: Final = "nano_train"

#: The group of the rule that looks at every recorded metric.
EVERY_METRIC: Final = "every metric"

#: The most missing metrics that a sentence names.
_NAMED: Final = 3


class HealthState(StrEnum):
    """The state of a rule, a group or a run; the worst first."""

    CRITICAL = "critical"
    WARNING = "warning"
    FINE = "fine"
    NOT_EVALUABLE = "not evaluable"

    @property
    def rank(self) -> int:
        """The less, the worse. What is fine in part counts as fine."""
        return list(HealthState).index(self)

    @property
    def is_wrong(self) -> bool:
        """Whether something should be done."""
        return self in (HealthState.CRITICAL, HealthState.WARNING)


@dataclass(frozen=True, slots=True)
class RuleAlarm:
    """One time span in which a rule fired.

    Attributes:
        step: Where it fired first.
        cleared_step: Where its rule was false again; None while it is not.
        message: The controller's message, rendered where it fired.
        values: What its rule read there.
        member: The member of a family that it is about; empty without one.
    """

    step: int
    cleared_step: int | None
    message: str
    values: Mapping[str, Scalar]
    member: str = ""


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


@dataclass(frozen=True)
class HealthSummary:
    """The health of a run under a policy.

    Attributes:
        run_id, name: The run.
        step: Updates finished at the end of the record.
        as_of_step: Updates finished where the replay of the rules has come; less than ``step`` until it has caught up.
        policy: The name of the policy.
        digest: Its digest.
        groups: The groups, the worst first.
        nearest: The recorded metrics that measure what rules lack, by the name that rules read.
        diagnoses: The interpretation rules, the worst first.
    """

    run_id: str
    name: str
    step: int
    as_of_step: int
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


def by_state(rules: Iterable[RuleHealth]) -> tuple[RuleHealth, ...]:
    """Sort rules, the worst first; of two in one state the one that began later."""
    return tuple(sorted(rules, key=lambda rule: (rule.state.rank, -_last_step(rule))))


def _last_step(rule: RuleHealth) -> int:
    return -1 if rule.newest is None else rule.newest.step


def _worst(rules: Sequence[RuleHealth]) -> HealthState:
    return min((rule.state for rule in rules), key=lambda state: state.rank, default=HealthState.NOT_EVALUABLE)


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
    said = [f"{listed(names)} ({reason})" for reason, names in by_reason.items()]
    return f"not evaluable: {'; '.join(said)}"


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def health_json(found: HealthSummary) -> JsonObject:
    """Return the document of ``steptape health --json``."""
    return {
        "run_id": found.run_id,
        "name": found.name,
        "step": found.step,
        "as_of_step": found.as_of_step,
        "policy": found.policy,
        "digest": found.digest,
        "state": str(found.state),
        "sentence": found.sentence,
        "nearest": dict(found.nearest),
        "groups": [_group_json(group) for group in found.groups],
        "diagnoses": [_rule_json(rule) for rule in found.diagnoses],
    }


def _group_json(group: GroupHealth) -> JsonObject:
    return {
        "group": group.name,
        "state": str(group.state),
        "sentence": group.sentence,
        "not_evaluable": group.missing,
        "rules": [_rule_json(rule) for rule in group.rules],
    }


def _rule_json(rule: RuleHealth) -> JsonObject:
    alarm = rule.newest
    newest = None
    if alarm is not None:
        newest = {
            "step": alarm.step,
            "cleared_step": alarm.cleared_step,
            "member": alarm.member or None,
            "message": alarm.message,
            "values": encoded({name: value for name, value in alarm.values.items() if name not in rule.params}),
            "bounds": encoded({name: value for name, value in alarm.values.items() if name in rule.params}),
        }
    return {
        "controller": rule.controller,
        "state": str(rule.state),
        "severity": rule.severity,
        "alarms": len(rule.alarms),
        "values": rule.values,
        "newest": newest,
        "not_evaluable": rule.reasons,
    }
