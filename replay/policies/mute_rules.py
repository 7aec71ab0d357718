"""Finds the rules of a policy that could fire in none of some runs, each with the reason.

Takes for each run why its controllers could not fire; returns values, and the sentences for checks and reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...rules.policy_file.policy import Policy
from ...rules.readings.first_events import Never
from ...store.errors import counted

#: The option that settles a missing plan.
_PLAN_LAST: Final = "'--plan last' takes the length of completed runs"


@dataclass(frozen=True, slots=True)
class MuteRule:
    """A rule that could fire in none of the runs, whatever their values.

    Attributes:
        name: Name of its controller.
        index: Place of its controller in the policy.
        reasons: Number of runs by reason, the commonest first.
        metrics: The metrics that runs lack and that it needs.
        is_unplanned: Whether it needs a plan in some run that has none.
    """

    name: str
    index: int
    reasons: dict[str, int]
    metrics: tuple[str, ...]
    is_unplanned: bool

    @property
    def why(self) -> str:
        """In how many runs it could not fire, with the reasons and the option that helps, as the end of a sentence."""
        runs = sum(self.reasons.values())
        of = "none of 1 run" if runs == 1 else f"none of {runs:,} runs"
        reasons = [
            why if count == runs else f"{why} ({counted(count, 'run', ',')})" for why, count in self.reasons.items()
        ]
        fix = f". {_PLAN_LAST}" if self.is_unplanned else ""
        return f"could fire in {of}: {'; '.join(reasons)}{fix}"


def mute_rules(policy: Policy, unable: Sequence[Sequence[Never | None]]) -> tuple[MuteRule, ...]:
    """Return the rules that could fire in no run, in the order of the file; none without runs.

    Args:
        policy: The policy.
        unable: For each run why its controllers could not fire, as ``could_not_fire`` returns it.
    """
    found = []
    for index, controller in enumerate(policy.controllers if unable else ()):
        lacked = [reasons[index] for reasons in unable]
        nevers = [never for never in lacked if never is not None]
        if len(nevers) == len(lacked):
            reasons = Counter(never.reason for never in nevers)
            metrics = dict.fromkeys(name for never in nevers for name in never.metrics)
            unplanned = any(never.is_unplanned for never in nevers)
            found.append(MuteRule(controller.name, index, dict(reasons.most_common()), tuple(metrics), unplanned))
    return tuple(found)


def mute_sentences(rules: Iterable[MuteRule]) -> Iterator[str]:
    """Yield why rules could fire in no run; those with the same reasons share a sentence."""
    sharing: dict[str, list[str]] = {}
    for rule in rules:
        sharing.setdefault(rule.why, []).append(rule.name)
    for why, names in sharing.items():
        *others, last = names
        yield f"{', '.join(others)} and {last} {why}." if others else f"{last} {why}."
