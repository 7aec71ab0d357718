"""Finds the rules of a policy that could fire in none of some runs, and the metrics that a rename may give them.

Takes for each run why its controllers could not fire, the metrics that it lacks and the one that judges it; returns
values, and the sentences about both that check, backtest, sweep, diff and certify print.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...rules.policy_file.policy import Policy
from ...rules.readings.first_events import Never
from ...store.errors import counted
from ...store.metric_words import mode_of
from .metric_names import is_held_out
from .objective import Objective

#: The option that settles a missing plan.
_PLAN_LAST: Final = "'--plan last' takes the length of completed runs"

#: Printed with results where it does.
PLANS_BY_LENGTH: Final = "A completed run without a plan counts as planned for its length (--plan last)."

#: Maximum number of names that a hint lists.
_LISTED: Final = 6


@dataclass(frozen=True, slots=True)
class MuteRule:
    """A rule that could fire in none of the runs, whatever their values.

    Attributes:
        name: Name of its controller.
        index: Place of its controller in the policy.
        reasons: Number of runs by reason, the commonest first.
        metrics: The metrics that runs lack and that it needs.
        is_unplanned: Whether it needs a plan in some run that has none, and completed runs might give theirs.
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


def mute_rules(
    policy: Policy, unable: Sequence[Sequence[Never | None]], *, plans_by_length: bool = False
) -> tuple[MuteRule, ...]:
    """Return the rules that could fire in no run, in the order of the file; none without runs.

    Args:
        policy: The policy.
        unable: For each run why its controllers could not fire, as ``could_not_fire`` returns it.
        plans_by_length: Whether completed runs count as planned for their length already.
    """
    found = []
    for index, controller in enumerate(policy.controllers if unable else ()):
        lacked = [reasons[index] for reasons in unable]
        nevers = [never for never in lacked if never is not None]
        if len(nevers) == len(lacked):
            reasons = Counter(never.reason for never in nevers)
            metrics = dict.fromkeys(name for never in nevers for name in never.metrics)
            unplanned = not plans_by_length and any(never.is_unplanned for never in nevers)
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


@dataclass(frozen=True, slots=True)
class LackedMetric:
    """A metric that rules read and that some runs lack, though they may have recorded the same under another name.

    Attributes:
        name: Its name in the rules.
        runs: Number of runs that lack it.
        of: Number of runs.
        nearest: The names under which the runs recorded it, the commonest first, each with its number of runs.
        judging: The metrics that judge the runs without a near name, alike.
        doubtful: The only evaluations of the other runs, of which nobody says whether lower is better.
    """

    name: str
    runs: int
    of: int
    nearest: dict[str, int]
    judging: dict[str, int] = field(default_factory=dict)
    doubtful: dict[str, int] = field(default_factory=dict)


class MissingNames(NamedTuple):
    """The metrics that rules read and a run did not record, each with its metric that comes closest.

    Attributes:
        nearest: The closest metric by the lacked one; empty where none is near.
        objective: The metric that judges the run; None without one.
        evaluated: The metrics that its evaluations have.
    """

    nearest: Mapping[str, str]
    objective: Objective | None
    evaluated: Set[str] = frozenset()


def lacked_metrics_in(runs: Sequence[MissingNames]) -> tuple[LackedMetric, ...]:
    """Return the metrics for which a rename would help, in the order of their names.

    Args:
        runs: What each run lacks.
    """
    found = []
    taken = {near for one in runs for near in one.nearest.values()}
    for name in sorted(set[str]().union(*(one.nearest for one in runs))):
        lacking = [one for one in runs if name in one.nearest]
        others = [one for one in lacking if not one.nearest[name]]
        known = _by_runs(one.nearest[name] for one in lacking)
        judging = _by_runs(judge for one in others if (judge := judge_of(name, one.objective)) not in taken)
        doubtful = _by_runs(_only_evaluation(one) for one in others if one.objective is None and is_held_out(name))
        if known or judging or doubtful:
            found.append(LackedMetric(name, len(lacking), len(runs), known, judging, doubtful))
    return tuple(found)


def _only_evaluation(run: MissingNames) -> str:
    """Return the only metric of a run's evaluations beside the epoch; empty if there are others, or none."""
    (first, *others) = [*(run.evaluated - {"epoch"}), ""]
    return first if len(others) == 1 else ""


def _by_runs(names: Iterable[str]) -> dict[str, int]:
    """Return the number of runs by name, the commonest name first."""
    return dict(Counter(sorted(filter(None, names))).most_common())


def judge_of(name: str, objective: Objective | None) -> str:
    """Return the metric that judges a run, if it may be another name of an evaluation; empty if not."""
    is_alike = objective is not None and is_held_out(name) and mode_of(name) == objective.mode
    return objective.metric if objective is not None and is_alike else ""


def rename_hints(lacking: Iterable[LackedMetric]) -> Iterator[str]:
    """Yield a sentence for each metric that runs recorded under other names than the rules read."""
    for one in lacking:
        lack = "lacks" if one.runs == 1 else "lack"
        parts = [
            f"{what} {_listed(names)}"
            for what, names in (
                ("nearest:", one.nearest),
                ("no name is near; judged by:" if not one.nearest else "others are judged by:", one.judging),
                ("the only evaluation, though nobody says which way is better:", one.doubtful),
            )
            if names
        ]
        check = f" ({', '.join([*one.doubtful][:_LISTED])}: only if lower is better)" if one.doubtful else ""
        yield (
            f"{one.runs:,} of {counted(one.of, 'run', ',')} {lack} {one.name}, which the rules read; "
            f"{'; '.join(parts)}. To replay over these: {rename_flags(one)}{check}"
        )


def _listed(names: Mapping[str, int]) -> str:
    counts = [f"{name} ({runs:,})" for name, runs in names.items()]
    more = f" and {counted(len(counts) - _LISTED, 'other')}" if len(counts) > _LISTED else ""
    return f"{', '.join(counts[:_LISTED])}{more}"


def missing_sentences(lacking: Iterable[LackedMetric], mute: Iterable[MuteRule]) -> list[str]:
    """Return what runs lack: the metrics that a rename may give them, then the rules that could fire in none."""
    return [*rename_hints(lacking), *mute_sentences(mute)]


def rename_flags(lacked: LackedMetric) -> str:
    """Return the options that let rules read the metrics which a run has in place of one that it lacks."""
    olds = [*lacked.nearest, *lacked.judging, *lacked.doubtful]
    return " ".join(f"--rename {shlex.quote(f'{old}={lacked.name}')}" for old in olds)
