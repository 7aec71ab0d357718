"""Compares a candidate group of runs with a baseline group, and says whether to keep or discard the candidate.

Takes a store and two texts that name groups, returns a ``GroupComparison``: values, effect, e-values and a verdict.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np

from ...rules.errors import suggestion
from ...store.errors import TelemetryError
from ...store.run import Run
from ...store.run_info import RunInfo
from ...store.store import Store
from ..runs.event_stream import Renames, renamed_columns
from ..runs.metric_names import Mode
from ..runs.objective import NEAR_ZERO, Objective, objective_among, objective_of_study, shared_objective
from .evidence import Floats, lower_end, more_runs_needed, paired_e_value, rank_e_value
from .groups import Selector, members, seed_of, selector_of, tries_before
from .readings import FINISHED, Axis, MetricCourse, Standing, evaluated_metrics, read_course

ALPHA: Final = 0.05


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

    def raised(self, baseline: Floats) -> Floats:
        """Return baseline values, higher ones better, improved by this effect."""
        raised: Floats = baseline + self.absolute + self.relative * np.abs(baseline)
        return raised


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """ComparisonSettings of a comparison. Change none of them after a look at the values.

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
        selector: What its runs have in common.
        members: The runs, the oldest first.
    """

    selector: Selector
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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        runs = [{**dataclasses.asdict(member), "state": str(member.state)} for member in self.members]
        return {"group": str(self.selector), "median": self.median, "runs": runs}


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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it: ends without a bound are null."""
        ends = {"estimate": self.estimate, "low": self.low, "high": self.high}
        known = {name: value if math.isfinite(value) else None for name, value in ends.items()}
        shares = {f"{name}_relative": None if v is None else self.relative(v) for name, v in known.items()}
        return {**known, **shares}


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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        settings = self.settings
        return {
            "verdict": str(self.verdict),
            "baseline": self.baseline.to_json(),
            "candidate": self.candidate.to_json(),
            "objective": self.objective.to_json(),
            "at": {"axis": str(settings.axis), "value": self.point, "set_by": self.point_set_by},
            "paired": self.pairs is not None,
            "pairs": None if self.pairs is None else len(self.pairs),
            "effect": None if self.effect is None else self.effect.to_json(),
            "min_effect": dataclasses.asdict(settings.min_effect),
            "alpha": settings.alpha,
            "e_better": self.e_better,
            "e_worse": self.e_worse,
            "e_needed": self.needed,
            "e_needed_to_discard": 1 / settings.alpha,
            "try": self.number,
            "at_most_tries": settings.at_most_tries,
            "at_most_runs": settings.at_most_runs,
            "more_runs_needed": self.more_runs,
        }


def compare(store: Store, baseline: str, candidate: str, settings: ComparisonSettings | None = None) -> GroupComparison:
    """Compare two groups of runs.

    Args:
        store: The store that holds both.
        baseline: What names the group to beat: a name, a pattern of names, a group, or ``KEY=VALUE``.
        candidate: What names the other group.
        settings: The settings; the default ones if None.

    Raises:
        TelemetryError: A group has no run, or none with the metric; the groups share a run; there is no position that
            both reached with a value; or there are more tries than declared.
    """
    settings = settings or ComparisonSettings()
    entries = {entry.summary.run_id: entry for entry in store.entries()[0]}
    infos = {run_id: entry.snapshot.info for run_id, entry in entries.items()}
    selectors = [selector_of(text, [*infos.values()]) for text in (baseline, candidate)]
    ids = [members(selector, infos.values()) for selector in selectors]
    if shared := sorted(ids[0] & ids[1]):
        raise TelemetryError(
            f"{len(shared)} runs are in both groups" if len(shared) > 1 else "a run is in both groups",
            got=shared[0],
            fix="Name groups without a run in common",
        )
    ordered = [[Run.of_entry(entry) for run_id, entry in entries.items() if run_id in group] for group in ids]
    objective = _objective(ordered, settings)
    number = 1 + sum(
        any(_has_metric(Run.of_entry(entries[run_id]), objective.metric, settings.renames) for run_id in group)
        for group in tries_before(selectors[1], ids[0], [*infos.values()])
    )
    courses = [[(infos[run.run_id], _course(run, objective.metric, settings)) for run in group] for group in ordered]
    point, set_by = (settings.point, None) if settings.point is not None else _common_point(courses)
    groups = [
        Group(selector, tuple(_member(info, course, point, settings.seed_key) for info, course in group))
        for selector, group in zip(selectors, courses, strict=True)
    ]
    if point is not None:
        _check_common(courses, point, settings.axis)
    return _judged(groups[0], groups[1], objective, settings, point, set_by, number)


