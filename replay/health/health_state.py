"""Defines the states of rules, groups and runs. A server that only passes them on need not load the rule engine."""

from __future__ import annotations

from enum import StrEnum


class HealthState(StrEnum):
    """The state of a rule, a group or a run; the worst first."""

    CRITICAL = "critical"
    WARNING = "warning"
    FINE = "fine"
    NOT_EVALUABLE = "not evaluable"

    @property
    def is_wrong(self) -> bool:
        """Whether something should be done."""
        return self in (HealthState.CRITICAL, HealthState.WARNING)
