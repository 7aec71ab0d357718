"""Defines a comparison of two groups of runs, and says what it found: as sentences, as a table and as JSON.

The verdict comes first, then each number with the meaning of its word.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ...store.errors import TelemetryError, counted, plain
from ...store.events import JsonObject
from ...store.metric_words import Mode
from ..documents import document
from ..runs.metric_names import Renames
from ..runs.objective import Objective
from ..runs.risk import plain_probability

ALPHA: Final = 0.05

#: Fewest runs of a baseline whose spread is known.
FEWEST_BASELINE: Final = 5

#: Most runs that a sentence names.
_NAMED: Final = 3

#: Beyond these an e-value has a bound in place of its digits.
_LEAST_E: Final = 1e-4
_GREATEST_E: Final = 10**12


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
        NO_VALUE: No finite value: the run ended before the point, or diverged.
        WAITING: Nothing yet: the run has not passed the point.
    """

    COUNTED = "counted"
    NO_VALUE = "no_value"
    WAITING = "waiting"


class KeepVerdict(StrEnum):
    """The decision about the candidate.

    Attributes:
        KEEP: It is proven better than the baseline.
        DISCARD: Ranks or pairs prove it worse, or it has had all the runs that it may have.
        NOT_YET: Neither is proven; more runs may tell.
    """

    KEEP = "keep"
    DISCARD = "discard"
    NOT_YET = "not yet"


class Spreads(StrEnum):
    """Whether the values of two groups spread alike, so that their ranks alone may prove that one is better.

    Attributes:
        ALIKE: Nearly as wide.
        UNLIKE: One is clearly wider.
        UNKNOWN: A group has too few runs to say.
    """

    ALIKE = "alike"
    UNLIKE = "unlike"
    UNKNOWN = "unknown"


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
        return f"{plain(100 * self.relative, 6)}%" if self.relative else plain(self.absolute, 6)

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
        alpha: Largest probability of keeping a candidate whose runs are drawn like the baseline's, over all tries and
            looks.
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

    @property
    def spread(self) -> float | None:
        """The spread of the values; None for fewer than two."""
        return spread(self.values())

    def count(self, state: Standing) -> int:
        """Return the number of runs in a state."""
        return sum(member.state is state for member in self.members)


def spread(values: Sequence[float] | npt.NDArray[np.float64]) -> float | None:
    """Return the median difference between two runs of a group; None for fewer than two.

    Robust: less than 29 % of the values can move it without bound (Shamos, 1976).

    >>> spread([1.0, 2.0, 4.0])
    2.0
    """
    if len(values) < 2:
        return None
    one, other = np.triu_indices(len(values), 1)
    numbers = np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        return float(np.median(np.abs(numbers[one] - numbers[other])))


def spread_ratio(baseline: float | None, candidate: float | None) -> float | None:
    """Return how many times as wide the candidate's values spread; infinity where only the baseline's are all equal."""
    if baseline is None or candidate is None:
        return None
    if baseline == 0:
        return 1.0 if candidate == 0 else math.inf
    return candidate / baseline


@dataclass(frozen=True, slots=True)
class UnpairedEvidence:
    """What speaks for a candidate whose runs are not paired by seed.

    Attributes:
        e_ranks: E-value of the ranks of all runs against "both groups are drawn alike".
        e_one_to_one: E-value of the runs of both groups one to one, in the order of their start, against "a run of the
            candidate is better than one of the baseline with a probability of at most one half", whatever the spreads.
        spreads: Whether the ranks suffice.
        fewest_runs: Fewest runs of the candidate whose spread is known.
    """

    e_ranks: float
    e_one_to_one: float
    spreads: Spreads
    fewest_runs: int

    @property
    def e_value(self) -> float:
        """The e-value that counts: that of the ranks where the groups spread alike, else the smaller of both."""
        return self.e_ranks if self.spreads is Spreads.ALIKE else min(self.e_ranks, self.e_one_to_one)