def _judged(
    baseline: Group,
    candidate: Group,
    objective: Objective,
    settings: ComparisonSettings,
    point: float | None,
    set_by: str | None,
    number: int,
) -> GroupComparison:
    sign = 1.0 if objective.mode is Mode.MAX else -1.0
    pairs = _pairs(baseline, candidate, sign) if _is_paired(baseline, candidate, settings) else None
    if pairs is None:
        ours = np.array([sign * value for value in baseline.values()])
        theirs = np.array([_gain(one, sign) for one in candidate.members if one.state is not Standing.WAITING])
    else:
        ours, theirs = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    e_value = rank_e_value if pairs is None else lambda old, new: paired_e_value(new - old)
    bar = settings.min_effect.raised(ours)
    needed = _needed(number, settings)

    def with_wins(count: int) -> float:
        old = bar if pairs is None else np.concatenate([bar, np.zeros(count)])
        return e_value(old, np.concatenate([theirs, np.full(count, np.inf)]))

    found = GroupComparison(
        baseline=baseline,
        candidate=candidate,
        objective=objective,
        settings=settings,
        point=point,
        point_set_by=set_by,
        pairs=pairs,
        effect=_effect(ours, theirs, settings.alpha, is_paired=pairs is not None),
        e_better=e_value(bar, theirs),
        e_worse=e_value(-bar, -theirs),
        number=number,
        needed=needed,
        more_runs=more_runs_needed(with_wins, needed),
        verdict=KeepVerdict.NOT_YET,
    )
    return dataclasses.replace(found, verdict=_verdict(found))


def _verdict(found: GroupComparison) -> KeepVerdict:
    if found.e_better >= found.needed:
        return KeepVerdict.KEEP
    is_worse = found.e_worse >= 1 / found.settings.alpha
    return KeepVerdict.DISCARD if is_worse or found.is_used_up else KeepVerdict.NOT_YET


def _needed(number: int, settings: ComparisonSettings) -> float:
    """Return the e-value that keeps a try, so that all tries together keep a false one with at most alpha.

    With a declared number of tries each gets an equal share of alpha; otherwise try j gets alpha / (j * (j + 1)), whose
    sum over all j is alpha.

    Raises:
        TelemetryError: More tries were made than declared.
    """
    declared = settings.at_most_tries
    if declared is None:
        return number * (number + 1) / settings.alpha
    if number > declared:
        fix = "Begin a new baseline, or leave the limit out: later tries then need more evidence"
        raise TelemetryError(f"this is try {number} against the baseline, more than declared", got=declared, fix=fix)
    return declared / settings.alpha


def _effect(ours: Floats, theirs: Floats, alpha: float, *, is_paired: bool) -> EffectSize | None:
    """Return the effect between values where higher is better; None without a value on either side."""
    if not len(ours) or not len(theirs):
        return None
    differences = theirs - ours if is_paired else (theirs[:, None] - ours[None, :]).ravel()

    def low(old: Floats, new: Floats, jumps: Floats) -> float:
        def e_value(shift: float) -> float:
            return paired_e_value(new - old - shift) if is_paired else rank_e_value(old + shift, new)

        return lower_end(e_value, jumps, 2 / alpha)

    scale = float(abs(np.median(ours)))
    return EffectSize(
        estimate=float(np.median(differences)),
        low=low(ours, theirs, differences),
        high=-low(-ours, -theirs, -differences),
        scale=scale if scale >= NEAR_ZERO else None,
    )


def _is_paired(baseline: Group, candidate: Group, settings: ComparisonSettings) -> bool:
    """Whether runs of one seed are paired.

    Raises:
        TelemetryError: They should be, and no seed is in both groups.
    """
    if settings.paired is False:
        return False
    seeds = [[member.seed for member in group.members] for group in (baseline, candidate)]
    known = [{seed for seed in group if seed is not None} for group in seeds]
    if settings.paired:
        if not known[0] & known[1]:
            raise TelemetryError("the groups have no seed in common", fix="Name the key of the seed with --pairs KEY")
        return True
    all_known = all(seed is not None for group in seeds for seed in group)
    return all_known and (known[0] <= known[1] or known[1] <= known[0])


