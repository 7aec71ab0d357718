"""Defines a comparison of two groups of runs, and says what it found: as sentences, as a table and as JSON.

The verdict comes first, then each number with the meaning of its word.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ...store.errors import TelemetryError, counted
from ...store.events import JsonObject
from ..documents import document
from ..runs.metric_names import Mode, Renames
from ..runs.objective import Objective

ALPHA: Final = 0.05

#: Headings of the table of groups.
HEADINGS: Final = ("", "group", "runs", "counted", "lost", "waiting", "median")

#: Most runs that a sentence names.
_NAMED: Final = 3


class Axis(StrEnum):
    """What two runs have in common where they are compared.

    Attributes:
        STEP: Optimizer updates.
        TOKENS: Tokens of training data.
        TIME: Seconds of training.
    """

    STEP = "step"
    TOKENS = "tokens"
    TIME = "time"


class Standing(StrEnum):
    """What a run contributes to a comparison.

    Attributes:
        COUNTED: A value.
        LOST: No finite value: the run ended before the point, or diverged.
        WAITING: Nothing yet: the run has not passed the point.
    """

    COUNTED = "counted"
    LOST = "lost"
    WAITING = "waiting"


class KeepVerdict(StrEnum):
    """The decision about the candidate.

    Attributes:
        KEEP: It is proven better than the baseline.
        DISCARD: It is proven not to be, or has had all the runs that it may have.
        NOT_YET: Neither is proven; more runs may tell.
    """

    KEEP = "keep"
    DISCARD = "discard"
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class MinEffect:
    """By how much the candidate must be better to be worth keeping.

    Attributes:
        absolute: In units of the metric.
        relative: As a share of each baseline value's magnitude.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def __str__(self) -> str:
        return f"{100 * self.relative:.6g}%" if self.relative else f"{self.absolute:.6g}"

    def __bool__(self) -> bool:
        return bool(self.absolute or self.relative)


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The settings of a comparison. Change none of them after a look at the values.

    Attributes:
        objectives: The metrics that judge runs, in order of preference; guessed if empty.
        renames: The metrics to rename.
        axis: What runs have in common where they are compared.
        point: Where on the axis; None for the last position that every finished run evaluated.
        alpha: Largest probability of keeping a candidate that is no better, over all tries and looks.
        at_most_tries: Number of tries that will ever be made against the baseline; None if unknown.
        at_most_runs: Runs of the candidate after which it is discarded unless it is kept, those without a partner
            included; None for no limit.
        min_effect: By how much the candidate must be better.
        paired: Whether runs of one seed are paired; None to pair if one group has all seeds of the other.
        seed_key: The key of the configuration that holds the seed.
    """

    objectives: tuple[Objective, ...] = ()
    renames: Renames = ()
    axis: Axis = Axis.STEP
    point: float | None = None
    alpha: float = ALPHA
    at_most_tries: int | None = None
    at_most_runs: int | None = None
    min_effect: MinEffect = field(default_factory=MinEffect)
    paired: bool | None = None
    seed_key: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise TelemetryError("alpha is a probability between 0 and 1", got=self.alpha)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A run of a group.

    Attributes:
        run_id, name, status: The run.
        seed: Its seed; None if its configuration names none.
        state: What it contributes.
        value: Its value at the point; NaN unless it counts.
    """

    run_id: str
    name: str
    status: str
    seed: str | None
    state: Standing
    value: float


@dataclass(frozen=True, slots=True)
class Group:
    """One side of a comparison.

    Attributes:
        selector: What its runs have in common, as ``KEY=VALUE``.
        members: The runs, the oldest first.
    """

    selector: str
    members: tuple[GroupMember, ...]

    def values(self) -> list[float]:
        """Return the values that count."""
        return [member.value for member in self.members if member.state is Standing.COUNTED]

    @property
    def median(self) -> float | None:
        """The median of the values; None without any."""
        values = self.values()
        return statistics.median(values) if values else None

    def count(self, state: Standing) -> int:
        """Return the number of runs in a state."""
        return sum(member.state is state for member in self.members)


