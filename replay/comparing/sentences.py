"""Says what a comparison found, for a terminal: the verdict first, then each number with the meaning of its word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from ...store.errors import counted
from ..runs.metric_names import Mode
from .comparing import Group, GroupComparison, KeepVerdict
from .readings import Axis, Standing

#: Headings of the table of groups.
HEADINGS: Final = ("", "group", "runs", "counted", "lost", "waiting", "median")

#: Most runs that a sentence names.
_NAMED: Final = 3


def verdict_sentence(found: GroupComparison) -> str:
    """Return the verdict and its reason in one line."""
    beyond = f" by more than {found.settings.min_effect}" if found.settings.min_effect else ""
    if found.verdict is KeepVerdict.KEEP:
        return (
            f"keep: B is better than A{beyond}. Its e-value is {_e(found.e_better)}, and {_e(found.needed)} is enough."
        )
    unit = "run" if found.pairs is None else "pair"
    if found.verdict is KeepVerdict.DISCARD and found.e_worse >= 1 / found.settings.alpha:
        enough = _e(1 / found.settings.alpha)
        against = f"The e-value for that is {_e(found.e_worse)}, and {enough} is enough"
        return f"discard: B is not better than A{beyond}. {against}."
    reached = f"Its e-value is {_e(found.e_better)} of the {_e(found.needed)} that are needed"
    if found.verdict is KeepVerdict.DISCARD:
        return (
            f"discard: {counted(found.candidate_runs, 'run')} of B have not proven it better than A{beyond}. {reached}."
        )
    more = "" if found.more_runs is None else f"; at best {counted(found.more_runs, f'more {unit}')} could reach it"
    return f"not yet: B is not proven better than A{beyond}. {reached}{more}."


def group_rows(found: GroupComparison) -> list[tuple[object, ...]]:
    """Return the rows of the table of groups."""
    return [_row("A", found.baseline), _row("B", found.candidate)]


def _row(letter: str, group: Group) -> tuple[object, ...]:
    counts = [group.count(state) for state in (Standing.COUNTED, Standing.LOST, Standing.WAITING)]
    return letter, str(group.selector), len(group.members), *counts, group.median


def explanations(found: GroupComparison) -> Iterator[str]:
    """Yield what was compared, the effect, the evidence and the tries, a line each."""
    objective = found.objective
    better = "lower" if objective.mode is Mode.MIN else "higher"
    guessed = ", guessed; change with --objective" if objective.guessed else ""
    yield f"Judged by {objective.metric} ({better} is better{guessed}), {_point(found)}."
    yield from _lost(found)
    yield _effect(found)
    yield _evidence(found)
    yield (
        f"The e-value is how many times a fair bet on B has multiplied its stake. If B is no better, it ever reaches "
        f"{_e(found.needed)} with a probability of at most {1 / found.needed:.2g}: look as often as you like."
    )
    yield _tries(found)


def _point(found: GroupComparison) -> str:
    if found.point is None:
        return "once a run has ended"
    place = position(found.point, found.settings.axis)
    if found.point_set_by is None:
        return f"newest value up to {place}"
    return f"newest value up to {place}, the last that every finished run has ({found.point_set_by} ends there)"


def position(point: float, axis: Axis) -> str:
    """Format a position on an axis.

    >>> position(1000, Axis.STEP), position(90.5, Axis.TIME)
    ('step 1,000', '90.5 s of training')
    """
    if axis is Axis.STEP:
        return f"step {point:,.0f}"
    return f"{point:,.0f} tokens" if axis is Axis.TOKENS else f"{point:,.6g} s of training"


def _lost(found: GroupComparison) -> Iterator[str]:
    for group, what in (
        (found.candidate, "counts as worse than all others"),
        (found.baseline, "is left out, which favours A"),
    ):
        lost = [member.name for member in group.members if member.state is Standing.LOST]
        if lost:
            named = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
            side = "B" if group is found.candidate else "A"
            yield f"Lost in {side}: {named}. A run that ended before the point or has no finite value there {what}."


def _effect(found: GroupComparison) -> str:
    effect = found.effect
    if effect is None:
        return "Effect: unknown; a group has no value yet."
    share = effect.relative(effect.estimate)
    of_a = "" if share is None or not math.isfinite(share) else f" ({share:+.2%} of A's median)"
    of_what = "pairs" if found.pairs is not None else "all runs of B and all of A"
    ends = f"{_end(effect.low)} to {_end(effect.high)}"
    few = "; more runs are needed for an end" if not (math.isfinite(effect.low) and math.isfinite(effect.high)) else ""
    level = f"{1 - found.settings.alpha:.0%}"
    return (
        f"Effect: {effect.estimate:+.4g}{of_a}, the median difference between {of_what}; above 0, B is better. "
        f"Its {level} interval, which holds at every look: {ends}{few}."
    )


def _end(value: float) -> str:
    return f"{value:+.4g}" if math.isfinite(value) else "unknown"


def _evidence(found: GroupComparison) -> str:
    if found.pairs is None:
        return "Evidence: the ranks of all runs, which are not paired by seed."
    wins = sum(new > old for old, new in found.pairs)
    losses = sum(new < old for old, new in found.pairs)
    equal = len(found.pairs) - wins - losses
    alone = (
        f" {counted(found.without_partner, 'run')} of B: no run of A has that seed." if found.without_partner else ""
    )
    return (
        f"Evidence: {counted(len(found.pairs), 'pair')} of runs with one seed. B is better in {wins}, worse in "
        f"{losses}, equal in {equal}.{alone}"
    )


def _tries(found: GroupComparison) -> str:
    alpha, declared = found.settings.alpha, found.settings.at_most_tries
    this = f"Tries: this is number {found.number} against A in the store"
    if declared is not None:
        return (
            f"{this}, of at most {declared}. The probability that any of them keeps a candidate that is no better is "
            f"at most {alpha:.2g}."
        )
    return (
        f"{this}, so it needs {found.number} x {found.number + 1} / {alpha:.2g}. The probability that any try keeps a "
        f"candidate that is no better is then at most {alpha:.2g}. With --at-most-tries N, each needs N / {alpha:.2g}."
    )


def _e(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