def _pairs(baseline: Group, candidate: Group, sign: float) -> tuple[tuple[float, float], ...]:
    """Return the values of runs of one seed, in the order of runs where a seed repeats.

    A candidate's run that was lost is the worse one; a pair whose baseline was lost does not count.
    """
    rest: dict[str | None, list[GroupMember]] = {}
    for member in baseline.members:
        rest.setdefault(member.seed, []).append(member)
    found = []
    for member in candidate.members:
        if member.seed is None or not rest.get(member.seed):
            continue
        other = rest[member.seed].pop(0)
        if other.state is Standing.COUNTED and member.state is not Standing.WAITING:
            found.append((sign * other.value, _gain(member, sign)))
    return tuple(found)


def _gain(member: GroupMember, sign: float) -> float:
    """Return a candidate's value with higher ones better; minus infinity for a run that was lost."""
    return sign * member.value if member.state is Standing.COUNTED else -math.inf


def _objective(groups: Sequence[Sequence[Run]], settings: ComparisonSettings) -> Objective:
    """Return the metric that judges both groups. A candidate may lack it while none of its runs has finished.

    Raises:
        TelemetryError: There is none.
    """
    may_lack = not any(run.status in FINISHED for run in groups[1])
    if settings.objectives:
        recorded = [_recorded(group, settings.renames) for group in groups]
        for objective in settings.objectives:
            if objective.metric in recorded[0] and (may_lack or objective.metric in recorded[1]):
                return objective
        wanted = settings.objectives[0].metric
        lacking = "no run of the baseline" if wanted not in recorded[0] else "no run of the candidate"
        known = recorded[0] & recorded[1]
        fix = suggestion(wanted, known).replace("Known here:", "Both recorded:")
        raise TelemetryError(f"{lacking} recorded this metric", got=wanted, fix=fix)
    names = [
        set().union(*(run.read(lambda found: evaluated_metrics(found, settings.renames)) for run in group))
        for group in groups
    ]
    common = names[0] if may_lack and not names[1] else names[0] & names[1]
    study = shared_objective(objective_of_study(run.info.source) for group in groups for run in group)
    chosen = objective_among(common, (), study)
    if chosen is None:
        both = ", ".join(sorted(common)) or "no metric whose name says what is better"
        fix = f"Name one with --objective METRIC:min. Both evaluated: {both}"
        raise TelemetryError("no metric clearly judges both groups", fix=fix)
    return chosen


def _recorded(runs: Sequence[Run], renames: Renames) -> set[str]:
    return {name for run in runs for name in run.read(lambda found: renamed_columns(found, renames))}


def _has_metric(run: Run, metric: str, renames: Renames) -> bool:
    return metric in _recorded([run], renames)


def _course(run: Run, metric: str, settings: ComparisonSettings) -> MetricCourse:
    return run.read(lambda found: read_course(found, metric, settings.axis, settings.renames))


def _common_point(courses: Sequence[Sequence[tuple[RunInfo, MetricCourse]]]) -> tuple[float | None, str | None]:
    """Return the last position that every finished run evaluated, and the run that ends there.

    A run that failed or crashed sets the point only where no run finished. None while all runs are live.
    """
    ended = [(info.run_id, course) for group in courses for info, course in group if not course.is_live]
    with_values = [(run_id, course) for run_id, course in ended if len(course.positions)]
    finished = [(run_id, course) for run_id, course in with_values if course.is_finished] or with_values
    ends = [(float(course.positions[-1]), run_id) for run_id, course in finished]
    return min(ends, key=lambda end: end[0]) if ends else (None, None)


def _check_common(courses: Sequence[Sequence[tuple[RunInfo, MetricCourse]]], point: float, axis: Axis) -> None:
    """Check that the baseline has or may yet have a value at the point, and that the candidate does not begin later.

    Raises:
        TelemetryError: It has none, or begins later.
    """
    baseline, candidate = courses
    own = [course for _, course in baseline]
    is_late = all(len(course.positions) and course.positions[0] > point for _, course in candidate)
    if not is_late and any(course.is_live or course.at(point)[0] is Standing.COUNTED for course in own):
        return
    named, what = ("B", "first") if is_late else ("A", "last")
    values = [course.positions for _, course in (candidate if is_late else baseline) if len(course.positions)]
    ends = [float(positions[0 if is_late else -1]) for positions in values]
    known = f"The {what} value of {named} is at {axis} {(min if is_late else max)(ends):,.6g}" if ends else ""
    raise TelemetryError(f"no run of {named} has a value up to this {axis}", got=point, fix=known)


def _member(info: RunInfo, course: MetricCourse, point: float | None, seed_key: str | None) -> GroupMember:
    state, value = (Standing.WAITING, math.nan) if point is None else course.at(point)
    return GroupMember(info.run_id, info.name, course.status, seed_of(info, seed_key), state, value)