@dataclass(frozen=True, slots=True)
class EffectSize:
    """How much better the candidate is, in units of the metric; positive is better whatever the metric's direction.

    Attributes:
        estimate: Median of the differences between paired runs, or between all runs of both groups.
        low, high: Interval that holds the true shift at all looks with a probability of at least 1 - alpha.
        scale: Magnitude of the baseline's median, to divide by; None where that is too near zero.
    """

    estimate: float
    low: float
    high: float
    scale: float | None

    def relative(self, value: float) -> float | None:
        """Return one of these as a share of the baseline's median."""
        return None if self.scale is None else value / self.scale


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """A candidate beside a baseline.

    Attributes:
        baseline, candidate: The groups.
        objective: The metric that judges both.
        settings: The settings.
        point: Where on the axis the runs were compared; None if no run has ended yet.
        point_set_by: The run whose end sets the point; None if the settings do.
        pairs: Baseline and candidate of each pair, as values where higher is better; None if not paired.
        effect: How much better the candidate is; None without a value on both sides.
        e_better: E-value against "the candidate is not better by the least effect".
        e_worse: E-value against "the candidate is better by the least effect".
        number: Which try against the baseline this is, from 1.
        needed: What ``e_better`` must reach.
        more_runs: Fewest additional runs of the candidate that could reach it; None if too many.
        verdict: What to do.
    """

    baseline: Group
    candidate: Group
    objective: Objective
    settings: ComparisonSettings
    point: float | None
    point_set_by: str | None
    pairs: tuple[tuple[float, float], ...] | None
    effect: EffectSize | None
    e_better: float
    e_worse: float
    number: int
    needed: float
    more_runs: int | None
    verdict: KeepVerdict

    @property
    def without_partner(self) -> int:
        """Runs of the candidate that count and have no pair; 0 if runs are not paired."""
        return 0 if self.pairs is None else self.candidate_runs - len(self.pairs)

    @property
    def candidate_runs(self) -> int:
        """Runs of the candidate that count, with those that were lost."""
        return len(self.candidate.members) - self.candidate.count(Standing.WAITING)

    @property
    def is_used_up(self) -> bool:
        """Whether the candidate has had all the runs that it may have."""
        limit = self.settings.at_most_runs
        return limit is not None and self.candidate_runs >= limit


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
    return letter, group.selector, len(group.members), *counts, group.median


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


def comparison_json(found: GroupComparison) -> JsonObject:
    """Return a comparison as JSON has it."""
    settings = found.settings
    return {
        "verdict": str(found.verdict),
        "baseline": _group_json(found.baseline),
        "candidate": _group_json(found.candidate),
        "objective": found.objective.to_json(),
        "at": {"axis": str(settings.axis), "value": found.point, "set_by": found.point_set_by},
        "paired": found.pairs is not None,
        "pairs": None if found.pairs is None else len(found.pairs),
        "effect": None if found.effect is None else _effect_json(found.effect),
        "min_effect": document(settings.min_effect),
        "alpha": settings.alpha,
        "e_better": found.e_better,
        "e_worse": found.e_worse,
        "e_needed": found.needed,
        "e_needed_to_discard": 1 / settings.alpha,
        "try": found.number,
        "at_most_tries": settings.at_most_tries,
        "at_most_runs": settings.at_most_runs,
        "more_runs_needed": found.more_runs,
    }


def _group_json(group: Group) -> JsonObject:
    return {"group": group.selector, "median": group.median, "runs": document(group.members)}


def _effect_json(effect: EffectSize) -> JsonObject:
    """Return an effect: ends without a bound are null."""
    ends = {"estimate": effect.estimate, "low": effect.low, "high": effect.high}
    known = {name: value if math.isfinite(value) else None for name, value in ends.items()}
    shares = {f"{name}_relative": None if value is None else effect.relative(value) for name, value in known.items()}
    return {**known, **shares}