@dataclass(frozen=True, slots=True)
class EffectSize:
    """How much better the candidate is, in units of the metric; positive is better whatever the metric's direction.

    Attributes:
        estimate: Median of the differences between paired runs, or between all runs of both groups.
        low, high: Interval that holds the true shift at all looks with a probability of at least 1 - alpha. For pairs,
            and for groups that do not spread alike, the shift is the median of the differences.
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
        unpaired: What speaks for the candidate; None if paired.
        effect: How much better the candidate is; None without a value on both sides.
        e_better: E-value against "the candidate is drawn like the baseline, improved by the least effect". For pairs
            against "it wins a pair with a probability of at most one half".
        e_worse: The same against "or better"; of unpaired runs by their ranks alone.
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
    unpaired: UnpairedEvidence | None
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
    def spread_ratio(self) -> float | None:
        """How many times as wide as the baseline's the candidate's values spread."""
        return spread_ratio(self.baseline.spread, self.candidate.spread)

    @property
    def candidate_runs(self) -> int:
        """Runs of the candidate that count, with those without a value."""
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
    if found.verdict is KeepVerdict.DISCARD and found.e_worse >= 1 / found.settings.alpha:
        enough = _e(1 / found.settings.alpha)
        against = f"The e-value for that is {_e(found.e_worse)}, and {enough} is enough"
        return f"discard: B is not better than A{beyond}. {against}."
    reached = f"Its e-value is {_e(found.e_better)} of the {_e(found.needed)} that are needed"
    unpaired = found.unpaired
    reason = ""
    if unpaired is not None and unpaired.e_ranks >= found.needed:
        reason = f" {_not_by_ranks(found, unpaired)}."
    if found.verdict is KeepVerdict.DISCARD:
        runs = counted(found.candidate_runs, "run")
        return f"discard: {runs} of B have not proven it better than A{beyond}. {reached}.{reason}"
    return f"not yet: B is not proven better than A{beyond}. {reached}; {_more(found)}.{reason}"


def in_words(found: GroupComparison) -> str:
    """Return the verdict with the names of both groups, the effect, its interval and the numbers of runs."""
    ours, theirs = found.baseline, found.candidate
    runs = [counted(found.candidate_runs, "run"), counted(ours.count(Standing.COUNTED), "run")]
    is_worse = found.e_worse >= 1 / found.settings.alpha
    pair = f"{theirs.selector} is {{}} than {ours.selector} in {found.objective.metric}"
    if found.verdict is KeepVerdict.KEEP:
        said = pair.format("better")
    elif is_worse:
        said = pair.format("not better")
    else:
        said = f"{runs[0]} and {runs[1]} cannot tell whether {pair.format('better')}"
    effect = found.effect
    if effect is None:
        return f"{said}: a group has no value yet."
    level = f"{_level(found)} interval"
    interval = f"{level} of the gain: {_end(effect.low)} to {_end(effect.high)}"
    if math.isinf(effect.low) and math.isinf(effect.high):
        interval = f"too few runs for a {level}"
    unit = "run" if found.pairs is None else "pair"
    more = "" if found.more_runs is None else f" At best {counted(found.more_runs, f'more {unit}')} could tell."
    is_known = found.verdict is KeepVerdict.KEEP or is_worse
    counts = f", of {runs[0]} against {runs[1]}" if is_known else ""
    median = f"Median difference{counts}: {_difference(effect)}"
    return f"{said}. {median}; {interval}.{'' if is_known else more}"


def _difference(effect: EffectSize) -> str:
    if not math.isfinite(effect.estimate):
        return "unknown, as runs without a value are half of the candidate or more"
    share = effect.relative(effect.estimate)
    of_ours = "" if share is None or not math.isfinite(share) else f" ({plain(100 * abs(share), 3)}%)"
    better = "" if effect.estimate == 0 else " better" if effect.estimate > 0 else " worse"
    return f"{plain(abs(effect.estimate))}{of_ours}{better}"


def _level(found: GroupComparison) -> str:
    return f"{plain(100 * (1 - found.settings.alpha), 6)}%"


def _more(found: GroupComparison) -> str:
    if found.more_runs is None:
        return "A needs more runs for that"
    unit = "run" if found.pairs is None else "pair"
    return f"at best {counted(found.more_runs, f'more {unit}')} could reach it"


def _not_by_ranks(found: GroupComparison, unpaired: UnpairedEvidence) -> str:
    """Say why ranks alone prove nothing: the groups do not spread alike, or one is too small to say."""
    so = "ranks alone would not prove that B is better"
    counts = found.candidate_runs, found.baseline.count(Standing.COUNTED)
    for side, count, least in zip("BA", counts, (unpaired.fewest_runs, FEWEST_BASELINE), strict=True):
        if count < least:
            return f"{side} has {counted(count, 'run')}, and below {least} its spread is too uncertain: {so}"
    ratio = found.spread_ratio
    if ratio is None:
        return f"The spread of B is unknown: {so}"
    if ratio == 0 or math.isinf(ratio):
        one, other = ("A", "B") if ratio == 0 else ("B", "A")
        return f"{one}'s values spread, and {other}'s are nearly all equal: {so}"
    one, other, times = _wider(ratio)
    return f"{one}'s values spread {times} times as wide as {other}'s: {so}"


def _wider(ratio: float) -> tuple[str, str, str]:
    """Return the group that spreads wider, the other, and how many times as wide."""
    one, other, times = ("B", "A", ratio) if ratio > 1 else ("A", "B", 1 / ratio)
    return one, other, plain(times, 2)


def headings(found: GroupComparison) -> tuple[str, ...]:
    """Return the headings of the table of groups."""
    return "", "group", "runs", "counted", "no value", "waiting", f"median {found.objective.metric}", "spread"


def group_rows(found: GroupComparison) -> list[tuple[object, ...]]:
    """Return the rows of the table of groups."""
    return [_row("A", found.baseline), _row("B", found.candidate)]


def _row(letter: str, group: Group) -> tuple[object, ...]:
    counts = [group.count(state) for state in (Standing.COUNTED, Standing.NO_VALUE, Standing.WAITING)]
    return letter, group.selector, len(group.members), *counts, _number(group.median), _number(group.spread)


def _number(value: float | None) -> str | None:
    return None if value is None else plain(value, 6)


def explanations(found: GroupComparison) -> Iterator[str]:
    """Yield what was compared, the effect, the evidence and the tries, a line each."""
    objective = found.objective
    better = "lower" if objective.mode is Mode.MIN else "higher"
    guessed = ", guessed; change with --objective" if objective.guessed else ""
    yield f"Judged by {objective.metric} ({better} is better{guessed}), {_point(found)}."
    yield from _without_value(found)
    yield _spread(found)
    yield _effect(found)
    yield _evidence(found)
    error = plain_probability(1 / found.needed)
    yield (
        f"The e-value is how many times a fair bet on B has multiplied its stake. {_if_equal(found)}, it would ever "
        f"reach {_e(found.needed)} with a probability of at most {error}: look as often as you like."
    )
    yield _tries(found)


def _if_equal(found: GroupComparison) -> str:
    """Return the case against which the e-value is evidence."""
    by = f" improved by {found.settings.min_effect}" if found.settings.min_effect else ""
    if found.pairs is None:
        return f"If B's runs were drawn like A's{by} (equal distributions)"
    return f"If B won a pair against A{by} no more often than it lost one"


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
    return f"{point:,.0f} tokens" if axis is Axis.TOKENS else f"{plain(point, 6)} s of training"


def _without_value(found: GroupComparison) -> Iterator[str]:
    for group, what in (
        (found.candidate, "counts as worse than all others"),
        (found.baseline, "is left out, which favours A"),
    ):
        without = [member.name for member in group.members if member.state is Standing.NO_VALUE]
        if without:
            named = ", ".join(without[:_NAMED]) + (
                f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
            )
            side = "B" if group is found.candidate else "A"
            yield f"No value in {side}: {named}. A run that ended before the point or has no finite value there {what}."


def _spread(found: GroupComparison) -> str:
    meaning = "Spread: the median difference between two runs of one group"
    ratio = found.spread_ratio
    if ratio is None or ratio == 0 or math.isinf(ratio):
        return f"{meaning}."
    one, other, times = _wider(ratio)
    if times == "1":
        return f"{meaning}, about the same in A and B."
    return f"{meaning}. {one}'s is {times} times {other}'s."


def _effect(found: GroupComparison) -> str:
    effect = found.effect
    if effect is None:
        return "Effect: unknown; a group has no value yet."
    share = effect.relative(effect.estimate)
    of_a = "" if share is None or not math.isfinite(share) else f" ({_signed(100 * share)}% of A's median)"
    of_what = "pairs" if found.pairs is not None else "all runs of B and all of A"
    ends = f"{_end(effect.low)} to {_end(effect.high)}"
    few = "; more runs are needed for an end" if not (math.isfinite(effect.low) and math.isfinite(effect.high)) else ""
    level = _level(found)
    return (
        f"Effect: {_end(effect.estimate)}{of_a}, the median difference between {of_what}; above 0, B is better. "
        f"Its {level} interval, which holds at every look: {ends}{few}."
    )


def _end(value: float) -> str:
    return _signed(value) if math.isfinite(value) else "unknown"


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{plain(abs(value))}"


def _evidence(found: GroupComparison) -> str:
    unpaired = found.unpaired
    if unpaired is not None:
        ranks = "Evidence: the ranks of all runs, which are not paired by seed"
        if unpaired.spreads is Spreads.ALIKE:
            return f"{ranks}."
        return (
            f"{ranks} (e-value {_e(unpaired.e_ranks)}). {_not_by_ranks(found, unpaired)}. So the runs of A and B one "
            f"to one, in the order of their start, must prove it too (e-value {_e(unpaired.e_one_to_one)})."
        )
    pairs = found.pairs or ()
    wins = sum(new > old for old, new in pairs)
    losses = sum(new < old for old, new in pairs)
    equal = len(pairs) - wins - losses
    alone = (
        f" {counted(found.without_partner, 'run')} of B: no run of A has that seed." if found.without_partner else ""
    )
    return (
        f"Evidence: {counted(len(pairs), 'pair')} of runs with one seed. B is better in {wins}, worse in "
        f"{losses}, equal in {equal}.{alone}"
    )


def _tries(found: GroupComparison) -> str:
    alpha, declared = found.settings.alpha, found.settings.at_most_tries
    this = f"Tries: this is number {found.number} against A in the store"
    kept = "keeps a candidate that is drawn like A"
    level = plain_probability(alpha)
    if declared is not None:
        return f"{this}, of at most {declared}. The probability that any of them {kept} is at most {level}."
    return (
        f"{this}, so it needs {found.number} x {found.number + 1} / {level}. The probability that any try {kept} "
        f"is then at most {level}. With --at-most-tries N, each needs N / {level}."
    )


def _e(value: float) -> str:
    """Format an e-value; the greatest have a bound in place of many digits."""
    if value >= _GREATEST_E:
        return f"more than {_GREATEST_E:,}"
    if value < _LEAST_E:
        return f"less than {plain(_LEAST_E)}"
    return f"{value:,.0f}" if value >= 1000 else plain(value, 3)


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
        "unpaired": None if found.unpaired is None else document(found.unpaired),
        "spread_ratio": _known(found.spread_ratio),
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
    return {
        "group": group.selector,
        "median": group.median,
        "spread": group.spread,
        "runs": document(group.members),
    }


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _effect_json(effect: EffectSize) -> JsonObject:
    """Return an effect: ends without a bound are null."""
    ends = {"estimate": effect.estimate, "low": effect.low, "high": effect.high}
    known = {name: _known(value) for name, value in ends.items()}
    shares = {f"{name}_relative": None if value is None else effect.relative(value) for name, value in known.items()}
    return {**known, **shares}
