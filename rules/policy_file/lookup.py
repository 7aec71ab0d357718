"""Finds the file that a name of rules refers to: a path, or the name of a policy or of tests that steptape ships."""

from __future__ import annotations

from pathlib import Path

from ...store.errors import TelemetryError
from ..errors import suggestion
from .policy import Policy, load_policy, policy_path, shipped_policies, shipped_tests


def tests_path(name: str) -> Path:
    """Return the file of tests that a name refers to: a path, or the name of a shipped policy."""
    path = Path(name)
    return path if path.exists() else shipped_tests().get(name, path)


def existing(path: Path) -> Path:
    """Return the path of a rule file, or of a pipe that carries one.

    Raises:
        TelemetryError: There is none. The error suggests shipped policies.
    """
    if path.is_dir() or not path.exists():
        what = "no such file, and steptape ships no policy of that name"
        raise TelemetryError(what, where=str(path), fix=suggestion(str(path), shipped_policies()))
    return path


def triggering_kinds(rules: str | Path | Policy | None) -> frozenset[str]:
    """Return the kinds of events at which the controllers of rules are judged; empty without rules.

    Raises:
        PolicyError: The rules do not load.
        TelemetryError: They are neither a file nor a shipped policy.
    """
    if rules is None:
        return frozenset()
    policy = rules if isinstance(rules, Policy) else load_policy(existing(policy_path(str(rules))))
    return frozenset(trigger.removeprefix("on_") for each in policy.controllers for trigger in each.triggers)
